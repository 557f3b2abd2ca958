//! `…/explain`: nothing is submitted, and faults are told in the place where they are.

use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::JobState;
use serde_json::json;

use crate::stand::{CLIENT, SUBMITTER, Stand, VIEWER};

#[test]
fn a_spec_is_judged_and_not_submitted() {
    let stand = Stand::start();
    let ask = |body: &serde_json::Value| stand.tcp("POST", "/v1/explain").token(VIEWER).json(body).send();
    let spec = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine"});
    let said = ask(&json!({"spec": spec})).ok(200).json();
    assert_eq!((&said["verdict"], &said["summary"]), (&json!("not_now"), &json!("no worker is connected")));
    // What a submission would be warned of, it is warned of as well.
    let misspelt = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine", "resorces": {}});
    let warned = ask(&json!({"spec": misspelt})).ok(200).json();
    assert_eq!(warned["warnings"][0]["pointer"], "/spec/resorces");
    let jobs = stand.tcp("GET", "/v1/jobs").token(CLIENT).send().ok(200).json();
    assert_eq!(jobs["items"], json!([]));
    let faulty = ask(&json!({"spec": {"workload": {}, "priority": 1000}})).ok(422);
    assert!(faulty.pointers().contains(&"/spec/priority".to_owned()), "{:?}", faulty.pointers());
    assert_eq!(ask(&json!({"spec": spec, "like": "box"})).ok(422).pointers(), ["/like"]);
    assert_eq!(ask(&json!({"spec": spec, "more": 100_000})).ok(422).pointers(), ["/more"]);
    assert_eq!(ask(&json!({"spec": spec, "more": 2})).ok(422).pointers(), ["/more"], "more of which?");
    let misspelt = ask(&json!({"spec": spec, "lik": "box"})).ok(422);
    assert_eq!(misspelt.pointers(), ["/lik"]);
    assert!(misspelt.json()["errors"][0]["detail"].as_str().unwrap().contains("did you mean `like`?"));
}

/// Of jobs that are named, those that the asker does not see are as absent as those that never were.
#[test]
fn a_question_is_refused_for_the_jobs_that_its_submission_would_be_refused_for() {
    let stand = Stand::start();
    let secret = json!({"workload": {"command": {"argv": ["true"]}}, "project": "secret"});
    let hidden = stand.submit_as(CLIENT, &secret);
    let seen =
        stand.submit_as(CLIENT, &json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine"}));
    for (named, refused) in [(seen, false), (hidden, true), (JobId::from_u128(7), true)] {
        let spec = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine",
            "depends_on": [{"job": named, "when": "succeeded"}]});
        let asked = stand.tcp("POST", "/v1/explain").token(SUBMITTER).json(&json!({"spec": spec})).send();
        let submitted = stand.tcp("POST", "/v1/jobs").token(SUBMITTER).json(&spec).send();
        if refused {
            assert_eq!(asked.ok(422).pointers(), ["/spec/depends_on/0/job"]);
            assert_eq!(submitted.ok(422).pointers(), ["/depends_on/0/job"]);
        } else {
            asked.ok(200);
            submitted.ok(201);
        }
    }
}

/// What a project may have, and has, is told to those who see it.
#[test]
fn a_token_asks_about_its_own_projects_and_as_high_as_it_may_submit() {
    let stand = Stand::start();
    let ask = |project: &str, priority: i32| {
        let spec =
            json!({"workload": {"command": {"argv": ["true"]}}, "project": project, "priority": priority});
        stand.tcp("POST", "/v1/explain").token(SUBMITTER).json(&json!({"spec": spec})).send()
    };
    ask("mine", 0).ok(200);
    assert_eq!(ask("secret", 0).ok(422).pointers(), ["/spec/project"]);
    assert_eq!(ask("mine", 90).ok(422).pointers(), ["/spec/priority"]);
}

/// Others that have to end first are an answer as well, with how it would stand then.
#[test]
fn a_job_that_waits_for_others_is_explained() {
    let stand = Stand::start();
    let first = stand.submit();
    let spec = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine",
        "depends_on": [{"job": first, "when": "succeeded"}]});
    let id = stand.submit_as(CLIENT, &spec);
    *stand.shared.waits.lock() = Some(id);
    let said = stand.tcp("GET", &format!("/v1/jobs/{id}/explain")).token(CLIENT).send().ok(200).json();
    assert!(said["held"].as_str().unwrap().starts_with("waits "), "{said}");
    assert_eq!((&said["verdict"], &said["suggestions"]), (&json!("not_now"), &json!([])));
    assert_eq!(said["ahead"], json!(null), "it has no place in the queue yet");
}

#[test]
fn a_job_that_waits_and_one_that_ended_can_be_explained() {
    let stand = Stand::start();
    let id = stand.submit();
    let path = format!("/v1/jobs/{id}/explain");
    let said = stand.tcp("GET", &path).token(CLIENT).send().ok(200).json();
    assert!(!said["summary"].as_str().unwrap().is_empty());
    stand.shared.moved(id, JobState::Running);
    let refused = stand.tcp("GET", &path).token(CLIENT).send().ok(409);
    assert_eq!(refused.code(), "not_waiting");
    assert!(refused.json()["detail"].as_str().unwrap().contains("it is running"));
    stand.shared.moved(id, JobState::Succeeded);
    let past = stand.tcp("GET", &path).token(CLIENT).send().ok(200).json();
    assert_eq!((&past["state"], &past["placed"]), (&json!("succeeded"), &json!(0)));
}

/// What-ifs are for everybody, so nobody asks many at once; why a job waits is answered all the same.
#[test]
fn whoever_asks_too_much_at_once_is_told_so_and_when_to_come_back() {
    let stand = Stand::start();
    *stand.shared.busy.lock() = true;
    let spec = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine"});
    let refused = stand.tcp("POST", "/v1/explain").token(VIEWER).json(&json!({"spec": spec})).send().ok(503);
    assert_eq!((refused.code().as_str(), refused.headers["retry-after"].as_str()), ("overloaded", "1"));
    let said = refused.json();
    assert!(said["detail"].as_str().unwrap().contains("asks about two specs already"), "{said}");
    assert_eq!(said["retryable"], true);
    let waiting = stand.submit();
    stand.tcp("GET", &format!("/v1/jobs/{waiting}/explain")).token(CLIENT).send().ok(200);
    let first = json!({"workload": {"command": {"argv": ["true"]}}, "project": "mine",
        "depends_on": [{"job": waiting, "when": "succeeded"}]});
    let held = stand.submit_as(CLIENT, &first);
    *stand.shared.waits.lock() = Some(held);
    stand.tcp("GET", &format!("/v1/jobs/{held}/explain")).token(CLIENT).send().ok(200);
}
