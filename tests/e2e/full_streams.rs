//! Standard streams that take nothing: no process ends because it cannot say something.

use std::fs::File;
use std::process::Command;

use gpulayer::contract::job::JobState;
use serde_json::Value;

use crate::house::{GPULAYER, House, argv, eventually};

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[actix_rt::test]
async fn a_daemon_that_cannot_log_runs_jobs_and_stops_when_it_is_told_to() {
    let house = House::new();
    let mut command = house.command(&["server", "start", "--no-tcp"]);
    let mut daemon = command.stdout(full()).stderr(full()).spawn().unwrap();
    eventually("the daemon to answer", async || {
        assert_eq!(daemon.try_wait().unwrap(), None);
        house.client().get::<Value>("/v1/server").await.ok()
    })
    .await;
    assert_eq!(house.end(house.submit(&argv(&["true"])).await.id).await.state, JobState::Succeeded);
    let down = house.command(&["down", "--yes"]).stderr(full()).status().unwrap();
    assert_eq!(down.code(), Some(0));
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

#[test]
fn a_shim_that_cannot_say_why_it_cannot_begin_still_ends_with_its_status() {
    let script = "exec -a gpulayer-shim \"$0\" 2>/dev/full 3>&-";
    let shim = Command::new("bash").args(["-c", script, GPULAYER]).status().unwrap();
    assert_eq!(shim.code(), Some(71));
}

#[test]
fn a_command_whose_output_cannot_be_written_fails() {
    let house = House::new();
    for args in [&["--help"][..], &["--version"], &["completions", "bash"], &["whoami"], &["ps", "-a"]] {
        let output = house.command(args).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{args:?}: {said}");
        // Not even that can be said.
        let silent = house.command(args).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(silent.code(), Some(1), "{args:?}");
    }
    assert_eq!(house.command(&["--no-such-flag"]).stderr(full()).status().unwrap().code(), Some(2));
    assert!(house.run(&["down", "--yes"]).status.success());
}
