//! Random events over one array: the parent follows from its children, ends once and last, never has more of them on
//! their way than may be, and a family rebuilt from what was persisted stands where the live one stands.

use std::collections::HashMap;
use std::sync::Arc;

use gpulayer::contract::array::{Array, ArrayProgress};
use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::gang::Peer;
use gpulayer::contract::ids::{JobId, TaskId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report};
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::spec::{DependencyEnd, JobSpec};
use gpulayer::domain::array::{Layout, LiveArray, NewArray, RestoredArray, Sweep};
use gpulayer::domain::change::{Change, JobRecord, JobStanding};
use gpulayer::domain::dependency::{self, Over, Wait};
use gpulayer::domain::job::{LiveJob, NewTask, Stage};
use gpulayer::domain::ledger::{Ledger, Notice};
use gpulayer::domain::placement::{Seated, Shape};
use proptest::prelude::*;

const PARENT: JobId = JobId::from_u128(1);
const FIRST: u128 = 1000;
const OTHER: JobId = JobId::from_u128(5);

#[derive(Debug, Clone)]
enum Happening {
    Place(usize),
    Start(usize),
    Finish(usize, usize),
    CancelChild(usize),
    CancelAll { now: bool },
    Lost(usize),
    SweepOn { most: usize },
    DependencyOver { well: bool },
    TimePasses,
    ServerRestarts,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0..8usize).prop_map(Happening::Place),
        6 => (0..8usize).prop_map(Happening::Start),
        6 => (0..8usize, 0..3usize).prop_map(|(place, reason)| Happening::Finish(place, reason)),
        1 => (0..8usize).prop_map(Happening::CancelChild),
        1 => any::<bool>().prop_map(|now| Happening::CancelAll { now }),
        1 => (0..8usize).prop_map(Happening::Lost),
        2 => (1..4usize).prop_map(|most| Happening::SweepOn { most }),
        2 => any::<bool>().prop_map(|well| Happening::DependencyOver { well }),
        1 => Just(Happening::TimePasses),
        1 => Just(Happening::ServerRestarts),
    ]
}

struct Family {
    now: Timestamp,
    array: LiveArray,
    jobs: Vec<LiveJob>,
    spec: Arc<JobSpec>,
    layout: Arc<Layout>,
    most: Option<u64>,
    deadline: Option<Timestamp>,
    // What is persisted.
    standings: HashMap<JobId, JobStanding>,
    waits: Vec<Wait>,
    progress: ArrayProgress,
    position: u64,
    parents_ends: usize,
    /// Children that the scheduler was told of.
    told: Vec<JobId>,
}

impl Family {
    fn new(count: u64, most: Option<u64>, waits: bool, limited: bool, attempts: u32) -> Self {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let array = Array { start: 3, count: Some(count), items: None, indices: None, max_running: most };
        let mut spec = JobSpec::command(["true"]);
        spec.retry.max_attempts = attempts;
        spec.retry.retry_on = vec!["user".to_owned()];
        let (spec, layout) = (Arc::new(spec), Arc::new(Layout::of(&array)));
        let deadline = limited.then(|| now.plus(Seconds::new(60)));
        let record = JobRecord {
            id: PARENT,
            spec: "{}".into(),
            name: None,
            project: "default".into(),
            labels: "{}".into(),
            priority: 0,
            shape: "{}".into(),
            submitted_by: "me".into(),
            submitted_at: now,
            queue_deadline: deadline,
            retry_of: None,
            warnings: Vec::new(),
            artifacts: Vec::new(),
        };
        let wait = Wait { job: OTHER, name: None, when: DependencyEnd::Succeeded, outputs: false };
        let waits: Vec<Wait> = waits.then_some(wait).into_iter().collect();
        let mut ledger = Ledger::new(now, 0);
        let template = LiveJob::template(&record, Arc::new(Shape::of(&spec)));
        let new = NewArray {
            first_child: JobId::from_u128(FIRST),
            spec: spec.clone(),
            text: "{}".into(),
            layout: layout.clone(),
        };
        let array = LiveArray::accept(&mut ledger, Box::new(record), new, waits);
        let jobs: Vec<LiveJob> =
            (0..array.len()).map(|place| template.child(array.child(place), array.member(place))).collect();
        assert_eq!(ledger.position, 1 + count, "every child has its first event");
        let mut family = Self {
            now,
            standings: jobs.iter().map(|job| (job.id, job.standing())).collect(),
            array,
            jobs,
            spec,
            layout,
            most,
            deadline,
            waits: Vec::new(),
            progress: ArrayProgress::default(),
            position: 0,
            parents_ends: 0,
            told: Vec::new(),
        };
        family.commit(ledger);
        family
    }

