//! The store: uploads that are cut, resumed, wrong, doubled and large; pins and removal.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use gpulayer::artifacts::{ArtifactError, ArtifactStore, Begun, Limits, Upload};
use gpulayer::contract::artifact::Digest;
use sha2::{Digest as _, Sha256};

fn open(folder: &Path) -> ArtifactStore {
    ArtifactStore::open(folder, Limits::default()).unwrap()
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

fn upload(store: &ArtifactStore, digest: Digest, offset: u64) -> Box<Upload> {
    match store.begin(digest, offset).unwrap() {
        Begun::Upload(upload) => upload,
        other => panic!("{other:?}"),
    }
}

fn put(store: &ArtifactStore, bytes: &[u8]) -> Digest {
    let digest = digest_of(bytes);
    let mut upload = upload(store, digest, 0);
    upload.append(bytes).unwrap();
    assert_eq!(upload.finish().unwrap(), bytes.len() as u64);
    digest
}

fn read(store: &ArtifactStore, digest: Digest) -> Vec<u8> {
    let (mut file, size_bytes) = store.open_read(digest).unwrap().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, size_bytes);
    bytes
}

fn path_of(folder: &Path, digest: Digest) -> PathBuf {
    folder.join("sha256").join(&digest.hex()[..2]).join(digest.hex())
}

fn partials(folder: &Path) -> usize {
    fs::read_dir(folder.join("partial")).unwrap().count()
}

fn set_age(path: &Path, age: Duration) {
    let file = File::open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

const A_DAY_AND_MORE: Duration = Duration::from_secs(25 * 3600);

#[test]
fn what_is_put_can_be_read_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for bytes in [&b"hello"[..], b""] {
        let digest = put(&store, bytes);
        assert_eq!(read(&store, digest), bytes);
        let metadata = fs::metadata(path_of(folder.path(), digest)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
        assert!(matches!(store.begin(digest, 0).unwrap(), Begun::Present { .. }));
    }
    assert_eq!(partials(folder.path()), 0);
    assert!(store.open_read(digest_of(b"other")).unwrap().is_none());
}

#[test]
fn an_upload_goes_on_after_a_suspension_a_cut_and_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..900_000_u32).map(|n| n as u8).collect();
    let digest = digest_of(&bytes);
    let store = open(folder.path());
    let mut first = upload(&store, digest, 0);
    first.append(&bytes[..300_000]).unwrap();
    assert_eq!(first.suspend().unwrap(), 300_000);
    assert_eq!(store.received(digest).unwrap(), Some(300_000));

    let mut cut = upload(&store, digest, 300_000);
    cut.append(&bytes[300_000..500_000]).unwrap();
    drop(cut);
    assert_eq!(store.received(digest).unwrap(), Some(500_000));

    drop(store);
    let store = open(folder.path());
    let mut resumed = upload(&store, digest, 500_000);
    assert_eq!(resumed.received_bytes(), 500_000);
    resumed.append(&bytes[500_000..]).unwrap();
    assert_eq!(resumed.finish().unwrap(), 900_000);
    assert_eq!(read(&store, digest), bytes);
    assert_eq!(store.received(digest).unwrap(), None);
}

#[test]
fn a_part_sent_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = digest_of(b"abcdef");
    let mut upload_one = upload(&store, digest, 0);
    upload_one.append(b"abcd").unwrap();
    upload_one.suspend().unwrap();
    let mut again = upload(&store, digest, 2);
    again.append(b"cdef").unwrap();
    again.finish().unwrap();
    assert_eq!(read(&store, digest), b"abcdef");
}

#[test]
fn a_gap_says_where_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = digest_of(b"abcdef");
    assert!(matches!(store.begin(digest, 3).unwrap(), Begun::Gap { received_bytes: 0 }));
    let mut first = upload(&store, digest, 0);
    first.append(b"ab").unwrap();
    first.suspend().unwrap();
    assert!(matches!(store.begin(digest, 3).unwrap(), Begun::Gap { received_bytes: 2 }));
    let mut rest = upload(&store, digest, 2);
    rest.append(b"cdef").unwrap();
    rest.finish().unwrap();
}

#[test]
fn wrong_bytes_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = digest_of(b"right");
    let mut wrong = upload(&store, digest, 0);
    wrong.append(b"wrong").unwrap();
    match wrong.finish() {
        Err(ArtifactError::DigestMismatch { expected, actual }) => {
            assert_eq!((expected, actual), (digest, digest_of(b"wrong")));
        }
        other => panic!("{other:?}"),
    }
    assert!(!store.contains(digest).unwrap());
    assert_eq!(partials(folder.path()), 0);
    put(&store, b"right");
}

