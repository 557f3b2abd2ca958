//! What a task may leave to trick whoever collects or removes it: mounts, depths, and somebody who moves things while
//! they are looked at.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use gpulayer::artifacts::{
    CollectedContent, RelativePath, Snapshot, collect, collect_in_real_folder, open_beneath, open_folder,
    remove_tree,
};
use gpulayer::contract::spec::Output;
use rustix::fs::{Mode, OFlags};

use super::volume::Volume;

fn output(path: &str) -> Output {
    Output { path: path.to_owned(), name: None, optional: false }
}

#[test]
fn what_is_mounted_in_a_workspace_is_neither_collected_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("secret"), "not yours").unwrap();
    let workspace = folder.path().join("workspace");
    fs::create_dir_all(workspace.join("out/own")).unwrap();
    fs::write(workspace.join("out/own/file"), "mine").unwrap();
    let Some(bound) = Volume::bind(&elsewhere, &workspace.join("out/bound")) else { return };
    let Some(other) = Volume::tmpfs(&workspace.join("out/other"), 1) else { return };
    fs::write(other.path().join("file"), "elsewhere").unwrap();

    let root = open_folder(&workspace).unwrap();
    let found = collect(root.as_fd(), &[output("out")], &Snapshot::default()).unwrap();
    let paths: Vec<_> = found.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["out/own/file"]);
    let warned: Vec<_> = found.warnings.iter().map(|warning| warning.detail.as_str()).collect();
    for name in ["out/bound", "out/other"] {
        let expected = format!("`{name}` was not collected: another volume is mounted there");
        assert!(warned.contains(&expected.as_str()), "{warned:?}");
    }
    let secret = RelativePath::new("out/bound/secret").unwrap();
    assert!(open_beneath(root.as_fd(), &secret).unwrap_err().to_string().contains("another volume"));
    let real = collect_in_real_folder(root.as_fd(), &[output("out")]).unwrap();
    assert_eq!(real.files.len(), 3, "a person's own folder is taken as it is");
    let bytes = real.files.iter().find(|file| file.path == "out/bound/secret").unwrap();
    assert!(bytes.open(root.as_fd()).is_ok());

    let left = remove_tree(&workspace).unwrap_err();
    assert!(left.path.starts_with(workspace.join("out")), "{left:?}");
    assert_eq!(left.more, 1, "the other mount");
    assert!(!workspace.join("out/own").exists(), "the rest is gone");
    assert!(elsewhere.join("secret").exists() && other.path().join("file").exists());
    drop((bound, other));
    remove_tree(&workspace).unwrap();
    assert!(!workspace.exists() && elsewhere.join("secret").exists());
}

#[test]
fn a_file_deep_below_comes_back_and_one_beyond_all_paths_is_named() {
    let workspace = tempfile::tempdir().unwrap();
    let root = open_folder(workspace.path()).unwrap();
    let mut at = root.try_clone().unwrap();
    let mut deep = String::new();
    for level in 0..1200 {
        let name = if level < 1000 { "d".to_owned() } else { format!("{level:0>40}") };
        rustix::fs::mkdirat(&at, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, name.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .unwrap();
        if level == 999 {
            deep = format!("{}file", "d/".repeat(1000));
        }
        if level == 999 || level == 1199 {
            let file =
                rustix::fs::openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644));
            rustix::io::write(file.unwrap(), b"deep").unwrap();
        }
    }
    let found = collect(root.as_fd(), &[output("d")], &Snapshot::default()).unwrap();
    let paths: Vec<_> = found.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, [deep]);
    let mut text = String::new();
    found.files[0].open(root.as_fd()).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "deep");
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings.len());
    assert!(found.warnings[0].detail.contains("so long a path"), "{}", found.warnings[0].detail);
    drop(at);
    remove_tree(&workspace.path().join("d")).unwrap();
}

/// Somebody outside the task's tree swaps folders for links and back while they are walked, read and removed.
#[test]
fn whoever_swaps_folders_for_links_gets_nothing_from_outside() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for number in 0..20 {
        fs::write(outside.join(format!("{number}")), "outside").unwrap();
    }
    let workspace = folder.path().join("workspace");
    let stop = AtomicBool::new(false);
    let (mut inside, mut swaps) = (0, 0);
    std::thread::scope(|scope| {
        let make = || {
            fs::create_dir_all(workspace.join("out/real")).unwrap();
            for number in 0..20 {
                fs::write(workspace.join(format!("out/real/{number}")), "inside").unwrap();
            }
        };
        make();
        symlink(&outside, workspace.join("link")).unwrap();
        let racer = scope.spawn(|| {
            let mut swaps = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let exchanged = rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    workspace.join("out/real"),
                    rustix::fs::CWD,
                    workspace.join("link"),
                    rustix::fs::RenameFlags::EXCHANGE,
                );
                swaps += u64::from(exchanged.is_ok());
            }
            swaps
        });
        for _ in 0..300 {
            let root = open_folder(&workspace).unwrap();
            let found = collect(root.as_fd(), &[output("out")], &Snapshot::default()).unwrap();
            for file in found.files.iter().filter(|file| file.content == CollectedContent::Regular) {
                let mut text = String::new();
                if let Ok(mut open) = file.open(root.as_fd()) {
                    open.read_to_string(&mut text).unwrap();
                    assert_eq!(text, "inside");
                    inside += 1;
                }
            }
        }
        for _ in 0..100 {
            // It may fail, as somebody puts things in its way; it must not leave the folder.
            let _ = remove_tree(&workspace.join("out"));
            make();
        }
        stop.store(true, Ordering::Relaxed);
        swaps = racer.join().unwrap();
    });
    assert!(inside > 0 && swaps > 0, "{inside} files read, {swaps} swaps: nothing was raced");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 20, "nothing outside was removed");
}
