//! Unpacking what people and jobs send, well meant or not.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use gpulayer::artifacts::bundle::{PlanOptions, plan, write};
use gpulayer::artifacts::{
    RelativePath, UnpackError, UnpackLimits, Unpacked, open_folder, place_input, unpack,
};
use gpulayer::contract::spec::InputMode;
use tar::{EntryType, Header};

use super::trees;

fn extract(tar: &[u8], workspace: &Path, limits: UnpackLimits) -> Result<Unpacked, UnpackError> {
    let folder = open_folder(workspace).unwrap();
    unpack(tar, folder.as_fd(), &RelativePath::new("").unwrap(), InputMode::Rw, limits)
}

/// A tar with exactly these entries, without the checks that a builder makes.
fn tar_with(entries: &[(EntryType, &str, &str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, target, content) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn refused(entries: &[(EntryType, &str, &str, &[u8])]) -> String {
    let around = tempfile::tempdir().unwrap();
    let workspace = around.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let error = extract(&tar_with(entries), &workspace, UnpackLimits::default()).unwrap_err();
    let names: Vec<_> =
        fs::read_dir(around.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["workspace"], "something was written outside");
    error.to_string()
}

#[test]
fn a_bundle_comes_out_as_it_went_in() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trees::make(source.path(), 5);
    let planned = plan(source.path(), &PlanOptions::default()).unwrap();
    let mut bytes = Vec::new();
    let digest = write(&planned, &mut bytes).unwrap();
    let unpacked = extract(&bytes, target.path(), UnpackLimits::default()).unwrap();
    assert_eq!(unpacked.entries, planned.paths().count() as u64);
    assert_eq!(fs::read_link(target.path().join("pkg/link_up")).unwrap(), Path::new("../train.py"));
    assert!(target.path().join("empty_folder").is_dir());
    let again = plan(target.path(), &PlanOptions::default()).unwrap();
    assert_eq!(write(&again, std::io::sink()).unwrap(), digest);
}

#[test]
fn hostile_entries_are_refused_by_name() {
    let file = EntryType::Regular;
    let link = EntryType::Symlink;
    assert_eq!(refused(&[(file, "../evil", "", b"x")]), "entry `../evil` leaves the workspace");
    assert_eq!(refused(&[(file, "/tmp/evil", "", b"x")]), "entry `/tmp/evil` leaves the workspace");
    assert_eq!(refused(&[(file, "a/../../evil", "", b"x")]), "entry `a/../../evil` leaves the workspace");
    assert_eq!(refused(&[(link, "a", "/etc", b"")]), "link `a` leads out of the workspace, to `/etc`");
    assert_eq!(refused(&[(link, "a", "../x", b"")]), "link `a` leads out of the workspace, to `../x`");
    assert_eq!(
        refused(&[
            (EntryType::Directory, "sub", "", b""),
            (link, "a", "sub", b""),
            (file, "a/evil", "", b"x")
        ]),
        "entry `a/evil` would be written through a link"
    );
    assert_eq!(
        refused(&[(link, "sub/up", "..", b""), (link, "a", "sub/up/..", b"")]),
        "link `a` leads out of the workspace, to `sub/up/..`"
    );
    for (kind, name) in [
        (EntryType::Link, "hard"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Fifo, "fifo"),
    ] {
        let message = refused(&[(kind, name, "/etc/passwd", b"")]);
        assert!(message.contains(name), "{message}");
    }
    assert!(refused(&[(file, ".", "", b"x")]).contains("`.`"));
}

#[test]
fn a_link_that_was_there_before_is_not_written_through() {
    let (workspace, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    symlink(elsewhere.path(), workspace.path().join("out")).unwrap();
    symlink(elsewhere.path().join("target"), workspace.path().join("file")).unwrap();
    let tar = tar_with(&[(EntryType::Regular, "file", "", b"mine")]);
    extract(&tar, workspace.path(), UnpackLimits::default()).unwrap();
    assert_eq!(fs::read(workspace.path().join("file")).unwrap(), b"mine");
    let tar = tar_with(&[(EntryType::Regular, "out/file", "", b"x")]);
    let error = extract(&tar, workspace.path(), UnpackLimits::default()).unwrap_err();
    assert!(matches!(error, UnpackError::ThroughLink { .. }), "{error}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn limits_count_entries_bytes_and_headers() {
    let workspace = tempfile::tempdir().unwrap();
    let three = tar_with(&[
        (EntryType::Regular, "a", "", b"12345"),
        (EntryType::Regular, "b", "", b"12345"),
        (EntryType::Regular, "c", "", b"12345"),
    ]);
    for (max_entries, max_bytes) in [(2, 1000), (1000, 14)] {
        match extract(&three, workspace.path(), UnpackLimits { max_entries, max_bytes }) {
            Err(UnpackError::TooLarge { entry, .. }) => assert_eq!(entry, "c"),
            other => panic!("{other:?}"),
        }
    }
    extract(&three, workspace.path(), UnpackLimits { max_entries: 3, max_bytes: 15 }).unwrap();
    let long_header = tar_with(&[(EntryType::XHeader, "pax", "", &vec![b'9'; 3 << 20])]);
    let error = extract(&long_header, workspace.path(), UnpackLimits::default()).unwrap_err();
    assert!(matches!(error, UnpackError::Archive { .. }), "{error}");
    let cut = &three[..700];
    assert!(matches!(
        extract(cut, workspace.path(), UnpackLimits::default()),
        Err(UnpackError::Archive { .. })
    ));
}

#[test]
fn an_archive_by_gnu_tar_with_dots_and_long_names_is_accepted() {
    let workspace = tempfile::tempdir().unwrap();
    let long = "x".repeat(90) + "/" + &"y".repeat(90);
    let mut builder = tar::Builder::new(Vec::new());
    for name in ["./plain", long.as_str()] {
        let mut header = Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o755);
        builder.append_data(&mut header, name, &b"hi"[..]).unwrap();
    }
    extract(&builder.into_inner().unwrap(), workspace.path(), UnpackLimits::default()).unwrap();
    for name in ["plain", long.as_str()] {
        let metadata = fs::metadata(workspace.path().join(name)).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o100), (2, 0o100));
    }
}

