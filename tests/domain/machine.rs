//! Random events over jobs, leases and places. After every event the invariants hold, and a job rebuilt from
//! what was persisted stands where the live one stands: a crash at any moment loses nothing. A failing run is
//! shrunk by proptest and kept as a seed, so it replays.

use std::collections::HashMap;
use std::sync::Arc;

use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::gang::{Distributed, Launcher, Peer};
use gpulayer::contract::ids::{Epoch, JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report};
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::spec::{DependencyEnd, JobSpec, OnUnreachable};
use gpulayer::contract::worker::{Phase, TaskState};
use gpulayer::domain::change::{Change, JobRecord, JobStanding, StopCause, TaskRecord, TaskStanding};
use gpulayer::domain::dependency::{self, Over, Wait};
use gpulayer::domain::job::{LiveJob, LiveTask, NewTask, Placed, Restored, RestoredTask, Stage, Stop};
use gpulayer::domain::ledger::{Ledger, Notice, SharedSpec};
use gpulayer::domain::placement::{Grant, Seated, Shape};
use proptest::prelude::*;

const JOBS: usize = 3;
const WORKERS: u128 = 3;

/// What may happen next. Indices are taken modulo what exists.
#[derive(Debug, Clone)]
enum Happening {
    Submit(Wish),
    Place { job: usize, worker: u128, stale: bool },
    Start { task: usize },
    Phase { task: usize },
    Decline { task: usize },
    Finish { task: usize, reason: usize, after_stop: bool },
    Cancel { job: usize, now: bool },
    LeaseExpires { task: usize },
    LeaseRenewed { task: usize },
    Returns { worker: u128, rebooted: bool },
    Withdraw { job: usize },
    DrainDeadline { worker: u128 },
    Evict { task: usize },
    Preempt { job: usize, stale: bool },
    Missing { worker: u128 },
    Leaves { worker: u128 },
    Revoke { worker: u128 },
    ServerRestarts,
    TimePasses { seconds: u64 },
}

/// A job as somebody might want it.
#[derive(Debug, Clone)]
struct Wish {
    attempts: u32,
    retry_on: &'static str,
    wait: bool,
    queue_timeout: bool,
    after: Option<After>,
    /// 0: no gang.
    nodes: u32,
}

/// A dependency on an earlier job, taken modulo those that there are.
type After = (usize, bool);

fn happening() -> impl Strategy<Value = Happening> {
    let retry_on = prop_oneof![Just("worker_lost"), Just("any"), Just("user"), Just("infrastructure")];
    prop_oneof![
        2 => (1..4u32, retry_on, any::<bool>(), any::<bool>(), prop::option::of((0..JOBS, any::<bool>())), 0..4u32)
            .prop_map(|(attempts, retry_on, wait, queue_timeout, after, nodes)| {
                Happening::Submit(Wish { attempts, retry_on, wait, queue_timeout, after, nodes })
            }),
        6 => (0..JOBS, 0..WORKERS, prop::bool::weighted(0.1))
            .prop_map(|(job, worker, stale)| Happening::Place { job, worker, stale }),
        6 => (0..9usize).prop_map(|task| Happening::Start { task }),
        2 => (0..9usize).prop_map(|task| Happening::Phase { task }),
        1 => (0..9usize).prop_map(|task| Happening::Decline { task }),
        4 => (0..9usize, 0..EndReason::ALL.len(), any::<bool>())
            .prop_map(|(task, reason, after_stop)| Happening::Finish { task, reason, after_stop }),
        2 => (0..JOBS, any::<bool>()).prop_map(|(job, now)| Happening::Cancel { job, now }),
        2 => (0..9usize).prop_map(|task| Happening::LeaseExpires { task }),
        1 => (0..9usize).prop_map(|task| Happening::LeaseRenewed { task }),
        1 => (0..WORKERS, any::<bool>()).prop_map(|(worker, rebooted)| Happening::Returns { worker, rebooted }),
        1 => (0..JOBS).prop_map(|job| Happening::Withdraw { job }),
        1 => (0..WORKERS).prop_map(|worker| Happening::DrainDeadline { worker }),
        2 => (0..9usize).prop_map(|task| Happening::Evict { task }),
        2 => (0..JOBS, prop::bool::weighted(0.2)).prop_map(|(job, stale)| Happening::Preempt { job, stale }),
        1 => (0..WORKERS).prop_map(|worker| Happening::Missing { worker }),
        1 => (0..WORKERS).prop_map(|worker| Happening::Leaves { worker }),
        1 => (0..WORKERS).prop_map(|worker| Happening::Revoke { worker }),
        1 => Just(Happening::ServerRestarts),
        2 => (1..5_000u64).prop_map(|seconds| Happening::TimePasses { seconds }),
    ]
}