    /// As the supervisor does: what children did is counted in the commit in which they do it.
    fn commit(&mut self, mut ledger: Ledger) {
        for change in ledger.changes.clone() {
            if let Change::JobMoved(id, standing) = &change
                && let Some(place) = self.jobs.iter().position(|job| job.id == *id)
            {
                self.array.note(place, standing.state, standing.end.as_deref());
            }
        }
        for place in self.array.release() {
            self.jobs[place].take_turn(&mut ledger, self.spec.clone());
        }
        self.array.settle(&mut ledger);
        for change in &ledger.changes {
            match change {
                Change::JobInserted(record, standing) => {
                    self.standings.insert(record.id, standing.clone());
                }
                Change::JobMoved(id, next) => {
                    let before = &self.standings[id];
                    assert!(!before.state.ended(), "an ended job moved");
                    assert!(before.state == next.state || before.state.may_become(next.state));
                    if *id == PARENT && next.state.ended() {
                        self.parents_ends += 1;
                    }
                    self.standings.insert(*id, next.clone());
                }
                Change::JobWaits(_, waits) => self.waits.clone_from(waits),
                Change::ArrayMoved(_, progress) => self.progress = *progress,
                _ => {}
            }
        }
        self.position = ledger.position;
        self.told.extend(ledger.notices.iter().filter_map(|notice| match notice {
            Notice::Queued(id) => Some(*id),
            _ => None,
        }));
    }

    fn step(&mut self, place: usize, act: impl FnOnce(&mut LiveJob, &mut Ledger)) {
        let place = place % self.jobs.len();
        let mut ledger = Ledger::new(self.now, self.position);
        act(&mut self.jobs[place], &mut ledger);
        self.commit(ledger);
    }

    fn report(&mut self, place: usize, report: &Report) {
        self.step(place, |job, ledger| {
            let task_id = job.placed().next().map(|placed| placed.task_id);
            if let Some(task_id) = task_id {
                let _ = job.report(ledger, task_id, job.epoch(), report);
            }
        });
    }

