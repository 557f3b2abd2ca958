//! A small world for the placer: machines with GPUs, a clock, tasks that end, workers that come and go. What must hold
//! at every moment is checked at every pass, from what runs here and not from the placer's own books. The generators of
//! random policies and histories stand here as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpulayer::contract::gpu::GpuStanding;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::{GpuCount, Resources};
use gpulayer::contract::worker::Capabilities;
use gpulayer::domain::placement::{
    GpuUuid, Input, Luggage, Pass, Place, Placed, Placer, Policy, ProjectPolicy, QueuedJob, Seated, Shape,
};
use proptest::prelude::*;

use crate::gpus::{gpu, request, with_gpus};
use crate::placement::{UNBOUNDED, machine, tell, up, worker};

const START: i64 = 1_700_000_000;
/// Staging takes no time here, so that the end of a job is known to the second.
const STAGING: Seconds = Seconds::new(0);

pub fn at(second: u64) -> Timestamp {
    Timestamp::from_micros((START + i64::try_from(second).unwrap()) * 1_000_000)
}

/// What a test says of a job.
#[derive(Debug, Clone)]
pub struct Wish {
    pub project: &'static str,
    pub priority: i32,
    pub cores: u32,
    pub gpus: u32,
    pub nodes: u32,
    /// How long it runs, in seconds.
    pub runs: u64,
    /// How long it says that it runs at most; never less.
    pub limit: Option<u64>,
    /// What it brings along; 0 = nothing.
    pub source: u32,
}

impl Wish {
    /// One that states exactly how long it runs.
    pub fn new(project: &'static str, cores: u32, runs: u64) -> Self {
        Self { project, priority: 0, cores, gpus: 0, nodes: 1, runs, limit: Some(runs), source: 0 }
    }

    pub fn shape(&self) -> Shape {
        let gpus = request(GpuCount::Count(self.gpus));
        let resources = Resources {
            cpus: Cpus::from_millis(self.cores * 1000),
            gpus: (self.gpus > 0).then(|| Box::new(gpus)),
            ..Resources::default()
        };
        Shape {
            resources,
            bound_s: self.limit.map(Seconds::new),
            nodes: (self.nodes > 1).then_some(self.nodes),
            ..Shape::default()
        }
    }

    pub fn queued(&self, number: u128, second: u64) -> QueuedJob {
        QueuedJob {
            job_id: JobId::from_u128(number),
            epoch: 0,
            priority: self.priority,
            submitted_at: at(second),
            shape: Arc::new(self.shape()),
            project: self.project.into(),
            avoid: None,
            luggage: Luggage { source: self.source, inputs: 0, environment: 0 },
        }
    }
}

#[derive(Debug, Clone)]
pub struct Running {
    pub seats: Vec<Seated>,
    pub ends: u64,
}

/// Something that happens.
#[derive(Debug, Clone)]
pub enum Step {
    Submit(Wish),
    /// The next tasks end.
    End,
    /// A waiting job is cancelled.
    Cancel(prop::sample::Index),
    /// The next proposal is void; the job may be gone.
    Refuse {
        gone: bool,
    },
    /// A worker is not heard of.
    Away(usize),
    /// It is back, all well.
    Back(usize),
    /// One of its GPUs is used by a program outside.
    Trouble(usize, u32),
    Drain(usize),
    /// Those that were told to go have gone.
    Yield,
}

/// Machines, a placer, and a clock.
pub struct World {
    pub placer: Placer,
    pub policy: Policy,
    pub second: u64,
    pub wishes: BTreeMap<u128, Wish>,
    pub running: BTreeMap<u128, Running>,
    pub started: BTreeMap<u128, u64>,
    pub preempted: Vec<u128>,
    machines: Vec<(u32, u32)>,
    incarnation: u64,
    submitted: BTreeMap<u128, u64>,
    epochs: BTreeMap<u128, u32>,
    cancelled: BTreeSet<u128>,
    refuse: Option<bool>,
    troubled: BTreeSet<GpuUuid>,
    leases: BTreeMap<GpuUuid, u128>,
    /// When a job starts at the latest, as its reservation says.
    promised: BTreeMap<u128, u64>,
    /// Jobs that somebody came before who may.
    excused: BTreeSet<u128>,
}

