//! Group commit: order, and what happens when a commit fails.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gpulayer::contract::job::JobState;
use gpulayer::domain::change::Change;
use gpulayer::journal::{Journal, Seq};
use gpulayer::store::{CommitPort, ONLY_TERM, Store, StoreError};

use crate::records::{event, inserted, job_id, standing};

const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until the journal has said that `seq` is on disk; every number said must be higher than the one before.
fn wait_durable(durable: &Receiver<Seq>, seq: Seq) {
    let mut last = Seq(0);
    while last < seq {
        let through = durable.recv_timeout(DEADLINE).unwrap();
        assert!(through > last);
        last = through;
    }
}

#[test]
fn what_the_journal_calls_durable_is_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let reads = store.reader();
    let (said, durable) = channel();
    let seen = store.reader();
    let on_durable = move |seq: Seq| {
        // Job n was appended as batch n: everything up to `seq` is readable before anyone is told.
        assert!(seen.job_standing(job_id(seq.0)).unwrap().is_some());
        said.send(seq).unwrap();
    };
    let failed = |error: StoreError| panic!("{error}");
    let journal = Journal::start(store.writer().unwrap(), ONLY_TERM, on_durable, failed).unwrap();
    assert_eq!(journal.append(Vec::new()), Seq(0));
    for number in 1..=500 {
        assert_eq!(journal.append(vec![inserted(number), event(number, 1, number)]), Seq(number));
    }
    assert_eq!(journal.append(Vec::new()), Seq(500), "an empty batch waits for what was there");
    wait_durable(&durable, Seq(500));
    assert_eq!(journal.durable(), Seq(500));
    assert_eq!(journal.newest(), Seq(500));
    assert_eq!(reads.live_jobs().unwrap().len(), 500);
    assert_eq!(reads.last_position().unwrap(), 500);
}

#[test]
fn dropping_the_journal_writes_what_is_queued() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let journal =
        Journal::start(store.writer().unwrap(), ONLY_TERM, |_| {}, |error| panic!("{error}")).unwrap();
    for number in 1..=100 {
        journal.append(vec![inserted(number)]);
    }
    drop(journal);
    assert_eq!(store.reader().live_jobs().unwrap().len(), 100);
}

/// Fails the commit after so many good ones.
struct FailsAt<P> {
    port: P,
    commits_left: u32,
}

impl<P: CommitPort> CommitPort for FailsAt<P> {
    fn apply(&mut self, batch: &[Change], term: u64) -> Result<(), StoreError> {
        if self.commits_left == 0 {
            return Err(StoreError::TermOver { held: term, current: term + 1 });
        }
        self.commits_left -= 1;
        self.port.apply(batch, term)
    }
}

#[test]
fn after_a_failed_commit_nothing_is_called_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let port = FailsAt { port: store.writer().unwrap(), commits_left: 2 };
    let (said, durable) = channel();
    let (failed, failure) = channel();
    let journal = Journal::start(
        port,
        ONLY_TERM,
        move |seq| said.send(seq).unwrap(),
        move |error| failed.send(error).unwrap(),
    )
    .unwrap();
    for number in 1..=2 {
        journal.append(vec![inserted(number)]);
        assert_eq!(durable.recv_timeout(DEADLINE).unwrap(), Seq(number));
    }
    journal.append(vec![inserted(3)]);
    assert!(matches!(failure.recv_timeout(DEADLINE).unwrap(), StoreError::TermOver { .. }));
    journal.append(vec![inserted(4)]);
    assert!(durable.recv_timeout(DEADLINE).is_err(), "the thread has ended and dropped its side");
    assert_eq!(journal.durable(), Seq(2));
    assert_eq!(store.reader().live_jobs().unwrap().len(), 2, "what was acknowledged is there");
}

#[test]
fn a_write_of_another_term_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let refused = writer.apply(&[inserted(1)], ONLY_TERM + 1);
    assert!(matches!(refused, Err(StoreError::TermOver { held: 2, current: 1 })), "{refused:?}");
    assert!(store.reader().live_jobs().unwrap().is_empty());
    writer.apply(&[inserted(1)], ONLY_TERM).unwrap();
    writer.apply(&[Change::JobMoved(job_id(1), standing(JobState::Cancelled, 2))], ONLY_TERM).unwrap();
    assert!(store.reader().live_jobs().unwrap().is_empty());
}

#[test]
fn a_second_daemon_is_told_who_holds_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let writer = store.writer().unwrap();
    let refused = |folder: &std::path::Path| match Store::open(folder) {
        Err(StoreError::Locked { pid, .. }) => pid,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened twice"),
    };
    assert_eq!(refused(folder.path()), Some(std::process::id()));
    drop(store);
    assert_eq!(refused(folder.path()), Some(std::process::id()), "a writer is left");
    drop(writer);
    Store::open(folder.path()).unwrap();
}

#[test]
fn what_was_written_moves_into_the_database_once_the_writer_is_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let size = || std::fs::metadata(folder.path().join("gpulayer.db")).unwrap().len();
    let before = size();
    let jobs: Vec<Change> = (1..=2000).map(inserted).collect();
    writer.apply(&jobs, ONLY_TERM).unwrap();
    assert_eq!(size(), before, "the commit itself only appends to the WAL");
    let deadline = Instant::now() + DEADLINE;
    while size() == before {
        assert!(Instant::now() < deadline, "no checkpoint");
        std::thread::yield_now();
    }
}
