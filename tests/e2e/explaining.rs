//! Why an ended job had waited: kept with it, over `kill -9`, until it is removed.

use gpulayer::contract::explain::{Explained, PastExplanation};
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

async fn past(house: &House, id: JobId) -> Option<PastExplanation> {
    match house.client().get(&format!("/v1/jobs/{id}/explain")).await.ok()? {
        Explained::Past(past) => Some(*past),
        Explained::Waits(_) => None,
    }
}

/// It is written a moment after the end of a job that was cancelled.
async fn left_queue(house: &House, id: JobId) -> PastExplanation {
    eventually("the explanation", async || past(house, id).await.filter(|past| past.left_queue.is_some()))
        .await
}

fn large(queue_timeout_s: Option<f64>) -> Value {
    let mut spec = argv(&["true"]);
    spec["resources"] = json!({"cpus": 4000});
    spec["queue_timeout_s"] = json!(queue_timeout_s);
    spec
}

#[actix_rt::test]
async fn who_never_started_is_still_explained_after_a_kill_and_until_it_is_removed() {
    let house = House::new();
    let mut daemon = house.daemon().await;
    let waits = house.submit(&large(None)).await;
    let timed_out = house.submit(&large(Some(0.3))).await;
    let ended = house.end(timed_out.id).await;
    assert_eq!(ended.state, JobState::TimedOut);
    let detail = ended.end.unwrap().detail.unwrap();
    assert!(detail.contains("queue_timeout_s") && detail.contains("needs 4000 CPUs"), "{detail}");
    let mut array = large(Some(0.3));
    array["array"] = json!({"count": 3});
    let array = house.submit(&array).await;
    let ended = house.end(array.id).await;
    assert!(ended.end.unwrap().detail.unwrap().contains("needs 4000 CPUs"));
    house.client().post::<Value>(&format!("/v1/jobs/{}/cancel", waits.id), &json!({})).await.unwrap();
    assert_eq!(house.end(waits.id).await.state, JobState::Cancelled);

    let children: Page<Job> =
        house.client().get(&format!("/v1/jobs?parent={}&limit=500", array.id)).await.unwrap();
    for _ in 0..2 {
        for job in [timed_out.id, waits.id, array.id, children.items[0].id] {
            let past = left_queue(&house, job).await;
            let left = past.left_queue.unwrap();
            assert_eq!((past.placed, left.workers[0].workers), (0, 1), "{left:?}");
            assert!(left.workers[0].reason.contains("needs 4000 CPUs"), "{left:?}");
            assert!(past.summary.contains("never started"), "{}", past.summary);
        }
        daemon.kill();
        daemon = house.daemon().await;
    }
    let said = String::from_utf8(house.run(&["explain", &timed_out.id.to_string()]).stdout).unwrap();
    assert!(said.contains("never started (queue_timed_out)") && said.contains("needs 4000 CPUs"), "{said}");
    for job in [timed_out.id, waits.id, array.id] {
        house.client().delete(&format!("/v1/jobs/{job}")).await.unwrap();
        assert!(past(&house, job).await.is_none());
    }
    drop(daemon);
}

