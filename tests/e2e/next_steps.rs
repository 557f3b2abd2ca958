//! What a command says when it did not do what was meant, and the next step it offers.

use std::io::BufRead;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::house::{DEADLINE, House};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Submits a job that runs until it is cancelled, and returns the end of its id.
fn running(house: &House) -> String {
    let text = "echo up; exec sleep 600";
    let mut run = house
        .command(&["run", "--source", "none", "--", "sh", "-c", text])
        .current_dir(house.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    run.kill().unwrap();
    run.wait().unwrap();
    let shown = String::from_utf8(house.run(&["show", "@last", "--json"]).stdout).unwrap();
    let job: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let id = job["id"].as_str().unwrap();
    id[id.len() - 6..].to_owned()
}

#[test]
fn fetching_nothing_is_no_success_and_makes_no_folder() {
    let house = House::new();
    let tail = running(&house);
    let early = house.run(&["fetch", "@last", "--to", "out"]);
    assert_eq!(early.status.code(), Some(1));
    let said = stderr(&early);
    assert!(said.contains("is still running") && said.contains(&format!("gpulayer wait {tail}")), "{said}");
    assert!(house.run(&["cancel", "--now", "@last"]).status.success());
    house.run(&["wait", "@last"]);
    let late = house.run(&["fetch", "@last", "--to", "out"]);
    assert_eq!(late.status.code(), Some(1));
    assert!(stderr(&late).contains("nothing to fetch"), "{late:?}");
    assert!(!house.path().join("out").exists());
    let again = house.run(&["cancel", "@last"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("had ended already: cancelled"), "{again:?}");
    let ps = String::from_utf8(house.run(&["ps"]).stdout).unwrap();
    assert!(ps.contains("the job was cancelled on request"), "{ps}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn whoever_only_looks_on_leaves_without_the_job() {
    let house = House::new();
    let tail = running(&house);
    for words in [["attach", &tail], ["wait", &tail]] {
        let looking = house.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&looking);
        // Its handler is in place when the signal is in the mask of those caught.
        let caught = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
            let mask =
                status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap() & (1 << 1) != 0
        };
        let deadline = std::time::Instant::now() + crate::house::DEADLINE;
        while !caught() {
            assert!(std::time::Instant::now() < deadline, "no handler");
            std::thread::yield_now();
        }
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let left = looking.wait_with_output().unwrap();
        assert_eq!(left.status.code(), Some(75), "{words:?} {left:?}");
        let said = stderr(&left);
        assert!(said.contains(&format!("job {tail} goes on · gpulayer attach {tail}")), "{said}");
    }
    let remove = house.run(&["rm", &tail]);
    assert_eq!(remove.status.code(), Some(1));
    let said = stderr(&remove);
    assert!(said.contains(&tail) && said.contains(&format!("gpulayer cancel {tail}")), "{said}");
    assert!(house.run(&["cancel", "--now", &tail]).status.success());
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn a_reader_that_goes_away_leaves_the_job_and_is_told_so() {
    let house = House::new();
    let mut run = house
        .command(&["run", "--source", "none", "--", "sh", "-c", "while :; do echo line; sleep 0.02; done"])
        .current_dir(house.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let left = run.wait_with_output().unwrap();
    assert_eq!(left.status.code(), Some(75), "{left:?}");
    assert!(stderr(&left).contains("goes on · gpulayer attach"), "{left:?}");
    assert!(house.run(&["cancel", "--now", "@last"]).status.success());
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[tokio::test]
async fn the_server_that_was_named_is_named_in_every_next_step() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let url = format!("unix:{}", house.state().join("gpulayer.sock").display());
    let run = house.run(&["--server", &url, "run", "--source", "none", "--", "sh", "-c", "exit 3"]);
    assert!(stderr(&run).contains(&format!("gpulayer --server {url} logs ")), "{run:?}");
    let none = house.run(&["rm", "--label", "g=9", "--server", &url]);
    assert_eq!(none.status.code(), Some(1));
    let said = stderr(&none);
    assert!(
        said.contains("no job has the label g=9") && said.contains(&format!("--server {url} ps -a")),
        "{said}"
    );
}

#[test]
fn what_is_used_wrongly_says_what_is_allowed() {
    let house = House::new();
    let usage: [(&[&str], &str); 10] = [
        (&["ps", "--state", "foo"], "queued, provisioning, scheduled, running"),
        (&["ps", "--label", "g"], "expected KEY=VALUE"),
        (&["rm", "--label", "g"], "expected KEY=VALUE"),
        (&["--server", "http://", "ps"], "http://HOST"),
        (&["--server", "box", "ps"], "no server is saved as `box`"),
        (&["run", "--timeout", "-5", "--", "true"], "--timeout -5"),
        (&["logs", "--tail", "-5"], "'-5'"),
        (&["up", "--port", "70000"], "expected a port, from 0 to 65535"),
        (&["logs", "--tail", "x"], "expected a whole number"),
        (&["run", "--retries", "x", "--", "true"], "expected a whole number"),
    ];
    for (words, expected) in usage {
        let output = house.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?} {output:?}");
        assert!(stderr(&output).contains(expected), "{words:?} {output:?}");
    }
    for words in [["help", "help"], ["help", "run"]] {
        let help: Output = Command::new(crate::house::GPULAYER).args(words).output().unwrap();
        assert!(help.status.success(), "{help:?}");
    }
}

#[test]
fn a_refusal_names_what_was_typed_before_anything_is_sent() {
    let house = House::new();
    let project = house.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("pyproject.toml"), "").unwrap();
    std::fs::write(project.join("env"), "A=1\nsecret\n").unwrap();
    std::fs::write(project.join("job.yaml"), "priority: 500\n").unwrap();
    let run = |words: &[&str]| house.command(words).current_dir(&project).output().unwrap();
    let unbuilt = run(&["submit", "--disk", "1GB", "--priority", "500", "--", "true"]);
    assert_eq!(unbuilt.status.code(), Some(1));
    let said = stderr(&unbuilt);
    assert!(said.contains("  --disk: ") && said.contains("  --priority: "), "{said}");
    assert!(!said.contains("sent "), "{said}");
    let file = stderr(&run(&["submit", "--spec", "job.yaml", "--", "true"]));
    assert!(file.starts_with("gpulayer: job.yaml: /priority: ") && file.lines().count() == 1, "{file}");
    let line = run(&["run", "--env-file", "env", "--", "true"]);
    assert_eq!(line.status.code(), Some(2));
    assert!(
        stderr(&line).contains("--env-file env, line 2") && !stderr(&line).contains("secret"),
        "{line:?}"
    );
    for (flag, path) in [("--env-file", "/nowhere"), ("--input", "/nowhere"), ("--spec", "/nowhere")] {
        let missing = stderr(&run(&["run", flag, path, "--", "true"]));
        assert!(missing.contains(&format!("{flag} {path} cannot be read")), "{missing}");
    }
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn what_a_dry_run_prints_works_when_it_is_pasted() {
    let house = House::new();
    let project = house.path().join("project");
    std::fs::create_dir_all(project.join("data")).unwrap();
    std::fs::write(project.join("pyproject.toml"), "").unwrap();
    std::fs::write(project.join(".gitignore"), "data/\n").unwrap();
    std::fs::write(project.join("data/big"), "x").unwrap();
    let words = ["run", "--dry-run", "-i", "data/big", "--", "cat", "pyproject.toml", "data/big"];
    let dry = house.command(&words).current_dir(&project).output().unwrap();
    let text = String::from_utf8(dry.stdout).unwrap();
    let steps: Vec<&str> = text.lines().filter(|line| line.starts_with("gpulayer artifact put")).collect();
    assert_eq!(steps.len(), 2, "{text}");
    assert!(house.run(&["ps"]).status.success());
    // What it prints for Python, tests/python tries.
    let curl = || -> Value {
        let ran = Command::new("sh").args(["-c", curl_text(&text)]).output().unwrap();
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    let early = curl();
    assert!(early["errors"].to_string().contains("artifact not uploaded"), "{early}");
    for step in steps {
        let command = format!("{} {}", crate::house::GPULAYER, step.strip_prefix("gpulayer ").unwrap());
        let put =
            Command::new("sh").args(["-c", &command]).env("GPULAYER_HOME", house.home()).output().unwrap();
        assert!(put.status.success(), "{put:?}");
        let address = String::from_utf8(put.stdout).unwrap();
        assert!(step.ends_with(address.trim()), "{step} {address}");
    }
    let submitted = curl();
    let id = submitted["id"].as_str().unwrap_or_else(|| panic!("{submitted}"));
    assert_eq!(house.run(&["wait", id]).status.code(), Some(0), "{id}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

fn curl_text(dry_run: &str) -> &str {
    dry_run.split_once("# curl\n").unwrap().1.split_once("# Python\n").unwrap().0
}

#[test]
fn an_artifact_that_is_there_already_is_fine() {
    let house = House::new();
    std::fs::write(house.path().join("a"), "same\n").unwrap();
    std::fs::write(house.path().join("b"), "other\n").unwrap();
    let put = house.run(&["artifact", "put", "a"]);
    let address = String::from_utf8(put.stdout).unwrap();
    let get = |to: &str| house.run(&["artifact", "get", address.trim(), "-o", to]);
    assert_eq!(get("a").status.code(), Some(0));
    assert_eq!(String::from_utf8(get("-").stdout).unwrap(), "same\n");
    assert!(!house.path().join("-").exists());
    let other = get("b");
    assert_eq!(other.status.code(), Some(1));
    assert!(stderr(&other).contains("overwrite with --force"), "{other:?}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn explain_says_who_lacks_what_and_which_change_would_help() {
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::write(house.home().join("config.toml"), "worker_cpus = 2\n").unwrap();
    running(&house);
    let spec = house.path().join("spec.json");
    let ask = |cpus: u32| {
        let text =
            format!(r#"{{"workload":{{"command":{{"argv":["true"]}}}},"resources":{{"cpus":{cpus}}}}}"#);
        std::fs::write(&spec, text).unwrap();
        let output = house.run(&["explain", "--spec", "spec.json"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = ask(1);
    assert!(said.starts_with("a job of this spec finds room now\n"), "{said}");
    let said = ask(2);
    assert!(said.contains("has to wait") && said.contains("needs 2 CPUs, 1 free of 2"), "{said}");
    assert!(said.ends_with("It would start now with any of these:\n  1 CPU instead of 2\n"), "{said}");
    assert!(ask(64).contains("fits on no worker there is"));

    let submit = ["submit", "--source", "none", "--cpus", "2", "--name", "waits", "--", "true"];
    assert!(house.run(&submit).status.success());
    let said = String::from_utf8(house.run(&["why", "waits"]).stdout).unwrap();
    assert!(said.contains("has to wait") && said.contains("no job is served before it"), "{said}");
    let running = house.run(&["explain", "@last", "--json"]);
    assert!(running.status.success(), "{running:?}");
    let sweep =
        ["submit", "--source", "none", "--array", "0-9", "--cpus", "2", "--name", "sweep", "--", "true"];
    assert!(house.run(&sweep).status.success());
    let of_an_array = house.run(&["why", "sweep"]);
    let said = String::from_utf8_lossy(&of_an_array.stdout).into_owned();
    assert!(said.contains("needs 2 CPUs, 1 free of 2"), "{of_an_array:?}");
    assert!(house.run(&["cancel", "waits"]).status.success());
    // What it had waited for is noted a moment after its end.
    let begun = Instant::now();
    loop {
        let over = house.run(&["explain", "waits"]);
        assert!(over.status.success(), "{over:?}");
        let said = String::from_utf8(over.stdout).unwrap();
        assert!(said.contains("cancelled: never started"), "{said}");
        if said.contains("needs 2 CPUs") {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{said}");
    }
    assert!(house.run(&["down", "--yes"]).status.success());
}
