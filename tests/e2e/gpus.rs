//! Jobs on GPUs, with simulated workers: the daemon, its workers and the tasks are real processes that ask NVML through
//! the real wrapper, and NVIDIA's library is a stand-in (`tests/support/nvml_stub`).

use std::collections::BTreeSet;

use gpulayer::contract::gpu::GpuStanding;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use gpulayer::contract::worker::Worker;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{Daemon, House, eventually, shell};
use crate::joined::Joined;
use crate::nvml_stub::{NvmlStub, StubGpu};

/// A house whose machine seems to have these GPUs, and cores enough.
pub struct GpuHouse {
    pub house: House,
    pub stub: NvmlStub,
    pub gpus: Vec<StubGpu>,
}

impl GpuHouse {
    /// Eight, two by two on NVLink.
    pub fn new(settings: &str) -> Self {
        let (stub, gpus) = NvmlStub::with_pairs(8);
        let house = House::new();
        let this = Self { house, stub, gpus };
        this.set_up(&this.house, settings);
        this
    }

    /// Another house on the same machine.
    pub fn set_up(&self, house: &House, settings: &str) {
        std::fs::create_dir_all(house.home()).unwrap();
        let nvml = self.stub.library();
        let config = format!("nvml = \"{}\"\nworker_cpus = 16\n{settings}", nvml.display());
        std::fs::write(house.home().join("config.toml"), config).unwrap();
    }

    /// Starts the daemon and waits until its worker offers its GPUs.
    pub async fn daemon(&self) -> Daemon {
        let daemon = self.house.daemon().await;
        self.until_it_offers(&self.house).await;
        daemon
    }

    pub async fn until_it_offers(&self, house: &House) {
        eventually("a worker with GPUs", async || {
            let worker = worker_of(house).await?;
            (!worker.capabilities.gpus.is_empty()).then_some(())
        })
        .await;
    }

    pub fn uuid(&self, index: usize) -> &str {
        &self.gpus[index].uuid
    }

    /// How a GPU stands, once it is so.
    pub async fn stands(&self, index: usize, is_so: impl Fn(&GpuStanding) -> bool) {
        eventually("how a GPU stands", async || {
            let worker = worker_of(&self.house).await?;
            let gpu = worker.capabilities.gpus.into_iter().find(|gpu| gpu.uuid == self.uuid(index))?;
            is_so(&gpu.standing).then_some(())
        })
        .await;
    }

    /// Opens what [`held`] tasks of this name wait for.
    pub fn let_go(&self, name: &str) {
        std::fs::write(self.house.path().join(name), "").unwrap();
    }
}

pub async fn worker_of(house: &House) -> Option<Worker> {
    let page: Page<Worker> = house.client().get("/v1/workers").await.ok()?;
    page.items.into_iter().next()
}

/// Says what it was told of its GPUs, and stays until the file `name` is there.
pub fn held(house: &House, count: u32, name: &str) -> Value {
    let go = house.path().join(name);
    let mut spec = shell(&format!(
        "echo $CUDA_DEVICE_ORDER:${{CUDA_VISIBLE_DEVICES-unset}}:$GPULAYER_GPU_UUIDS:; \
         until [ -e {} ]; do sleep 0.02; done",
        go.display()
    ));
    spec["resources"] = json!({"gpus": {"count": count}});
    spec
}

/// What such a task was told: the order, the devices, the uuids.
async fn told(house: &House, id: JobId) -> (String, String, Vec<String>) {
    let line = eventually("a task's first line", async || house.log(id).await.into_iter().next()).await;
    let words: Vec<&str> = line.split(':').collect();
    let uuids = words[2].split(',').filter(|uuid| !uuid.is_empty()).map(str::to_owned).collect();
    (words[0].to_owned(), words[1].to_owned(), uuids)
}

async fn job(house: &House, id: JobId) -> Job {
    house.client().get(&format!("/v1/jobs/{id}")).await.unwrap()
}

