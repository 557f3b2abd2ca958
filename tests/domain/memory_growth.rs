//! `memory_growth` through the life of a job: what is asked for, what is given back, what a restart remembers.

use std::sync::Arc;

use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::event::EventType;
use gpulayer::contract::gang::Peer;
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report};
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::spec::{JobSpec, MemoryGrowth, Retry};
use gpulayer::domain::change::{Change, JobRecord, JobStanding};
use gpulayer::domain::job::{LiveJob, NewTask, Restored};
use gpulayer::domain::ledger::{Ledger, Notice};
use gpulayer::domain::placement::{Seated, Shape};

const WORKER: WorkerId = WorkerId::from_u128(7);

fn spec() -> Arc<JobSpec> {
    let mut spec = JobSpec::command(["greedy"]);
    spec.resources.memory_bytes = Some(1000);
    spec.retry = Retry {
        max_attempts: 9,
        retry_on: vec!["oom_killed".into()],
        backoff_s: Seconds::new(5),
        memory_growth: Some(MemoryGrowth { factor: 1.5, max_bytes: 2000 }),
        ..Retry::default()
    };
    Arc::new(spec)
}

fn record(spec: &JobSpec) -> Box<JobRecord> {
    Box::new(JobRecord {
        id: JobId::from_u128(1),
        spec: serde_json::to_string(spec).unwrap().into(),
        name: None,
        project: "default".into(),
        labels: "{}".into(),
        priority: 0,
        shape: serde_json::to_string(&Shape::of(spec)).unwrap().into(),
        submitted_by: "me".into(),
        submitted_at: Timestamp::from_micros(1),
        queue_deadline: None,
        retry_of: None,
        warnings: Vec::new(),
        artifacts: Vec::new(),
    })
}

fn ledger() -> Ledger {
    Ledger::new(Timestamp::from_micros(1_000_000), 0)
}

/// Places the job and lets its task be killed for lack of memory; the ledger of the end, what the worker was told and
/// what was taken of it.
fn killed(job: &mut LiveJob, spec: &Arc<JobSpec>, task: u128) -> (Ledger, Option<u64>, u64) {
    let task_id = TaskId::from_u128(task);
    let mut placing = ledger();
    let seat = Seated { worker_id: WORKER, incarnation: 1, gpus: Vec::new(), weight: 1 };
    let peer = Peer { worker: WORKER, name: "box".into(), address: "10.0.0.1".into() };
    job.place(&mut placing, job.epoch(), vec![NewTask { task_id, seat, peer }], spec.clone()).unwrap();
    let taken = job.placed().next().unwrap().grant.amount.memory_bytes;
    let asked = placing.notices.iter().find_map(|notice| match notice {
        Notice::Offer(_, assignment) => Some(assignment.spec.resources.memory_bytes),
        _ => None,
    });
    job.report(&mut ledger(), task_id, job.epoch(), &Report::Start).unwrap();
    let finish = Finish {
        end: End::of(EndReason::OomKilled, "peak 1000 B of 1000 B".to_owned()),
        after_stop: false,
        outputs: Vec::new(),
        undeclared: Vec::new(),
        log_artifact: None,
        result: None,
        warnings: Vec::new(),
    };
    let mut ending = ledger();
    job.report(&mut ending, task_id, job.epoch(), &Report::Finish(Box::new(finish))).unwrap();
    assert!(
        ending.notices.iter().any(|notice| matches!(notice, Notice::Freed(..))),
        "what was taken is given back"
    );
    (ending, asked.unwrap(), taken)
}

fn standing(ledger: &Ledger) -> JobStanding {
    let moved = ledger.changes.iter().rev().find_map(|change| match change {
        Change::JobMoved(_, standing) => Some(standing.clone()),
        _ => None,
    });
    moved.unwrap()
}

#[test]
fn each_attempt_asks_for_more_until_it_had_the_most() {
    let spec = spec();
    let shape = Arc::new(Shape::of(&spec));
    let mut job = LiveJob::accept(&mut ledger(), record(&spec), spec.clone(), shape.clone());

    let (ending, asked, taken) = killed(&mut job, &spec, 1);
    assert_eq!((asked, taken), (Some(1000), 1000));
    assert_eq!((job.state(), job.shape.amount().memory_bytes), (JobState::Queued, 1500));
    let queued = ending.changes.iter().find_map(|change| match change {
        Change::EventAppended(event) if event.kind == EventType::JobQueued => Some(event.data.clone()),
        _ => None,
    });
    let queued = queued.unwrap();
    assert_eq!((&queued["after"], &queued["memory_bytes"]), (&"oom_killed".into(), &1500.into()), "{queued}");
    assert_eq!(queued["avoid"], serde_json::json!(WORKER), "{queued}");

    // A restart in between: the rest of the job's life is told by its row alone.
    let kept = standing(&ending);
    assert_eq!((kept.memory_bytes, kept.avoid), (Some(1500), Some(WORKER)));
    let mut job = LiveJob::restore(Restored {
        id: job.id,
        priority: 0,
        submitted_at: job.submitted_at,
        queue_deadline: None,
        shape: Arc::new(shape.with_memory(1500)),
        project: "default".into(),
        waits: Vec::new(),
        standing: kept,
        tasks: Vec::new(),
    });
    assert_eq!(job.avoid, Some(WORKER), "a restart does not forget whom to avoid");

    let (_, asked, taken) = killed(&mut job, &spec, 2);
    assert_eq!((asked, taken), (Some(1500), 1500), "the worker is told what the attempt was placed with");
    assert_eq!(job.shape.amount().memory_bytes, 2000, "1500 x 1.5 is more than the most");

    let (_, asked, taken) = killed(&mut job, &spec, 3);
    assert_eq!((asked, taken), (Some(2000), 2000));
    assert_eq!(job.state(), JobState::Failed, "the same again would end the same, though attempts are left");
    assert_eq!(job.attempt(), 3);
}
