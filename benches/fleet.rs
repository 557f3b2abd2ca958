//! Many workers on one daemon: machines that are only simulated (they speak the protocol and run nothing) heartbeat,
//! park their polls and take short tasks. Prints one JSON object: how long answers took, how soon a job was with a
//! worker, and what all that cost the daemon. `scripts/bench` runs it with 1 worker and with 500.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use gpulayer::client::{Call, Client, Endpoint, Trust};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::pin::Pin;
use gpulayer::contract::protocol::{
    AcquireAnswer, Assignment, HeartbeatAnswer, RegisterAnswer, ReportAnswer,
};
use gpulayer::contract::server::ServerStatus;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

/// Cores that each simulated worker offers, in tasks of one.
const SLOTS: u32 = 4;

#[derive(Parser)]
struct Args {
    /// The daemon's Unix socket, for jobs and figures.
    #[arg(long)]
    socket: PathBuf,
    /// Where workers reach it.
    #[arg(long)]
    url: String,
    /// The server's key, for an https URL.
    #[arg(long)]
    pin: Option<Pin>,
    /// What they join with.
    #[arg(long)]
    join_token_file: PathBuf,
    #[arg(long)]
    workers: usize,
    /// Seconds without any job, to see what being there costs.
    #[arg(long)]
    quiet_s: u64,
    /// Jobs, one after the other, to see how soon each is with a worker.
    #[arg(long)]
    jobs: usize,
    /// Jobs at once, to see that all of it holds under load.
    #[arg(long)]
    burst: usize,
}

#[derive(Deserialize)]
struct Submitted {
    id: JobId,
}

/// What the workers saw.
#[derive(Default)]
struct Seen {
    heartbeats: Vec<Duration>,
    failures: u64,
    arrived: HashMap<JobId, Instant>,
    finished: usize,
}

type Shared = Arc<Mutex<Seen>>;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let found = runtime.block_on(measure(Args::parse()))?;
    writeln!(std::io::stdout(), "{found}")?;
    Ok(())
}

async fn measure(args: Args) -> anyhow::Result<Value> {
    let control = Client::new(Endpoint::Unix(args.socket.clone()));
    let pid = control.get::<ServerStatus>("/v1/server").await?.pid;
    let token = std::fs::read_to_string(&args.join_token_file).context("cannot read the join token")?;
    let base = Client::new(Endpoint::parse(&args.url)?)
        .with_trust(Trust { pins: args.pin.into_iter().collect(), ca_file: None });
    let seen = Shared::default();
    let began = Instant::now();
    for number in 0..args.workers {
        let worker = Simulated::join(&base, token.trim(), number, Arc::clone(&seen)).await?;
        tokio::spawn(Arc::clone(&worker).beat(number));
        tokio::spawn(worker.work());
    }
    let joined_s = began.elapsed().as_secs_f64();
    let (before, whole) = (cpu_s(pid)?, Instant::now());
    tokio::time::sleep(Duration::from_secs(args.quiet_s)).await;
    let quiet = (cpu_s(pid)? - before) / whole.elapsed().as_secs_f64();
    let quiet_beats = std::mem::take(&mut seen.lock().heartbeats);
    let rss_mb = rss_mb(pid)?;
    let dispatched = dispatch(&control, args.jobs, &seen).await?;
    let (before, whole) = (cpu_s(pid)?, Instant::now());
    burst(&control, args.burst, &seen).await?;
    let burst_s = whole.elapsed().as_secs_f64();
    let burst_cpu = cpu_s(pid)? - before;
    let workers: Value = control.get("/v1/workers").await?;
    let silences = workers["items"].as_array().into_iter().flatten();
    let longest_silence_s =
        silences.filter_map(|worker| worker["longest_silence_s"].as_f64()).fold(0.0, f64::max);
    let seen = seen.lock();
    Ok(json!({
        "workers": args.workers, "joined_s": joined_s,
        "quiet_cpu_share": quiet, "rss_mb": rss_mb,
        "heartbeat": summary(quiet_beats), "heartbeat_loaded": summary(seen.heartbeats.clone()),
        "dispatch": summary(dispatched), "longest_silence_s": longest_silence_s,
        "burst_per_s": args.burst as f64 / burst_s, "burst_cpu_us_per_job": burst_cpu / args.burst as f64 * 1e6,
        "failures": seen.failures,
    }))
}