fn printed(house: &House, args: &[&str]) -> String {
    let output = house.run(args);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The same with a limit, so that it is known when it ends at the latest.
fn limited(house: &House, count: u32, name: &str, timeout_s: u32) -> Value {
    let mut spec = held(house, count, name);
    spec["timeout_s"] = json!(timeout_s);
    spec
}

fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

async fn reason_with(house: &House, id: JobId, part: &str) -> String {
    eventually(&format!("a reason with `{part}`"), async || {
        job(house, id).await.queue_reason.filter(|reason| reason.contains(part))
    })
    .await
}

#[actix_rt::test]
async fn eight_gpus_are_shared_out_whole_and_every_program_is_told_its_own() {
    let site = GpuHouse::new("");
    let house = &site.house;
    let _daemon = site.daemon().await;
    let mut given = BTreeSet::new();
    let mut ids = Vec::new();
    for count in [2, 2, 4, 0] {
        let id = house.submit(&limited(house, count, "go", 2400)).await.id;
        let (order, devices, uuids) = told(house, id).await;
        assert_eq!((order.as_str(), uuids.len()), ("PCI_BUS_ID", count as usize));
        let indices: Vec<String> = uuids
            .iter()
            .map(|uuid| site.gpus.iter().position(|gpu| gpu.uuid == *uuid).unwrap().to_string())
            .collect();
        // Without any an explicit empty value: a program that looks for GPUs finds none.
        assert_eq!(devices, indices.join(","), "by place on the bus");
        if count == 2 {
            let first: usize = indices[0].parse().unwrap();
            assert_eq!(indices[1], (first ^ 1).to_string(), "two that are linked");
        }
        for uuid in uuids {
            assert!(given.insert(uuid.clone()), "{uuid} was given twice");
        }
        ids.push(id);
    }
    assert_eq!(given.len(), 8);
    let shown = printed(house, &["worker", "list"]);
    assert!(shown.contains("GPUS") && shown.contains(" 0/8 "), "{shown}");

    // Who waits is told for what, and who has it.
    let words = ["run", "--source", "none", "--gpus", "1", "--cpus", "0.5", "--", "true"];
    let mut run = Joined::start(house.command(&words).current_dir(house.path()));
    let said = run.says("waiting for");
    assert!(said.starts_with("waiting for 1 GPU: held by job …") && said.contains("), up to "), "{said}");
    let waits = printed(house, &["explain", "@last"]);
    assert!(waits.contains("needs 1 GPU, 0 free of 8 (8 held by tasks)"), "{waits}");
    assert!(waits.contains("waits for   1 GPU: held by job …"), "{waits}");

    // A near miss: `run` does not begin to wait for what never comes, `submit` does and says so.
    let eighty = ["--source", "none", "--gpus", "1", "--gpu-memory", "80GiB", "--", "true"];
    let command = |verb: &str| house.run(&[&[verb], &eighty[..]].concat());
    let refused = command("run");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("has 79.6 GiB (NVIDIA H100 80GB HBM3)"), "{said}");
    assert!(said.contains("  --gpu-memory: this would do: GPUs with ≥ 79.6 GiB instead of 80 GiB"), "{said}");
    let queued = command("submit");
    let said = String::from_utf8_lossy(&queued.stderr).into_owned();
    assert!(
        queued.status.success() && said.contains("warning: --gpu-memory: no worker could ever take it"),
        "{said}"
    );
    let queued: JobId = String::from_utf8(queued.stdout).unwrap().trim().parse().unwrap();
    assert_eq!(job(house, queued).await.warnings[0].pointer, "/resources/gpus/memory_bytes");
    let said = printed(house, &["explain", &queued.to_string()]);
    assert!(
        said.contains("fits on no worker there is")
            && said.contains("has 79.6 GiB")
            && said.ends_with("with this:\n  GPUs with ≥ 79.6 GiB instead of 80 GiB\n"),
        "{said}"
    );
    house.run(&["cancel", &queued.to_string()]);
    let smaller = ["run", "--source", "none", "--gpus", "H100:1", "--gpu-memory", "79.6GiB", "--", "true"];

    site.let_go("go");
    for id in ids {
        assert_eq!(house.end(id).await.state, JobState::Succeeded);
    }
    assert_eq!(run.ends(), Some(0), "{:?}", run.said);
    assert_eq!(house.run(&smaller).status.code(), Some(0), "what was suggested runs");
    assert_eq!(house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn a_job_for_all_gpus_gets_its_turn_and_takes_what_yields() {
    let site = GpuHouse::new("[projects.spare]\npreemptible = true\n");
    let house = &site.house;
    let daemon = site.daemon().await;
    let mut small = Vec::new();
    for number in 0..4 {
        small.push(house.submit(&limited(house, 2, &format!("small{number}"), 900)).await.id);
        told(house, small[number]).await;
    }
    let big = house.submit(&limited(house, 8, "big", 900)).await.id;
    // A stream that would go before it for ever, each fitting at once into what is given back.
    let mut stream = Vec::new();
    for _ in 0..6 {
        stream.push(house.submit(&held(house, 2, "stream")).await.id);
    }
    site.let_go("small0");
    assert_eq!(house.end(small[0]).await.state, JobState::Succeeded);
    let why = reason_with(house, stream[0], "reserved for job").await;
    let big_id = big.to_string();
    assert!(why.contains(&format!("has room, reserved for job …{}", &big_id[big_id.len() - 6..])), "{why}");
    // What ends before the rest does slips in.
    let quick = house.submit(&with(shell("true"), "timeout_s", json!(5))).await.id;
    assert_eq!(house.end(quick).await.state, JobState::Succeeded);
    let mut quick = limited(house, 2, "small0", 5);
    quick["grace_s"] = json!(1);
    let quick = house.submit(&quick).await.id;
    assert_eq!(house.end(quick).await.state, JobState::Succeeded);
    let explained = printed(house, &["explain", &big.to_string()]);
    assert!(explained.contains("reserved") && explained.contains("starts by"), "{explained}");
    for number in 1..4 {
        site.let_go(&format!("small{number}"));
    }
    assert_eq!(told(house, big).await.2.len(), 8);
    for id in &stream {
        assert_eq!(job(house, *id).await.state, JobState::Queued, "the big one went first");
    }
    site.let_go("stream");
    site.let_go("big");
    for id in stream.into_iter().chain([big]) {
        assert_eq!(house.end(id).await.state, JobState::Succeeded);
    }

    // Preemption of one that yields, and no attempt of its is used up.
    let mut yields = with(held(house, 8, "yields"), "project", json!("spare"));
    let text = yields["workload"]["command"]["shell"].as_str().unwrap();
    let text = format!("trap 'cat $GPULAYER_STOP_FILE; exit 7' TERM; {text}");
    yields["workload"]["command"]["shell"] = json!(text);
    let yields = house.submit(&yields).await.id;
    let before = told(house, yields).await.2;
    let urgent = house.submit(&with(held(house, 8, "urgent"), "priority", json!(5))).await.id;
    assert_eq!(told(house, urgent).await.2, before, "the same eight");
    assert!(house.log(yields).await.iter().any(|line| line.contains("preempted")), "it could read why");
    let waits = job(house, yields).await;
    assert_eq!((waits.state, waits.end), (JobState::Queued, None));
    site.let_go("urgent");
    site.let_go("yields");
    assert_eq!(house.end(urgent).await.state, JobState::Succeeded);
    let ended = house.end(yields).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 2));

    // A drain lets what runs run, and gives no GPU to anybody else; a restart in between changes nothing.
    let worker = worker_of(house).await.unwrap().id;
    let stays = house.submit(&held(house, 4, "stays")).await.id;
    told(house, stays).await;
    let drained: Result<Worker, _> =
        house.client().post(&format!("/v1/workers/{worker}/drain"), &json!({})).await;
    assert!(drained.unwrap().drain.is_some());
    let waits = house.submit(&held(house, 4, "stays")).await.id;
    reason_with(house, waits, "draining").await;
    daemon.kill();
    let _daemon = site.daemon().await;
    reason_with(house, waits, "draining").await;
    assert_eq!(job(house, stays).await.state, JobState::Running);
    let _: Worker = house.client().post(&format!("/v1/workers/{worker}/resume"), &json!({})).await.unwrap();
    let (ours, theirs) = (told(house, stays).await.2, told(house, waits).await.2);
    assert!(ours.iter().all(|uuid| !theirs.contains(uuid)), "after the restart they are still taken");
    site.let_go("stays");
    for id in [stays, waits] {
        let ended = house.end(id).await;
        assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 1));
    }
    assert_eq!(house.leftovers(), [""; 0]);
}