    fn sweep(&mut self, most: usize) {
        let mut ledger = Ledger::new(self.now, self.position);
        if let Some((sweep, places)) = self.array.sweep(most) {
            for place in places {
                let job = &mut self.jobs[place];
                match &sweep {
                    Sweep::Cancel { now } => {
                        job.cancel(&mut ledger, *now);
                    }
                    Sweep::End(end) => job.cannot_start(&mut ledger, (**end).clone()),
                    Sweep::QueueTimeout => job.queue_timeout(&mut ledger),
                }
            }
        }
        self.commit(ledger);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Place(place) => {
                let id = self.jobs[place % self.jobs.len()].id;
                let told = self.told.contains(&id);
                let spec = self.spec.clone();
                self.step(place, |job, ledger| {
                    let worker_id = WorkerId::from_u128(1);
                    let seat = Seated { worker_id, incarnation: 1, gpus: vec![], weight: 1 };
                    let task_id = TaskId::from_u128(id.as_u128() * 100 + u128::from(job.epoch()));
                    let peer = Peer { worker: worker_id, name: "box".into(), address: "10.0.0.1".into() };
                    let placed = job.place(ledger, job.epoch(), vec![NewTask { task_id, seat, peer }], spec);
                    assert!(placed.is_err() || told, "nothing is placed that the scheduler was not told of");
                });
            }
            Happening::Start(place) => self.report(place, &Report::Start),
            Happening::Finish(place, reason) => {
                let reason = [EndReason::Completed, EndReason::ExitNonzero, EndReason::OomKilled][reason];
                let mut end = End::of(reason, None);
                end.exit_code = Some(if reason == EndReason::Completed { 0 } else { 3 });
                self.report(
                    place,
                    &Report::Finish(Box::new(Finish {
                        end,
                        after_stop: false,
                        outputs: vec![],
                        undeclared: vec![],
                        log_artifact: None,
                        result: None,
                        warnings: vec![],
                    })),
                );
            }
            Happening::CancelChild(place) => self.step(place, |job, ledger| {
                job.cancel(ledger, true);
            }),
            Happening::CancelAll { now } => {
                let mut ledger = Ledger::new(self.now, self.position);
                self.array.cancel(&mut ledger, now);
                self.commit(ledger);
            }
            Happening::Lost(place) => self.step(place, |job, ledger| {
                let epoch = job.epoch();
                let task_id = job.placed().next().map(|placed| placed.task_id);
                if let Some(task_id) = task_id {
                    job.lease_expired(ledger, task_id, epoch);
                }
                job.unreachable_timeout(ledger, epoch);
            }),
            Happening::SweepOn { most } => self.sweep(most),
            Happening::DependencyOver { well } => {
                let Some(wait) = self.array.waits().first().cloned() else { return };
                let reason = if well { EndReason::Completed } else { EndReason::ExitNonzero };
                let mut ledger = Ledger::new(self.now, self.position);
                match dependency::judge(&wait, Over::Ended { state: reason.job_state(), reason }) {
                    Ok(()) => self.array.dependency_met(&mut ledger, OTHER, None),
                    Err(end) => self.array.dependency_failed(end),
                }
                self.commit(ledger);
            }
            Happening::TimePasses => {
                self.now = self.now.plus(Seconds::new(45));
                let ledger = Ledger::new(self.now, self.position);
                self.array.queue_timeout(&ledger);
                for place in 0..self.jobs.len() {
                    self.step(place, LiveJob::queue_timeout);
                    self.step(place, LiveJob::backoff_over);
                }
            }
            Happening::ServerRestarts => self.restart(),
        }
        self.check();
    }

    fn restart(&mut self) {
        if self.array.state().ended() {
            return;
        }
        let worst = self
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(place, job)| Some((place, self.standings[&job.id].end.clone()?)))
            .filter(|(_, end)| end.reason != EndReason::Completed)
            .min_by_key(|(place, end)| (end.reason == EndReason::Cancelled, *place));
        self.array = LiveArray::restore(RestoredArray {
            id: PARENT,
            first_child: JobId::from_u128(FIRST),
            spec: self.spec.clone(),
            layout: self.layout.clone(),
            queue_deadline: self.deadline,
            waits: self.waits.clone(),
            standing: self.standings[&PARENT].clone(),
            children: self
                .jobs
                .iter()
                .map(|job| (self.standings[&job.id].state, self.standings[&job.id].epoch > 0))
                .collect(),
            worst,
        });
        assert_eq!(self.array.progress(), self.progress, "counted again it is the same");
        self.told.retain(|id| self.standings[id].epoch > 0);
        for place in 0..self.jobs.len() {
            self.jobs[place].member = Some(Box::new(self.array.member(place)));
        }
        self.commit(Ledger::new(self.now, self.position));
    }

    fn check(&self) {
        let states: Vec<JobState> = self.jobs.iter().map(LiveJob::state).collect();
        let mut counted = ArrayProgress::queued(states.len());
        states.iter().for_each(|state| counted.moves(JobState::Queued, *state));
        assert_eq!(counted, self.array.progress());
        assert_eq!(counted, self.progress, "what is counted is persisted");
        assert_eq!(self.array.standing(), self.standings[&PARENT], "memory and store agree");
        let over = states.iter().all(|state| state.ended());
        assert_eq!(self.array.state().ended(), over, "the parent ends with its last child");
        assert_eq!(self.parents_ends, usize::from(over), "and once");
        let begun = self.jobs.iter().any(|job| job.standing().started_at.is_some());
        assert_eq!(self.array.standing().started_at.is_some(), begun, "it starts with its first child");
        if let Some(end) = self.array.end() {
            let expected = match () {
                () if counted.succeeded == counted.total => JobState::Succeeded,
                () if self.array.standing().cancel_requested_at.is_some() => JobState::Cancelled,
                () => JobState::Failed,
            };
            assert_eq!(self.array.state(), expected, "{end:?}");
        }
        let on_their_way = |job: &&LiveJob| !job.state().ended() && self.told.contains(&job.id);
        let active = self.jobs.iter().filter(on_their_way).count();
        assert!(self.most.is_none_or(|most| active as u64 <= most), "{active} at once");
        for (place, job) in self.jobs.iter().enumerate() {
            if matches!(job.stage(), Stage::Queued) {
                let held = self.array.why_held(place).is_some();
                assert_ne!(held, self.told.contains(&job.id), "every queued child has a reason");
                assert!(held || self.array.waits().is_empty(), "none goes before what its array waits for");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_parent_follows_from_its_children(
        count in 1..6u64,
        most in prop::option::of(1..4u64),
        waits: bool,
        limited: bool,
        attempts in 1..3u32,
        happenings in prop::collection::vec(happening(), 1..80),
    ) {
        let mut family = Family::new(count, most, waits, limited, attempts);
        family.check();
        for happening in happenings {
            family.happen(happening);
        }
        // Whatever was left behind, a cancel ends it.
        family.happen(Happening::CancelAll { now: true });
        for _ in 0..4 {
            family.happen(Happening::SweepOn { most: 2 });
        }
        for place in 0..8 {
            family.happen(Happening::Finish(place, 1));
        }
        prop_assert!(family.array.state().ended());
    }
}
