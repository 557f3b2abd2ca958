//! Credentials on the real binaries: a worker is thrown out, and tokens are made, used and revoked from the command
//! line.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use gpulayer::client::{Call, Client, Endpoint};
use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::{JobId, TaskId};
use gpulayer::contract::job::JobState;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, eventually, shell};
use crate::remote_worker::port;

async fn workers(house: &House) -> Vec<Value> {
    let page: Value = house.client().get("/v1/workers").await.unwrap();
    page["items"].as_array().unwrap().clone()
}

async fn worker_id(house: &House) -> String {
    eventually("a worker", async || Some(workers(house).await.first()?["id"].as_str()?.to_owned())).await
}

fn text(output: &std::process::Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[actix_rt::test]
async fn a_revoked_worker_kills_its_tasks_and_leaves_and_may_join_anew() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", port(&house));
    let mut worker = FarWorker::start(&house, &url);
    // Deaf to every polite signal, and with a child that left its group.
    let program = "trap '' TERM INT HUP; setsid sleep 600 & echo up; while :; do sleep 0.1; done";
    let plain = house.submit(&shell(program)).await.id;
    let mut retried = shell("if [ $GPULAYER_ATTEMPT = 1 ]; then echo up; sleep 600; fi; echo again");
    retried["retry"] = json!({ "max_attempts": 2, "retry_on": ["operator"] });
    let retried = house.submit(&retried).await.id;
    house.logged(plain, "up").await;
    house.logged(retried, "up").await;
    let first = worker_id(&house).await;

    let revoked = house.run(&["worker", "revoke", "far"]);
    let (said, complaint) = text(&revoked);
    assert!(revoked.status.success() && said.contains("far is out"), "{said}{complaint}");
    let job = house.end(plain).await;
    let end = job.end.unwrap();
    assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::Revoked));
    assert!(workers(&house).await.is_empty());
    eventually("the worker to leave", async || (!worker.is_up()).then_some(())).await;
    assert_eq!(house.leftovers(), Vec::<String>::new(), "no process outlives its worker's session");
    let log = std::fs::read_to_string(house.path().join("far.log")).unwrap();
    assert!(log.contains("Join again with a join token"), "{log}");

    // Its place is free once it said that the trees are gone, which its rows tell.
    let tasks: Value = house.client().get(&format!("/v1/jobs/{plain}/tasks")).await.unwrap();
    assert_eq!(tasks["items"][0]["state"], "failed");
    let _: TaskId = tasks["items"][0]["id"].as_str().unwrap().parse().unwrap();

    let _worker = FarWorker::start(&house, &url);
    let second = worker_id(&house).await;
    assert_ne!(first, second, "it joined anew");
    let job = house.end(retried).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2), "its retry_on names operators");

    let events = text(&house.run(&["events", "--all"])).0;
    let line =
        events.lines().find(|line| line.contains("act=worker_revoke")).unwrap_or_else(|| panic!("{events}"));
    assert!(line.contains(&first) && line.contains("unix_socket"), "{line}");
}

