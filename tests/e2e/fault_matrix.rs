//! The fault matrix: a seeded machine that submits a mixed load without pause and meanwhile kills the daemon, a
//! standalone worker, shims, or all of them. Then every promise is checked, job by job.
//!
//! The seed is printed. `GPULAYER_FAULT_SEED` makes the same choices again (jobs, blows, pauses; not the kernel's),
//! `GPULAYER_FAULT_ROUNDS` and `GPULAYER_FAULT_MINUTES` make the run longer, `GPULAYER_FAULT_REPORT` names a file for
//! what was seen, `GPULAYER_KEEP` keeps the folders of a run that failed.

mod blows;
mod load;
mod verdicts;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gpulayer::client::{Call, Client};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{DEADLINE, Daemon, House, eventually};
use crate::processes;
use blows::{Blow, Victims, kill_shims};
use load::{Kind, mark};
use verdicts::{Given, Seen, check};

/// Live jobs beyond which no more are submitted: what two cores end within a few rounds.
const MOST_LIVE: u64 = 40;
/// Jobs whose ends have been checked are few enough that a long run does not keep all it ever saw.
const JOBS_PER_ROUND: std::ops::Range<usize> = 4..12;

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Processes, load and books of one run.
struct Matrix {
    house: House,
    daemon: Option<Daemon>,
    far: Option<FarWorker>,
    rng: StdRng,
    flood_lines: u32,
    victims: Victims,
    given: Rc<RefCell<Vec<Given>>>,
    followers: Vec<Follower>,
    blows: BTreeMap<Blow, u64>,
    seen: Seen,
    peaks: BTreeMap<&'static str, u64>,
    open_files: usize,
}

/// A `gpulayer run`, which must print what its job did, whatever happens on the way.
struct Follower {
    name: String,
    kind: Kind,
    run: Child,
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

impl Matrix {
    async fn new(seed: u64) -> Self {
        let house = House::new();
        let daemon = house.daemon_with(&["--port", "0"]).await;
        let far = FarWorker::start(&house, &url(&house));
        Self {
            house,
            daemon: Some(daemon),
            far: Some(far),
            rng: StdRng::seed_from_u64(seed),
            flood_lines: setting("GPULAYER_FAULT_FLOOD_LINES").unwrap_or(8_000),
            victims: Victims::default(),
            given: Rc::default(),
            followers: Vec::new(),
            blows: BTreeMap::new(),
            seen: Seen::default(),
            peaks: BTreeMap::new(),
            open_files: 0,
        }
    }

    fn worker_folders(&self) -> [PathBuf; 2] {
        [self.house.state().join("worker"), FarWorker::folder(&self.house)]
    }

    fn shims(&self) -> Vec<u32> {
        self.worker_folders().iter().flat_map(|folder| processes::shims(folder)).collect()
    }

