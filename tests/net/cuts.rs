//! Links that are cut, for less and for more than a lease, both ways and one way, at the worker and at its router.

use std::time::{Duration, Instant};

use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};

use crate::machines::{Machine, Program, Way};
use crate::stand::{HEARTBEAT, LEASE, Stand};
use crate::witness::Witness;

/// Three machines that will be cut, each in its own way, with a job of each kind on every one.
struct Scene {
    stand: Stand,
    witness: Witness,
    cut: Vec<(Machine, Way)>,
    _workers: Vec<Program>,
    /// May run once, each on its own worker.
    once: Vec<JobId>,
    /// May be tried again anywhere.
    again: Vec<JobId>,
}

impl Scene {
    async fn set() -> Option<Self> {
        let stand = Stand::lay().await?;
        let witness = Witness::new(stand.folder());
        let cut = vec![
            (stand.network.machine("w1"), Way::Both),
            (stand.network.machine("w2"), Way::In),
            (stand.network.machine_behind_nat("w3"), Way::Out),
        ];
        let mut workers = Vec::new();
        for (machine, _) in &cut {
            workers.push(stand.worker(machine).await);
        }
        let (mut once, mut again) = (Vec::new(), Vec::new());
        for (machine, _) in &cut {
            once.push(stand.submit(&witness.waiting_job(machine.name())).await);
        }
        for _ in &cut {
            again.push(stand.submit(&witness.replaced_job()).await);
        }
        for id in once.iter().chain(&again) {
            stand.eventually("every job to run", async || (witness.begins(*id) == 1).then_some(())).await;
        }
        Some(Self { stand, witness, cut, _workers: workers, once, again })
    }

    fn cut_all(&self) {
        self.cut.iter().for_each(|(machine, way)| machine.cut(*way));
    }

    fn heal_all(&self) {
        self.cut.iter().for_each(|(machine, _)| machine.heal());
    }

    /// Every lost run goes once the line is back: only then does its place go to the next attempt, and the witness
    /// would tell of one that came sooner. How long that took is printed: a busy machine makes it longer, and nothing
    /// wrong.
    async fn lost_runs_go(&self) {
        let healed = Instant::now();
        for id in &self.again {
            self.stand
                .eventually("the next attempt", async || (self.witness.begins(*id) == 2).then_some(()))
                .await;
        }
        eprintln!(
            "lost runs were gone {:?} after the line was back; a heartbeat is {HEARTBEAT:?}",
            healed.elapsed()
        );
    }

    async fn all_end_well(&self) -> (Vec<Job>, Vec<Job>) {
        self.witness.let_go();
        let (mut once, mut again) = (Vec::new(), Vec::new());
        for id in &self.once {
            once.push(self.stand.end(*id).await);
        }
        for id in &self.again {
            again.push(self.stand.end(*id).await);
        }
        for job in once.iter().chain(&again) {
            assert_eq!(job.state, JobState::Succeeded, "{job:?}");
            assert_eq!(job.outputs.len(), 1, "one published result: {job:?}");
        }
        for job in &once {
            assert_eq!((job.attempt, self.witness.begins(job.id)), (1, 1), "{job:?}");
        }
        self.witness.assert_no_slot_was_granted_twice();
        (once, again)
    }
}

#[actix_rt::test]
async fn a_cut_shorter_than_a_lease_is_not_even_noticed() {
    let Some(scene) = Scene::set().await else { return };
    scene.cut_all();
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.heal_all();
    let (once, again) = scene.all_end_well().await;
    for job in once.iter().chain(&again) {
        assert_eq!(job.attempt, 1, "{job:?}");
        let events = scene.stand.events(job.id).await;
        assert!(!events.iter().any(|event| event == "job_unreachable" || event == "task_lost"), "{events:?}");
    }
}

#[actix_rt::test]
async fn after_a_cut_longer_than_a_lease_waiting_jobs_go_on_and_replaced_ones_run_once_more() {
    longer_than_a_lease(LEASE + Duration::from_secs(4)).await;
}

#[actix_rt::test]
async fn the_same_after_half_a_minute() {
    let span = std::env::var("GPULAYER_CUT_S").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(30);
    longer_than_a_lease(Duration::from_secs(span)).await;
}

async fn longer_than_a_lease(span: Duration) {
    let Some(scene) = Scene::set().await else { return };
    let cut_at = Instant::now();
    scene.cut_all();
    for id in &scene.once {
        scene.stand.until_job(*id, "unreachable", |job| job.unreachable_since.is_some()).await;
    }
    for id in &scene.again {
        // Its place is not free while its tree may live: with every place taken it waits.
        scene.stand.until_job(*id, "queued again", |job| job.state == JobState::Queued).await;
    }
    tokio::time::sleep(span.saturating_sub(cut_at.elapsed())).await;
    for (machine, way) in &scene.cut {
        // Where answers still come through, a poll that was parked brought the order to kill the lost one.
        let told = usize::from(*way == Way::Out);
        let runs = scene.witness.runs_on(machine.name());
        assert!(
            (2 - told..=2).contains(&runs),
            "{runs} runs on {}: who is not told kills nothing",
            machine.name()
        );
    }
    scene.heal_all();
    scene.lost_runs_go().await;
    for id in &scene.once {
        let job = scene.stand.until_job(*id, "reachable", |job| job.unreachable_since.is_none()).await;
        assert_eq!((job.state, job.attempt), (JobState::Running, 1), "{job:?}");
    }
    let (_, again) = scene.all_end_well().await;
    for job in again {
        assert_eq!(job.attempt, 2, "{job:?}");
        assert_eq!(scene.witness.begins(job.id), 2, "{job:?}");
        let told = async || {
            scene.stand.events(job.id).await.iter().any(|event| event == "stale_finish").then_some(())
        };
        scene.stand.eventually("the lost run's own end, as an event", told).await;
    }
}

#[actix_rt::test]
async fn a_server_that_restarts_while_a_worker_is_cut_off_loses_nothing() {
    let Some(mut scene) = Scene::set().await else { return };
    let (machine, _) = &scene.cut[0];
    machine.cut(Way::Both);
    scene.stand.stop_serving();
    // Longer than a lease: nobody was judged meanwhile, and nobody may be at once.
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    scene.stand.serve().await;
    scene.cut[0].0.heal();
    let (_, again) = scene.all_end_well().await;
    for job in again {
        assert_eq!(job.attempt, 1, "{job:?}");
    }
}
