//! The commands as a person types them: exit status, streams, ids.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use crate::house::House;

fn status(house: &House, script: &str) -> Option<i32> {
    house.run(&["run", "--source", "none", "--", "sh", "-c", script]).status.code()
}

#[test]
fn run_ends_like_its_job() {
    let house = House::new();
    assert_eq!(status(&house, "exit 0"), Some(0));
    assert_eq!(status(&house, "exit 7"), Some(7));
    assert_eq!(status(&house, "kill -TERM $$"), Some(128 + 15));
    let args = |args: &[&str]| house.run(&[&["run", "--source", "none"], args].concat());
    assert_eq!(args(&["--timeout", "100ms", "--grace", "1", "--", "sleep", "60"]).status.code(), Some(124));
    assert_eq!(args(&["--", "no-such-program"]).status.code(), Some(127));
    assert_eq!(args(&["--output", "never", "--", "true"]).status.code(), Some(125));
    assert_eq!(args(&["--no-such-flag", "--", "true"]).status.code(), Some(2));
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn a_home_that_is_named_from_here_is_here_for_the_daemon_too() {
    let house = House::new();
    let here = |args: &[&str]| {
        let mut command = house.command(args);
        command.current_dir(house.path()).env("GPULAYER_HOME", "h").output().unwrap()
    };
    let ran = here(&["run", "--source", "none", "--", "echo", "hello"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "hello\n", "{ran:?}");
    assert!(house.state().join("daemon.log").exists());
    assert!(here(&["down", "--yes"]).status.success());
}

#[test]
fn output_goes_where_the_program_sent_it_and_remarks_to_stderr() {
    let house = House::new();
    let run = house.run(&["run", "--source", "none", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(String::from_utf8_lossy(&run.stdout), "out\n");
    let remarks = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(remarks.starts_with("err\n") || remarks.contains("\nerr\n"), "{remarks}");
    let logs = house.run(&["logs", "@last", "--stream", "stdout"]);
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "out\n");
    let id = String::from_utf8(house.run(&["submit", "--source", "none", "--", "true"]).stdout).unwrap();
    let tail = &id.trim()[id.trim().len() - 6..];
    assert_eq!(house.run(&["wait", tail]).status.code(), Some(0));
    let nothing = house.run(&["logs", tail]);
    assert_eq!(nothing.stdout, b"");
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("has printed nothing"), "{nothing:?}");
    assert_eq!(house.run(&["logs", tail, "--stream", "stdout"]).stderr, b"");
    let ps = String::from_utf8(house.run(&["ps"]).stdout).unwrap();
    assert!(ps.contains(tail), "{ps}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn an_interrupt_cancels_and_a_hangup_leaves_the_job_running() {
    let house = House::new();
    let start = || {
        let asked = house.command(&["run", "--source", "none", "--", "sh", "-c", "echo up; exec sleep 60"]);
        // Whoever runs the tests under `nohup` hands an ignored SIGHUP down.
        let mut command = std::process::Command::new("env");
        command.arg("--default-signal=HUP").arg(asked.get_program()).args(asked.get_args());
        for (name, value) in asked.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut run = command.current_dir(house.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = std::io::BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert_eq!(line, "up\n");
        run
    };
    let mut interrupted = start();
    let pid = rustix::process::Pid::from_child(&interrupted);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    let mut hung_up = start();
    let pid = rustix::process::Pid::from_child(&hung_up);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let left = hung_up.wait().unwrap();
    assert!(left.code() == Some(75) || left.signal() == Some(1), "{left:?}");
    let shown = String::from_utf8(house.run(&["show", "@last", "--json"]).stdout).unwrap();
    assert!(shown.contains("\"running\""), "{shown}");
    assert!(house.run(&["cancel", "--now", "@last"]).status.success());
    assert_eq!(house.run(&["wait", "@last"]).status.code(), Some(130));
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn the_virtual_environment_of_the_shell_is_the_jobs() {
    let house = House::new();
    let environment = house.path().join("venv");
    let made = std::process::Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&environment)
        .status();
    assert!(made.unwrap().success());
    let path = format!("{}:{}", environment.join("bin").display(), std::env::var("PATH").unwrap());
    let run = house
        .command(&["run", "--source", "none", "--", "python", "-c", "import sys; print(sys.prefix)"])
        .current_dir(house.path())
        .env("PATH", path)
        .env("VIRTUAL_ENV", &environment)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), environment.to_str().unwrap(), "{run:?}");
    assert!(house.run(&["down", "--yes"]).status.success());
}
