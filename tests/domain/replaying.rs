//! The record of what a placer was told: played again, from any of its segments, it gives the same answers to the last
//! field, and an answer that was never given is found out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::{GpuCount, JobSpec, Resources};
use gpulayer::contract::worker::WorkerKind;
use gpulayer::domain::placement::replay::{Answer, Entry, Header, Passed, RULES, Replay};
use gpulayer::domain::placement::{Input, Luggage, Place, Placer, Policy, ProjectPolicy, QueuedJob, Shape};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::gpus::{gpu, request, with_gpus};
use crate::placement::{UNBOUNDED, machine, worker};

const PROJECTS: [&str; 3] = ["vision", "speech", "spare"];

/// What happens to a placer, by small numbers that always mean something.
#[derive(Debug, Clone)]
enum Act {
    Queue {
        job: u8,
        project: u8,
        cores: u8,
        gpus: u8,
        nodes: u8,
        priority: u8,
        bound_s: Option<u16>,
    },
    Unqueue(u8),
    Accept(u8),
    Refuse(u8, bool),
    End(u8),
    Bound(u8, u16),
    Arrive(u8),
    Fall(u8),
    Ail(u8, bool),
    Drain(u8, bool),
    Leave(u8),
    Pass {
        after_s: u16,
        budget: Option<u8>,
    },
    /// The segment ends and another begins.
    Rotate,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bound = proptest::option::of(1..2_000_u16);
    let queue = (0..40_u8, 0..3_u8, 1..6_u8, 0..4_u8, 1..3_u8, 0..3_u8, bound).prop_map(
        |(job, project, cores, gpus, nodes, priority, bound_s)| Act::Queue {
            job,
            project,
            cores,
            gpus: gpus.saturating_sub(1),
            nodes,
            priority,
            bound_s,
        },
    );
    let act = prop_oneof![
        8 => queue,
        1 => (0..40_u8).prop_map(Act::Unqueue),
        3 => any::<u8>().prop_map(Act::Accept),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, gone)| Act::Refuse(which, gone)),
        4 => any::<u8>().prop_map(Act::End),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(which, by)| Act::Bound(which, by)),
        2 => (0..5_u8).prop_map(Act::Arrive),
        1 => (0..5_u8).prop_map(Act::Fall),
        1 => (0..5_u8, any::<bool>()).prop_map(|(which, ill)| Act::Ail(which, ill)),
        1 => (0..5_u8, any::<bool>()).prop_map(|(which, draining)| Act::Drain(which, draining)),
        1 => (0..5_u8).prop_map(Act::Leave),
        8 => (0..5_000_u16, proptest::option::of(1..20_u8))
            .prop_map(|(after_s, budget)| Act::Pass { after_s, budget }),
        1 => Just(Act::Rotate),
    ];
    proptest::collection::vec(act, 1..160)
}

fn policy() -> Policy {
    let vision = ProjectPolicy { share: 3, max_cpu_millis: Some(9_000), ..ProjectPolicy::default() };
    let spare = ProjectPolicy { preemptible: true, ..ProjectPolicy::default() };
    let projects = BTreeMap::from([("vision".to_owned(), vision), ("spare".to_owned(), spare)]);
    Policy { projects, reservations: 2, half_life_s: Seconds::new(3_600), ..Policy::default() }
}

/// A placer that is told things, and the record of it.
struct Recorded {
    placer: Placer,
    /// Lines of JSON, by segment.
    segments: Vec<Vec<String>>,
    second: i64,
    proposed: Vec<JobId>,
    running: Vec<(JobId, u32, Vec<WorkerId>)>,
    epochs: BTreeMap<u8, u32>,
}

impl Recorded {
    fn new() -> Self {
        let mut recorded = Self {
            placer: Placer::new(policy()),
            segments: Vec::new(),
            second: 1_700_000_000,
            proposed: Vec::new(),
            running: Vec::new(),
            epochs: BTreeMap::new(),
        };
        recorded.rotate();
        recorded
    }

    fn write(&mut self, entry: &Entry) {
        self.segments.last_mut().unwrap().push(serde_json::to_string(entry).unwrap());
    }

    fn rotate(&mut self) {
        self.segments.push(Vec::new());
        let began_at = Timestamp::from_micros(self.second * 1_000_000);
        self.write(&Entry::Header(Header { rules: RULES, version: "0".to_owned(), began_at }));
        self.write(&Entry::Start(Box::new(self.placer.clone())));
    }

    fn tell(&mut self, input: Input) {
        self.write(&Entry::Told(input.clone()));
        // Some of it makes no sense to the books; then it makes none to those of the replay either.
        let _ = self.placer.apply(input);
    }

