//! A batch leaves the same rows as its changes one by one.

use std::path::Path;
use std::sync::Arc;

use gpulayer::contract::artifact::{Digest, OutputFile};
use gpulayer::contract::job::JobState;
use gpulayer::contract::worker::TaskState;
use gpulayer::domain::change::{Change, JobResults, OutboxEntry, OutboxId};
use gpulayer::store::{CommitPort, FeedScope, JobFilter, ONLY_TERM, Reads, Store};
use proptest::prelude::*;

use crate::records::{
    digest, event, inserted, job_id, key, record, standing, task, task_id, task_standing, time,
};

const JOBS: u64 = 3;
const TASKS: u64 = 4;

fn results(artifact: Option<Digest>) -> Arc<JobResults> {
    let output = OutputFile {
        name: "model".into(),
        path: "model.json".into(),
        artifact,
        link_target: None,
        size_bytes: 1,
        mode: 0o644,
    };
    Arc::new(
        artifact.map_or_else(JobResults::default, |_| JobResults {
            outputs: vec![output],
            ..JobResults::default()
        }),
    )
}

fn change() -> impl Strategy<Value = Change> {
    let job = 1..=JOBS;
    let task_number = 1..=TASKS;
    prop_oneof![
        4 => (job.clone(), 0..3u8).prop_map(|(number, artifact)| {
            let mut record = record(number);
            record.artifacts = vec![digest(artifact)];
            Change::JobInserted(Box::new(record), standing(JobState::Queued, 1))
        }),
        8 => (job.clone(), prop::sample::select(&JobState::ALL[..]), 0..9u64)
            .prop_map(|(number, state, seq)| Change::JobMoved(job_id(number), standing(state, seq))),
        4 => (job.clone(), proptest::option::of(10..13u8))
            .prop_map(|(number, artifact)| Change::JobResults(job_id(number), results(artifact.map(digest)))),
        1 => job.clone().prop_map(|number| Change::JobPurged(job_id(number))),
        // A task belongs to one job for good.
        4 => task_number.clone().prop_map(|number| Change::TaskInserted(task(number, number % JOBS + 1))),
        8 => (task_number, prop::sample::select(vec![TaskState::Running, TaskState::Lost, TaskState::Succeeded]), any::<bool>())
            .prop_map(|(number, state, stale)| Change::TaskMoved(task_id(number), task_standing(state, stale))),
        4 => (job, 1..5u64).prop_map(|(number, seq)| event(number, seq, number * 10 + seq)),
        2 => (0..3u8, 0..9i64).prop_map(|(number, at)| key(number, time(at))),
        1 => (0..2u128).prop_map(|id| Change::OutboxQueued(Box::new(OutboxEntry {
            id: OutboxId(id),
            kind: "webhook".into(),
            payload: "{}".into(),
            created_at: time(1),
        }))),
        1 => (0..2u128).prop_map(|id| Change::OutboxDelivered(OutboxId(id))),
    ]
}

/// Everything the reads can see, as text.
fn seen(reads: &Reads) -> String {
    let jobs = reads.jobs(&JobFilter::default(), None, 100).unwrap();
    let mut text = serde_json::to_string_pretty(&jobs).unwrap();
    for number in 1..=JOBS {
        let id = job_id(number);
        text += &format!(
            "\n{:?}\n{:?}\n{:?}\n{:?}",
            reads.job_standing(id).unwrap(),
            reads.tasks(id).unwrap(),
            reads.events(id, 0, 100).unwrap(),
            reads.artifacts_of(id).unwrap(),
        );
    }
    let keys: Vec<_> = (0..3).map(|number| reads.used_key(&[number; 32]).unwrap()).collect();
    let ends: Vec<_> = (1..=TASKS).map(|number| reads.task_finish(task_id(number)).unwrap()).collect();
    text + &format!(
        "\n{:?}\n{:?}\n{keys:?}\n{ends:?}\n{:?}\n{:?}\n{}",
        reads.live_jobs().unwrap(),
        reads.live_tasks().unwrap(),
        reads.feed(0, 100, &FeedScope::All).unwrap().0,
        reads.outbox().unwrap(),
        reads.last_position().unwrap(),
    )
}

fn after(folder: &Path, batches: &[&[Change]]) -> String {
    let store = Store::open(folder).unwrap();
    let mut writer = store.writer().unwrap();
    for batch in batches {
        writer.apply(batch, ONLY_TERM).unwrap();
    }
    seen(&store.reader())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn one_batch_equals_its_changes_one_by_one(changes in proptest::collection::vec(change(), 1..30)) {
        let (together, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let singles: Vec<&[Change]> = changes.chunks(1).collect();
        let expected = after(apart.path(), &singles);
        prop_assert_eq!(after(together.path(), &[&changes]), expected.clone());
        // After-images: the last change of each row applied again leaves the same state.
        if !changes.iter().any(|change| matches!(change, Change::JobPurged(_) | Change::OutboxDelivered(_))) {
            let twice = tempfile::tempdir().unwrap();
            prop_assert_eq!(after(twice.path(), &[&changes, &changes]), expected);
        }
    }
}

#[test]
fn a_whole_life_in_one_batch_leaves_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let changes = [
        inserted(1),
        Change::TaskInserted(task(1, 1)),
        Change::JobMoved(job_id(1), standing(JobState::Running, 3)),
        Change::TaskMoved(task_id(1), task_standing(TaskState::Running, false)),
        Change::TaskMoved(task_id(1), task_standing(TaskState::Succeeded, false)),
        Change::JobMoved(job_id(1), standing(JobState::Succeeded, 6)),
    ];
    let store = Store::open(folder.path()).unwrap();
    store.writer().unwrap().apply(&changes, ONLY_TERM).unwrap();
    let reads = store.reader();
    assert_eq!(reads.job_standing(job_id(1)).unwrap(), Some(standing(JobState::Succeeded, 6)));
    assert!(reads.live_jobs().unwrap().is_empty());
    assert!(reads.live_tasks().unwrap().is_empty());
    assert_eq!(reads.task_finish(task_id(1)).unwrap().unwrap().job_state, JobState::Succeeded);
}
