//! Bundles: what travels, what does not, and that nothing but the tree decides the digest.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::Path;

use gpulayer::artifacts::bundle::{
    self, Bundle, BundleError, LeftOut, LeftOutReason, PlanOptions, digest, plan, write,
};

use super::trees;

fn bundled(root: &Path) -> Bundle {
    digest(&plan(root, &PlanOptions::default()).unwrap(), None).unwrap()
}

fn tar_of(root: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&plan(root, &PlanOptions::default()).unwrap(), &mut bytes).unwrap();
    bytes
}

fn left_out<'a>(bundle: &'a Bundle, path: &str) -> &'a LeftOut {
    bundle.left_out.iter().find(|left| left.path == path).unwrap_or_else(|| panic!("{path} was not left out"))
}

#[test]
fn two_trees_made_differently_have_one_digest() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trees::make(one.path(), 1);
    trees::make(&other.path().join("elsewhere"), 10);
    let (first, second) = (bundled(one.path()), bundled(&other.path().join("elsewhere")));
    assert_eq!(first, second);
    trees::add_hostile(one.path());
    assert_eq!(bundled(one.path()).digest, first.digest, "what cannot travel does not count");
    trees::write(one.path(), "train.py", b"print('ho')\n");
    assert_ne!(bundled(one.path()).digest, first.digest);
}

#[test]
fn the_digest_is_the_same_in_every_release() {
    let folder = tempfile::tempdir().unwrap();
    trees::make(folder.path(), 3);
    let bundle = bundled(folder.path());
    assert_eq!(
        bundle.digest.hex(),
        "77f8a70410c159c7b29208f9a24d7f51a40b0bc83915d62602c61dde583da7c0",
        "a different digest means that every user's sources are sent anew: was that meant?"
    );
}

#[test]
fn the_tar_holds_the_tree_and_nothing_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    trees::make(folder.path(), 2);
    let bytes = tar_of(folder.path());
    assert_eq!(bytes.len() as u64, bundled(folder.path()).size_bytes);
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let header = entry.header().clone();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        assert!([0o644, 0o755, 0o777].contains(&header.mode().unwrap()), "{name}");
        if header.entry_type().is_file() {
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let expected = trees::SENT.iter().find(|(path, _)| *path == name);
            assert_eq!(content, expected.map_or("deep", |(_, content)| content), "{name}");
            assert_eq!(header.mode().unwrap(), if name == "run.sh" { 0o755 } else { 0o644 }, "{name}");
        }
        names.push(name);
    }
    assert!(names.is_sorted(), "{names:?}");
    for (path, _) in trees::SENT {
        assert!(names.iter().any(|name| name == path), "{path} is missing");
    }
    assert!(names.contains(&trees::long_name()));
    for there in ["empty_folder", "link_in", "pkg/link_up", "link_to_folder", "dangling"] {
        assert!(names.iter().any(|name| name == there), "{there} is missing");
    }
    for path in trees::LEFT_BEHIND {
        assert!(!names.iter().any(|name| name == path), "{path} was sent");
    }
}

#[test]
fn what_cannot_travel_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    trees::make(folder.path(), 1);
    let hostile = trees::add_hostile(folder.path());
    let bundle = bundled(folder.path());
    let named: Vec<&str> = bundle
        .left_out
        .iter()
        .filter(|left| left.reason.cannot_travel())
        .map(|left| left.path.as_str())
        .collect();
    assert_eq!(named, hostile);
    let reason = |path| left_out(&bundle, path).reason;
    assert_eq!(reason("link_absolute"), LeftOutReason::LinkOutside);
    assert_eq!(reason("link_out"), LeftOutReason::LinkOutside);
    assert_eq!(reason("link_through"), LeftOutReason::LinkOutside);
    assert_eq!(reason("loop_a"), LeftOutReason::LinkLoop);
    assert_eq!(reason("fifo"), LeftOutReason::Fifo);
    assert_eq!(reason("socket"), LeftOutReason::Socket);
    assert_eq!(reason("unreadable"), LeftOutReason::Unreadable);
    assert_eq!(reason("bad-\u{fffd}-name"), LeftOutReason::NameNotUtf8);
}

#[test]
fn what_stays_by_rule_is_named_with_its_size() {
    let folder = tempfile::tempdir().unwrap();
    trees::make(folder.path(), 1);
    trees::write(folder.path(), "data/more/huge.csv", b"");
    File::options()
        .write(true)
        .open(folder.path().join("data/more/huge.csv"))
        .unwrap()
        .set_len(4 << 30)
        .unwrap();
    let bundle = bundled(folder.path());
    let data = left_out(&bundle, "data/");
    assert_eq!((data.reason, data.size_bytes, data.at_least), (LeftOutReason::Ignored, (4 << 30) + 2, false));
    assert_eq!(left_out(&bundle, ".git/").reason, LeftOutReason::VersionControl);
    assert_eq!(left_out(&bundle, "vendored/.git").reason, LeftOutReason::VersionControl);
    assert_eq!(left_out(&bundle, "conda/").reason, LeftOutReason::VirtualEnvironment);
    assert_eq!(left_out(&bundle, "env39/").reason, LeftOutReason::VirtualEnvironment);
    assert_eq!(left_out(&bundle, "__pycache__/").reason, LeftOutReason::Cache);
    assert_eq!(left_out(&bundle, "model.ckpt").size_bytes, 2);
}

