//! The load that `scripts/bench` puts on a daemon, and the floors it compares with. Each command does one measurement
//! and prints one JSON object; the daemon, its memory and its CPU time are the script's business.
//!
//! Built as an example rather than a bench target: a bench target cannot have `panic = "abort"`, so all
//! dependencies would be compiled a second time.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use gpulayer::client::{Client, Endpoint};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{BatchAnswer, JobState};
use gpulayer::contract::server::ServerStatus;
use serde::Deserialize;
use serde_json::{Value, json};

/// Jobs of one batch request: the most the API takes.
const BATCH_JOBS: usize = 10_000;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    measure: Measure,
}

#[derive(Subcommand)]
enum Measure {
    /// Spawn and wait for `/bin/true` in a loop, with nothing else: what no job system can beat.
    Spawn { count: usize, spawners: usize },
    /// One job at a time, by the API: from the submission to the result in hand.
    Idle { socket: PathBuf, count: usize, cpus: f64 },
    /// Many jobs by single submissions over many connections, until all have ended.
    Burst { socket: PathBuf, count: usize, connections: usize, cpus: f64 },
    /// Many jobs by batch, until all have ended.
    Batch { socket: PathBuf, count: usize, cpus: f64 },
    /// Jobs that no worker can take, by batch: they stay queued.
    Park { socket: PathBuf, count: usize },
    /// One program after the other, from its start to its exit: `run` and other commands.
    Processes { count: usize, spawners: usize, program: String, args: Vec<String> },
}

#[derive(Deserialize)]
struct Submitted {
    id: JobId,
}

#[derive(Deserialize)]
struct Ended {
    state: JobState,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = match Args::parse().measure {
        Measure::Spawn { count, spawners } => processes(count, spawners, "/bin/true", &[])?,
        Measure::Processes { count, spawners, program, args } => processes(count, spawners, &program, &args)?,
        Measure::Idle { socket, count, cpus } => runtime.block_on(idle(&socket, count, cpus))?,
        Measure::Burst { socket, count, connections, cpus } => {
            runtime.block_on(burst(&socket, count, connections, cpus))?
        }
        Measure::Batch { socket, count, cpus } => runtime.block_on(batch(&socket, count, cpus))?,
        Measure::Park { socket, count } => runtime.block_on(park(&socket, count))?,
    };
    writeln!(std::io::stdout(), "{found}")?;
    Ok(())
}

/// A job that runs `/bin/true`.
fn true_job(cpus: f64) -> Value {
    json!({"workload": {"command": {"argv": ["/bin/true"]}}, "resources": {"cpus": cpus}})
}

fn connect(socket: &std::path::Path) -> Client {
    Client::new(Endpoint::Unix(socket.to_owned()))
}

/// Runs a program `count` times, `spawners` at once, and times each from spawn to exit.
fn processes(count: usize, spawners: usize, program: &str, args: &[String]) -> anyhow::Result<Value> {
    let left = Arc::new(AtomicUsize::new(count));
    let began = Instant::now();
    let threads: Vec<_> = (0..spawners)
        .map(|_| {
            let (left, program, args) = (left.clone(), program.to_owned(), args.to_vec());
            std::thread::spawn(move || spawn_until_none_left(&left, &program, &args))
        })
        .collect();
    let mut taken = Vec::with_capacity(count);
    for thread in threads {
        taken.extend(thread.join().map_err(|_| anyhow::anyhow!("a spawning thread panicked"))??);
    }
    Ok(summary(count, began.elapsed(), taken))
}

fn spawn_until_none_left(
    left: &AtomicUsize,
    program: &str,
    args: &[String],
) -> anyhow::Result<Vec<Duration>> {
    let mut taken = Vec::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
        let began = Instant::now();
        let status = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("cannot start {program}"))?;
        if !status.success() {
            bail!("{program} {args:?} ended with {status}");
        }
        taken.push(began.elapsed());
    }
    Ok(taken)
}

async fn idle(socket: &std::path::Path, count: usize, cpus: f64) -> anyhow::Result<Value> {
    let client = connect(socket);
    let job = true_job(cpus);
    let mut taken = Vec::with_capacity(count);
    let whole = Instant::now();
    for _ in 0..count {
        let began = Instant::now();
        let Submitted { id } = client.post("/v1/jobs", &job).await?;
        await_end(&client, id).await?;
        taken.push(began.elapsed());
    }
    Ok(summary(count, whole.elapsed(), taken))
}

