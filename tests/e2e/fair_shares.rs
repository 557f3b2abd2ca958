//! Fair share over `kill -9`: who had more before still waits behind who had less.

use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn of(project: &str, mut spec: Value) -> Value {
    spec["project"] = json!(project);
    spec
}

async fn show(house: &House, job: &Job) -> Job {
    house.client().get(&format!("/v1/jobs/{}", job.id)).await.unwrap()
}

#[actix_rt::test]
async fn who_had_more_before_a_kill_is_served_after_who_had_less() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::set_permissions(house.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(house.home().join("config.toml"), "worker_cpus = 1\n").unwrap();
    let daemon = house.daemon().await;
    let had = house.submit(&of("greedy", shell("sleep 1"))).await;
    house.end(had.id).await;
    let holder = house.submit(&of("other", shell("sleep 60"))).await;
    eventually("the holder to run", async || {
        (show(&house, &holder).await.state == JobState::Running).then_some(())
    })
    .await;
    // Older, but of the project that has had something.
    let greedy = house.submit(&of("greedy", argv(&["true"]))).await;
    let modest = house.submit(&of("modest", argv(&["true"]))).await;
    daemon.kill();
    let _daemon = house.daemon().await;
    eventually("the holder to run on", async || {
        (show(&house, &holder).await.state == JobState::Running).then_some(())
    })
    .await;
    house
        .client()
        .post::<Value>(&format!("/v1/jobs/{}/cancel", holder.id), &json!({"now": true}))
        .await
        .unwrap();
    let (greedy, modest) = (house.end(greedy.id).await, house.end(modest.id).await);
    assert!(modest.started_at.unwrap() < greedy.started_at.unwrap(), "{modest:?}\n{greedy:?}");
    // What was restored is on record, and replays.
    let replayed = house.run(&["replay", "--all"]);
    assert!(replayed.status.success(), "{replayed:?}");
}