    fn pass(&mut self, budget_checks: u32) {
        let now = Timestamp::from_micros(self.second * 1_000_000 + 123_456);
        let pass = self.placer.apply(Input::Pass { now, budget_checks }).unwrap();
        self.write(&Entry::Passed(Passed { now, budget_checks, answer: Answer::from(&pass) }));
        for placed in &pass.placements {
            let seats = placed.seats.iter().map(|seat| seat.worker_id).collect();
            self.proposed.push(placed.job.job_id);
            self.running.push((placed.job.job_id, placed.place().epoch, seats));
        }
    }

    fn act(&mut self, act: Act) {
        let id = |number: u8| worker(u128::from(number) + 1);
        match act {
            Act::Queue { job, project, cores, gpus, nodes, priority, bound_s } => {
                let gpus = (gpus > 0).then(|| Box::new(request(GpuCount::Count(u32::from(gpus)))));
                let cpus = Cpus::from_millis(u32::from(cores) * 750);
                let shape = Shape {
                    resources: Resources { cpus, gpus, ..Resources::default() },
                    nodes: (nodes > 1).then_some(u32::from(nodes)),
                    bound_s: bound_s.map(|bound| Seconds::new(u64::from(bound))),
                    ..Shape::default()
                };
                let epoch = self.epochs.entry(job).or_default();
                *epoch += 1;
                let job = QueuedJob {
                    job_id: JobId::from_u128(u128::from(job) + 1),
                    epoch: *epoch,
                    priority: i32::from(priority) - 1,
                    submitted_at: Timestamp::from_micros(i64::from(job % 7) * 1_000_003),
                    shape: Arc::new(shape),
                    project: PROJECTS[usize::from(project)].into(),
                    avoid: job.is_multiple_of(5).then(|| worker(1)),
                    luggage: Luggage {
                        source: u32::from(job % 4),
                        inputs: u32::from(job % 3),
                        environment: 0,
                    },
                };
                if !self.running.iter().any(|(running, ..)| *running == job.job_id) {
                    self.tell(Input::Queued(job));
                }
            }
            Act::Unqueue(job) => self.tell(Input::Unqueued { job_id: JobId::from_u128(u128::from(job) + 1) }),
            Act::Accept(which) if !self.proposed.is_empty() => {
                let job_id = self.proposed.remove(usize::from(which) % self.proposed.len());
                self.tell(Input::Accepted { job_id });
            }
            Act::Refuse(which, gone) if !self.proposed.is_empty() => {
                let job_id = self.proposed.remove(usize::from(which) % self.proposed.len());
                self.running.retain(|(running, ..)| *running != job_id);
                self.tell(Input::Refused { job_id, gone });
            }
            Act::End(which) if !self.running.is_empty() => {
                let (job_id, epoch, seats) = self.running.remove(usize::from(which) % self.running.len());
                self.proposed.retain(|proposed| *proposed != job_id);
                for worker_id in seats {
                    self.tell(Input::Freed { worker_id, place: Place { job_id, epoch } });
                }
            }
            Act::Bound(which, by) if !self.running.is_empty() => {
                let (job_id, epoch, seats) = self.running[usize::from(which) % self.running.len()].clone();
                let ends_by = Timestamp::from_micros((self.second + i64::from(by)) * 1_000_000);
                self.tell(Input::Bounded { worker_id: seats[0], place: Place { job_id, epoch }, ends_by });
            }
            Act::Arrive(number) => {
                let capabilities = match number % 2 {
                    0 => machine(u32::from(number + 1) * 2_000, 64),
                    _ => with_gpus((0..4).map(|index| gpu(index, "NVIDIA A100", 40)).collect(), &[&[0, 1]]),
                };
                self.tell(Input::WorkerUp {
                    worker_id: id(number),
                    name: format!("w{number}"),
                    kind: WorkerKind::Remote,
                    incarnation: 1,
                    capabilities: Box::new(capabilities),
                });
            }
            Act::Fall(number) => self.tell(Input::WorkerDown { worker_id: id(number) }),
            Act::Ail(number, ill) => {
                let unhealthy = ill.then(|| "its disk is full".to_owned());
                self.tell(Input::WorkerHealth { worker_id: id(number), unhealthy });
            }
            Act::Drain(number, draining) => {
                self.tell(Input::WorkerDraining { worker_id: id(number), draining });
            }
            Act::Leave(number) => self.tell(Input::WorkerLeft { worker_id: id(number) }),
            Act::Pass { after_s, budget } => {
                self.second += i64::from(after_s);
                self.pass(budget.map_or(UNBOUNDED, u32::from));
            }
            Act::Rotate => self.rotate(),
            Act::Accept(_) | Act::Refuse(..) | Act::End(_) | Act::Bound(..) => {}
        }
    }
}

