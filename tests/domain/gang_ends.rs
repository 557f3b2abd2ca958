//! How gangs end: which task decides, and what they bring back together.

use std::sync::Arc;

use gpulayer::contract::artifact::{Digest, OutputFile};
use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::gang::{Distributed, Launcher, Peer};
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report};
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::spec::{JobSpec, OnUnreachable, Output};
use gpulayer::domain::change::{Change, JobRecord, JobResults};
use gpulayer::domain::job::{LiveJob, NewTask, Stage};
use gpulayer::domain::ledger::Ledger;
use gpulayer::domain::placement::{Seated, Shape};

const NODES: u32 = 3;

/// A gang whose tasks have all started, and all that was written of it.
struct Gang {
    job: LiveJob,
    now: Timestamp,
    changes: Vec<Change>,
}

fn output(path: &str, name: Option<&str>) -> Output {
    Output { path: path.to_owned(), name: name.map(str::to_owned), optional: false }
}

fn file(path: &str, name: &str, bytes: u8) -> OutputFile {
    let (path, name, artifact) = (path.to_owned(), name.to_owned(), Some(Digest::from_bytes([bytes; 32])));
    OutputFile { name, path, artifact, link_target: None, size_bytes: 1, mode: 0o644 }
}

impl Gang {
    fn placed(change: impl FnOnce(&mut JobSpec)) -> Self {
        let mut spec = JobSpec::command(["true"]);
        let launcher = Some(Launcher::Env);
        spec.distributed =
            Some(Box::new(Distributed { nodes: NODES, processes_per_node: None, launcher, backend: None }));
        spec.on_unreachable = Some(OnUnreachable::Wait);
        change(&mut spec);
        let record = JobRecord {
            id: JobId::from_u128(1),
            spec: serde_json::to_string(&spec).unwrap().into(),
            name: None,
            project: "default".into(),
            labels: "{}".into(),
            priority: 0,
            shape: "{}".into(),
            submitted_by: "me".into(),
            submitted_at: Timestamp::from_micros(1),
            queue_deadline: None,
            retry_of: None,
            warnings: Vec::new(),
            artifacts: Vec::new(),
        };
        let (shape, spec) = (Arc::new(Shape::of(&spec)), Arc::new(spec));
        let now = Timestamp::from_micros(1_000_000);
        let mut ledger = Ledger::new(now, 0);
        let mut job = LiveJob::accept(&mut ledger, Box::new(record), spec.clone(), shape);
        let seat = |rank: u32| {
            let worker_id = WorkerId::from_u128(u128::from(rank) + 1);
            let seat = Seated { worker_id, incarnation: 1, gpus: Vec::new(), weight: 1 };
            let peer = Peer { worker: worker_id, name: format!("box{rank}"), address: "10.0.0.1".into() };
            NewTask { task_id: task(rank), seat, peer }
        };
        job.place(&mut ledger, 0, (0..NODES).map(seat).collect(), spec).unwrap();
        Self { job, now, changes: Vec::new() }
    }

    fn started(change: impl FnOnce(&mut JobSpec)) -> Self {
        let mut gang = Self::placed(change);
        (0..NODES).for_each(|rank| gang.says(rank, Report::Start));
        assert_eq!(gang.job.state(), JobState::Running);
        gang
    }

    fn step(&mut self, act: impl FnOnce(&mut LiveJob, &mut Ledger)) {
        self.now = self.now.plus(Seconds::new(1));
        let mut ledger = Ledger::new(self.now, 0);
        act(&mut self.job, &mut ledger);
        self.changes.extend(ledger.changes);
    }

    fn says(&mut self, rank: u32, report: Report) {
        self.step(|job, ledger| {
            job.report(ledger, task(rank), 1, &report).unwrap();
        });
    }

    fn ends(&mut self, rank: u32, reason: EndReason, after_stop: bool, outputs: Vec<OutputFile>) {
        let mut end = End::of(reason, None);
        end.exit_code = Some(if reason == EndReason::Completed { 0 } else { 9 });
        let finish = Finish {
            end,
            after_stop,
            outputs,
            undeclared: vec![],
            log_artifact: None,
            result: None,
            warnings: vec![],
        };
        self.says(rank, Report::Finish(Box::new(finish)));
    }

    /// The lease of a rank runs out.
    fn silent(&mut self, rank: u32) {
        self.step(|job, ledger| job.lease_expired(ledger, task(rank), 1));
    }

    fn end(&self) -> &End {
        let Stage::Ended(ended) = self.job.stage() else {
            panic!("it has not ended: {:?}", self.job.stage())
        };
        &ended.end
    }

    fn results(&self) -> Arc<JobResults> {
        let mut results = self.changes.iter().rev().filter_map(|change| match change {
            Change::JobResults(_, results) => Some(results.clone()),
            _ => None,
        });
        results.next().unwrap_or_default()
    }
}