    async fn round(&mut self, round: usize) {
        let in_groups = self.worker_folders().iter().all(|folder| !processes::groups(folder).is_empty());
        let submissions: Vec<_> = (0..self.rng.random_range(JOBS_PER_ROUND))
            .map(|number| {
                let name = format!("r{round}-{number}");
                let kind = Kind::random(&mut self.rng, self.flood_lines);
                let spec = kind.spec(&name, &mark(self.house.path(), &name), in_groups);
                let after = Duration::from_millis(self.rng.random_range(0..400));
                let (client, given) = (self.house.client(), Rc::clone(&self.given));
                actix_rt::spawn(async move {
                    tokio::time::sleep(after).await;
                    let id = submit(&client, &spec).await;
                    if kind == Kind::Deaf {
                        ask(
                            &client,
                            &Call::mutate(format!("/v1/jobs/{id}/cancel")).json(&json!({})).unwrap(),
                        )
                        .await;
                    }
                    given.borrow_mut().push(Given { name, kind, id });
                })
            })
            .collect();
        self.follow(round);
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..500))).await;
        let blow = Blow::of_round(round, &mut self.rng);
        println!("round {round}: {blow:?}");
        self.measure();
        self.strike(blow).await;
        for submission in submissions {
            submission.await.unwrap();
        }
        let client = self.house.client();
        eventually("the backlog to shrink", async || {
            let server: Value = client.get("/v1/server").await.unwrap();
            let live: u64 = ["queued", "scheduled", "running"]
                .iter()
                .map(|state| server["jobs"][state].as_u64().unwrap())
                .sum();
            (live < MOST_LIVE).then_some(())
        })
        .await;
    }

    /// A person who follows a job through it all.
    fn follow(&mut self, round: usize) {
        let name = format!("r{round}-run");
        let kind = Kind::Counter { lines: self.rng.random_range(100..400) };
        let script = kind.script(&mark(self.house.path(), &name), false);
        let server = url(&self.house);
        let args = ["run", "--server", &server, "--source", "none", "--cpus", "0.1", "--name", &name, "--"];
        let mut command = self.house.command(&[&args[..], &["sh", "-c", &script]].concat());
        let said = std::fs::File::create(self.house.path().join(format!("{name}.err"))).unwrap();
        let printed = std::fs::File::create(self.house.path().join(format!("{name}.out"))).unwrap();
        let run = command.stdout(printed).stderr(said).stdin(Stdio::null()).spawn().unwrap();
        self.followers.push(Follower { name, kind, run });
    }

    async fn strike(&mut self, blow: Blow) {
        *self.blows.entry(blow).or_default() += 1;
        let far_is_up = self.far.as_mut().is_some_and(FarWorker::is_up);
        if !far_is_up {
            let said = std::fs::read_to_string(self.house.path().join("far.log")).unwrap_or_default();
            let last = said.lines().rev().take(8).collect::<Vec<_>>();
            panic!("the standalone worker left by itself; its last words, the newest first: {last:#?}");
        }
        let (folders, shims) = (self.worker_folders(), self.shims());
        let away = Duration::from_millis(self.rng.random_range(0..400));
        let frozen = Duration::from_millis(self.rng.random_range(100..1_500));
        let first = self.rng.random_range(0..64);
        let chosen = |count: usize| -> Vec<u32> {
            shims.iter().cycle().skip(first).take(count.min(shims.len())).copied().collect()
        };
        match blow {
            Blow::Daemon => self.daemon.take().unwrap().kill(),
            Blow::Goodbye => assert!(self.daemon.take().unwrap().terminate().success()),
            Blow::FarWorker => drop(self.far.take()),
            Blow::DaemonAndFarWorker => {
                self.daemon.take().unwrap().kill();
                self.far = None;
            }
            Blow::Shim => kill_shims(&chosen(1), &folders, &mut self.victims),
            Blow::Shims => kill_shims(&chosen(4), &folders, &mut self.victims),
            Blow::Everything => {
                kill_shims(&shims, &folders, &mut self.victims);
                self.daemon.take().unwrap().kill();
                self.far = None;
                // Shims that were born in between.
                kill_shims(&self.shims(), &folders, &mut self.victims);
            }
            Blow::FrozenDaemon => freeze(&[self.daemon.as_ref().unwrap().pid()], frozen).await,
            Blow::FrozenFarWorker => freeze(&[self.far.as_ref().unwrap().pid()], frozen).await,
            Blow::FrozenShim => freeze(&chosen(1), frozen).await,
        }
        tokio::time::sleep(away).await;
        if self.far.is_none() && away.as_millis().is_multiple_of(2) {
            // It is back before its server.
            self.far = Some(FarWorker::start(&self.house, &url(&self.house)));
        }
        if self.daemon.is_none() {
            self.daemon = Some(self.house.daemon_with(&["--port", "0"]).await);
        }
        if self.far.is_none() {
            self.far = Some(FarWorker::start(&self.house, &url(&self.house)));
        }
    }

    /// The largest of each kind of process so far.
    fn measure(&mut self) {
        let daemon = self.daemon.as_ref().map(Daemon::pid);
        let far = self.far.as_ref().map(FarWorker::pid);
        let all = self.shims().into_iter().map(|pid| ("shim", pid));
        for (what, pid) in
            daemon.map(|pid| ("daemon", pid)).into_iter().chain(far.map(|pid| ("worker", pid))).chain(all)
        {
            let peak = self.peaks.entry(what).or_default();
            *peak = (*peak).max(processes::peak_memory_bytes(pid).unwrap_or_default());
            self.open_files = self.open_files.max(processes::open_files(pid));
        }
    }

    /// Waits for all that was given so far and checks it.
    async fn settle(&mut self) {
        let mut printed: HashMap<String, Vec<String>> = HashMap::new();
        let given = self.given.take();
        for given in &given {
            check(&self.house, given, &self.victims, &mut self.seen).await;
        }
        let by_name = self.jobs_by_name().await;
        for given in &given {
            assert_eq!(
                by_name.get(&given.name).map(Vec::as_slice),
                Some(&[given.id][..]),
                "accepted once: {}",
                given.name
            );
        }
        for mut follower in std::mem::take(&mut self.followers) {
            let (name, kind) = (follower.name.clone(), follower.kind);
            let status = eventually("a follower's end", async || follower.run.try_wait().unwrap()).await;
            let said = std::fs::read_to_string(self.house.path().join(format!("{name}.err"))).unwrap();
            let Some(ids) = by_name.get(&name) else {
                assert_eq!(status.code(), Some(1), "{name} was not accepted, and says so: {said}");
                continue;
            };
            assert_eq!(ids.len(), 1, "{name} was accepted once");
            let given = Given { name: name.clone(), kind, id: ids[0] };
            let lines = check(&self.house, &given, &self.victims, &mut self.seen).await;
            let out = std::fs::read_to_string(self.house.path().join(format!("{name}.out"))).unwrap();
            assert!(
                out.lines().eq(&lines),
                "{name} printed {} lines of {}: {said}",
                out.lines().count(),
                lines.len()
            );
            let code = self.house.end(ids[0]).await.end.unwrap().exit_code.unwrap_or(125);
            assert_eq!(status.code(), Some(code), "{name}: {said}");
            printed.insert(name, lines);
        }
    }

    /// Every job that is there, by its name.
    async fn jobs_by_name(&self) -> HashMap<String, Vec<JobId>> {
        let mut found: HashMap<String, Vec<JobId>> = HashMap::new();
        let mut path = "/v1/jobs?limit=500".to_owned();
        loop {
            let page: Page<Job> = self.house.client().get(&path).await.unwrap();
            for job in page.items {
                found.entry(job.name.unwrap_or_default()).or_default().push(job.id);
            }
            match page.next_cursor {
                Some(cursor) => path = format!("/v1/jobs?limit=500&cursor={cursor}"),
                None => return found,
            }
        }
    }

    /// Nothing is left of tasks that are over, and nothing stays reserved for them.
    async fn nothing_is_left(&self) {
        let own = format!("{}#", self.house.path().display());
        eventually("every process to be gone", async || {
            let left = processes::marked(&own);
            (left.is_empty() && self.house.leftovers().is_empty()).then_some(())
        })
        .await;
        for folder in self.worker_folders() {
            eventually("every task folder to be gone", async || {
                std::fs::read_dir(folder.join("tasks")).ok()?.next().is_none().then_some(())
            })
            .await;
        }
        let workers = self.workers_when_idle().await;
        for worker in workers["items"].as_array().unwrap() {
            assert_eq!(worker["tasks"], json!([]), "{worker}");
            let cpus = &worker["capabilities"]["cpus"];
            let all = json!({
                "workload": {"command": {"argv": ["true"]}},
                "resources": {"worker": worker["id"], "cpus": cpus, "memory_bytes": worker["capabilities"]["memory_bytes"]},
            });
            let job = self.house.end(self.house.submit(&all).await.id).await;
            assert_eq!(job.state, JobState::Succeeded, "a job that needs all of a worker: {job:?}");
        }
    }

    /// What the heartbeats of the last seconds said is shown until the next.
    async fn workers_when_idle(&self) -> Value {
        eventually("both workers to be idle", async || {
            let workers: Value = self.house.client().get("/v1/workers").await.unwrap();
            let idle = |worker: &Value| worker["state"] == json!("idle");
            workers["items"].as_array().unwrap().iter().all(idle).then_some(workers)
        })
        .await
    }

    /// Stops what is left in good order: idle shims leave by themselves, and of killed ones nothing is left once a
    /// worker has started after them.
    async fn leave(mut self) {
        drop(self.far.take());
        assert!(self.daemon.take().unwrap().terminate().success());
        let daemon = self.house.daemon_with(&["--port", "0"]).await;
        let far = FarWorker::start(&self.house, &url(&self.house));
        self.workers_when_idle().await;
        drop(far);
        assert!(daemon.terminate().success());
        for folder in self.worker_folders() {
            eventually("the idle shims to leave", async || {
                processes::shims(&folder).is_empty().then_some(())
            })
            .await;
            let groups = processes::groups(&folder);
            assert!(groups.is_empty(), "control groups are left: {groups:?}");
            let files = std::fs::read_dir(folder.join("shims")).unwrap();
            let sockets: Vec<_> = files
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.ends_with(".sock"))
                .collect();
            assert_eq!(sockets, [""; 0], "in {}", folder.display());
        }
    }

    fn report(&self, seed: u64, rounds: usize, jobs: u64) -> Value {
        let blows: BTreeMap<String, u64> =
            self.blows.iter().map(|(blow, count)| (format!("{blow:?}"), *count)).collect();
        let database = std::fs::metadata(self.house.state().join("gpulayer.db")).map_or(0, |file| file.len());
        json!({
            "seed": seed, "rounds": rounds, "blows": blows, "jobs": jobs, "attempts": self.seen.attempts,
            "ends": self.seen.ends, "lines": self.seen.lines, "processes_left": 0, "peak_bytes": self.peaks,
            "open_files": self.open_files, "database_bytes": database,
        })
    }
}