fn uuid(worker: usize, index: u32) -> String {
    format!("GPU-{worker}-{index}")
}

impl World {
    /// Of machines without GPUs.
    pub fn new(policy: Policy, cores: &[u32]) -> Self {
        Self::with(policy, &cores.iter().map(|cores| (*cores, 0)).collect::<Vec<_>>())
    }

    /// Of machines with so many cores and GPUs, numbered from 1.
    pub fn with(policy: Policy, machines: &[(u32, u32)]) -> Self {
        let policy = Policy { staging_s: STAGING, ..policy };
        let mut world = Self {
            placer: Placer::new(policy.clone()),
            policy,
            second: 0,
            wishes: BTreeMap::new(),
            running: BTreeMap::new(),
            started: BTreeMap::new(),
            preempted: Vec::new(),
            machines: machines.to_vec(),
            incarnation: 0,
            submitted: BTreeMap::new(),
            epochs: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            refuse: None,
            troubled: BTreeSet::new(),
            leases: BTreeMap::new(),
            promised: BTreeMap::new(),
            excused: BTreeSet::new(),
        };
        (0..machines.len()).for_each(|index| world.up(index));
        world
    }

    fn capabilities(&self, index: usize) -> Capabilities {
        let (cores, gpus) = self.machines[index];
        let listed = (0..gpus).map(|number| {
            let mut gpu = gpu(number, "NVIDIA X", 40);
            gpu.uuid = uuid(index, number);
            if self.troubled.contains(gpu.uuid.as_str()) {
                gpu.standing = GpuStanding::BusyOutside { pids: vec![1] };
            }
            gpu
        });
        let cpus = Cpus::from_millis(cores * 1000);
        Capabilities { cpus, memory_bytes: machine(0, 64).memory_bytes, ..with_gpus(listed.collect(), &[]) }
    }

    fn up(&mut self, index: usize) {
        self.changes(index);
        self.incarnation += 1;
        let capabilities = self.capabilities(index);
        up(&mut self.placer, index as u128 + 1, self.incarnation, capabilities);
    }

    /// What was promised on a worker that changes is promised no more.
    fn changes(&mut self, index: usize) {
        if let Some(job_id) = self.placer.reservations().on(worker(index as u128 + 1)) {
            self.promised.remove(&job_id.as_u128());
        }
    }

    /// One more machine.
    pub fn join(&mut self, machine: (u32, u32)) {
        self.machines.push(machine);
        self.up(self.machines.len() - 1);
    }

    pub fn submit(&mut self, wish: Wish) -> u128 {
        let number = self.wishes.len() as u128 + 1;
        tell(&mut self.placer, Input::Queued(wish.queued(number, self.second)));
        self.wishes.insert(number, wish);
        self.submitted.insert(number, self.second);
        number
    }