/// Long-polls until the job has ended, and insists that it ended well.
async fn await_end(client: &Client, id: JobId) -> anyhow::Result<()> {
    loop {
        let Ended { state } = client.get(&format!("/v1/jobs/{id}?wait_s=60")).await?;
        match state {
            JobState::Succeeded => return Ok(()),
            state if state.ended() => bail!("{id} ended {}", state.word()),
            _ => {}
        }
    }
}

async fn burst(
    socket: &std::path::Path,
    count: usize,
    connections: usize,
    cpus: f64,
) -> anyhow::Result<Value> {
    let left = Arc::new(AtomicUsize::new(count));
    let job = Arc::new(true_job(cpus));
    let began = Instant::now();
    let mut submitters = tokio::task::JoinSet::new();
    for _ in 0..connections {
        // One client each: clients share connections only with their clones.
        let (client, left, job) = (connect(socket), left.clone(), job.clone());
        submitters.spawn(async move {
            let (mut last, mut taken) = (None, Vec::new());
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let began = Instant::now();
                let Submitted { id } = client.post("/v1/jobs", &*job).await?;
                taken.push(began.elapsed());
                last = Some(id);
            }
            anyhow::Ok((last, taken))
        });
    }
    let (mut last, mut taken) = (Vec::new(), Vec::with_capacity(count));
    while let Some(submitter) = submitters.join_next().await {
        let (id, times) = submitter??;
        last.extend(id);
        taken.extend(times);
    }
    let submitted = began.elapsed();
    drain(&connect(socket), &last, 0).await?;
    let mut found = summary(count, began.elapsed(), taken);
    found["submitted_s"] = json!(submitted.as_secs_f64());
    Ok(found)
}

async fn batch(socket: &std::path::Path, count: usize, cpus: f64) -> anyhow::Result<Value> {
    let client = connect(socket);
    let before = live(&client).await?;
    let began = Instant::now();
    let ids = submit_batches(&client, count, &true_job(cpus)).await?;
    let submitted = began.elapsed();
    drain(&client, &ids[ids.len().saturating_sub(1)..], before).await?;
    let mut found = summary(count, began.elapsed(), Vec::new());
    found["submitted_s"] = json!(submitted.as_secs_f64());
    Ok(found)
}

async fn park(socket: &std::path::Path, count: usize) -> anyhow::Result<Value> {
    let client = connect(socket);
    let began = Instant::now();
    submit_batches(&client, count, &true_job(100_000.0)).await?;
    Ok(summary(count, began.elapsed(), Vec::new()))
}

async fn submit_batches(client: &Client, count: usize, job: &Value) -> anyhow::Result<Vec<JobId>> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let jobs = vec![job; BATCH_JOBS.min(count - ids.len())];
        let answer: BatchAnswer = client.post("/v1/jobs/batch", &json!({ "jobs": jobs })).await?;
        ids.extend(answer.ids);
    }
    Ok(ids)
}

async fn live(client: &Client) -> anyhow::Result<u64> {
    let jobs = client.get::<ServerStatus>("/v1/server").await?.jobs;
    Ok(jobs.queued + jobs.scheduled + jobs.running)
}

/// Waits until these have ended, then until no more than `resting` jobs are live: jobs end nearly in order.
async fn drain(client: &Client, last: &[JobId], resting: u64) -> anyhow::Result<()> {
    for id in last {
        await_end(client, *id).await?;
    }
    while live(client).await? > resting {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn summary(count: usize, whole: Duration, mut taken: Vec<Duration>) -> Value {
    taken.sort_unstable();
    let at = |share: f64| {
        let rank = ((taken.len() as f64 * share).ceil() as usize).saturating_sub(1);
        taken.get(rank).map(|duration| duration.as_secs_f64() * 1000.0)
    };
    json!({
        "count": count,
        "whole_s": whole.as_secs_f64(),
        "per_s": count as f64 / whole.as_secs_f64(),
        "p50_ms": at(0.50), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": at(1.0),
    })
}
