//! What generators yielded: pages, what they keep alive, what a purge leaves, and what a restart has to know.

use gpulayer::contract::job::JobState;
use gpulayer::contract::yielded::{Yielded, YieldedValue};
use gpulayer::domain::change::{Change, JobStanding};
use gpulayer::store::{CommitPort, ONLY_TERM, Store};

use crate::records::{digest, inserted, job_id, standing};

fn text(text: &str) -> Yielded {
    Yielded { text: Some(text.to_owned()), artifact: None, size_bytes: text.len() as u64 }
}

fn numbers(values: &[YieldedValue]) -> Vec<u64> {
    values.iter().map(|value| value.n).collect()
}

#[test]
fn values_come_in_pages_and_go_with_their_job() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let reads = store.reader();
    let long = Yielded { text: None, artifact: Some(digest(7)), size_bytes: 9_000 };
    let running = JobStanding { yielded: 4, ..standing(JobState::Running, 1) };
    let batch = [
        inserted(1),
        inserted(2),
        Change::ValuesYielded(job_id(1), 1, vec![text("one"), long.clone()]),
        Change::ValuesYielded(job_id(2), 1, vec![text("of another job")]),
        Change::ValuesYielded(job_id(1), 3, vec![Yielded::lost(3), text("four")]),
        Change::JobMoved(job_id(1), running.clone()),
    ];
    writer.apply(&batch, ONLY_TERM).unwrap();
    // As after a crash in the middle of telling it.
    writer.apply(&batch[2..], ONLY_TERM).unwrap();
    let values = reads.yielded(job_id(1), 0, 9).unwrap();
    let expected = [text("one"), long, Yielded::lost(3), text("four")];
    let expected: Vec<_> = (1..).zip(expected).map(|(n, value)| YieldedValue { n, value }).collect();
    assert_eq!(values, expected);
    assert_eq!(numbers(&reads.yielded(job_id(1), 1, 2).unwrap()), [2, 3]);
    assert_eq!(numbers(&reads.yielded(job_id(1), 4, 9).unwrap()), [0; 0]);
    assert_eq!(reads.job_standing(job_id(1)).unwrap(), Some(running));
    assert!(reads.artifact_referenced(&digest(7), Some(job_id(2))).unwrap());
    assert_eq!(reads.artifacts_of(job_id(1)).unwrap(), [digest(7)]);

    writer.apply(&[Change::JobPurged(job_id(1))], ONLY_TERM).unwrap();
    assert!(reads.yielded(job_id(1), 0, 9).unwrap().is_empty());
    assert!(!reads.artifact_referenced(&digest(7), None).unwrap());
    assert_eq!(reads.yielded(job_id(2), 0, 9).unwrap().len(), 1);
}

#[test]
fn a_page_has_no_more_than_one_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let block = text(&"x".repeat(10_000));
    writer.apply(&[inserted(1), Change::ValuesYielded(job_id(1), 1, vec![block; 100])], ONLY_TERM).unwrap();
    let (mut after, mut pages) = (0, Vec::new());
    while after < 100 {
        let page = store.reader().yielded(job_id(1), after, 500).unwrap();
        assert_eq!(page[0].n, after + 1);
        after = page.last().unwrap().n;
        pages.push(page.len());
    }
    assert_eq!(pages, [27, 27, 27, 19]);
}
