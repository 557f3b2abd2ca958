//! Arrays: many jobs from one spec, over `kill -9`, by the API and by hand.

use gpulayer::contract::array::ArrayProgress;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn array(mut spec: Value, array: Value) -> Value {
    spec["array"] = array;
    spec["resources"] = json!({"cpus": 0.1});
    spec
}

async fn children(house: &House, parent: JobId) -> Vec<Job> {
    let page: Page<Job> = house.client().get(&format!("/v1/jobs?parent={parent}&limit=500")).await.unwrap();
    page.items.into_iter().rev().collect()
}

fn progress(job: &Job) -> ArrayProgress {
    serde_json::from_value(job.progress.clone().unwrap()).unwrap()
}

#[actix_rt::test]
async fn an_array_over_kills_runs_every_child_once_and_never_too_many() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let seen = house.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    // Whoever runs leaves a mark, and counts the marks of the others.
    let text = format!(
        "cd {}; touch run.$GPULAYER_ARRAY_INDEX; ls run.* | wc -l >> most; sleep 0.1; rm run.$GPULAYER_ARRAY_INDEX; echo $GPULAYER_ARRAY_INDEX/$GPULAYER_ARRAY_COUNT >> ended",
        seen.display()
    );
    let spec = array(shell(&text), json!({"start": 5, "count": 40, "max_running": 3}));
    let parent = house.submit(&spec).await;
    assert_eq!(progress(&parent), ArrayProgress::queued(40));
    for already in [5, 20] {
        eventually("some ends", async || {
            let job: Job = house.client().get(&format!("/v1/jobs/{}", parent.id)).await.unwrap();
            (progress(&job).ended() >= already).then_some(())
        })
        .await;
        daemon.kill();
        daemon = house.daemon().await;
    }
    let ended = house.end(parent.id).await;
    assert_eq!((ended.state, progress(&ended).succeeded), (JobState::Succeeded, 40), "{ended:?}");
    let lines = |name: &str| std::fs::read_to_string(seen.join(name)).unwrap();
    let most: usize = lines("most").lines().map(|count| count.trim().parse().unwrap()).max().unwrap();
    assert!(most <= 3, "{most} at once");
    let mut indices: Vec<usize> =
        lines("ended").lines().map(|line| line.strip_suffix("/40").unwrap().parse().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (5..45).collect::<Vec<_>>(), "each once");
    let children = children(&house, parent.id).await;
    assert_eq!(children.len(), 40);
    assert_eq!((children[0].array_index, children[0].parent), (Some(5), Some(parent.id)));
    let events: Value = house.client().get(&format!("/v1/jobs/{}/events", parent.id)).await.unwrap();
    let kinds: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["job_queued", "job_scheduled", "job_running", "job_ended"]);
    // With the parent goes all of it.
    house.client().delete(&format!("/v1/jobs/{}", parent.id)).await.unwrap();
    let gone = house.client().get::<Job>(&format!("/v1/jobs/{}", children[7].id)).await.unwrap_err();
    assert_eq!(gone.problem().unwrap().status, 404);
    drop(daemon);
}