    /// Something happens, and a pass follows.
    pub fn step(&mut self, step: &Step) -> Pass {
        let away = |index: &usize| worker(*index as u128 + 1);
        match step {
            Step::Submit(wish) => drop(self.submit(wish.clone())),
            Step::End => drop(self.let_end()),
            Step::Cancel(pick) => {
                let waiting: Vec<u128> =
                    self.wishes.keys().copied().filter(|number| self.waits(*number)).collect();
                if !waiting.is_empty() {
                    let number = *pick.get(&waiting);
                    tell(&mut self.placer, Input::Unqueued { job_id: JobId::from_u128(number) });
                    self.cancelled.insert(number);
                    self.promised.remove(&number);
                }
            }
            Step::Refuse { gone } => self.refuse = Some(*gone),
            Step::Away(index) => {
                self.changes(*index);
                tell(&mut self.placer, Input::WorkerDown { worker_id: away(index) });
            }
            Step::Back(index) => {
                let gpus = self.machines[*index].1;
                for gpu in 0..gpus {
                    self.troubled.remove(uuid(*index, gpu).as_str());
                }
                self.up(*index);
                tell(&mut self.placer, Input::WorkerDraining { worker_id: away(index), draining: false });
            }
            Step::Trouble(index, gpu) => {
                self.troubled.insert(uuid(*index, *gpu).into());
                self.up(*index);
            }
            Step::Drain(index) => {
                self.changes(*index);
                tell(&mut self.placer, Input::WorkerDraining { worker_id: away(index), draining: true });
            }
            Step::Yield => drop(self.requeue_preempted()),
        }
        self.pass()
    }

    /// One pass, and what follows from it.
    pub fn pass(&mut self) -> Pass {
        let reserved: BTreeMap<WorkerId, (u128, i32)> = (self.placer.reservations().all())
            .flat_map(|(job_id, reservation)| {
                let of = (job_id.as_u128(), reservation.priority);
                reservation.parts.iter().map(move |part| (part.worker_id, of))
            })
            .collect();
        let now = at(self.second);
        let mut pass = self.placer.apply(Input::Pass { now, budget_checks: UNBOUNDED }).unwrap();
        let refuses = self.refuse.is_some() && !pass.placements.is_empty();
        for placed in &pass.placements {
            for seat in &placed.seats {
                if let Some((number, priority)) = reserved.get(&seat.worker_id)
                    && placed.job.priority > *priority
                {
                    self.excused.insert(*number);
                }
            }
            self.start(placed);
        }
        // Or it takes what was reserved to wait there for tasks that it stops elsewhere.
        for (_, reservation) in self.placer.reservations().all() {
            let was = reservation.parts.iter().filter_map(|part| reserved.get(&part.worker_id));
            self.excused.extend(
                was.filter(|(_, priority)| reservation.priority > *priority).map(|(number, _)| *number),
            );
        }
        for preemption in &pass.preemptions {
            let victim = preemption.place.job_id.as_u128();
            let is_new = pass.placements.iter().any(|placed| placed.place() == preemption.place);
            assert!(!is_new, "nothing is placed and told to go in one pass");
            assert!(self.running.contains_key(&victim), "only what runs is told to go");
            assert!(self.policy.is_preemptible(self.wishes[&victim].project), "and only what yields");
            self.preempted.push(victim);
        }
        self.note_promises();
        self.check();
        if refuses {
            // What was taken for it is free again.
            let again = self.pass();
            pass.placements.extend(again.placements);
            pass.preemptions.extend(again.preemptions);
        }
        pass
    }

    fn start(&mut self, placed: &Placed) {
        let number = placed.job.job_id.as_u128();
        let wish = self.wishes[&number].clone();
        assert_eq!(placed.seats.len(), wish.nodes as usize, "a gang is placed whole");
        let workers: BTreeSet<WorkerId> = placed.seats.iter().map(|seat| seat.worker_id).collect();
        assert_eq!(workers.len(), placed.seats.len(), "each node on its own worker");
        if let Some(gone) = self.refuse.take() {
            tell(&mut self.placer, Input::Refused { job_id: placed.job.job_id, gone });
            self.excused.insert(number);
            if gone {
                self.cancelled.insert(number);
            }
            return;
        }
        tell(&mut self.placer, Input::Accepted { job_id: placed.job.job_id });
        for seat in &placed.seats {
            assert_eq!(seat.gpus.len(), wish.gpus as usize, "as many GPUs as were asked for");
            for gpu in &seat.gpus {
                let own = format!("GPU-{}-", seat.worker_id.as_u128() - 1);
                assert!(gpu.starts_with(&own) && !self.troubled.contains(gpu), "{gpu} cannot be granted");
                assert_eq!(self.leases.insert(gpu.clone(), number), None, "{gpu} is granted twice");
            }
        }
        self.epochs.insert(number, placed.place().epoch);
        let promise = self.promised.remove(&number).filter(|_| !self.excused.contains(&number));
        assert!(promise.is_none_or(|promise| self.second <= promise), "{number} was promised {promise:?}");
        self.started.insert(number, self.second);
        self.running.insert(number, Running { seats: placed.seats.clone(), ends: self.second + wish.runs });
    }

