//! Collecting what a task left behind, in all the shapes programs leave it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use gpulayer::artifacts::{
    ArtifactStore, CollectError, Collected, CollectedContent, Limits, RelativePath, Snapshot, collect,
    open_beneath, open_folder,
};
use gpulayer::contract::spec::Output;

use super::trees::write;

fn output(path: &str) -> Output {
    Output { path: path.to_owned(), name: None, optional: false }
}

fn folder_of(workspace: &Path) -> OwnedFd {
    open_folder(workspace).unwrap()
}

fn snapshot(workspace: &Path) -> Snapshot {
    Snapshot::take(folder_of(workspace).as_fd()).unwrap()
}

fn collected(workspace: &Path, outputs: &[Output], before: &Snapshot) -> Collected {
    collect(folder_of(workspace).as_fd(), outputs, before).unwrap()
}

fn paths(collected: &Collected) -> Vec<&str> {
    collected.files.iter().map(|file| file.path.as_str()).collect()
}

/// What an odd program writes below `out`.
fn write_odd_outputs(workspace: &Path) {
    let names = ["plain.txt", "with space.txt", "new\nline.txt", "-dash", "ünïcødé.txt", "deep/er/a.bin"];
    for name in names {
        write(workspace, &format!("out/{name}"), name.as_bytes());
    }
    write(workspace, "out/empty", b"");
    symlink("plain.txt", workspace.join("out/inside_link")).unwrap();
    symlink("/etc/passwd", workspace.join("out/outside_link")).unwrap();
    symlink("turn_b", workspace.join("out/turn_a")).unwrap();
    symlink("turn_a", workspace.join("out/turn_b")).unwrap();
    let fifo = workspace.join("out/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    drop(std::os::unix::net::UnixListener::bind(workspace.join("out/socket")).unwrap());
    write(workspace, "out/odd", b"x");
    let bad = std::ffi::OsStr::from_bytes(b"out/bad-\xff");
    fs::rename(workspace.join("out/odd"), workspace.join(bad)).unwrap();
    let mut sparse = File::create(workspace.join("out/sparse.bin")).unwrap();
    sparse.seek(SeekFrom::Start(64 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
}

#[test]
fn a_folder_stands_for_all_beneath_it_however_odd() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let before = snapshot(&workspace);
    assert!(before.is_empty());
    write_odd_outputs(&workspace);
    let found = collected(&workspace, &[output("out/")], &before);
    assert_eq!(
        paths(&found),
        [
            "out/-dash",
            "out/deep/er/a.bin",
            "out/empty",
            "out/inside_link",
            "out/new\nline.txt",
            "out/plain.txt",
            "out/sparse.bin",
            "out/with space.txt",
            "out/ünïcødé.txt",
        ]
    );
    assert!(found.missing.is_empty() && found.undeclared.is_empty());
    let link = found.files.iter().find(|file| file.path == "out/inside_link").unwrap();
    assert_eq!(link.content, CollectedContent::Link { target: "plain.txt".to_owned() });
    assert_eq!(link.listed(None).link_target.as_deref(), Some("plain.txt"));

    let mut warned: Vec<&str> =
        found.warnings.iter().map(|warning| warning.detail.split('`').nth(1).unwrap()).collect();
    warned.sort_unstable();
    assert_eq!(
        warned,
        ["out/bad-\u{fffd}", "out/fifo", "out/outside_link", "out/socket", "out/turn_a", "out/turn_b"]
    );
    assert!(found.warnings.iter().all(|warning| warning.pointer == "/outputs/0"));

    let store = ArtifactStore::open(&folder.path().join("store"), Limits::default()).unwrap();
    let root = folder_of(&workspace);
    let sparse = found.files.iter().find(|file| file.path == "out/sparse.bin").unwrap();
    let stored = store.import(&sparse.open(root.as_fd()).unwrap(), Path::new(&sparse.path)).unwrap();
    let listed = sparse.listed(Some((stored.digest, stored.size_bytes)));
    assert_eq!((listed.artifact, listed.size_bytes), (Some(stored.digest), (64 << 20) + 3));
    let (file, _) = store.open_read(stored.digest).unwrap().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20, "the hole was filled");
}

#[test]
fn paths_and_globs_say_what_they_mean() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path();
    for path in
        ["a.json", "sub/b.json", "sub/deep/c.json", "odd[1].txt", "odd1.txt", "ckpt-1/w", "ckpt-2/x/w"]
    {
        write(workspace, path, b"x");
    }
    fs::create_dir(workspace.join("empty")).unwrap();
    let before = Snapshot::default();
    let find = |pattern: &str| {
        let found = collected(workspace, &[output(pattern)], &before);
        (found.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>(), found.missing.len())
    };
    let all = |paths: &[&str]| (paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>(), 0);
    assert_eq!(find("*.json"), all(&["a.json"]));
    assert_eq!(find("./a.json"), all(&["a.json"]));
    assert_eq!(find("**/*.json"), all(&["a.json", "sub/b.json", "sub/deep/c.json"]));
    assert_eq!(find("sub/*"), all(&["sub/b.json", "sub/deep/c.json"]));
    assert_eq!(find("odd[1].txt"), all(&["odd1.txt", "odd[1].txt"]));
    assert_eq!(find("ckpt-*"), all(&["ckpt-1/w", "ckpt-2/x/w"]));
    assert_eq!(find("{a,zz}.json"), all(&["a.json"]));
    assert_eq!(find("empty"), all(&[]));
    assert_eq!(find(".").0.len(), 7);
    assert_eq!(find("nothing*").1, 1);
}