#[actix_rt::test]
async fn what_failed_is_repeated_alone_with_its_item() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let ready = house.path().join("ready");
    let text = format!(
        "echo \"$GPULAYER_ARRAY_INDEX of $GPULAYER_ARRAY_COUNT: $GPULAYER_ARRAY_ITEM\"; case $GPULAYER_ARRAY_ITEM in bad*) [ -e {} ] || exit 7;; esac",
        ready.display()
    );
    let spec = array(shell(&text), json!({"items": ["good", "bad 1", {"lr": 0.1}, "bad 2"]}));
    let parent = house.end(house.submit(&spec).await.id).await;
    let end = parent.end.clone().unwrap();
    assert_eq!(
        (parent.state, end.reason, end.exit_code),
        (JobState::Failed, EndReason::ExitNonzero, Some(7))
    );
    assert!(end.detail.unwrap().starts_with("2 of 4 children did not succeed; the first was index "));
    let first = children(&house, parent.id).await;
    assert_eq!(house.log(first[2].id).await, [r#"2 of 4: {"lr":0.1}"#]);
    std::fs::write(&ready, "").unwrap();
    let retry = format!("/v1/jobs/{}/retry", parent.id);
    let again: Job = house.client().post(&retry, &json!({"failed": true})).await.unwrap();
    let again = house.end(again.id).await;
    assert_eq!((again.state, again.retry_of), (JobState::Succeeded, Some(parent.id)), "{again:?}");
    let repeated = children(&house, again.id).await;
    let indices: Vec<_> = repeated.iter().map(|child| child.array_index).collect();
    assert_eq!(indices, [Some(1), Some(3)]);
    assert_eq!(house.log(repeated[1].id).await, ["3 of 4: bad 2"]);
    let nothing =
        house.client().post::<Job>(&format!("/v1/jobs/{}/retry", again.id), &json!({"failed": true})).await;
    assert_eq!(nothing.unwrap_err().problem().unwrap().errors[0].pointer, "/failed");
    // One child again is an array of one.
    let one: Job = house.client().post(&format!("/v1/jobs/{}/retry", first[3].id), &json!({})).await.unwrap();
    let one = house.end(one.id).await;
    assert_eq!((one.state, progress(&one).total), (JobState::Succeeded, 1));
}

#[actix_rt::test]
async fn a_cancel_ends_all_children_also_over_a_kill_and_dependants_follow() {
    let house = House::new();
    let daemon = house.daemon().await;
    let spec = array(shell("sleep 600"), json!({"count": 200, "max_running": 2}));
    let parent = house.submit(&spec).await.id;
    let mut after = argv(&["true"]);
    after["depends_on"] = json!([{"job": parent}]);
    let after = house.submit(&after).await.id;
    let held = children(&house, parent).await.pop().unwrap();
    let held: Job = house.client().get(&format!("/v1/jobs/{}", held.id)).await.unwrap();
    assert_eq!(held.queue_reason.as_deref(), Some("waits its turn: at most 2 of its array run at once"));
    eventually("a start", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{parent}")).await.unwrap();
        (progress(&job).running == 2).then_some(())
    })
    .await;
    let child = children(&house, parent).await.remove(0);
    let refused = house.client().delete(&format!("/v1/jobs/{}", child.id)).await.unwrap_err();
    assert_eq!(refused.problem().unwrap().status, 409);
    let _: Job =
        house.client().post(&format!("/v1/jobs/{parent}/cancel"), &json!({"now": true})).await.unwrap();
    daemon.kill();
    let _daemon = house.daemon().await;
    let ended = house.end(parent).await;
    assert_eq!((ended.state, progress(&ended).cancelled), (JobState::Cancelled, 200), "{ended:?}");
    assert_eq!(house.end(after).await.end.unwrap().reason, EndReason::DependencyFailed);
    eventually("no process is left", async || house.leftovers().is_empty().then_some(())).await;
}

#[actix_rt::test]
async fn an_array_waits_for_a_job_and_takes_its_output() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut first = shell("echo made > out");
    first["outputs"] = json!([{"path": "out"}]);
    let mut second = array(shell("cat in"), json!({"count": 3}));
    second["inputs"] = json!([{"from": {"job": "#0", "output": "out"}, "path": "in"}]);
    let mut third = array(argv(&["true"]), json!({"count": 3}));
    third["depends_on"] = json!([{"job": "#2"}]);
    let jobs = json!({"jobs": [first, second, shell("exit 1"), third]});
    let answer: Value = house.client().post("/v1/jobs/batch", &jobs).await.unwrap();
    let ids: Vec<JobId> = serde_json::from_value(answer["ids"].clone()).unwrap();
    assert_eq!(house.end(ids[1]).await.state, JobState::Succeeded);
    for child in children(&house, ids[1]).await {
        assert_eq!(house.log(child.id).await, ["made"]);
    }
    let failed = house.end(ids[3]).await;
    assert_eq!((failed.state, failed.end.unwrap().reason), (JobState::Failed, EndReason::DependencyFailed));
}

#[actix_rt::test]
async fn a_person_runs_an_array_and_sees_each_child() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let run = house.run(&[
        "run",
        "--array",
        "a,b,c%2",
        "--name",
        "sweep",
        "--cpus",
        "0.1",
        "--shell",
        "echo item $GPULAYER_ARRAY_ITEM; [ $GPULAYER_ARRAY_ITEM != b ] || exit 9",
    ]);
    assert_eq!(run.status.code(), Some(9), "{run:?}");
    assert_eq!(String::from_utf8_lossy(&run.stdout), "[0] item a\n[1] item b\n[2] item c\n");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("1 of 3 children did not succeed") && said.contains("retry --failed"), "{said}");
    let shown = |args: &[&str]| {
        let output = house.run(args);
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let list = shown(&["ps"]);
    assert!(list.contains("sweep") && !list.contains("sweep["), "{list}");
    let list = shown(&["ps", "--parent", "sweep"]);
    assert!(list.contains("sweep[0]") && list.contains("sweep[2]"), "{list}");
    let page = shown(&["show", "sweep"]);
    assert!(page.contains("3 of 3 ended, 1 failed"), "{page}");
    let logs = shown(&["logs", "sweep"]);
    assert!(logs.contains("is an array"), "{logs}");
    let again = shown(&["retry", "--failed", "sweep"]);
    let again = house.end(again.trim().parse().unwrap()).await;
    assert_eq!((again.state, progress(&again).total), (JobState::Failed, 1));
}