    fn note_promises(&mut self) {
        for (job_id, reservation) in self.placer.reservations().all() {
            let number = job_id.as_u128();
            if self.placer.quota_lack(self.wishes[&number].project, &self.wishes[&number].shape()).is_some() {
                self.excused.insert(number);
            }
            if let Some(free_by) = reservation.free_by {
                let second = u64::try_from(free_by.micros() / 1_000_000 - START).unwrap();
                self.promised.entry(number).or_insert(second);
            }
        }
    }

    pub fn end(&mut self, number: u128) {
        let Running { seats, .. } = self.running.remove(&number).unwrap();
        self.leases.retain(|_, holder| *holder != number);
        let place = Place { job_id: JobId::from_u128(number), epoch: self.epochs[&number] };
        for seat in seats {
            tell(&mut self.placer, Input::Freed { worker_id: seat.worker_id, place });
        }
    }

    fn let_end(&mut self) -> bool {
        let Some(next) = self.running.values().map(|running| running.ends).min() else { return false };
        self.second = next;
        let over = self.running.iter().filter(|(_, running)| running.ends == next);
        let over: Vec<u128> = over.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.end(number));
        true
    }

    /// Goes on to the next end of a task, and passes again. `false` = nothing runs.
    pub fn go_on(&mut self) -> bool {
        let ended = self.let_end();
        if ended {
            self.pass();
        }
        ended
    }

    /// What was told to go has gone, and waits again. Whether anything had.
    pub fn requeue_preempted(&mut self) -> bool {
        let gone = std::mem::take(&mut self.preempted).into_iter();
        let gone: Vec<u128> = gone.filter(|number| self.running.contains_key(number)).collect();
        for number in &gone {
            self.end(*number);
            // It is as old as it was.
            let again = self.wishes[number].queued(*number, self.submitted[number]);
            tell(&mut self.placer, Input::Queued(QueuedJob { epoch: self.epochs[number], ..again }));
        }
        !gone.is_empty()
    }

    /// All workers are well, and time passes until nothing runs any more.
    pub fn run_out(&mut self) {
        (0..self.machines.len()).for_each(|index| drop(self.step(&Step::Back(index))));
        let mut rounds = 0;
        loop {
            let yielded = self.requeue_preempted();
            if yielded {
                self.pass();
            }
            if !self.go_on() && !yielded {
                break;
            }
            rounds += 1;
            assert!(rounds < 2_000, "it comes to an end");
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        for worker in self.placer.pool().workers() {
            let here = self
                .running
                .iter()
                .filter(|(_, running)| running.seats.iter().any(|seat| seat.worker_id == worker.id));
            let held: u64 = here.map(|(number, _)| u64::from(self.wishes[number].cores) * 1000).sum();
            assert_eq!(worker.held().cpu_millis, held, "the books say what runs");
            assert!(held <= worker.total.cpu_millis, "no worker has more than it has");
        }
        for (project, policy) in &self.policy.projects {
            let own =
                self.running.keys().map(|number| &self.wishes[number]).filter(|wish| wish.project == project);
            let (cores, gpus) = own.fold((0, 0), |(cores, gpus), wish| {
                (cores + u64::from(wish.cores * wish.nodes), gpus + u64::from(wish.gpus * wish.nodes))
            });
            assert!(
                policy.max_cpu_millis.is_none_or(|most| cores * 1000 <= most),
                "{project}: {cores} cores"
            );
            assert!(policy.max_gpus.is_none_or(|most| gpus <= most), "{project}: {gpus} GPUs");
        }
        for (number, promise) in &self.promised {
            let broken = *promise <= self.second && self.waits(*number) && !self.excused.contains(number);
            assert!(!broken, "{number} was promised {promise} and waits at {}", self.second);
        }
    }

    pub fn waits(&self, number: u128) -> bool {
        self.placer.queue().contains(JobId::from_u128(number))
    }

    /// Whether these machines, when they are empty, and the owner's limits could ever let a job run.
    pub fn could_run(&self, wish: &Wish) -> bool {
        let policy = self.policy.projects.get(wish.project);
        let (cores, gpus) = (u64::from(wish.cores * wish.nodes) * 1000, u64::from(wish.gpus * wish.nodes));
        let holds = |(has_cores, has_gpus): &&(u32, u32)| *has_cores >= wish.cores && *has_gpus >= wish.gpus;
        self.machines.iter().filter(holds).count() >= wish.nodes as usize
            && policy.and_then(|policy| policy.max_cpu_millis).is_none_or(|most| cores <= most)
            && (gpus == 0 || policy.and_then(|policy| policy.max_gpus).is_none_or(|most| gpus <= most))
    }

    /// Jobs that were submitted and not cancelled.
    pub fn meant(&self) -> impl Iterator<Item = (u128, &Wish)> {
        let meant = self.wishes.iter().filter(|(number, _)| !self.cancelled.contains(number));
        meant.map(|(number, wish)| (*number, wish))
    }
}