#[test]
fn a_partial_that_rotted_over_a_restart_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let digest = digest_of(b"abcdef");
    let store = open(folder.path());
    let mut first = upload(&store, digest, 0);
    first.append(b"abc").unwrap();
    first.suspend().unwrap();
    drop(store);
    fs::write(folder.path().join("partial").join(digest.hex()), b"aXc").unwrap();
    let store = open(folder.path());
    let mut rest = upload(&store, digest, 3);
    rest.append(b"def").unwrap();
    assert!(matches!(rest.finish(), Err(ArtifactError::DigestMismatch { .. })));
}

#[test]
fn too_much_is_refused_while_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { max_artifact_bytes: 8 };
    let store = ArtifactStore::open(folder.path(), limits).unwrap();
    let mut big = upload(&store, digest_of(b"123456789"), 0);
    big.append(b"12345678").unwrap();
    assert!(matches!(big.append(b"9"), Err(ArtifactError::TooLarge { limit_bytes: 8 })));
    assert!(big.finish().is_err());
    assert_eq!(partials(folder.path()), 0);
    fs::write(folder.path().join("nine"), "123456789").unwrap();
    let refused = store.import_file(&folder.path().join("nine"));
    assert!(matches!(refused, Err(ArtifactError::TooLarge { .. })));
}

#[test]
fn uploads_of_one_digest_at_once_all_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let bytes = vec![7; 2_000_000];
    let digest = digest_of(&bytes);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let begun = loop {
                    match store.begin(digest, 0) {
                        Err(ArtifactError::UploadBusy { .. }) => std::thread::yield_now(),
                        begun => break begun.unwrap(),
                    }
                };
                match begun {
                    Begun::Upload(mut upload) => {
                        for chunk in bytes.chunks(100_000) {
                            upload.append(chunk).unwrap();
                        }
                        upload.finish().unwrap();
                    }
                    Begun::Present { size_bytes } => assert_eq!(size_bytes, 2_000_000),
                    Begun::Gap { .. } => panic!("offset 0 is never a gap"),
                }
            });
        }
    });
    assert_eq!(read(&store, digest), bytes);
    assert_eq!(partials(folder.path()), 0);
}

#[test]
fn a_second_upload_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = digest_of(b"x");
    let first = upload(&store, digest, 0);
    assert!(matches!(store.begin(digest, 0), Err(ArtifactError::UploadBusy { .. })));
    drop(first);
    upload(&store, digest, 0);
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_large_artifact_streams_through_flat_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let chunk: Vec<u8> = (0..65536_u32).map(|n| (n % 251) as u8).collect();
    let mut hash = Sha256::new();
    for _ in 0..1024 {
        hash.update(&chunk);
    }
    let digest = Digest::from_bytes(hash.finalize().into());
    let before = resident_bytes();
    let mut incoming = upload(&store, digest, 0);
    for _ in 0..1024 {
        incoming.append(&chunk).unwrap();
    }
    assert_eq!(incoming.finish().unwrap(), 64 << 20);
    let exported = folder.path().join("exported");
    assert_eq!(store.export_to(digest, &exported).unwrap(), 64 << 20);
    let imported = store.import_file(&exported).unwrap();
    assert_eq!((imported.digest, imported.size_bytes), (digest, 64 << 20));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");
}

#[test]
fn an_import_keeps_holes_and_an_export_is_a_private_copy() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"));
    let source = folder.path().join("sparse.bin");
    let mut file = File::create(&source).unwrap();
    file.write_all(b"start").unwrap();
    file.seek(SeekFrom::Start(300 << 20)).unwrap();
    file.write_all(b"end").unwrap();
    let imported = store.import_file(&source).unwrap();
    assert_eq!(imported.size_bytes, (300 << 20) + 3);
    let mut hash = Sha256::new();
    hash.update(b"start");
    let zeros = vec![0; 1 << 20];
    let mut left = (300 << 20) - 5;
    while left > 0 {
        let count = left.min(zeros.len());
        hash.update(&zeros[..count]);
        left -= count;
    }
    hash.update(b"end");
    assert_eq!(imported.digest, Digest::from_bytes(hash.finalize().into()));
    let stored = path_of(&folder.path().join("store"), imported.digest);
    let exported = folder.path().join("copy.bin");
    store.export_to(imported.digest, &exported).unwrap();
    for path in [&stored, &exported] {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), ((300 << 20) + 3, 1));
        assert!(metadata.blocks() * 512 < 1 << 20, "{} lost its hole", path.display());
    }
    let copy = File::options().read(true).write(true).open(&exported).unwrap();
    let mut tail = [0; 3];
    copy.read_exact_at(&mut tail, 300 << 20).unwrap();
    assert_eq!(&tail, b"end");
    copy.write_all_at(b"changed", 0).unwrap();
    let (original, _) = store.open_read(imported.digest).unwrap().unwrap();
    let mut head = [0; 5];
    original.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"start");
}

