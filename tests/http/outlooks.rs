//! A job that no worker could ever take: refused to who prefers that, else queued with a warning.

use gpulayer::contract::explain::Suggestion;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::JobState;
use gpulayer::domain::placement::{Never, Outlook};
use serde_json::json;

use crate::stand::{CLIENT, Stand};

#[test]
fn an_impossible_job_is_refused_to_whom_prefers_it_and_warned_about_else() {
    let stand = Stand::start();
    *stand.shared.outlook.lock() = Some(Outlook {
        never: Some(Never {
            reason: "1 worker: needs 16 GPUs, has 8 in all".to_owned(),
            change: Some(Suggestion {
                change: "8 GPUs instead of 16".to_owned(),
                pointer: "/resources/gpus/count".to_owned(),
                value: json!(8),
            }),
            judged: 1,
            by_quota: false,
        }),
        untested: None,
    });
    let spec = json!({"workload": {"command": {"argv": ["true"]}}, "resources": {"gpus": {"count": 16}}});
    let post = |path: &str| stand.tcp("POST", path).token(CLIENT);
    let refused =
        post("/v1/jobs").header("Prefer", "handling=strict, impossible=refuse").json(&spec).send().ok(422);
    assert_eq!(
        (refused.code().as_str(), refused.pointers()),
        ("no_worker_fits", vec!["/resources/gpus/count".to_owned()])
    );
    let problem = refused.json();
    assert!(problem["detail"].as_str().unwrap().contains("needs 16 GPUs, has 8 in all"), "{problem}");
    assert_eq!(problem["errors"][0]["detail"], "this would do: 8 GPUs instead of 16");
    let listed = || {
        stand.tcp("GET", "/v1/jobs").token(CLIENT).send().ok(200).json()["items"].as_array().unwrap().len()
    };
    assert_eq!(listed(), 0, "nothing was accepted");

    let keyed = || post("/v1/jobs").header("Idempotency-Key", "k1");
    let queued = keyed().json(&spec).send().ok(201).json();
    assert_eq!(queued["warnings"][0]["pointer"], "/resources/gpus/count");
    let detail = queued["warnings"][0]["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("has 8 in all") && detail.contains("8 GPUs instead of 16"), "{detail}");
    // A repeat of what was accepted is that, whatever would be said now.
    let again = keyed().header("Prefer", "impossible=refuse").json(&spec).send().ok(201).json();
    assert_eq!((&again["id"], &again["warnings"]), (&queued["id"], &queued["warnings"]));
    let batch = post("/v1/jobs/batch").json(&json!({"jobs": [spec, spec]})).send().ok(201).json();
    assert_eq!(batch["warnings"][1]["pointer"], "/jobs/1/resources/gpus/count");
    assert_eq!(listed(), 3);
}

#[test]
fn what_a_project_may_never_have_is_refused_as_that() {
    let stand = Stand::start();
    let reason = "project mine may have 8 GPUs at most, needs 9".to_owned();
    let never = |change| Outlook {
        never: Some(Never { reason: reason.clone(), change, judged: usize::MAX, by_quota: true }),
        untested: None,
    };
    let spec = json!({"workload": {"command": {"argv": ["true"]}}, "resources": {"gpus": {"count": 9}}});
    let change = Suggestion {
        change: "8 GPUs instead of 9".to_owned(),
        pointer: "/resources/gpus/count".to_owned(),
        value: json!(8),
    };
    for (change, at, said) in [
        (Some(change), "/resources/gpus/count", "this would do: 8 GPUs instead of 9"),
        (None, "/resources", reason.as_str()),
    ] {
        *stand.shared.outlook.lock() = Some(never(change));
        let post = stand.tcp("POST", "/v1/jobs").token(CLIENT).header("Prefer", "impossible=refuse");
        let problem = post.json(&spec).send().ok(422).json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("the project may not have that much · project mine"), "{detail}");
        let fault = &problem["errors"][0];
        assert_eq!((&fault["code"], &fault["pointer"]), (&json!("beyond_quota"), &json!(at)));
        assert_eq!(fault["detail"], said);
    }
}

/// What it waits for has ended otherwise than it needs, so it would end at once.
#[test]
fn a_job_that_waits_in_vain_is_refused_to_whom_prefers_it_and_warned_about_else() {
    let stand = Stand::start();
    let (cancelled, succeeded) = (stand.submit(), stand.submit());
    stand.shared.moved(cancelled, JobState::Cancelled);
    stand.shared.moved(succeeded, JobState::Succeeded);
    let after = |job: JobId, when: &str| json!({"workload": {"command": {"argv": ["true"]}}, "depends_on": [{"job": job, "when": when}]});
    let post = |path: &str| stand.tcp("POST", path).token(CLIENT);
    let vain = after(cancelled, "succeeded");
    let refused = post("/v1/jobs").header("Prefer", "impossible=refuse").json(&vain).send().ok(422);
    assert_eq!(refused.pointers(), ["/depends_on/0/job"]);
    let problem = refused.json();
    assert_eq!(problem["errors"][0]["code"], "dependency_failed");
    assert!(problem["detail"].as_str().unwrap().contains("to succeed, but it ended cancelled"), "{problem}");
    let warned = post("/v1/jobs").json(&vain).send().ok(201).json();
    assert_eq!(warned["warnings"][0]["pointer"], "/depends_on/0/job");
    let detail = warned["warnings"][0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("it will end at once as `dependency_failed`"), "{detail}");
    let batch = json!({"jobs": [after(succeeded, "succeeded"), after(cancelled, "ended"), vain]});
    let warned = post("/v1/jobs/batch").json(&batch).send().ok(201).json();
    let pointers: Vec<_> = warned["warnings"].as_array().unwrap().iter().map(|one| &one["pointer"]).collect();
    assert_eq!(pointers, ["/jobs/2/depends_on/0/job"]);
}