/// A policy of one project, `vision`.
pub fn project(policy: ProjectPolicy) -> Policy {
    let projects = [("vision".to_owned(), policy)].into();
    Policy { projects, ..Policy::default() }
}

/// Cores and GPUs of the machines of random histories.
pub const MACHINES: [(u32, u32); 4] = [(4, 4), (4, 4), (4, 2), (2, 0)];

pub fn wishes() -> impl Strategy<Value = Wish> {
    let asks = (
        1u32..5,
        prop::sample::select(vec![0u32, 0, 0, 1, 2, 4]),
        prop::sample::select(vec![1u32, 1, 1, 1, 2, 3]),
    );
    let times = (1u64..40, prop::option::weighted(0.7, 0u64..20));
    (prop::sample::select(vec!["vision", "speech", "other"]), -1i32..2, asks, times, 0u32..4).prop_map(
        |(project, priority, (cores, gpus, nodes), (runs, slack), source)| Wish {
            project,
            priority,
            cores,
            gpus,
            nodes,
            runs,
            limit: slack.map(|slack| runs + slack),
            source,
        },
    )
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = 0..MACHINES.len();
    let step = prop_oneof![
        12 => wishes().prop_map(Step::Submit),
        8 => Just(Step::End),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => any::<bool>().prop_map(|gone| Step::Refuse { gone }),
        1 => index.clone().prop_map(Step::Away),
        2 => index.clone().prop_map(Step::Back),
        1 => (index.clone(), 0u32..4).prop_map(|(index, gpu)| Step::Trouble(index, gpu)),
        1 => index.prop_map(Step::Drain),
        2 => Just(Step::Yield),
    ];
    prop::collection::vec(step, 1..60)
}

pub fn policies() -> impl Strategy<Value = Policy> {
    let quotas = (prop::option::of(2u64..9), prop::option::of(1u64..6));
    (0u32..5, quotas, any::<bool>(), 1u32..4).prop_map(|(reservations, (cores, gpus), preemptible, share)| {
        let max_cpu_millis = cores.map(|cores| cores * 1000);
        let policy = ProjectPolicy { share, max_cpu_millis, max_gpus: gpus, preemptible, max_queued: None };
        Policy { reservations, ..project(policy) }
    })
}