#[test]
fn only_regular_files_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"));
    fs::write(folder.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", folder.path().join("link")).unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(matches!(store.import_file(&folder.path().join("link")), Err(ArtifactError::Io { .. })));
    assert!(matches!(store.import_file(&fifo), Err(ArtifactError::NotRegular { .. })));
    assert!(matches!(store.import_file(folder.path()), Err(ArtifactError::NotRegular { .. })));
    assert_eq!(partials(&folder.path().join("store")), 0);
}

#[test]
fn a_pin_outlives_a_removal() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (old, asked) = (put(&store, b"old"), put(&store, b"asked"));
    assert!(!store.remove_if_unpinned(old).unwrap(), "just put");
    for digest in [old, asked] {
        set_age(&path_of(folder.path(), digest), A_DAY_AND_MORE);
    }
    let unknown = digest_of(b"unknown");
    assert_eq!(store.missing(&[unknown, asked]).unwrap(), [unknown]);
    assert!(!store.remove_if_unpinned(asked).unwrap(), "`missing` pinned it");
    assert!(store.remove_if_unpinned(old).unwrap());
    assert!(!store.contains(old).unwrap());
    assert!(!store.remove_if_unpinned(old).unwrap());
}

#[test]
fn old_partials_are_swept_and_live_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (old, live, young) = (digest_of(b"old"), digest_of(b"live"), digest_of(b"young"));
    let partial = |digest: Digest| folder.path().join("partial").join(digest.hex());
    for digest in [old, young] {
        let mut part = upload(&store, digest, 0);
        part.append(b"x").unwrap();
        part.suspend().unwrap();
    }
    let held = upload(&store, live, 0);
    set_age(&partial(old), A_DAY_AND_MORE);
    set_age(&partial(live), A_DAY_AND_MORE);
    assert_eq!(store.sweep_partials().unwrap(), 1);
    assert_eq!(store.received(old).unwrap(), None);
    assert_eq!(store.received(young).unwrap(), Some(1));
    drop(held);
    fs::write(folder.path().join("partial/import-1-0"), "left by a crash").unwrap();
    let store = open(folder.path());
    assert_eq!(store.received(young).unwrap(), Some(1));
    assert!(!folder.path().join("partial/import-1-0").exists());
}

#[test]
fn a_full_disk_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = digest_of(b"no room");
    std::os::unix::fs::symlink("/dev/full", folder.path().join("partial").join(digest.hex())).unwrap();
    let mut full = upload(&store, digest, 0);
    assert!(matches!(full.append(b"no room"), Err(ArtifactError::StorageFull { .. })));
}

#[test]
fn a_damaged_artifact_is_not_here_until_it_is_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = put(&store, b"whole bytes");
    for damage in [b"whole".as_slice(), b"whole bytez"] {
        assert!(store.touch(digest).unwrap() && store.open_whole(digest).unwrap().is_some());
        let path = path_of(folder.path(), digest);
        fs::remove_file(&path).unwrap();
        fs::write(&path, damage).unwrap();
        assert_eq!(store.missing(&[digest]).unwrap(), [digest], "which has whoever sends it send it");
        assert!(matches!(store.begin(digest, 0).unwrap(), Begun::Upload(_)));
        fs::write(&path, damage).unwrap();
        assert!(matches!(store.open_whole(digest), Err(ArtifactError::Damaged { .. })), "no task gets it");
        assert!(store.open_whole(digest).unwrap().is_none());
        // What the disk lost since before this start is found as well.
        fs::write(&path, damage).unwrap();
        let after_a_start = open(folder.path());
        assert_eq!(after_a_start.missing(&[digest]).unwrap(), [digest]);
        put(&store, b"whole bytes");
        assert_eq!(read(&store, digest), b"whole bytes");
        // One without damage that only looks younger is read, and stays.
        set_age(&path_of(folder.path(), digest), Duration::from_secs(60));
        assert!(store.touch(digest).unwrap() && store.open_whole(digest).unwrap().is_some());
    }
    assert_eq!(partials(folder.path()), 1, "the last damaged one is kept for a day");
    set_age(
        &folder.path().join("partial").join(format!("damaged-{}", digest_of(b"whole bytes").hex())),
        A_DAY_AND_MORE,
    );
    assert_eq!(store.sweep_partials().unwrap(), 1);
}

#[test]
fn pins_at_once_are_no_change_for_which_it_would_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let digest = put(&store, b"whole bytes");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|_| assert!(store.touch(digest).unwrap())));
        }
    });
    // What only a reading would find.
    let path = path_of(folder.path(), digest);
    let pinned = fs::metadata(&path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"other", 0).unwrap();
    file.set_modified(pinned).unwrap();
    assert!(store.open_whole(digest).unwrap().is_some(), "known by how it stands");
    file.set_modified(pinned + Duration::from_secs(1)).unwrap();
    assert!(
        matches!(store.open_whole(digest), Err(ArtifactError::Damaged { .. })),
        "and read when that changes"
    );
}