/// A process that is surely not there: what is left of one that no worker can look at.
const NOBODY: u32 = 4_194_303;

#[actix_rt::test]
async fn a_gpu_that_cannot_be_had_costs_itself_alone() {
    let mut site = GpuHouse::new("");
    let _daemon = site.daemon().await;
    let me = std::process::id();
    // Somebody outside works on the first.
    site.gpus[0].pids = vec![me];
    site.stub.has(&site.gpus);
    site.stands(0, |standing| *standing == GpuStanding::BusyOutside { pids: vec![me] }).await;
    let all = site.house.submit(&held(&site.house, 8, "all")).await.id;
    reason_with(&site.house, all, "7 free of 8 (1 used by programs outside)").await;
    assert!(printed(&site.house, &["worker", "list"]).contains(" 7/8 "));
    let seven = site.house.submit(&held(&site.house, 7, "seven")).await.id;
    let taken = told(&site.house, seven).await.2;
    assert!(!taken.contains(&site.gpus[0].uuid), "the eighth is not offered");
    site.let_go("seven");
    site.house.end(seven).await;

    // Of two tasks one leaves memory behind, and the GPU of the other falls off the bus while it runs.
    let index = |site: &GpuHouse, uuid: &str| site.gpus.iter().position(|gpu| gpu.uuid == uuid).unwrap();
    let leaves = site.house.submit(&held(&site.house, 1, "both")).await.id;
    let left = index(&site, &told(&site.house, leaves).await.2[0]);
    let loses = site.house.submit(&held(&site.house, 1, "both")).await.id;
    let lost = index(&site, &told(&site.house, loses).await.2[0]);
    site.gpus[left].pids = vec![NOBODY];
    site.gpus[lost].more = "lost=1".into();
    site.stub.has(&site.gpus);
    site.stands(lost, |standing| matches!(standing, GpuStanding::Unhealthy { why } if why.contains("lost")))
        .await;
    assert_eq!(job(&site.house, loses).await.state, JobState::Running, "its program judges by itself");
    site.let_go("both");
    site.stands(left, |standing| *standing == GpuStanding::Wedged { pids: vec![NOBODY] }).await;
    // The others are granted meanwhile.
    let beside = site.house.submit(&held(&site.house, 5, "both")).await.id;
    let given = told(&site.house, beside).await.2;
    for gone in [0, left, lost] {
        assert!(!given.contains(&site.gpus[gone].uuid), "{gone}");
    }
    let ended = site.house.end(leaves).await;
    assert_eq!(ended.state, JobState::Succeeded);
    assert!(ended.warnings.iter().any(|warning| warning.detail.contains("4194303")), "{:?}", ended.warnings);
    for id in [loses, beside] {
        assert_eq!(site.house.end(id).await.state, JobState::Succeeded);
    }
    let why = reason_with(&site.house, all, "5 free of 8").await;
    for part in ["1 used by programs outside", "1 not let go of by an ended task", "1 unhealthy"] {
        assert!(why.contains(part), "{why}");
    }
    let shown =
        printed(&site.house, &["worker", "show", &worker_of(&site.house).await.unwrap().id.to_string()]);
    assert!(shown.contains("wedged: memory of an ended task held by pid 4194303"), "{shown}");

    // All of it passes, and the job that waited for all eight has them.
    for gpu in &mut site.gpus {
        gpu.pids.clear();
        gpu.more.clear();
    }
    site.stub.has(&site.gpus);
    assert_eq!(told(&site.house, all).await.2.len(), 8);
    site.let_go("all");
    assert_eq!(site.house.end(all).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn two_daemons_of_one_machine_never_grant_one_gpu_at_a_time() {
    let site = GpuHouse::new("");
    let other = House::new();
    site.set_up(&other, "");
    let _daemon = site.daemon().await;
    let _other_daemon = other.daemon().await;
    site.until_it_offers(&other).await;
    let marks = site.house.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    // Whoever has a GPU makes its folder; a second one would not be able to.
    let text = format!(
        "cd {} && uuids=$(echo $GPULAYER_GPU_UUIDS | tr , ' ') && mkdir $uuids && sleep 0.1 && rmdir $uuids",
        marks.display()
    );
    let mut ids = Vec::new();
    for _ in 0..4 {
        for house in [&site.house, &other] {
            let spec = with(shell(&text), "resources", json!({"gpus": {"count": 4}}));
            ids.push((house, house.submit(&spec).await.id));
        }
    }
    for (house, id) in ids {
        let ended = house.end(id).await;
        assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 1), "{:?}", house.log(id).await);
    }
}