/// A store that only knows what it was told, and checks it.
#[derive(Default)]
struct Persisted {
    records: HashMap<JobId, JobRecord>,
    standings: HashMap<JobId, JobStanding>,
    tasks: Vec<(TaskRecord, TaskStanding)>,
    waits: HashMap<JobId, Vec<Wait>>,
    position: u64,
}

impl Persisted {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::JobInserted(record, standing) => {
                assert!(self.records.insert(record.id, (**record).clone()).is_none(), "inserted twice");
                self.standings.insert(record.id, standing.clone());
            }
            Change::JobMoved(job_id, next) => {
                let before = &self.standings[job_id];
                let legal = before.state == next.state || before.state.may_become(next.state);
                assert!(legal, "{:?} → {:?}", before.state, next.state);
                assert!(!before.state.ended(), "an ended job moved");
                assert!(next.epoch >= before.epoch && next.attempt >= before.attempt && next.event_seq > 0);
                assert_eq!(next.state.ended(), next.end.is_some() && next.ended_at.is_some());
                self.standings.insert(*job_id, next.clone());
            }
            Change::TaskInserted(record) => {
                let of_job = || self.tasks.iter().filter(|(task, _)| task.job_id == record.job_id);
                assert!(
                    of_job().all(|(task, row)| row.state.ended()
                        || (task.epoch == record.epoch
                            && task.rank() != record.rank()
                            && task.worker != record.worker)),
                    "two live tasks of one job that are not of one gang"
                );
                let row = TaskStanding::of(TaskState::Assigned);
                self.tasks.push((record.clone(), row));
            }
            Change::TaskMoved(task_id, next) => {
                let (_, row) = self.tasks.iter_mut().find(|(task, _)| task.id == *task_id).unwrap();
                assert!(!row.state.ended(), "an ended task moved");
                assert!(
                    row.stop_cause.is_none() || row.stop_cause == next.stop_cause,
                    "the first cause wins"
                );
                assert!(!row.stop_now || next.stop_now, "a stop gets no gentler");
                *row = next.clone();
            }
            Change::EventAppended(event) => {
                self.position += 1;
                assert_eq!(event.position, self.position, "positions have no gaps");
            }
            Change::JobWaits(job_id, waits) => {
                assert!(!self.standings[job_id].state.ended() || waits.is_empty());
                self.waits.insert(*job_id, waits.clone());
            }
            Change::JobResults(..) => {}
            other => panic!("a job step does not write {other:?}"),
        }
    }

    fn restored(&self, live: &LiveJob) -> LiveJob {
        let record = &self.records[&live.id];
        let spec: SharedSpec = serde_json::from_str(&record.spec).unwrap();
        let standing = self.standings[&live.id].clone();
        let newest =
            || self.tasks.iter().filter(|(task, _)| task.job_id == live.id && task.epoch == standing.epoch);
        let lives = newest().any(|(_, row)| !row.state.ended());
        let tasks = newest().filter(|_| lives).map(|(task, row)| {
            let grant = Grant { amount: live.shape.amount(), gpus: task.gpus.clone() };
            let TaskRecord { id: task_id, worker, weight, ref gang, .. } = *task;
            let placed = Placed { task_id, worker, spec: spec.clone(), grant, weight, gang: gang.clone() };
            RestoredTask { placed, standing: row.clone() }
        });
        let tasks = tasks.collect();
        LiveJob::restore(Restored {
            id: live.id,
            priority: record.priority,
            submitted_at: record.submitted_at,
            queue_deadline: record.queue_deadline,
            shape: live.shape.clone(),
            project: live.project.clone(),
            waits: self.waits.get(&live.id).cloned().unwrap_or_default(),
            standing,
            tasks,
        })
    }
}