fn url(house: &House) -> String {
    format!("unix:{}", house.state().join("gpulayer.sock").display())
}

/// Submits under one key until the server has said yes.
async fn submit(client: &Client, spec: &Value) -> JobId {
    let answer = ask(client, &Call::mutate("/v1/jobs").json(spec).unwrap()).await;
    answer["id"].as_str().unwrap().parse().unwrap()
}

/// Makes a call until it is answered; a server that is away comes back.
async fn ask(client: &Client, call: &Call) -> Value {
    let began = Instant::now();
    loop {
        match client.answer(call).await {
            Ok(answer) => return answer.json().unwrap(),
            Err(error) => {
                let again = error.is_connection() || error.problem().is_some_and(|problem| problem.retryable);
                assert!(again && began.elapsed() < DEADLINE, "{error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Stops processes for a while. They go on whatever happens here.
async fn freeze(pids: &[u32], span: Duration) {
    struct Thaw<'a>(&'a [u32]);
    impl Drop for Thaw<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|pid| processes::signal(*pid, Signal::CONT));
        }
    }
    pids.iter().for_each(|pid| processes::signal(*pid, Signal::STOP));
    let _thaw = Thaw(pids);
    tokio::time::sleep(span).await;
}

#[actix_rt::test]
async fn whatever_is_killed_every_job_ends_right_and_nothing_is_left() {
    let seed = setting("GPULAYER_FAULT_SEED").unwrap_or_else(rand::random);
    let rounds = setting("GPULAYER_FAULT_ROUNDS").unwrap_or(12);
    let until = setting("GPULAYER_FAULT_MINUTES")
        .map(|minutes: f64| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    println!("GPULAYER_FAULT_SEED={seed}");
    let mut matrix = Matrix::new(seed).await;
    let (mut round, mut jobs) = (0, 0);
    while until.map_or(round < rounds, |until| Instant::now() < until) {
        matrix.round(round).await;
        round += 1;
        if round % 10 == 0 {
            jobs += matrix.given.borrow().len() as u64;
            matrix.settle().await;
        }
    }
    jobs += matrix.given.borrow().len() as u64;
    matrix.settle().await;
    matrix.nothing_is_left().await;
    matrix.measure();
    let report = matrix.report(seed, round, jobs);
    println!("{report}");
    if let Some(path) = std::env::var_os("GPULAYER_FAULT_REPORT") {
        std::fs::write(path, report.to_string()).unwrap();
    }
    matrix.leave().await;
}