#[actix_rt::test]
async fn tokens_are_made_used_and_revoked_from_the_command_line() {
    let house = House::new();
    let daemon = house.daemon_with(&["--port", "0"]).await;
    let make = |args: &[&str]| {
        let mut all = vec!["token", "create"];
        all.extend(args);
        let (secret, said) = text(&house.run(&all));
        assert!(secret.starts_with("gl") && secret.trim().lines().count() == 1, "{secret}{said}");
        (secret.trim().to_owned(), said)
    };
    let (alice, said) =
        make(&["--name", "alice", "--project", "ml", "--max-priority", "5", "--expires", "30d"]);
    assert!(said.contains("token alice: submitter in ml, priority at most 5, until "), "{said}");
    let url = format!("http://127.0.0.1:{}", port(&house));
    let as_alice = |args: &[&str]| {
        let mut command = house.command(args);
        text(&command.env("GPULAYER_URL", &url).env("GPULAYER_TOKEN", &alice).output().unwrap())
    };
    let (me, _) = as_alice(&["whoami"]);
    assert!(me.contains("alice (submitter, by token)") && me.contains("projects: ml"), "{me}");
    let (id, complaint) = as_alice(&["submit", "--source", "none", "--", "/bin/true"]);
    assert!(id.starts_with("job_"), "{complaint}");
    let (_, complaint) = as_alice(&["submit", "--source", "none", "--project", "nlp", "--", "/bin/true"]);
    assert!(complaint.contains("it may submit into `ml`"), "{complaint}");

    let file = house.path().join("join-here");
    let (line, _) =
        text(&house.run(&["token", "create", "--join", "--name", "lab", "--to", file.to_str().unwrap()]));
    assert!(line.starts_with("gpulayer join http") && line.contains("--token-file join-here"), "{line}");
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("glj_"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    // What is void stays void over a restart, and what is not stays valid.
    let (list, _) = text(&house.run(&["token", "list"]));
    for name in ["admin", "join", "alice", "lab"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} in {list}");
    }
    assert!(!list.contains(&alice));
    assert!(house.run(&["token", "revoke", "lab"]).status.success());
    daemon.kill();
    let _daemon = house.daemon_with(&["--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", port(&house));
    let client = |token: &str| Client::new(Endpoint::parse(&url).unwrap()).with_token(token).unwrap();
    let me: Value = client(&alice).get("/v1/whoami").await.unwrap();
    assert_eq!(me["projects"], json!(["ml"]));
    let lab = std::fs::read_to_string(&file).unwrap();
    let call =
        Call::post("/v1/workers/register", true).header("x-gpulayer-protocol", "1").json(&json!({})).unwrap();
    let refused = client(lab.trim()).answer(&call).await.unwrap_err().to_string();
    assert!(refused.contains("the token `lab` was revoked"), "{refused}");
    let (gone, _) = text(&house.run(&["token", "list", "--all"]));
    assert!(gone.lines().any(|line| line.starts_with("lab") && line.contains("revoked")), "{gone}");
}

#[actix_rt::test]
async fn followers_whose_token_is_revoked_leave_and_say_that_the_job_goes_on() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--port", "0"]).await;
    let alice = text(&house.run(&["token", "create", "--name", "alice"])).0;
    let url = format!("http://127.0.0.1:{}", port(&house));
    let as_alice = |args: &[&str]| {
        let mut command = house.command(args);
        command.env("GPULAYER_URL", &url).env("GPULAYER_TOKEN", alice.trim());
        command.env("GPULAYER_HOME", house.path().join("elsewhere")).current_dir(house.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let run = as_alice(&["run", "--source", "none", "--name", "long", "--shell", "echo up; exec sleep 600"]);
    let id = eventually("the job", async || {
        let jobs: Value = house.client().get("/v1/jobs").await.unwrap();
        jobs["items"][0]["id"].as_str().map(|id| id.parse::<JobId>().unwrap())
    })
    .await;
    house.logged(id, "up").await;
    let mut attach = as_alice(&["attach", "long"]);
    let mut line = String::new();
    BufReader::new(attach.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    // A whole id costs no call, so that whatever it is told concerns the job.
    let wait = as_alice(&["wait", &id.to_string()]);

    assert!(house.run(&["token", "revoke", "alice"]).status.success());
    let tail = id.to_string()[id.to_string().len() - 6..].to_owned();
    for follower in [run, attach, wait] {
        let output = follower.wait_with_output().unwrap();
        let (_, said) = text(&output);
        assert_eq!(output.status.code(), Some(75), "{said}");
        assert!(said.contains("the token `alice` was revoked"), "{said}");
        assert!(said.contains(&format!("job {tail} goes on · gpulayer attach {tail}")), "{said}");
    }
    assert!(house.run(&["cancel", "--now", &id.to_string()]).status.success());
}

#[actix_rt::test]
async fn a_seed_file_is_taken_in_once() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    let secret = format!("glc_{}", "5".repeat(64));
    let hash: String =
        gpulayer::credentials::hash(&secret).iter().map(|byte| format!("{byte:02x}")).collect();
    let seed = json!({ "tokens": [
        { "name": "first", "kind": "client", "role": "admin", "sha256": hash, "created_at": "2026-11-29T00:00:00Z" }
    ] });
    std::fs::write(house.home().join("server-credentials.json"), seed.to_string()).unwrap();
    let daemon = house.daemon_with(&["--port", "0"]).await;
    let status = async || {
        let url = format!("http://127.0.0.1:{}", port(&house));
        let client = Client::new(Endpoint::parse(&url).unwrap()).with_token(&secret).unwrap();
        client
            .get::<Value>("/v1/whoami")
            .await
            .map(|me| me["name"].clone())
            .map_err(|error| error.to_string())
    };
    assert_eq!(status().await, Ok(json!("first")));
    assert!(house.run(&["token", "revoke", "first"]).status.success());
    daemon.kill();
    let _daemon = house.daemon_with(&["--port", "0"]).await;
    assert!(status().await.unwrap_err().contains("was revoked"), "the file brings nothing back");
}
