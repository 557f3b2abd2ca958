//! Jobs on GPUs, with simulated workers: the daemon, its workers and the tasks are real processes that ask NVML through
//! the real wrapper, and NVIDIA's library is a stand-in (`tests/support/nvml_stub`).

use std::collections::BTreeSet;

use gpulayer::contract::gpu::GpuStanding;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use gpulayer::contract::worker::Worker;
use serde_json::{Value, json};

use crate::house::{Daemon, House, eventually, shell};
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

#[actix_rt::test]
async fn eight_gpus_are_shared_out_whole_and_every_program_is_told_its_own() {
    let site = GpuHouse::new("");
    let house = &site.house;
    let _daemon = site.daemon().await;
    let mut given = BTreeSet::new();
    let mut ids = Vec::new();
    for count in [2, 2, 4, 0] {
        let id = house.submit(&held(house, count, "go")).await.id;
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

    let waits = house.submit(&held(house, 1, "go")).await.id;
    let reason = eventually("a reason", async || job(house, waits).await.queue_reason).await;
    assert!(reason.contains("needs 1 GPU, 0 free of 8 (8 held by tasks)"), "{reason}");
    let said = printed(house, &["explain", &waits.to_string()]);
    assert!(said.contains("has to wait"), "{said}");
    site.let_go("go");
    for id in ids.into_iter().chain([waits]) {
        assert_eq!(house.end(id).await.state, JobState::Succeeded);
    }
    assert_eq!(house.leftovers(), [""; 0]);
}
