//! Jobs that wait for jobs: chains and diamonds over `kill -9`, outputs that become inputs, ends that end others, and
//! what a person is told meanwhile.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn after(mut spec: Value, on: &[&str]) -> Value {
    spec["depends_on"] = on.iter().map(|job| json!({ "job": job })).collect();
    spec
}

async fn batch(house: &House, jobs: Value) -> Vec<JobId> {
    let answer: Value = house.client().post("/v1/jobs/batch", &json!({ "jobs": jobs })).await.unwrap();
    serde_json::from_value(answer["ids"].clone()).unwrap()
}

#[actix_rt::test]
async fn a_diamond_over_kills_hands_its_outputs_on() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let go = house.path().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done; ", go.display());
    let producing = |text: &str, output: &str| {
        let mut spec = shell(text);
        spec["outputs"] = json!([{"path": output, "name": "made"}]);
        spec["resources"] = json!({"cpus": 0.25});
        spec
    };
    let reading = |mut spec: Value, from: &[(&str, &str)]| {
        let input =
            |(job, path): &(&str, &str)| json!({"from": {"job": job, "output": "made"}, "path": path});
        spec["inputs"] = from.iter().map(input).collect();
        spec
    };
    let jobs = json!([
        producing(&format!("{wait} echo one > a"), "a"),
        reading(producing("mkdir out; cat in > out/b; echo left >> out/b", "out"), &[("#0", "in")]),
        reading(producing("cat in > c; echo right >> c", "c"), &[("#0", "in")]),
        reading(shell("cat l/b r"), &[("#1", "l"), ("#2", "r")]),
        after(argv(&["true"]), &["#3"]),
    ]);
    let ids = batch(&house, jobs).await;
    let last: Job = house.client().get(&format!("/v1/jobs/{}", ids[3])).await.unwrap();
    let reason = last.queue_reason.unwrap();
    assert!(reason.starts_with(&format!("waits for job …{}", &ids[1].to_string()[24..])), "{reason}");
    assert!(reason.ends_with("to succeed, and for 1 other"), "{reason}");
    daemon.kill();
    daemon = house.daemon().await;
    std::fs::write(&go, "").unwrap();
    house.end(ids[0]).await;
    daemon.kill();
    let _daemon = house.daemon().await;
    for id in &ids {
        let job = house.end(*id).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
    }
    assert_eq!(house.log(ids[3]).await, ["one", "left", "one", "right"]);
    // What was handed on belongs to the reader, too.
    house.client().delete(&format!("/v1/jobs/{}", ids[0])).await.unwrap();
    let again: Job = house.client().post(&format!("/v1/jobs/{}/retry", ids[1]), &json!({})).await.unwrap();
    assert_eq!(house.end(again.id).await.state, JobState::Succeeded);
}

#[actix_rt::test]
async fn an_end_that_is_not_the_right_one_ends_all_that_wait_and_names_it() {
    let house = House::new();
    let daemon = house.daemon().await;
    let first = house.submit(&shell("sleep 600")).await.id;
    let ids = batch(
        &house,
        json!([
            after(argv(&["true"]), &[&first.to_string()]),
            after(argv(&["true"]), &["#0"]),
            {"workload": {"command": {"argv": ["true"]}}, "depends_on": [{"job": "#1", "when": "ended"}]},
        ]),
    )
    .await;
    daemon.kill();
    let _daemon = house.daemon().await;
    let _: Job =
        house.client().post(&format!("/v1/jobs/{first}/cancel"), &json!({"now": true})).await.unwrap();
    let end = house.end(ids[0]).await.end.unwrap();
    assert_eq!(end.reason, EndReason::DependencyFailed);
    assert_eq!(end.evidence, [format!("{first}: cancelled")]);
    assert_eq!(house.end(ids[1]).await.end.unwrap().reason, EndReason::DependencyFailed);
    assert_eq!(house.end(ids[2]).await.state, JobState::Succeeded, "any end was enough");
    // An output that is not there.
    let mut lacking = argv(&["true"]);
    lacking["inputs"] = json!([{"from": {"job": ids[2], "output": "model"}, "path": "m"}]);
    let end = house.end(house.submit(&lacking).await.id).await.end.unwrap();
    assert_eq!(end.reason, EndReason::InputUnavailable, "{end:?}");
    assert!(end.detail.unwrap().contains("`model`"));
    // A job that is not there.
    let nobody = JobId::from_u128(7).to_string();
    let refusal =
        house.client().post::<Job>("/v1/jobs", &after(argv(&["true"]), &[&nobody])).await.unwrap_err();
    let problem = refusal.problem().unwrap();
    assert_eq!((problem.status, problem.errors[0].pointer.as_str()), (422, "/depends_on/0/job"));
}

#[actix_rt::test]
async fn a_person_names_what_to_wait_for_and_is_told() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let go = house.path().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let first = house.run(&["submit", "--name", "prepare", "--shell", &wait]);
    assert!(first.status.success(), "{first:?}");
    let second = house.run(&["submit", "--after", "prepare", "--", "true"]);
    assert!(second.status.success(), "{second:?}");
    let id = String::from_utf8(second.stdout).unwrap();
    let shown = String::from_utf8(house.run(&["show", id.trim()]).stdout).unwrap();
    assert!(shown.contains("(prepare) to succeed"), "{shown}");
    std::fs::write(&go, "").unwrap();
    let id: JobId = id.trim().parse().unwrap();
    eventually("the end", async || house.end(id).await.state.ended().then_some(())).await;
    let third = house.run(&["run", "--after", "prepare:ended", "--", "echo", "after"]);
    assert_eq!(String::from_utf8_lossy(&third.stdout), "after\n", "{third:?}");
}