fn task(rank: u32) -> TaskId {
    TaskId::from_u128(10 + u128::from(rank))
}

#[test]
fn a_gang_that_is_stopped_ends_so_whichever_machine_is_away() {
    for away in 0..NODES {
        let mut gang = Gang::started(|_| {});
        gang.silent(away);
        gang.step(|job, ledger| assert!(job.cancel(ledger, false)));
        for rank in (0..NODES).filter(|rank| *rank != away) {
            gang.ends(rank, EndReason::Cancelled, true, vec![]);
        }
        assert_eq!(gang.end().reason, EndReason::Cancelled, "rank {away} is away");

        let evicted = (away + 1) % NODES;
        let mut gang = Gang::started(|_| {});
        gang.silent(away);
        gang.step(|job, ledger| assert!(job.evict(ledger, task(evicted))));
        for rank in (0..NODES).filter(|rank| *rank != away) {
            gang.ends(rank, EndReason::Cancelled, true, vec![]);
        }
        assert_eq!(gang.end().reason, EndReason::Evicted, "rank {away} is away");
        assert!(
            gang.end().detail.as_ref().unwrap().starts_with(&format!("rank {evicted} on box{evicted}: "))
        );
    }
}

#[test]
fn the_end_is_that_of_the_rank_that_fell_for_a_reason_of_its_own() {
    // The peers of a machine that goes fall first, and are heard of first.
    let mut gang = Gang::started(|_| {});
    gang.ends(2, EndReason::NcclError, false, vec![]);
    gang.ends(0, EndReason::ExitNonzero, false, vec![]);
    gang.silent(1);
    assert_eq!(gang.end().reason, EndReason::WorkerLost);
    assert_eq!(gang.end().detail.as_deref(), Some("rank 1 on box1: its lease ran out"));

    let mut gang = Gang::started(|_| {});
    gang.ends(2, EndReason::ExitNonzero, false, vec![]);
    gang.ends(0, EndReason::Signalled, false, vec![]);
    gang.ends(1, EndReason::Cancelled, true, vec![]);
    assert_eq!(gang.end().reason, EndReason::ExitNonzero, "of two that say as much the first");

    let mut gang = Gang::started(|_| {});
    gang.ends(2, EndReason::ExitNonzero, false, vec![]);
    gang.ends(0, EndReason::OomKilled, false, vec![]);
    gang.ends(1, EndReason::Cancelled, true, vec![]);
    assert_eq!(gang.end().reason, EndReason::OomKilled);
}

#[test]
fn a_rank_that_is_declined_takes_the_gang_back_to_the_queue_and_uses_no_attempt() {
    let mut gang = Gang::placed(|_| {});
    gang.says(0, Report::Start);
    gang.says(1, Report::Decline { detail: "no room".into() });
    assert_eq!(gang.job.state(), JobState::Running, "rank 0 is stopped first");
    gang.ends(0, EndReason::Cancelled, true, vec![]);
    assert_eq!((gang.job.state(), gang.job.attempt()), (JobState::Queued, 1));
    assert_eq!(gang.job.avoid, Some(WorkerId::from_u128(2)));
}

#[test]
fn every_declared_output_comes_from_some_rank_and_each_path_from_one() {
    let two_names = |spec: &mut JobSpec| {
        spec.outputs = vec![output("only0", None), output("only*", Some("all"))];
    };
    let mut gang = Gang::started(two_names);
    gang.ends(0, EndReason::Completed, false, vec![file("only0", "only0", 1), file("only0", "all", 1)]);
    for rank in 1..NODES {
        let path = format!("only{rank}");
        gang.ends(rank, EndReason::Completed, false, vec![file(&path, "all", 2)]);
    }
    assert_eq!(gang.end().reason, EndReason::Completed, "{:?}", gang.end());
    let results = gang.results();
    let names: Vec<_> = results.outputs.iter().map(|file| (file.path.as_str(), file.name.as_str())).collect();
    assert_eq!(names, [("only0", "all"), ("only0", "only0"), ("only1", "all"), ("only2", "all")]);
    assert!(results.warnings.is_empty(), "{:?}", results.warnings);

    let mut gang = Gang::started(|spec| spec.outputs = vec![output("model", None)]);
    for rank in [2, 1, 0] {
        gang.ends(rank, EndReason::Completed, false, vec![file("model", "model", rank as u8 / 2)]);
    }
    let results = gang.results();
    assert_eq!(results.outputs, [file("model", "model", 0)], "rank 0's");
    assert_eq!(results.warnings.len(), 1, "rank 1 has the same bytes: {:?}", results.warnings);
    assert!(results.warnings[0].detail.contains("of rank 2"));

    let mut gang = Gang::started(|spec| spec.outputs = vec![output("model", None)]);
    (0..NODES).for_each(|rank| gang.ends(rank, EndReason::Completed, false, vec![]));
    assert_eq!(gang.end().reason, EndReason::MissingOutput);
}
