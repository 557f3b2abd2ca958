//! Who is who: reboots, copies of a machine, copies of a folder, two workers of one name.

use std::path::Path;
use std::process::Command;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::job::JobState;
use gpulayer::contract::worker::WorkerState;
use serde_json::json;

use crate::stand::Stand;
use crate::witness::Witness;

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[actix_rt::test]
async fn a_reboot_comes_back_by_itself_and_says_what_became_of_its_tasks() {
    let Some(stand) = Stand::lay().await else { return };
    let witness = Witness::new(stand.folder());
    let mut machine = stand.network.machine("w1");
    let worker = stand.worker(&machine).await;
    let id = stand.submit(&witness.waiting_job("w1")).await;
    stand.eventually("the job to run", async || (witness.begins(id) == 1).then_some(())).await;
    let before = stand.present("w1").await;
    machine.power_off();
    drop(worker);
    machine.power_on();
    // Within a moment: the server may still take it for a copy of itself.
    let _worker = stand.start_worker(&machine, &stand.url(), &machine.folder().join("w"));
    let job = stand.end(id).await;
    assert_eq!(job.end.unwrap().reason, EndReason::WorkerRebooted);
    assert_eq!(stand.present("w1").await, before, "the same worker");
    assert_eq!(stand.named("w1").await.len(), 1);
    witness.let_go();
    let id = stand.submit(&witness.waiting_job("w1")).await;
    assert_eq!(stand.end(id).await.state, JobState::Succeeded, "its place is free");
}

#[actix_rt::test]
async fn a_copy_of_a_live_machine_is_turned_away_and_the_original_undisturbed() {
    let Some(stand) = Stand::lay().await else { return };
    let witness = Witness::new(stand.folder());
    let machine = stand.network.machine("w1");
    let _worker = stand.worker(&machine).await;
    let id = stand.submit(&witness.waiting_job("w1")).await;
    stand.eventually("the job to run", async || (witness.begins(id) == 1).then_some(())).await;
    let copy = stand.network.machine("copy");
    copy.pose_as(&machine);
    copy_folder(&machine.folder().join("w"), &copy.folder().join("w"));
    let turned_away = stand.start_worker(&copy, &stand.url(), &copy.folder().join("w"));
    assert!(!turned_away.wait().success());
    let said = stand.said(&copy);
    assert!(said.contains("another machine, or a copy"), "it says why: {said}");
    witness.let_go();
    let job = stand.end(id).await;
    assert_eq!((job.state, job.attempt, witness.begins(id)), (JobState::Succeeded, 1, 1), "{job:?}");
    assert_eq!(stand.named("copy").await.len(), 0);
}

#[actix_rt::test]
async fn a_copy_of_a_live_workers_folder_is_turned_away() {
    let Some(stand) = Stand::lay().await else { return };
    let machine = stand.network.machine("w1");
    let mut worker = stand.worker(&machine).await;
    copy_folder(&machine.folder().join("w"), &machine.folder().join("w2"));
    let turned_away = stand.start_worker(&machine, &stand.url(), &machine.folder().join("w2"));
    assert!(!turned_away.wait().success());
    assert!(worker.is_up());
    let id = stand.submit(&json!({"workload": {"command": {"argv": ["true"]}}})).await;
    assert_eq!(stand.end(id).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn a_folder_that_was_rolled_back_is_told_so_at_once() {
    let Some(stand) = Stand::lay().await else { return };
    let machine = stand.network.machine("w1");
    let (folder, snapshot) = (machine.folder().join("w"), machine.folder().join("snapshot"));
    drop(stand.worker(&machine).await);
    copy_folder(&folder, &snapshot);
    for _ in 0..2 {
        drop(stand.worker(&machine).await);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&snapshot, &folder).unwrap();
    let rolled_back = stand.start_worker(&machine, &stand.url(), &folder);
    assert!(!rolled_back.wait().success());
    let said = stand.said(&machine);
    assert!(said.contains("restored from a snapshot"), "it says what to do: {said}");
}

#[actix_rt::test]
async fn two_workers_may_have_one_name_and_both_work() {
    let Some(stand) = Stand::lay().await else { return };
    let witness = Witness::new(stand.folder());
    let machines = [stand.network.machine("w1"), stand.network.machine("twin")];
    let mut workers = vec![stand.worker(&machines[0]).await];
    workers.push(stand.start_worker_named("w1", &machines[1], &stand.url(), &machines[1].folder().join("w")));
    let there = stand
        .eventually("both", async || {
            let named = stand.named("w1").await;
            (named.iter().filter(|worker| worker.state != WorkerState::Offline).count() == 2).then_some(named)
        })
        .await;
    assert_ne!(there[0].id, there[1].id);
    // Asked for by name, either may have it: four places for four jobs.
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(stand.submit(&witness.waiting_job("w1")).await);
    }
    for id in &jobs {
        stand.eventually("all to run", async || (witness.begins(*id) == 1).then_some(())).await;
    }
    assert_eq!((witness.runs_on("w1"), witness.runs_on("twin")), (2, 2));
    witness.let_go();
    for id in jobs {
        assert_eq!(stand.end(id).await.state, JobState::Succeeded);
    }
}