/// From the submission to the worker that has it, one job at a time.
async fn dispatch(control: &Client, jobs: usize, seen: &Shared) -> anyhow::Result<Vec<Duration>> {
    let mut taken = Vec::with_capacity(jobs);
    for _ in 0..jobs {
        let began = Instant::now();
        let Submitted { id } = control.post("/v1/jobs", &job()).await?;
        let arrived = loop {
            if let Some(arrived) = seen.lock().arrived.remove(&id) {
                break arrived;
            }
            anyhow::ensure!(began.elapsed() < Duration::from_secs(60), "{id} reached no worker");
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        taken.push(arrived - began);
        // The next one finds everybody as idle as this one did.
        let _: Value = control.get(&format!("/v1/jobs/{id}?wait_s=60")).await?;
    }
    Ok(taken)
}

async fn burst(control: &Client, count: usize, seen: &Shared) -> anyhow::Result<()> {
    let before = seen.lock().finished;
    let _: Value = control.post("/v1/jobs/batch", &json!({ "jobs": vec![job(); count] })).await?;
    let began = Instant::now();
    while seen.lock().finished < before + count {
        anyhow::ensure!(began.elapsed() < Duration::from_secs(120), "the burst does not end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn job() -> Value {
    json!({"workload": {"command": {"argv": ["/bin/true"]}}, "target": "remote"})
}

/// One machine that is not there.
struct Simulated {
    // As a worker has them: heartbeats wait behind nothing.
    heartbeats: Client,
    calls: Client,
    every: Duration,
    seen: Shared,
}

impl Simulated {
    async fn join(base: &Client, token: &str, number: usize, seen: Shared) -> anyhow::Result<Arc<Self>> {
        let capabilities = json!({
            "version": env!("CARGO_PKG_VERSION"), "hostname": format!("sim-{number}"), "os": "linux", "arch": "x86_64",
            "cpus": SLOTS, "memory_bytes": 16_u64 << 30,
        });
        let asked = json!({
            "name": format!("sim-{number}"), "machine_id": format!("sim-{number}-{}", std::process::id()),
            "boot_id": "b", "incarnation": 1, "capabilities": capabilities,
        });
        let answer: RegisterAnswer =
            say(&base.clone().with_token(token)?, "/v1/workers/register", &asked).await?;
        let client = || base.clone().with_token(&answer.session_token);
        let every = answer.timing.heartbeat_s.duration();
        Ok(Arc::new(Self { heartbeats: client()?, calls: client()?, every, seen }))
    }

    async fn beat(self: Arc<Self>, number: usize) {
        // Spread over the interval, as machines are.
        tokio::time::sleep(self.every.mul_f64((number % 97) as f64 / 97.0)).await;
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for seq in 1_u64.. {
            ticks.tick().await;
            let began = Instant::now();
            let beat = json!({"seq": seq, "incarnation": 1, "tasks": []});
            match say::<HeartbeatAnswer>(&self.heartbeats, "/v1/worker/heartbeat", &beat).await {
                Ok(_) => self.seen.lock().heartbeats.push(began.elapsed()),
                Err(_) => self.seen.lock().failures += 1,
            }
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let ask = json!({"wait_s": 45, "max_tasks": SLOTS, "free": {"cpus": SLOTS, "memory_bytes": 16_u64 << 30}});
            match say::<AcquireAnswer>(&self.calls, "/v1/worker/acquire", &ask).await {
                Ok(answer) if answer.assignments.is_empty() => {}
                Ok(answer) => {
                    if self.run(answer.assignments).await.is_err() {
                        self.seen.lock().failures += 1;
                    }
                }
                Err(_) => {
                    self.seen.lock().failures += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn run(&self, assignments: Vec<Assignment>) -> anyhow::Result<()> {
        let now = Instant::now();
        self.seen.lock().arrived.extend(assignments.iter().map(|assignment| (assignment.job_id, now)));
        let item = |assignment: &Assignment, more: Value| {
            let mut item = json!({"task_id": assignment.task_id, "epoch": assignment.epoch});
            if let (Some(item), Value::Object(more)) = (item.as_object_mut(), more) {
                item.extend(more);
            }
            item
        };
        let starts: Vec<Value> =
            assignments.iter().map(|assignment| item(assignment, json!({"kind": "start"}))).collect();
        let _: ReportAnswer = say(&self.calls, "/v1/worker/report", &json!({ "items": starts })).await?;
        let end = json!({"reason": "completed", "owner": "user", "exit_code": 0, "duration_s": 0.001});
        let finishes = assignments.iter().flat_map(|assignment| {
            let executing = json!({"kind": "phase", "phase": "executing"});
            [item(assignment, executing), item(assignment, json!({"kind": "finish", "end": end}))]
        });
        let items: Vec<Value> = finishes.collect();
        let _: ReportAnswer = say(&self.calls, "/v1/worker/report", &json!({ "items": items })).await?;
        self.seen.lock().finished += assignments.len();
        Ok(())
    }
}

async fn say<A: serde::de::DeserializeOwned>(client: &Client, path: &str, body: &Value) -> anyhow::Result<A> {
    let call = Call::post(path, true).header("x-gpulayer-protocol", "1").json(body)?;
    Ok(client.answer(&call).await?.json()?)
}

fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the daemon is gone")?;
    let fields: Vec<&str> = stat.rsplit_once(") ").context("a strange stat")?.1.split(' ').collect();
    // In ticks of 10 ms, as Linux has them everywhere.
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(11) + ticks(12)) / 100.0)
}

fn rss_mb(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

fn summary(mut taken: Vec<Duration>) -> Value {
    taken.sort_unstable();
    let at = |share: f64| {
        let rank = ((taken.len() as f64 * share).ceil() as usize).saturating_sub(1);
        taken.get(rank).map(|duration| duration.as_secs_f64() * 1000.0)
    };
    json!({"count": taken.len(), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)})
}
