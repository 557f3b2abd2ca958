//! A second machine, as a newcomer comes to it: `up` here, one pasted line there, and jobs go where they should.

use std::process::{Command, Stdio};

use gpulayer::contract::job::{Job, JobState};
use gpulayer::contract::server::ServerStatus;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};
use crate::joined::Joined;

fn stdout(house: &House, args: &[&str]) -> String {
    let output = house.command(args).current_dir(house.path()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[actix_rt::test]
async fn up_here_join_there_and_jobs_go_where_they_are_sent() {
    let house = House::new();
    let up: ServerStatus =
        serde_json::from_str(&stdout(&house, &["up", "--host", "127.0.0.1", "--port", "0", "--json"]))
            .unwrap();
    let listening = up.listening.unwrap();
    let (url, pin) = (listening.url, listening.pin.unwrap().to_string());
    assert!(url.starts_with("https://"), "{url}");
    let programs = house.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink("/bin/echo", programs.join("only-there")).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let there = |words: &[&str]| {
        let mut command: Command = house.command(words);
        command.env("GPULAYER_HOME", house.path().join("other")).env("PATH", &path);
        command
    };
    let token = house.home().join("join-token");
    let line = ["join", &url, "--token-file", token.to_str().unwrap(), "--allow-root-tasks"];
    let wrong = format!("sha256:{}", "07".repeat(32));
    let refused = there(&line).args(["--pin", &wrong]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains(&pin) && text.contains(&wrong), "it says both keys: {text}");
    let mut joined =
        Joined::start(there(&line).args(["--pin", &pin, "--name", "box", "--label", "zone=attic"]));
    let said = joined.says("joined");
    assert!(said.starts_with(&format!("joined {url} as box (wkr_")), "{said}");
    let id = said.split(['(', ')']).nth(1).unwrap().to_owned();

    let on = async |place: &[&str]| {
        let mut words = vec!["submit", "--source", "none"];
        words.extend(place);
        words.extend(["--", "true"]);
        let job = stdout(&house, &words).trim().parse().unwrap();
        let ended: Job = house.end(job).await;
        assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
        ended.worker.unwrap().to_string()
    };
    assert_eq!(on(&["--on", "zone=attic"]).await, id);
    assert_eq!(on(&["--on", "box"]).await, id);
    assert_eq!(on(&["--on", &id[id.len() - 6..]]).await, id);
    assert_eq!(on(&["--target", "remote"]).await, id);
    assert_ne!(on(&["--target", "local"]).await, id);
    let listed = stdout(&house, &["worker", "list"]);
    let row = listed.lines().find(|line| line.contains("box")).unwrap();
    assert!(row.contains("idle") && row.contains(&id[id.len() - 6..]), "{listed}");
    assert!(stdout(&house, &["worker", "show", "box"]).contains("zone=attic"));

    // The shell here has a PATH of its own, which is of no use there unless it is asked for.
    let says = ["--", "only-there", "found"];
    assert_eq!(stdout(&house, &[&["run", "--source", "none", "--on", "box"], &says[..]].concat()), "found\n");
    let lost = house.run(&[&["run", "--source", "none", "--on", "box", "--env", "PATH"], &says[..]].concat());
    assert_eq!(lost.status.code(), Some(127), "{lost:?}");

    stdout(&house, &["worker", "drain", "box"]);
    let mut waits = argv(&["true"]);
    waits["resources"] = json!({"worker": "box"});
    let waiting = house.submit(&waits).await.id;
    eventually("the reason", async || {
        let job: Value = house.client().get(&format!("/v1/jobs/{waiting}")).await.unwrap();
        job["queue_reason"].as_str().is_some_and(|reason| reason.contains("1 worker: draining")).then_some(())
    })
    .await;
    stdout(&house, &["worker", "resume", "box"]);
    assert_eq!(house.end(waiting).await.state, JobState::Succeeded);
    // What nobody has is said with the nearest there is.
    let mut mistyped = argv(&["true"]);
    mistyped["resources"] = json!({"worker": "bxo"});
    let mistyped = house.submit(&mistyped).await.id;
    eventually("the nearest", async || {
        let job: Value = house.client().get(&format!("/v1/jobs/{mistyped}")).await.unwrap();
        job["queue_reason"].as_str().is_some_and(|reason| reason.contains("nearest: box")).then_some(())
    })
    .await;

    // Its files travel both ways, over TLS.
    let mut spec = shell("cat in.txt > out.txt; echo more >> out.txt");
    let input = house.path().join("in.txt");
    std::fs::write(&input, "given\n").unwrap();
    let digest = stdout(&house, &["artifact", "put", input.to_str().unwrap()]).trim().to_owned();
    spec["inputs"] = json!([{"artifact": digest, "path": "in.txt"}]);
    spec["outputs"] = json!([{"path": "out.txt"}]);
    spec["target"] = json!("remote");
    let job = house.submit(&spec).await.id;
    assert_eq!(house.end(job).await.state, JobState::Succeeded);
    stdout(&house, &["fetch", &job.to_string(), "--to", "back"]);
    assert_eq!(std::fs::read_to_string(house.path().join("back/out.txt")).unwrap(), "given\nmore\n");

    joined.signal(Signal::INT);
    joined.says(&format!("left {url}"));
    assert_eq!(joined.ends(), Some(0));
    assert!(!stdout(&house, &["worker", "list"]).contains("box"));
    house.run(&["down", "--yes"]);
}