#[test]
fn what_is_missing_is_named_unless_optional() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.bin", b"x");
    symlink("/etc/passwd", folder.path().join("stolen")).unwrap();
    let outputs = [
        Output { name: Some("model".to_owned()), ..output("model.bin") },
        Output { name: Some("all".to_owned()), ..output("*.bin") },
        Output { name: Some("metrics".to_owned()), ..output("metrics.json") },
        Output { optional: true, ..output("plots/") },
        output("stolen"),
    ];
    let found = collected(folder.path(), &outputs, &Snapshot::default());
    let names: Vec<&str> = found.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["all", "model"], "one entry for each output that declares it");
    assert_eq!(found.missing, ["metrics", "stolen"]);
    assert_eq!(found.warnings.len(), 1);
    assert_eq!(found.warnings[0].pointer, "/outputs/4");
}

#[test]
fn outputs_that_leave_or_cannot_be_read_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder_of(folder.path());
    let refuse = |path: &str| collect(root.as_fd(), &[output(path)], &Snapshot::default()).unwrap_err();
    assert!(matches!(refuse("../x"), CollectError::Leaves { .. }));
    assert!(matches!(refuse("/etc/passwd"), CollectError::Leaves { .. }));
    assert!(matches!(refuse("a[b"), CollectError::Glob { .. }));
}

#[test]
fn new_and_changed_files_are_listed_and_the_rest_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path();
    write(workspace, "train.py", b"source");
    write(workspace, "config.json", b"{}");
    write(workspace, "pkg/mod.py", b"x");
    let before = snapshot(workspace);
    let before: Snapshot = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
    write(workspace, "config.json", b"{\"changed\": true}");
    write(workspace, "model.json", b"declared");
    write(workspace, "notes/log.txt", b"undeclared");
    write(workspace, "pkg/__pycache__/mod.pyc", b"cache");
    // Replaced by another file of the same size and time.
    let time = fs::metadata(workspace.join("pkg/mod.py")).unwrap().modified().unwrap();
    write(workspace, "pkg/mod.new", b"y");
    File::open(workspace.join("pkg/mod.new")).unwrap().set_modified(time).unwrap();
    fs::rename(workspace.join("pkg/mod.new"), workspace.join("pkg/mod.py")).unwrap();
    let found = collected(workspace, &[output("model.json")], &before);
    assert_eq!(paths(&found), ["model.json"]);
    let undeclared: Vec<&str> = found.undeclared.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(undeclared, ["config.json", "notes/log.txt", "pkg/mod.py"]);
    assert_eq!((found.undeclared_count, found.undeclared_bytes), (3, 17 + 10 + 1));
}

#[test]
fn a_flood_of_files_is_counted_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..1200 {
        write(folder.path(), &format!("f{number}"), b"12");
    }
    let found = collected(folder.path(), &[], &Snapshot::default());
    assert_eq!(found.undeclared.len(), 1000);
    assert_eq!((found.undeclared_count, found.undeclared_bytes), (1200, 2400));
}

#[test]
fn kept_files_are_opened_beneath_the_workspace_only() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    write(&workspace, "deep/file", b"content");
    write(folder.path(), "secret", b"s");
    symlink("../secret", workspace.join("link")).unwrap();
    symlink("..", workspace.join("up")).unwrap();
    let fifo = workspace.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let root = folder_of(&workspace);
    let open = |path: &str| open_beneath(root.as_fd(), &RelativePath::new(path).unwrap());
    let mut text = String::new();
    open("deep/file").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    for refused in ["link", "up/secret", "fifo", "deep"] {
        assert_eq!(open(refused).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{refused}");
    }
    assert_eq!(open("none").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn links_in_place_of_outputs_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "ckpt-5/model.pt", b"x");
    write(folder.path(), "out/data.txt", b"x");
    symlink("ckpt-5", folder.path().join("latest")).unwrap();
    symlink("../out", folder.path().join("out/here")).unwrap();
    let outputs = [output("latest"), output("latest/model.pt"), output("out")];
    let found = collected(folder.path(), &outputs, &Snapshot::default());
    assert_eq!(paths(&found), ["latest", "out/data.txt", "out/here"]);
    assert_eq!(found.missing, ["latest/model.pt"]);
    let warnings: Vec<(&str, &str)> =
        found.warnings.iter().map(|warning| (warning.pointer.as_str(), warning.detail.as_str())).collect();
    assert_eq!(
        warnings,
        [
            ("/outputs/0", "`latest` is a link to `ckpt-5`, which no output declares"),
            ("/outputs/1", "`latest/model.pt` lies behind a link: declare `ckpt-5/model.pt`"),
        ]
    );
}