#[actix_rt::test]
async fn who_ran_says_where_and_what_it_had_waited_for() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::set_permissions(house.home(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(house.home().join("config.toml"), "worker_cpus = 1\n").unwrap();
    let _daemon = house.daemon().await;
    let holder = house.submit(&shell("sleep 60")).await;
    eventually("the holder to run", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{}", holder.id)).await.unwrap();
        (job.state == JobState::Running).then_some(())
    })
    .await;
    // The first is noted a second after the last note at the latest, whenever a pass comes by.
    let waits = house.submit(&argv(&["true"])).await;
    eventually("a pass that notes it", async || {
        let other = house.submit(&large(Some(0.01))).await;
        let ended = house.end(other.id).await;
        let waited: Job = house.client().get(&format!("/v1/jobs/{}", waits.id)).await.unwrap();
        (ended.ended_at.unwrap().since(waited.submitted_at).millis() > 2_500).then_some(())
    })
    .await;
    house
        .client()
        .post::<Value>(&format!("/v1/jobs/{}/cancel", holder.id), &json!({"now": true}))
        .await
        .unwrap();
    assert_eq!(house.end(waits.id).await.state, JobState::Succeeded);
    let past = past(&house, waits.id).await.unwrap();
    assert_eq!((past.placed, past.attempts, past.preemptions, past.left_queue), (1, 1, 0, None));
    let reason = past.placements[0].waited_for.clone().unwrap();
    assert!(reason.contains("needs 1 CPU") && reason.contains("held by 1 task"), "{reason}");
    let said = String::from_utf8(house.run(&["explain", &waits.id.to_string()]).stdout).unwrap();
    assert!(said.contains("last for: ") && said.contains(", attempt 1, completed"), "{said}");
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[actix_rt::test]
async fn who_waits_for_others_or_its_turn_is_explained_and_waiting_in_vain_is_told_at_once() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut array = shell("sleep 600");
    (array["name"], array["array"]) = (json!("garr"), json!({"count": 6, "max_running": 1}));
    let array = house.submit(&array).await;
    // By the name that tables show; it waits its turn.
    eventually("the first child to run", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{}", array.id)).await.unwrap();
        (job.state == JobState::Running).then_some(())
    })
    .await;
    let explained = house.run(&["explain", "garr[5]"]);
    assert!(explained.status.success(), "{explained:?}");
    assert!(said(&explained).contains("at most 1 of its array run at once"), "{}", said(&explained));
    let whole = house.run(&["--json", "explain", "garr[5]"]);
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(whole["suggestions"], json!([]), "{whole}");
    let submitted = house.run(&["submit", "--after", &array.id.to_string(), "--name", "then", "--", "true"]);
    assert!(submitted.status.success(), "{submitted:?}");
    let explained = house.run(&["explain", "then"]);
    assert!(explained.status.success(), "{explained:?}");
    assert!(said(&explained).contains("does not wait for a worker yet"), "{}", said(&explained));
    assert!(said(&explained).contains("(garr) to succeed"), "{}", said(&explained));

    let failed = house.submit(&argv(&["false"])).await.id;
    assert_eq!(house.end(failed).await.state, JobState::Failed);
    let failed = failed.to_string();
    let refused = house.run(&["run", "--after", &failed, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(said(&refused).contains("to succeed, but it ended failed"), "{refused:?}");
    let warned = house.run(&["submit", "--after", &failed, "--", "true"]);
    assert!(warned.status.success() && said(&warned).contains("dependency_failed"), "{warned:?}");

    let supposed = house.run(&["explain", "then", "--without", "garr"]);
    assert_eq!(supposed.status.code(), Some(2));
    assert!(said(&supposed).contains("--spec FILE"), "{supposed:?}");
    let named = house.run(&["replay", "--job", "garr[0]"]);
    assert!(named.status.success() && said(&named).contains("placed on "), "{named:?}");
    // Nor does what is no TOML keep anybody from this one, who is told where it is.
    std::fs::write(house.home().join("config.toml"), "worker_cpus = 1\n[projects.x\nshare = 2\n").unwrap();
    let listed = house.run(&["ps"]);
    assert!(listed.status.success() && said(&listed).contains("config.toml:2:12: "), "{listed:?}");
    let again = house.run(&["up"]);
    assert!(!again.status.success() && said(&again).contains("config.toml:2:12: "), "{again:?}");
    // A fault among the projects is the next daemon's, and keeps nobody from this one.
    std::fs::write(house.home().join("config.toml"), "[projects.x]\nshares = 2\n").unwrap();
    for args in [vec!["ps"], vec!["down", "--yes"]] {
        let output = house.run(&args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let again = house.run(&["up"]);
    assert!(!again.status.success() && said(&again).contains("projects.x.shares"), "{again:?}");
}
