//! The placer alone, at the sizes of a large site: how long a pass takes, what a placed job costs, how both grow; or,
//! with `--simulate`, what becomes of a trace of jobs under it and under what others do. Prints one JSON object. Built as
//! an example for the reason that stands in `spine.rs`.

mod simulation;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::Resources;
use gpulayer::domain::placement::{Input, Luggage, Pass, Place, Placer, Policy, QueuedJob, Shape};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use simulation::figures::{Figures, figures};
use simulation::hosts::{self, GIB};
use simulation::ours::Ours;
use simulation::rivals::{Rival, Rule};
use simulation::trace::{Cluster, Profile, trace};
use simulation::{Scheduler, play};

const SHAPES: usize = 50;
const PROJECTS: [&str; 5] = ["vision", "speech", "language", "robots", "default"];
/// Single ends of tasks, each followed by a pass.
const ENDS: usize = 300;

#[derive(Parser)]
struct Args {
    /// Jobs that wait, or that the trace has
    jobs: usize,
    /// Workers, with 8 GPUs each
    workers: u32,
    /// Of the random jobs
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Play a trace in simulated time
    #[arg(long)]
    simulate: bool,
    /// What the trace asks for, of all that the workers could do, in percent
    #[arg(long, default_value_t = 95)]
    load: u64,
    /// How many jobs that find no place may have workers reserved at a time
    #[arg(long, default_value_t = Policy::default().reservations)]
    reservations: u32,
}

fn worker(number: u32) -> Input {
    let (model, gib) =
        if number.is_multiple_of(4) { ("NVIDIA H100 80GB HBM3", 80) } else { ("NVIDIA A100-SXM4-40GB", 40) };
    hosts::host_up(number, model, gib)
}

fn shapes(random: &mut StdRng) -> Vec<Arc<Shape>> {
    let shape = |number: usize| {
        let count = [0, 1, 1, 1, 2, 4, 8][number % 7];
        let mut gpus = hosts::gpus(count);
        if let Some(request) = gpus.as_deref_mut() {
            request.memory_bytes = (number.is_multiple_of(3)).then_some(60 * GIB);
        }
        let resources = Resources {
            cpus: Cpus::from_millis(1000 * (1 + random.random_range(0..8))),
            memory_bytes: Some(GIB * random.random_range(1..64)),
            gpus,
            ..Resources::default()
        };
        let bound_s = (number.is_multiple_of(2)).then(|| Seconds::new(600 * (1 + number as u64)));
        Arc::new(Shape { resources, bound_s, ..Shape::default() })
    };
    (0..SHAPES).map(shape).collect()
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// What no queue can beat: one entry taken out of an ordered set of that size and another put in.
fn floor(jobs: usize) -> Duration {
    let mut set: BTreeSet<u128> = (0..jobs as u128).collect();
    let began = Instant::now();
    for number in 0..1000_u128 {
        black_box(set.pop_first());
        set.insert(jobs as u128 + number);
    }
    began.elapsed() / 1000
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |span| span.as_secs_f64())
}