#[actix_rt::test]
async fn a_worker_that_is_killed_while_its_gpus_work_comes_back_with_them() {
    let mut site = GpuHouse::new("");
    site.gpus.truncate(4);
    site.gpus[3].slices = vec![("3g.40gb".into(), vec![]), ("4g.40gb".into(), vec![])];
    site.gpus[3].links.clear();
    site.gpus[2].links.clear();
    site.stub.has(&site.gpus);
    let house = &site.house;
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", house.port());
    let start = |flags: &[&str]| {
        let mut command = FarWorker::command(house, &url);
        command.args(flags).env("GPULAYER_NVML", site.stub.library());
        FarWorker::start_as(house, &mut command)
    };
    // The first GPU is kept for its owner.
    let worker = start(&["--cpus", "16", "--gpus", "1,2,3"]);
    site.until_it_offers(house).await;
    let offered = worker_of(house).await.unwrap().capabilities.gpus;
    assert_eq!(offered.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1, 2, 3, 3]);

    let slice = house.submit(&held(house, 1, "go")).await.id;
    let (_, devices, uuids) = told(house, slice).await;
    assert!(devices.starts_with("MIG-") && uuids == [devices.clone()], "a slice has no place of its own");
    let large = |count: u32| {
        let mut spec = held(house, count, "go");
        spec["resources"]["gpus"]["memory_bytes"] = json!(60_u64 << 30);
        spec
    };
    let whole = house.submit(&large(2)).await.id;
    assert_eq!(told(house, whole).await.1, "1,2");
    let waits = house.submit(&large(1)).await.id;
    reason_with(house, waits, "0 free of 2 (2 held by tasks)").await;

    drop(worker);
    // It remembers what it offers.
    let _worker = start(&[]);
    eventually("the worker with its tasks", async || {
        let worker = worker_of(house).await?;
        (worker.tasks.len() == 2 && worker.capabilities.gpus.len() == 4).then_some(())
    })
    .await;
    reason_with(house, waits, "0 free of 2 (2 held by tasks)").await;
    for id in [slice, whole] {
        assert_eq!(job(house, id).await.state, JobState::Running);
    }
    site.let_go("go");
    for id in [slice, whole, waits] {
        let ended = house.end(id).await;
        assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 1), "{ended:?}");
    }
    assert_eq!(house.leftovers(), [""; 0]);
}
