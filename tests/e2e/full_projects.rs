//! `max_queued`: a project has no more jobs that have not ended than it may have.

use gpulayer::client::Call;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn of_small(mut spec: Value) -> Value {
    spec["project"] = json!("small");
    spec
}

fn waiting() -> Value {
    let mut spec = of_small(argv(&["true"]));
    spec["resources"] = json!({"cpus": 4000});
    spec
}

async fn refused(house: &House, path: &str, body: &Value) -> String {
    let refused = house.client().post::<Value>(path, body).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!((problem.status, problem.code.word()), (429, "project_full"));
    problem.detail.clone()
}

#[actix_rt::test]
async fn a_full_project_takes_no_more_jobs_however_they_come_and_whatever_was_killed() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::set_permissions(house.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(house.home().join("config.toml"), "[projects.small]\nmax_queued = 3\n").unwrap();
    let daemon = house.daemon().await;
    let first = house.submit(&waiting()).await;
    house.submit(&waiting()).await;
    // All of a batch or nothing; every child of an array counts.
    let two = json!({"jobs": [waiting(), waiting()]});
    let said = refused(&house, "/v1/jobs/batch", &two).await;
    for part in ["`small`", "may have 3 jobs", "it has 2", "2 more", "cancel some"] {
        assert!(said.contains(part), "{said}");
    }
    let mut array = waiting();
    array["array"] = json!({"count": 2});
    refused(&house, "/v1/jobs", &array).await;
    // Attempts of a job that is there are not submissions.
    let mut again = of_small(shell("exit 1"));
    again["resources"] = json!({"cpus": 0.1});
    again["retry"] = json!({"max_attempts": 3, "retry_on": ["any"], "backoff_s": 0});
    let call = Call::mutate("/v1/jobs").json(&again).unwrap();
    let taken: Job = house.client().answer(&call).await.unwrap().json().unwrap();
    let mut blocked = waiting();
    blocked["name"] = json!("blocked");
    let ended = house.end(taken.id).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Failed, 3));
    array["array"] = json!({"count": 1});
    house.submit(&array).await;
    refused(&house, "/v1/jobs", &blocked).await;
    // A repeat gets its first answer.
    let repeated: Job = house.client().answer(&call).await.unwrap().json().unwrap();
    assert_eq!(repeated.id, taken.id);
    // Others have room.
    let other = house.submit(&argv(&["true"])).await;
    house.end(other.id).await;

    daemon.kill();
    let _daemon = house.daemon().await;
    refused(&house, "/v1/jobs", &blocked).await;
    let submit = house.run(&["submit", "--source", "none", "--project", "small", "--", "true"]);
    let said = String::from_utf8_lossy(&submit.stderr).into_owned();
    assert_eq!(submit.status.code(), Some(1), "{said}");
    assert!(said.contains("`small` may have 3 jobs") && said.contains("gpulayer ps"), "{said}");
    let run = house.run(&["run", "--source", "none", "--project", "small", "--", "true"]);
    assert_eq!(run.status.code(), Some(125), "{run:?}");

    house.client().post::<Value>(&format!("/v1/jobs/{}/cancel", first.id), &json!({})).await.unwrap();
    eventually("room for one", async || house.client().post::<Job>("/v1/jobs", &blocked).await.ok()).await;
}