/// The same trace under each policy, ours last.
fn simulate(args: &Args) -> anyhow::Result<()> {
    let cluster = Cluster { hosts: args.workers as usize, gpus_per_host: hosts::GPUS };
    let more = Cluster { hosts: cluster.hosts + 1, ..cluster };
    let profile = Profile { jobs: args.jobs, seed: args.seed, load_percent: args.load, plain: false };
    let trace = trace(profile, cluster);
    let played = |policy: &'static str, cluster: Cluster, scheduler: &mut dyn Scheduler| -> Figures {
        figures(policy, cluster, &trace, &play(cluster, &trace, scheduler))
    };
    let all = [
        played("FIFO", cluster, &mut Rival::new(cluster, Rule::Fifo)),
        played("strict priority", cluster, &mut Rival::new(cluster, Rule::StrictPriority)),
        played("greedy backfill", cluster, &mut Rival::new(cluster, Rule::GreedyBackfill)),
        played("GPUlayer", cluster, &mut Ours::new(cluster, true, args.reservations)),
        played("GPUlayer, nobody yields", cluster, &mut Ours::new(cluster, false, args.reservations)),
        played("GPUlayer, one host more", more, &mut Ours::new(more, true, args.reservations)),
    ];
    let days = trace.last().map_or(0, |job| job.arrives_s) / 86_400;
    let told =
        json!({"jobs": args.jobs, "hosts": args.workers, "load": args.load, "days": days, "policies": all});
    writeln!(std::io::stdout(), "{told}")?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.simulate {
        return simulate(&args);
    }
    let mut random = StdRng::seed_from_u64(args.seed);
    let mut placer = Placer::new(Policy::default());
    let before = resident_bytes();
    for number in 1..=args.workers {
        placer.apply(worker(number))?;
    }
    let shapes = shapes(&mut random);
    let mut second = 1_700_000_000_i64;
    let after_workers = resident_bytes();
    let began = Instant::now();
    for number in 0..args.jobs {
        let job = QueuedJob {
            job_id: JobId::from_u128(number as u128 + 1),
            epoch: 0,
            priority: random.random_range(-1..2),
            submitted_at: Timestamp::from_micros(second * 1_000_000 + number as i64),
            shape: shapes[random.random_range(0..SHAPES)].clone(),
            project: PROJECTS[random.random_range(0..PROJECTS.len())].into(),
            avoid: None,
            luggage: Luggage::default(),
        };
        placer.apply(Input::Queued(job))?;
    }
    let queued = began.elapsed();
    let after_jobs = resident_bytes();

    let mut running: Vec<(WorkerId, Place)> = Vec::new();
    let pass = |placer: &mut Placer,
                second: i64,
                running: &mut Vec<(WorkerId, Place)>|
     -> anyhow::Result<(Pass, Duration)> {
        let now = Timestamp::from_micros(second * 1_000_000);
        let began = Instant::now();
        let pass = placer.apply(Input::Pass { now, budget_checks: u32::MAX })?;
        let took = began.elapsed();
        for placed in &pass.placements {
            placer.apply(Input::Accepted { job_id: placed.job.job_id })?;
            running.extend(placed.seats.iter().map(|seat| (seat.worker_id, placed.place())));
        }
        Ok((pass, took))
    };
    let (filled, filling) = pass(&mut placer, second, &mut running)?;
    let (mut spans, mut placed, mut checks) = (Vec::with_capacity(ENDS), 0, 0_u64);
    for _ in 0..ENDS {
        let (worker_id, place) = running.swap_remove(random.random_range(0..running.len()));
        placer.apply(Input::Freed { worker_id, place })?;
        second += 1;
        let (done, took) = pass(&mut placer, second, &mut running)?;
        placed += done.placements.len();
        checks += u64::from(done.checks);
        spans.push(took);
    }
    let whole: Duration = spans.iter().sum();
    spans.sort_unstable();
    writeln!(
        std::io::stdout(),
        "{}",
        json!({
            "jobs": args.jobs,
            "workers": args.workers,
            "lanes": placer.queue().lanes(),
            "queue_us_per_job": queued.as_secs_f64() * 1e6 / args.jobs.max(1) as f64,
            "bytes_per_job": (after_jobs.saturating_sub(after_workers)) as f64 / args.jobs.max(1) as f64,
            "bytes_per_worker": (after_workers.saturating_sub(before)) as f64 / f64::from(args.workers.max(1)),
            "fill_ms": filling.as_secs_f64() * 1e3,
            "fill_placed": filled.placements.len(),
            "fill_us_per_placed_job": filling.as_secs_f64() * 1e6 / filled.placements.len().max(1) as f64,
            "end_pass_ms_p50": percentile(&spans, 50) * 1e3,
            "end_pass_ms_p99": percentile(&spans, 99) * 1e3,
            "end_us_per_placed_job": whole.as_secs_f64() * 1e6 / placed.max(1) as f64,
            "end_checks_per_pass": checks as f64 / ENDS as f64,
            "floor_us": floor(args.jobs).as_secs_f64() * 1e6,
        })
    )?;
    Ok(())
}