/// Plays a segment; the passes, or the first that came out otherwise.
fn play(lines: &[String]) -> Result<u64, u64> {
    let mut entries = lines.iter().map(|line| serde_json::from_str::<Entry>(line).unwrap());
    assert!(matches!(entries.next(), Some(Entry::Header(header)) if header.rules == RULES));
    let Some(Entry::Start(placer)) = entries.next() else { panic!("no start") };
    let mut replay = Replay::from(*placer);
    for entry in entries {
        match entry {
            Entry::Told(input) => replay.told(input),
            Entry::Passed(passed) => replay.passed(passed).map_err(|difference| difference.pass)?,
            other => panic!("{other:?}"),
        }
    }
    Ok(replay.counts().passes)
}

proptest! {
    #![proptest_config(Config::with_cases(200))]

    #[test]
    fn every_segment_of_a_record_replays_to_the_last_field(acts in acts()) {
        let mut recorded = Recorded::new();
        acts.into_iter().for_each(|act| recorded.act(act));
        recorded.pass(UNBOUNDED);
        for segment in &recorded.segments {
            let passes = segment.iter().filter(|line| line.starts_with("{\"passed\"")).count() as u64;
            prop_assert_eq!(play(segment), Ok(passes));
        }
        // What was kept of the placer is all of it: it is written the same way again.
        for segment in &recorded.segments {
            let Entry::Start(placer) = serde_json::from_str(&segment[1]).unwrap() else { panic!() };
            let again = serde_json::to_value(Entry::Start(placer)).unwrap();
            let sorted = |mut value: serde_json::Value| { sort(&mut value); value };
            prop_assert_eq!(sorted(again), sorted(serde_json::from_str(&segment[1]).unwrap()));
        }
    }
}

/// Lists of pairs that stand for a map have no order.
fn sort(value: &mut serde_json::Value) {
    if let Some(hopeless) = value.pointer_mut("/start/hopeless").and_then(|list| list.as_array_mut()) {
        hopeless.sort_by_key(ToString::to_string);
    }
}

#[test]
fn an_answer_that_was_never_given_is_found_out() {
    let mut recorded = Recorded::new();
    recorded.act(Act::Arrive(3));
    for job in 0..6 {
        recorded.act(Act::Queue { job, project: 1, cores: 2, gpus: 1, nodes: 1, priority: 1, bound_s: None });
        recorded.pass(UNBOUNDED);
    }
    let mut segment = recorded.segments.remove(0);
    assert_eq!(play(&segment), Ok(6));
    let third =
        segment.iter().enumerate().filter(|(_, line)| line.starts_with("{\"passed\"")).nth(2).unwrap().0;
    let Entry::Passed(mut passed) = serde_json::from_str(&segment[third]).unwrap() else { panic!() };
    passed.answer.placements[0].seats[0].gpus = vec!["GPU-9".into()];
    segment[third] = serde_json::to_string(&Entry::Passed(passed)).unwrap();
    assert_eq!(play(&segment), Err(3));
}

/// A history that was recorded when [`RULES`] were given their number. Where it comes out otherwise, the rules are others:
/// raise the number, and record it anew with `UPDATE=1`.
#[test]
fn the_rules_are_those_of_their_number() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/domain/recorded/history.ndjson");
    if std::env::var_os("UPDATE").is_some() {
        let seed = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), seed);
        let mut recorded = Recorded::new();
        for _ in 0..3 {
            let acts = acts().new_tree(&mut runner).unwrap().current();
            let acts = acts.into_iter().filter(|act| !matches!(act, Act::Rotate));
            acts.for_each(|act| recorded.act(act));
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, recorded.segments.remove(0).join("\n") + "\n").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let passes = play(&lines).expect("other rules: raise RULES and record the history anew with UPDATE=1");
    assert!(passes > 20, "{passes}");
    assert!(lines.iter().any(|line| line.contains("\"placements\"")));
}

#[test]
fn the_shape_of_the_longest_job_is_read_back() {
    let spec: JobSpec = serde_json::from_str(
        r#"{"workload": {"command": {"argv": ["true"]}}, "timeout_s": 315360000, "grace_s": 3600}"#,
    )
    .unwrap();
    let shape = Shape::of(&spec);
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
}
