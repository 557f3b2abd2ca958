//! What a command says when it did not do what was meant, and the next step it offers.

use std::io::BufRead;
use std::process::{Command, Output, Stdio};

use crate::house::House;

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
    assert!(ps.contains("Somebody cancelled the job"), "{ps}");
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
    let usage: [(&[&str], &str); 7] = [
        (&["ps", "--state", "foo"], "queued, provisioning, scheduled, running"),
        (&["ps", "--label", "g"], "expected KEY=VALUE"),
        (&["rm", "--label", "g"], "expected KEY=VALUE"),
        (&["--server", "http://", "ps"], "http://HOST"),
        (&["--server", "https://box", "ps"], "https is not built yet"),
        (&["run", "--timeout", "-5", "--", "true"], "--timeout -5"),
        (&["logs", "--tail", "-5"], "'-5'"),
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
