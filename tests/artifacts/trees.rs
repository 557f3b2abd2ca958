//! Awkward trees, made in a given order with given times, so that two of them differ in all that must not count.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// What travels, with its content.
pub const SENT: &[(&str, &str)] = &[
    ("train.py", "print('hi')\n"),
    ("pkg/__init__.py", ""),
    ("pkg/mod.py", "x = 1\n"),
    ("run.sh", "#!/bin/sh\necho run\n"),
    ("name with space.txt", "s"),
    ("new\nline.txt", "n"),
    ("ünïcødé.txt", "u"),
    ("Case.txt", "1"),
    ("case.txt", "2"),
    ("-dash.txt", "d"),
    (".hidden", "h"),
    ("a.b/x", "sorts between a and a/"),
    ("a/x", "x"),
    ("keep.log", "re-included"),
    ("sub/data/ok.txt", "the rule is anchored"),
    ("sub/deep.tmp", "only ignored beside its rules"),
    ("wanted.bin", "ignored by git, wanted by gpulayer"),
    (".gitignore", "*.log\n/data/\n!keep.log\nnode_modules/\n*.bin\n"),
    (".gpulayerignore", "*.ckpt\n!wanted.bin\n"),
    ("pkg/.gitignore", "*.tmp\n"),
];

/// What stays behind without a warning.
pub const LEFT_BEHIND: &[&str] = &[
    "noise.log",
    "data/big.csv",
    "model.ckpt",
    "pkg/deep/nested.ckpt",
    "pkg/scratch.tmp",
    ".git/HEAD",
    "vendored/.git",
    ".venv/lib/x.py",
    "env39/pyvenv.cfg",
    "conda/conda-meta/history",
    "__pycache__/a.pyc",
    "pkg/__pycache__/b.pyc",
    ".pytest_cache/v",
    "node_modules/x/index.js",
];

pub fn long_name() -> String {
    format!("deep/{}leaf", "d/".repeat(70))
}

/// Makes the tree; `seed` decides order and times.
pub fn make(root: &Path, seed: u64) {
    let long = long_name();
    let mut files: Vec<(&str, &str)> = SENT.to_vec();
    files.push((&long, "deep"));
    files.extend(LEFT_BEHIND.iter().map(|path| (*path, "no")));
    let turn = seed as usize % files.len();
    files.rotate_left(turn);
    if seed % 2 == 1 {
        files.reverse();
    }
    for (number, (path, content)) in files.iter().enumerate() {
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seed * 7919 + number as u64);
        write(root, path, content.as_bytes());
        File::options().write(true).open(root.join(path)).unwrap().set_modified(time).unwrap();
    }
    // Group and other bits must not count.
    let mode = if seed % 2 == 1 { 0o700 } else { 0o775 };
    fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(root.join("empty_folder")).unwrap();
    symlink("train.py", root.join("link_in")).unwrap();
    symlink("../train.py", root.join("pkg/link_up")).unwrap();
    symlink("pkg", root.join("link_to_folder")).unwrap();
    symlink("not/there", root.join("dangling")).unwrap();
}

pub fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap().write_all(content).unwrap();
}

/// Adds one of everything that cannot travel; the names to expect.
pub fn add_hostile(root: &Path) -> Vec<&'static str> {
    use std::os::unix::ffi::OsStrExt;
    symlink("/etc/hostname", root.join("link_absolute")).unwrap();
    symlink("../../etc/hostname", root.join("link_out")).unwrap();
    symlink("link_absolute/x", root.join("link_through")).unwrap();
    symlink("loop_b", root.join("loop_a")).unwrap();
    symlink("loop_a", root.join("loop_b")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
    File::create(root.join(std::ffi::OsStr::from_bytes(b"bad-\xff-name"))).unwrap();
    write(root, "unreadable", b"x");
    fs::set_permissions(root.join("unreadable"), fs::Permissions::from_mode(0o000)).unwrap();
    vec![
        "bad-\u{fffd}-name",
        "fifo",
        "link_absolute",
        "link_out",
        "link_through",
        "loop_a",
        "loop_b",
        "socket",
        "unreadable",
    ]
}