fn new_task(task_id: TaskId, worker: u128) -> NewTask {
    let worker_id = WorkerId::from_u128(worker);
    let seat = Seated { worker_id, incarnation: 1, gpus: vec!["GPU-1".into()], weight: 3 };
    let peer = Peer { worker: worker_id, name: format!("box{worker}"), address: format!("10.0.0.{worker}") };
    NewTask { task_id, seat, peer }
}

struct World {
    now: Timestamp,
    jobs: Vec<LiveJob>,
    store: Persisted,
    next_id: u128,
    /// Places taken, as the scheduler would count them: per task, until freed.
    taken: HashMap<JobId, i32>,
    stale: HashMap<TaskId, JobId>,
    after: HashMap<JobId, (JobId, DependencyEnd)>,
}

impl World {
    fn new() -> Self {
        Self {
            now: Timestamp::from_micros(1_000_000_000_000),
            jobs: Vec::new(),
            store: Persisted::default(),
            next_id: 100,
            taken: HashMap::new(),
            stale: HashMap::new(),
            after: HashMap::new(),
        }
    }

    fn id(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    fn step<T>(&mut self, job: usize, act: impl FnOnce(&mut LiveJob, &mut Ledger) -> T) -> Option<T> {
        let job = self.jobs.get_mut(job)?;
        let mut ledger = Ledger::new(self.now, self.store.position);
        let before = job.standing();
        let outcome = act(job, &mut ledger);
        if ledger.changes.is_empty() {
            assert_eq!(before, job.standing(), "what changes must be persisted");
        }
        self.absorb(ledger);
        Some(outcome)
    }

    fn absorb(&mut self, ledger: Ledger) {
        for change in &ledger.changes {
            self.store.apply(change);
            if let Change::TaskInserted(task) = change {
                *self.taken.entry(task.job_id).or_default() += 1;
            }
        }
        for notice in ledger.notices {
            match notice {
                Notice::Queued(job_id) => {
                    let waits = self.store.waits.get(&job_id).is_none_or(Vec::is_empty);
                    assert!(waits, "the scheduler is not told of what waits");
                }
                Notice::Freed(_, place) => *self.taken.get_mut(&place.job_id).unwrap() -= 1,
                Notice::Stale(_, task_id, place) => {
                    self.stale.insert(task_id, place.job_id);
                }
                Notice::Offer(worker, assignment) => {
                    let known = self.store.tasks.iter().any(|(task, _)| {
                        task.id == assignment.task_id
                            && task.worker == worker
                            && task.epoch == assignment.epoch
                    });
                    assert!(known, "no offer without its task on record");
                }
                _ => {}
            }
        }
    }

    /// Any task that ever was, newest first, so that late messages are as likely as timely ones.
    fn task(&self, index: usize) -> Option<(usize, TaskId, Epoch)> {
        let count = self.store.tasks.len();
        let (task, _) = self.store.tasks.get(count.checked_sub(1 + index % count.max(1))?)?;
        let job = self.jobs.iter().position(|job| job.id == task.job_id)?;
        Some((job, task.id, task.epoch))
    }

    fn report(&mut self, task: usize, report: &Report) {
        if let Some((job, task_id, epoch)) = self.task(task) {
            let before = self.jobs[job].standing();
            let judged = self.step(job, |job, ledger| job.report(ledger, task_id, epoch, report));
            if judged.is_some_and(|judged| judged.is_err()) {
                assert_eq!(before, self.jobs[job].standing(), "a refused report changes nothing");
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Submit(wish) => {
                if self.jobs.len() < JOBS {
                    self.submit(wish);
                }
            }
            Happening::Place { job, worker, stale } => {
                let first = self.id();
                self.next_id += WORKERS;
                let Some(live) = self.jobs.get(job) else { return };
                let record = &self.store.records[&live.id];
                let spec: SharedSpec = serde_json::from_str(&record.spec).unwrap();
                let epoch = live.epoch() + u32::from(stale);
                let seats: Vec<NewTask> = (0..live.shape.nodes() as u128)
                    .map(|rank| new_task(TaskId::from_u128(first + rank), (worker + rank) % WORKERS))
                    .collect();
                let short = seats[1..].to_vec();
                let before =
                    self.step(job, |job, ledger| job.place(ledger, epoch, short, SharedSpec::clone(&spec)));
                assert!(before.unwrap().is_err(), "a gang is placed whole");
                let live = &self.jobs[job];
                let queued = matches!(live.stage(), Stage::Queued) && live.waits().is_empty();
                let placed = self.step(job, |job, ledger| job.place(ledger, epoch, seats, spec));
                assert_eq!(placed.unwrap().is_ok(), queued && !stale);
            }
            Happening::Start { task } => self.report(task, &Report::Start),
            Happening::Phase { task } => self.report(task, &Report::Phase { phase: Phase::Executing }),
            Happening::Decline { task } => self.report(task, &Report::Decline { detail: "no room".into() }),
            Happening::Finish { task, reason, after_stop } => {
                let finish = Finish {
                    end: End::of(EndReason::ALL[reason], None),
                    after_stop,
                    outputs: Vec::new(),
                    undeclared: Vec::new(),
                    log_artifact: None,
                    result: None,
                    warnings: Vec::new(),
                };
                self.report(task, &Report::Finish(Box::new(finish)));
            }
            Happening::Cancel { job, now } => self.cancel(job, now),
            Happening::LeaseExpires { task } => {
                if let Some((job, task_id, epoch)) = self.task(task) {
                    self.step(job, |job, ledger| job.lease_expired(ledger, task_id, epoch));
                }
            }
            Happening::LeaseRenewed { task } => {
                if let Some((job, task_id, epoch)) = self.task(task) {
                    self.step(job, |job, ledger| job.lease_renewed(ledger, task_id, epoch));
                }
            }
            Happening::Returns { worker, rebooted } => {
                for job in 0..self.jobs.len() {
                    let worker = WorkerId::from_u128(worker);
                    self.step(job, |job, ledger| job.worker_returned_without(ledger, worker, rebooted));
                }
            }
            Happening::Withdraw { job } => {
                self.step(job, LiveJob::withdraw);
            }
            Happening::DrainDeadline { worker } => {
                let worker = WorkerId::from_u128(worker);
                for job in 0..self.jobs.len() {
                    self.step(job, |job, ledger| job.withdraw_from(ledger, worker));
                    self.step(job, |job, ledger| job.drain(ledger, worker));
                    let told = self.step(job, |job, ledger| job.drain(ledger, worker));
                    assert_eq!(told, Some(false), "a repeat changes nothing");
                }
            }
            Happening::Evict { task } => {
                if let Some((job, task_id, _)) = self.task(task) {
                    let attempt = self.jobs[job].attempt();
                    // Of a gang it may be the last of those that were waited for after another was lost.
                    let alone = matches!(self.jobs[job].stage(), Stage::Placed(tasks) if tasks.len() == 1);
                    self.step(job, |job, ledger| job.evict(ledger, task_id));
                    let used = self.jobs[job].attempt() - attempt;
                    assert!(used == 0 || !alone, "an eviction by itself uses no attempt");
                    assert_eq!(self.step(job, |job, ledger| job.evict(ledger, task_id)), Some(false));
                }
            }
            Happening::Preempt { job, stale } => {
                let Some(live) = self.jobs.get(job) else { return };
                let epoch = live.epoch() + u32::from(stale);
                let before = (live.attempt(), live.state());
                let changed =
                    self.step(job, |job, ledger| job.preempt(ledger, epoch, JobId::from_u128(99))).unwrap();
                let live = &self.jobs[job];
                assert_eq!(live.attempt(), before.0, "a preemption by itself uses no attempt");
                match before.1 {
                    JobState::Scheduled if !stale => {
                        assert!(changed && live.state() == JobState::Queued);
                        assert_eq!(live.standing().went_for, Some(JobId::from_u128(99)), "it says for whom");
                    }
                    JobState::Running => {
                        assert_eq!(live.state(), JobState::Running, "it has its grace");
                        assert!(!changed || live.standing().went_for == Some(JobId::from_u128(99)));
                    }
                    _ => assert!(!changed && live.state() == before.1),
                }
            }
            Happening::Revoke { worker } => {
                let worker = WorkerId::from_u128(worker);
                for job in 0..self.jobs.len() {
                    let there = self.jobs[job].tasks().iter().find(|task| task.placed.worker == worker);
                    let started = there.is_some_and(|task| task.run().is_some());
                    assert_eq!(self.step(job, |job, ledger| job.revoke(ledger, worker)), Some(started));
                    let left = self.jobs[job].placed().any(|placed| placed.worker == worker);
                    assert!(!left, "nothing of it stays there");
                    assert_eq!(self.step(job, |job, ledger| job.revoke(ledger, worker)), Some(false));
                }
            }
            Happening::Missing { worker } => {
                let worker = WorkerId::from_u128(worker);
                for job in 0..self.jobs.len() {
                    self.step(job, |job, ledger| job.missing_on(ledger, worker));
                    let runs = |task: &LiveTask| task.placed.worker == worker && task.run().is_some();
                    assert!(!self.jobs[job].tasks().iter().any(runs));
                }
            }
            Happening::Leaves { worker } => {
                let worker = WorkerId::from_u128(worker);
                for job in 0..self.jobs.len() {
                    self.step(job, |job, ledger| job.worker_left(ledger, worker));
                    assert!(self.jobs[job].placed().all(|placed| placed.worker != worker));
                }
            }
            Happening::ServerRestarts => {
                for job in 0..self.jobs.len() {
                    if !self.jobs[job].state().ended() {
                        self.jobs[job] = self.store.restored(&self.jobs[job]);
                    }
                }
            }
            Happening::TimePasses { seconds } => {
                self.now = self.now.plus(Seconds::new(seconds));
                for job in 0..self.jobs.len() {
                    let epoch = self.jobs[job].epoch();
                    self.step(job, LiveJob::queue_timeout);
                    self.step(job, LiveJob::backoff_over);
                    self.step(job, |job, ledger| job.unreachable_timeout(ledger, epoch));
                }
            }
        }
        self.judge_dependants();
        self.check();
    }

    /// As the supervisor does: whoever waits for what is over is judged, until nobody does.
    fn judge_dependants(&mut self) {
        loop {
            let due = self.jobs.iter().enumerate().find_map(|(place, job)| {
                job.waits().iter().find_map(|wait| {
                    let on = self.jobs.iter().find(|on| on.id == wait.job)?;
                    let Stage::Ended(ended) = on.stage() else { return None };
                    Some((place, wait.clone(), Over::Ended { state: on.state(), reason: ended.end.reason }))
                })
            });
            let Some((place, wait, over)) = due else { return };
            self.step(place, |job, ledger| match dependency::judge(&wait, over) {
                Ok(()) => assert!(job.dependency_met(ledger, wait.job, None)),
                Err(end) => {
                    job.dependency_failed(ledger, *end);
                    assert_eq!(job.state(), JobState::Failed);
                }
            });
        }
    }

    /// Nothing is told to the scheduler or placed before what it waits for is over as it should be.
    fn check_dependencies(&self) {
        for job in &self.jobs {
            let waits = self.store.waits.get(&job.id).cloned().unwrap_or_default();
            assert_eq!(job.waits(), waits, "memory and store agree");
            assert!(job.waits().is_empty() || matches!(job.stage(), Stage::Queued));
            assert_eq!(dependency::queue_reason(job.waits()).is_some(), !job.waits().is_empty());
            if let (Some((on, when)), true) = (self.after.get(&job.id), job.epoch() > 0) {
                let on = self.jobs.iter().find(|job| job.id == *on).unwrap().state();
                assert!(on.ended() && (*when == DependencyEnd::Ended || on == JobState::Succeeded));
            }
        }
    }

    fn submit(&mut self, wish: Wish) {
        let Wish { attempts, retry_on, wait, queue_timeout, after, nodes } = wish;
        let mut spec = JobSpec::command(["true"]);
        spec.retry.max_attempts = attempts;
        spec.retry.retry_on = vec![retry_on.to_owned()];
        spec.retry.backoff_s = Seconds::new(u64::from(attempts));
        spec.distributed = (nodes > 0).then(|| {
            let launcher = Some(Launcher::Env);
            Box::new(Distributed { nodes, processes_per_node: None, launcher, backend: None })
        });
        spec.on_unreachable = Some(if wait { OnUnreachable::Wait } else { OnUnreachable::Replace });
        let record = JobRecord {
            id: JobId::from_u128(self.id()),
            spec: serde_json::to_string(&spec).unwrap().into(),
            name: None,
            project: "default".into(),
            labels: "{}".into(),
            priority: 0,
            shape: "{}".into(),
            submitted_by: "me".into(),
            submitted_at: self.now,
            queue_deadline: queue_timeout.then(|| self.now.plus(Seconds::new(600))),
            retry_of: None,
            warnings: Vec::new(),
            artifacts: Vec::new(),
        };
        let mut ledger = Ledger::new(self.now, self.store.position);
        let shape = Arc::new(Shape::of(&spec));
        let on = after.filter(|_| !self.jobs.is_empty()).map(|(place, success)| {
            let when = if success { DependencyEnd::Succeeded } else { DependencyEnd::Ended };
            (self.jobs[place % self.jobs.len()].id, when)
        });
        let waits = on.map(|(job, when)| Wait { job, name: None, when, outputs: false });
        self.after.extend(on.map(|on| (record.id, on)));
        let (record, waits) = (Box::new(record), waits.into_iter().collect());
        self.jobs.push(LiveJob::accept_after(&mut ledger, record, Arc::new(spec), shape, waits));
        self.absorb(ledger);
    }

    /// A task that was told to stop ends for that reason, and a cancelled job has no other attempt.
    fn check_stops(&self) {
        for (task, row) in &self.store.tasks {
            let Some((end, cause)) = row.end.as_ref().zip(row.stop_cause) else { continue };
            let owner = end.reason.owner();
            let by_operator = owner == gpulayer::contract::end::Owner::Operator;
            assert!(
                !by_operator || end.reason == cause.end_reason(),
                "{:?}: {:?} for {cause:?}",
                task.id,
                end.reason
            );
        }
        for (task, row) in &self.store.tasks {
            let operators = row
                .end
                .as_ref()
                .is_some_and(|end| matches!(end.reason, EndReason::Drained | EndReason::Evicted));
            assert!(
                !operators || row.stop_cause.is_some(),
                "{:?} ended for a stop nobody asked for",
                task.id
            );
        }
        for job in &self.jobs {
            let standing = job.standing();
            if standing.cancel_requested_at.is_some() {
                assert!(!matches!(job.stage(), Stage::Queued), "a cancelled job is not queued again");
            }
        }
    }

    fn cancel(&mut self, job: usize, now: bool) {
        let Some(live) = self.jobs.get(job) else { return };
        let before = live.state();
        self.step(job, |job, ledger| job.cancel(ledger, now));
        let after = self.jobs[job].state();
        match before {
            JobState::Queued | JobState::Scheduled => assert_eq!(after, JobState::Cancelled),
            JobState::Running => {
                assert_eq!(after, JobState::Running);
                assert!(self.jobs[job].standing().cancel_requested_at.is_some() || after.ended());
            }
            _ => assert_eq!(after, before),
        }
    }

    /// All of a gang, or none of it; and none goes on without the others.
    fn check_gangs(&self) {
        for job in &self.jobs {
            let newest: Vec<&(TaskRecord, TaskStanding)> = self
                .store
                .tasks
                .iter()
                .filter(|(task, _)| task.job_id == job.id && task.epoch == job.epoch())
                .collect();
            assert!(newest.is_empty() || newest.len() == job.shape.nodes(), "all of a gang, or none");
            let lives = newest.iter().any(|(_, row)| !row.state.ended());
            assert_eq!(lives, matches!(job.stage(), Stage::Placed(_)));
            let fallen = |row: &TaskStanding| row.state.ended() && row.state != TaskState::Succeeded;
            if newest.iter().any(|(_, row)| fallen(row)) {
                for (task, row) in newest.iter().filter(|(_, row)| !row.state.ended()) {
                    assert!(
                        row.started_at.is_some() && row.stop_cause.is_some(),
                        "{:?} has to go too",
                        task.id
                    );
                }
            }
            if job.state() == JobState::Succeeded {
                assert!(newest.iter().all(|(_, row)| row.state == TaskState::Succeeded));
            }
            let end = job.standing().end.map(|end| end.reason);
            if end == Some(EndReason::Cancelled) {
                let asked = |(_, row): &&&(TaskRecord, TaskStanding)| row.stop_cause != Some(StopCause::Gang);
                assert!(
                    newest.is_empty() || newest.iter().any(|row| asked(&row)),
                    "a gang cancels nothing by itself"
                );
            }
        }
    }

    fn check(&self) {
        self.check_stops();
        self.check_dependencies();
        for job in &self.jobs {
            let standing = job.standing();
            assert_eq!(standing, self.store.standings[&job.id], "memory and store agree");
            let spec: JobSpec = serde_json::from_str(&self.store.records[&job.id].spec).unwrap();
            let counted = job.attempt() - standing.preemptions;
            assert!(counted <= spec.retry.max_attempts, "no attempt too many");
            if !standing.state.ended() {
                let restored = self.store.restored(job);
                assert_eq!(standing, restored.standing(), "a restart changes nothing");
                let stops = |job: &LiveJob| -> Vec<Option<Stop>> {
                    job.tasks().iter().map(|task| task.run().and_then(|run| run.stop)).collect()
                };
                assert_eq!(stops(job), stops(&restored), "nor how hard a task has to stop");
            }
            let stale = self.stale.values().filter(|stale| **stale == job.id).count() as i32;
            let live = job.placed().count() as i32;
            let taken = self.taken.get(&job.id).copied().unwrap_or(0);
            assert_eq!(taken, live + stale, "reserved = live leases + stale");
        }
        for (task, row) in &self.store.tasks {
            if let Some(end) = &row.end {
                assert_eq!(end.reason.task_state(), row.state, "{:?}", task.id);
            }
        }
        self.check_gangs();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_invariants_hold(happenings in prop::collection::vec(happening(), 1..80)) {
        let mut world = World::new();
        for happening in happenings {
            world.happen(happening);
        }
    }
}
