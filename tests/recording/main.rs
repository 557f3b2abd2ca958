//! The record of scheduling on disk: what a reader finds of it after a clean end, in the middle, after a kill, on a full
//! disk, and when there is more of it than may be kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

#[path = "../support/volume.rs"]
mod volume;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::domain::placement::replay::Entry;
use gpulayer::domain::placement::{Input, Placer, Policy};
use gpulayer::recording::{REST, Reader, Recorder, RecordingOptions, segments};

fn recorder(folder: &Path, max_bytes: u64, rest: Duration) -> Recorder {
    Recorder::start(RecordingOptions { folder: folder.to_owned(), max_bytes, rest }).unwrap()
}

fn start() -> Entry {
    Entry::Start(Box::new(Placer::new(Policy::default())))
}

fn told(number: u128) -> Entry {
    Entry::Told(Input::Unqueued {
        job_id: JobId::from_u128(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
    })
}

/// As the scheduler does.
fn note(recorder: &Recorder, entry: Entry) {
    if recorder.wants_start() {
        recorder.note(start());
    }
    recorder.note(entry);
}

/// What a segment holds behind its start.
fn read(path: &Path) -> Vec<Entry> {
    let mut reader = Reader::open(path).unwrap();
    assert!(matches!(reader.entry().unwrap(), Some(Entry::Start(_))));
    std::iter::from_fn(|| reader.entry().unwrap()).collect()
}

fn inputs(entries: &[Entry]) -> usize {
    entries.iter().filter(|entry| matches!(entry, Entry::Told(_))).count()
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn written(folder: &Path, most: usize) -> PathBuf {
    let path = eventually("the segment", || segments(folder).unwrap().pop());
    eventually("what was noted", || {
        let entries = Reader::open(&path).is_ok().then(|| read(&path))?;
        (inputs(&entries) == most).then_some(())
    });
    path
}

#[test]
fn what_was_noted_is_read_while_it_is_written_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("scheduling");
    let recorder = recorder(&folder, 1 << 20, REST);
    (0..10).for_each(|number| note(&recorder, told(number)));
    let path = written(&folder, 10);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    note(&recorder, told(10));
    recorder.close();
    let entries = read(&path);
    assert_eq!((inputs(&entries), entries.len()), (11, 12));
    assert!(matches!(entries.last(), Some(Entry::Closed)));
}

#[test]
fn a_torn_end_is_read_up_to_the_tear_wherever_that_is() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = recorder(folder.path(), 1 << 20, REST);
    (0..50).for_each(|number| note(&recorder, told(number)));
    written(folder.path(), 50);
    (50..100).for_each(|number| note(&recorder, told(number)));
    recorder.close();
    let path = segments(folder.path()).unwrap().pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let torn = folder.path().join("torn");
    let mut most = 0;
    for length in 0..whole.len() {
        std::fs::write(&torn, &whole[..length]).unwrap();
        let Ok(mut reader) = Reader::open(&torn) else { continue };
        let mut read = 0;
        while let Some(entry) = reader.entry().unwrap() {
            read += usize::from(matches!(entry, Entry::Told(_)));
        }
        assert!(read >= most, "a longer piece holds no less");
        most = read;
    }
    assert!(most >= 50, "what was flushed before the tear is there: {most}");
}

#[test]
fn the_oldest_segments_go_and_every_one_that_is_left_begins_with_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let most = 96 << 10;
    let recorder = recorder(folder.path(), most, REST);
    let mut number = 0;
    eventually("many segments", || {
        for _ in 0..20 {
            number += 1;
            note(&recorder, told(number));
        }
        let paths = segments(folder.path()).unwrap();
        let first = paths.first()?.file_name()?.to_str()?.to_owned();
        (first.as_str() > "segment-000004").then_some(())
    });
    recorder.close();
    let paths = segments(folder.path()).unwrap();
    let bytes: u64 = paths.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes <= most + most / 8, "{bytes}");
    assert!(paths.len() > 3, "{paths:?}");
    for path in &paths {
        assert!(matches!(read(path).last(), Some(Entry::Closed)), "{path:?}");
    }
    // The next one goes on counting.
    let recorder = self::recorder(folder.path(), most, REST);
    note(&recorder, told(1));
    recorder.close();
    assert!(segments(folder.path()).unwrap().last() > paths.last());
}

#[test]
fn a_burst_that_cannot_be_written_ends_the_segment_and_the_next_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = recorder(folder.path(), 64 << 20, REST);
    note(&recorder, told(0));
    written(folder.path(), 1);
    // Faster than any writer, and more than waits for it.
    let big = |number: u128| Input::WorkerHealth {
        worker_id: WorkerId::from_u128(number),
        unhealthy: Some("its disk is full ".repeat(100)),
    };
    let cut = eventually("a cut", || {
        (0..100_000).for_each(|number| recorder.note(Entry::Told(big(number))));
        let path = segments(folder.path()).unwrap().into_iter().next()?;
        read(&path).into_iter().find_map(|entry| match entry {
            Entry::Cut { why } => Some(why),
            _ => None,
        })
    });
    assert!(cut.contains("more than could be written"), "{cut}");
    eventually("a start to be wanted", || recorder.wants_start().then_some(()));
    note(&recorder, told(1));
    recorder.close();
    let paths = segments(folder.path()).unwrap();
    assert_eq!((paths.len(), inputs(&read(&paths[1]))), (2, 1));
}

#[test]
fn a_full_disk_cuts_the_segment_and_recording_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(volume) = volume::Volume::tmpfs(&folder.path().join("small"), 8) else { return };
    let scheduling = volume.path().join("scheduling");
    let recorder = recorder(&scheduling, 64 << 20, Duration::from_millis(50));
    note(&recorder, told(0));
    let first = written(&scheduling, 1);
    volume.fill(0);
    let mut number = 1;
    // A start is wanted again only after a write failed and the rest was over.
    eventually("the disk to be found full", || {
        for _ in 0..1_000 {
            number += 1;
            recorder.note(told(number));
        }
        recorder.wants_start().then_some(())
    });
    let whole = read(&first);
    assert!(inputs(&whole) >= 1, "what was there is still read");
    volume.free();
    eventually("another segment", || {
        number += 1;
        note(&recorder, told(number));
        (segments(&scheduling).unwrap().len() > 1).then_some(())
    });
    recorder.close();
    let paths = segments(&scheduling).unwrap();
    let ended = read(&paths[0]);
    assert!(matches!(ended.last(), Some(Entry::Cut { why }) if why.contains("space")), "{:?}", ended.last());
    assert!(matches!(read(paths.last().unwrap()).last(), Some(Entry::Closed)));
}
