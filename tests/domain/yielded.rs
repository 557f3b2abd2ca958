//! What a generator yields through the life of its job: each number once, over repeats, attempts and restarts.

use std::sync::Arc;

use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::gang::Peer;
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report};
use gpulayer::contract::quantity::Timestamp;
use gpulayer::contract::spec::{JobSpec, Retry};
use gpulayer::contract::yielded::Yielded;
use gpulayer::domain::change::{Change, JobRecord};
use gpulayer::domain::job::{LiveJob, NewTask, ReportRefusal, Restored};
use gpulayer::domain::ledger::Ledger;
use gpulayer::domain::placement::{Seated, Shape};

fn ledger() -> Ledger {
    Ledger::new(Timestamp::from_micros(1_000_000), 0)
}

fn spec() -> Arc<JobSpec> {
    let mut spec = JobSpec::command(["generates"]);
    spec.retry = Retry { max_attempts: 2, retry_on: vec!["any".into()], ..Retry::default() };
    Arc::new(spec)
}

fn accepted(spec: &Arc<JobSpec>) -> LiveJob {
    let shape = Arc::new(Shape::of(spec));
    let record = JobRecord {
        id: JobId::from_u128(1),
        spec: serde_json::to_string(&**spec).unwrap().into(),
        name: None,
        project: "default".into(),
        labels: "{}".into(),
        priority: 0,
        shape: serde_json::to_string(&*shape).unwrap().into(),
        submitted_by: "me".into(),
        submitted_at: Timestamp::from_micros(1),
        queue_deadline: None,
        retry_of: None,
        warnings: Vec::new(),
        artifacts: Vec::new(),
    };
    LiveJob::accept(&mut ledger(), Box::new(record), spec.clone(), shape)
}

fn started(job: &mut LiveJob, spec: &Arc<JobSpec>, task: u128) -> TaskId {
    let (worker, task_id) = (WorkerId::from_u128(7), TaskId::from_u128(task));
    let seat = Seated { worker_id: worker, incarnation: 1, gpus: Vec::new(), weight: 1 };
    let peer = Peer { worker, name: "box".into(), address: "10.0.0.1".into() };
    job.place(&mut ledger(), job.epoch(), vec![NewTask { task_id, seat, peer }], spec.clone()).unwrap();
    job.report(&mut ledger(), task_id, job.epoch(), &Report::Start).unwrap();
    task_id
}

/// Reports the values from one number to another; those that are written down for it.
fn yields(job: &mut LiveJob, task_id: TaskId, first: u64, last: u64) -> Vec<(u64, String)> {
    let value = |n| Yielded { text: Some(format!("{n} of {task_id}")), artifact: None, size_bytes: n };
    let report = Report::Yielded { first_n: first, values: (first..=last).map(value).collect() };
    let mut taken = ledger();
    let state = job.report(&mut taken, task_id, job.epoch(), &report).unwrap();
    assert_eq!(state, JobState::Running);
    let mut written = Vec::new();
    for change in &taken.changes {
        match change {
            Change::ValuesYielded(id, first_n, values) => {
                assert_eq!(*id, job.id);
                let texts = values.iter().map(|value| value.text.clone().unwrap());
                written.extend((*first_n..).zip(texts));
            }
            Change::JobMoved(_, standing) => assert_eq!(standing.yielded, job.yielded()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written.is_empty(), taken.changes.is_empty(), "a repeat writes nothing");
    written
}

fn finished(job: &mut LiveJob, task_id: TaskId, reason: EndReason) {
    let finish = Finish {
        end: End { exit_code: (reason == EndReason::Completed).then_some(0), ..End::of(reason, None) },
        after_stop: false,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        result: None,
        warnings: Vec::new(),
    };
    job.report(&mut ledger(), task_id, job.epoch(), &Report::Finish(Box::new(finish))).unwrap();
}

/// As the store would give it back while it waits.
fn restarted(job: &LiveJob) -> LiveJob {
    LiveJob::restore(Restored {
        id: job.id,
        priority: job.priority,
        submitted_at: job.submitted_at,
        queue_deadline: None,
        shape: job.shape.clone(),
        project: job.project.clone(),
        waits: Vec::new(),
        standing: job.standing(),
        tasks: Vec::new(),
    })
}

#[test]
fn what_a_second_attempt_yields_again_is_not_news() {
    let spec = spec();
    let mut job = accepted(&spec);
    let first = started(&mut job, &spec, 1);
    let of = |task: TaskId, numbers: std::ops::RangeInclusive<u64>| -> Vec<(u64, String)> {
        numbers.map(|n| (n, format!("{n} of {task}"))).collect()
    };
    assert_eq!(yields(&mut job, first, 1, 3), of(first, 1..=3));
    assert_eq!(yields(&mut job, first, 1, 3), [], "its answer was lost");
    assert_eq!(yields(&mut job, first, 3, 5), of(first, 4..=5));
    finished(&mut job, first, EndReason::Signalled);
    assert_eq!(job.state(), JobState::Queued);

    let mut job = restarted(&job);
    let second = started(&mut job, &spec, 2);
    assert_eq!(yields(&mut job, second, 1, 2), []);
    assert_eq!(yields(&mut job, second, 3, 7), of(second, 6..=7));
    finished(&mut job, second, EndReason::Completed);
    assert_eq!((job.state(), job.standing().yielded), (JobState::Succeeded, 7));
    let late = Report::Yielded { first_n: 8, values: vec![Yielded::lost(1)] };
    assert_eq!(
        job.report(&mut ledger(), second, job.epoch(), &late),
        Err(ReportRefusal::TaskEnded),
        "nothing comes after the end"
    );
}

#[test]
fn who_has_not_started_yields_nothing() {
    let spec = spec();
    let mut job = accepted(&spec);
    let report = Report::Yielded { first_n: 1, values: vec![Yielded::lost(1)] };
    let refused = job.report(&mut ledger(), TaskId::from_u128(1), job.epoch(), &report);
    assert_eq!((refused, job.yielded()), (Err(ReportRefusal::StaleEpoch), 0));
}