#[test]
fn inputs_are_placed_as_copies_with_their_mode() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let stored = folder.path().join("stored");
    fs::write(&stored, "input").unwrap();
    let root = open_folder(&workspace).unwrap();
    let place = |path: &str, mode, unpacked, file: &Path| {
        let source = File::open(file).unwrap();
        place_input(&source, root.as_fd(), &RelativePath::new(path).unwrap(), mode, unpacked)
    };
    place("deep/er/ro.txt", InputMode::Ro, false, &stored).unwrap();
    place("rw.txt", InputMode::Rw, false, &stored).unwrap();
    place("rw.txt", InputMode::Rw, false, &stored).unwrap();
    let mode = |path: &str| fs::metadata(workspace.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("deep/er/ro.txt"), 0o444);
    assert_eq!(mode("rw.txt") & 0o600, 0o600);
    for (start, executable) in [("#!/bin/sh\n", 0o555), ("\x7fELF\x02", 0o555), ("#", 0o444), ("", 0o444)] {
        let program = folder.path().join("program");
        fs::write(&program, start).unwrap();
        place("program", InputMode::Ro, false, &program).unwrap();
        assert_eq!(mode("program"), executable, "{start:?}");
    }
    fs::write(workspace.join("rw.txt"), "changed").unwrap();
    assert_eq!(fs::read(&stored).unwrap(), b"input");

    let bundle = folder.path().join("bundle.tar");
    fs::write(&bundle, tar_with(&[(EntryType::Regular, "data/x", "", b"1")])).unwrap();
    place("set", InputMode::Ro, true, &bundle).unwrap();
    assert_eq!(mode("set/data/x"), 0o444);
    let mut read = File::open(&bundle).unwrap();
    std::io::Seek::seek(&mut read, std::io::SeekFrom::End(0)).unwrap();
    place_input(&read, root.as_fd(), &RelativePath::new("again").unwrap(), InputMode::Ro, true).unwrap();
    assert_eq!(mode("again/data/x"), 0o444, "wherever its position was");
    fs::write(&bundle, tar_with(&[])).unwrap();
    place("empty", InputMode::Ro, true, &bundle).unwrap();
    fs::write(&bundle, "").unwrap();
    let nothing = place("nothing", InputMode::Ro, true, &bundle).unwrap_err();
    assert!(matches!(nothing, UnpackError::Archive { .. }), "nothing is not an empty folder: {nothing}");

    symlink(folder.path(), workspace.join("away")).unwrap();
    let error = place("away/evil", InputMode::Rw, false, &stored).unwrap_err();
    assert!(matches!(error, UnpackError::ThroughLink { .. }), "{error}");
    assert!(!folder.path().join("evil").exists());
}