#[test]
fn measuring_what_stays_behind_has_an_end() {
    let folder = tempfile::tempdir().unwrap();
    trees::write(folder.path(), ".gitignore", b"data/\n");
    for part in 0..6 {
        for number in 0..1000 {
            trees::write(folder.path(), &format!("data/{part}/{number}"), b"x");
        }
    }
    let bundle = bundled(folder.path());
    let data = left_out(&bundle, "data/");
    assert!(data.at_least);
    assert!((4000..6000).contains(&data.size_bytes), "{}", data.size_bytes);
}

#[test]
fn rules_of_the_machine_and_of_folders_above_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("project");
    trees::write(folder.path(), ".gitignore", b"*.txt\n");
    trees::write(&root, "a.txt", b"a");
    trees::write(&root, ".git/info/exclude", b"*.txt\n");
    let plan = plan(&root, &PlanOptions::default()).unwrap();
    assert_eq!(plan.paths().collect::<Vec<_>>(), ["a.txt"]);
}

#[test]
fn own_state_inside_the_tree_stays_behind() {
    let folder = tempfile::tempdir().unwrap();
    trees::write(folder.path(), "a.txt", b"a");
    trees::write(folder.path(), "box/gpulayer/state/gpulayer.db", b"db");
    // What a function that ran here left as its checkpoint.
    trees::write(folder.path(), "box/.gpulayer/checkpoint/model.pt", b"model");
    let options = PlanOptions { own_folders: vec![folder.path().join("box/gpulayer")], ..Default::default() };
    let plan = plan(folder.path(), &options).unwrap();
    assert_eq!(plan.paths().collect::<Vec<_>>(), ["a.txt", "box"]);
    let left: Vec<_> = plan.left_out().iter().map(|left| (&*left.path, left.reason)).collect();
    let own = LeftOutReason::OwnState;
    assert_eq!(left, [("box/.gpulayer/", own), ("box/gpulayer/", own)]);
}

#[test]
fn over_the_limit_the_largest_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (path, size) in [("small", 10), ("big", 900), ("sub/bigger", 1000)] {
        trees::write(folder.path(), path, &vec![0; size]);
    }
    let options = PlanOptions { max_bytes: 1900, ..Default::default() };
    match plan(folder.path(), &options) {
        Err(BundleError::TooLarge { size_bytes, largest, .. }) => {
            assert_eq!(size_bytes, 1910);
            assert_eq!(largest[0], ("sub/bigger".to_owned(), 1000));
            assert_eq!(largest[1], ("big".to_owned(), 900));
        }
        other => panic!("{other:?}"),
    }
    let options = PlanOptions { max_entries: 3, ..Default::default() };
    assert!(matches!(plan(folder.path(), &options), Err(BundleError::TooManyEntries { limit: 3, .. })));
}

#[test]
fn a_file_that_changes_under_us_is_named() {
    let folder = tempfile::tempdir().unwrap();
    trees::write(folder.path(), "a", b"aaaa");
    let planned = plan(folder.path(), &PlanOptions::default()).unwrap();
    for (content, what) in [(&b"bbbb"[..], "same size"), (b"longer than before", "larger"), (b"", "empty")] {
        trees::write(folder.path(), "a", content);
        match write(&planned, std::io::sink()) {
            Err(BundleError::Changed { path }) => assert!(path.ends_with("a"), "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    fs::remove_file(folder.path().join("a")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("a")).unwrap();
    assert!(matches!(bundle::write(&planned, std::io::sink()), Err(BundleError::Changed { .. })));
}

#[test]
fn a_snapshot_is_the_same_bundle_and_takes_files_as_they_are_by_now() {
    let folder = tempfile::tempdir().unwrap();
    trees::write(folder.path(), "log", b"one line\n");
    trees::write(folder.path(), "sub/code.py", b"pass\n");
    let planned = plan(folder.path(), &PlanOptions::default()).unwrap();
    assert!(planned.is_restless(), "it was written to a moment ago");
    let snapshot = |planned: &bundle::Plan| {
        let mut spool = tempfile::tempfile().unwrap();
        let made = bundle::snapshot(planned, &mut spool).unwrap();
        let mut bytes = Vec::new();
        spool.rewind().unwrap();
        spool.read_to_end(&mut bytes).unwrap();
        (made, bytes)
    };
    let mut written = Vec::new();
    let digest = write(&planned, &mut written).unwrap();
    let (made, bytes) = snapshot(&planned);
    assert_eq!((made.digest, made.file_count, made.size_bytes), (digest, 2, written.len() as u64));
    assert!(bytes == written);

    trees::write(folder.path(), "log", b"one line\nand another\n");
    fs::remove_file(folder.path().join("sub/code.py")).unwrap();
    let (made, bytes) = snapshot(&planned);
    let anew = plan(folder.path(), &PlanOptions::default()).unwrap();
    written.clear();
    assert_eq!(write(&anew, &mut written).unwrap(), made.digest);
    assert!(bytes == written);
    assert_eq!(made.file_count, 1);
}

#[test]
fn a_file_that_is_written_to_all_the_while_is_taken_as_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    trees::write(folder.path(), "log", &vec![b'x'; 1 << 20]);
    let planned = plan(folder.path(), &PlanOptions::default()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::OpenOptions::new().append(true).open(folder.path().join("log")).unwrap();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                log.write_all(b"more").unwrap();
            }
        });
        for _ in 0..20 {
            let mut spool = tempfile::tempfile().unwrap();
            let made = bundle::snapshot(&planned, &mut spool).unwrap();
            assert_eq!(made.size_bytes, spool.metadata().unwrap().len());
            assert_eq!(made.size_bytes % 512, 0);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
