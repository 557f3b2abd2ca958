//! The stat cache: an unchanged tree is not read, a changed one always is.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use gpulayer::artifacts::bundle::{Bundle, PlanOptions, digest, plan};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::trees;

fn bundled(root: &Path, cache: &Path) -> Bundle {
    digest(&plan(root, &PlanOptions::default()).unwrap(), Some(cache)).unwrap()
}

/// Names of the files opened in `folder` while `act` ran.
fn opened_while(folder: &Path, act: impl FnOnce()) -> Vec<String> {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, folder, WatchFlags::OPEN).unwrap();
    act();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 16 * 1024];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut opened = Vec::new();
    while let Ok(event) = reader.next() {
        if !event.events().contains(ReadFlags::ISDIR) {
            opened.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    opened.sort();
    opened
}

/// Bundles until the tree has been still for long enough to be remembered.
fn until_remembered(root: &Path, cache: &Path) -> Bundle {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let bundle = bundled(root, cache);
        if fs::read_dir(cache).is_ok_and(|mut files| files.next().is_some()) {
            return bundle;
        }
        assert!(Instant::now() < deadline, "never remembered");
        // Being still is a matter of time: only that much of it makes the tree old enough.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_unchanged_tree_is_not_read_and_an_edit_is_seen() {
    let (tree, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trees::write(tree.path(), "a.py", b"one");
    trees::write(tree.path(), "b.py", b"two");
    // Just written: another edit in the same tick would leave no trace, so this must not be remembered.
    let fresh = opened_while(tree.path(), || {
        bundled(tree.path(), cache.path());
        bundled(tree.path(), cache.path());
    });
    assert_eq!(fresh, ["a.py", "a.py", "b.py", "b.py"]);

    let first = until_remembered(tree.path(), cache.path());
    let opened = opened_while(tree.path(), || {
        assert_eq!(bundled(tree.path(), cache.path()), first);
    });
    assert!(opened.is_empty(), "{opened:?}");

    // Same size, and a time set back to what it was: the change time still tells.
    let before = fs::metadata(tree.path().join("a.py")).unwrap().modified().unwrap();
    trees::write(tree.path(), "a.py", b"eno");
    File::options().write(true).open(tree.path().join("a.py")).unwrap().set_modified(before).unwrap();
    let edited = bundled(tree.path(), cache.path());
    assert_ne!(edited.digest, first.digest);
    trees::write(tree.path(), "a.py", b"neo");
    let racy = bundled(tree.path(), cache.path());
    assert_ne!(racy.digest, edited.digest, "an edit right after a bundle");
}

#[test]
fn a_time_in_the_future_is_never_trusted() {
    let (tree, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trees::write(tree.path(), "a.py", b"one");
    let later = SystemTime::now() + Duration::from_secs(3600);
    File::options().write(true).open(tree.path().join("a.py")).unwrap().set_modified(later).unwrap();
    bundled(tree.path(), cache.path());
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn a_broken_cache_costs_time_only() {
    let (tree, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trees::write(tree.path(), "a.py", b"one");
    let first = until_remembered(tree.path(), cache.path());
    for file in fs::read_dir(cache.path()).unwrap() {
        fs::write(file.unwrap().path(), b"\xff not a cache").unwrap();
    }
    assert_eq!(bundled(tree.path(), cache.path()), first);
    let nowhere = cache.path().join("missing/\0");
    assert_eq!(bundled(tree.path(), &nowhere), first);
}
