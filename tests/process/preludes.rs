//! What runs before a program: in its place, under its rules, and not at its expense.

use std::path::Path;
use std::time::Duration;

use gpulayer::domain::secrets::SecretValue;
use gpulayer::process::{Launch, Limits, NotStarted, Prelude, ShimEvent, StopCause, Wait};

use crate::bench::{
    Bench, end_of, event_of, is_running, noted_pids, pool_in, records_of, shims, until, until_printed,
};

/// The launch with this shell text before its program.
fn after(prelude: &str, launch: Launch) -> Launch {
    with_prelude(&["sh", "-c", prelude], launch)
}

fn with_prelude(argv: &[&str], launch: Launch) -> Launch {
    let program = if argv[0] == "sh" { "/bin/sh".into() } else { python() };
    let prelude = Prelude {
        program,
        argv: argv.iter().map(Into::into).collect(),
        env: launch.env.clone(),
        input: "what to make".to_owned(),
    };
    Launch { prelude: Some(Box::new(prelude)), ..launch }
}

fn python() -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.is_file()).unwrap()
}

/// Prints once and waits for the file `go`.
const PATIENT: &str = "echo PREPARING; while [ ! -e go ]; do sleep 0.01; done; echo PREPARED";

#[tokio::test]
async fn the_program_begins_when_its_prelude_has_ended_well_and_its_time_counts_from_then() {
    let bench = Bench::new();
    let mut launch = after("echo one; sleep 0.6; echo two >&2", bench.shell("echo three; sleep 0.2"));
    launch.timeout = Some(Duration::from_millis(500));
    let folder = launch.task_folder.clone();
    let mut process = bench.pool.launch(launch).await.unwrap();
    assert_eq!(event_of(&mut process).await, Some(ShimEvent::Preparing));
    let mut started = false;
    let exit = loop {
        match event_of(&mut process).await.unwrap() {
            ShimEvent::Started { .. } => started = true,
            ShimEvent::Ended(exit) => break exit,
            _ => {}
        }
    };
    assert!(started);
    assert_eq!((exit.wait, exit.stop, exit.in_prelude), (Wait::Exited { code: 0 }, None, false));
    assert!(exit.duration < Duration::from_millis(600), "{:?}", exit.duration);
    let texts: Vec<_> = records_of(&folder).into_iter().map(|record| record.text).collect();
    assert_eq!(texts, ["one", "two", "three"]);

    let mut launch = after("true", bench.shell("sleep 600"));
    launch.timeout = Some(Duration::from_millis(100));
    let exit = bench.run(launch).await.exit;
    assert_eq!(exit.stop.unwrap().cause, StopCause::Timeout);
    assert!(!exit.in_prelude);
    assert_eq!(shims(bench.path()).len(), 1, "the shim is as good as new");
}

#[tokio::test]
async fn a_prelude_that_fails_is_the_end() {
    let bench = Bench::new();
    for (prelude, wait) in [
        ("echo no >&2; exit 3", Wait::Exited { code: 3 }),
        ("kill -SEGV $$", Wait::Signalled { signal: 11, name: "SIGSEGV".to_owned() }),
    ] {
        let ended = bench.run(after(prelude, bench.shell("touch ran"))).await;
        assert_eq!((&ended.exit.wait, ended.exit.in_prelude), (&wait, true));
        assert!(!ended.task_folder.join("workspace/ran").exists());
    }
    let mut absent = after("true", bench.shell("touch ran"));
    absent.prelude.as_mut().unwrap().program = "/nonexistent/prelude".into();
    let exit = bench.run(absent).await.exit;
    assert!(matches!(exit.wait, Wait::NotStarted { kind: NotStarted::SpawnFailed, .. }), "{:?}", exit.wait);
    let mut nothing = after("true", bench.shell("true"));
    nothing.argv = vec!["no-such-program".into()];
    let exit = bench.run(nothing).await.exit;
    assert!(matches!(exit.wait, Wait::NotStarted { kind: NotStarted::NotFound, .. }), "{:?}", exit.wait);
    assert!(!exit.in_prelude, "the program could not be started");
}

#[tokio::test]
async fn what_a_prelude_leaves_behind_is_gone_before_the_program() {
    let bench = Bench::new();
    let prelude = "setsid sh -c 'trap \"\" TERM; echo $$ >> pids; echo up; exec sleep 1000' & \
                   while [ ! -s pids ]; do sleep 0.01; done";
    let program = "kill -0 $(cat pids) 2>/dev/null && echo still there; echo ran";
    let ended = bench.run(after(prelude, bench.shell(program))).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 });
    assert_eq!(ended.texts(), ["up", "ran"]);
}

#[tokio::test]
async fn a_stop_ends_the_prelude_with_all_it_started_and_the_program_never_begins() {
    let bench = Bench::new();
    for now in [false, true] {
        let prelude = "sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; \
                       while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done; echo up; wait";
        let launch = after(prelude, bench.shell("touch ran"));
        let folder = launch.task_folder.clone();
        let mut process = bench.pool.launch(launch).await.unwrap();
        until_printed(&folder, "up").await;
        process.stop(now).await.unwrap();
        let exit = end_of(&mut process).await;
        let signal = if now { 9 } else { 15 };
        assert!(matches!(exit.wait, Wait::Signalled { signal: by, .. } if by == signal), "{exit:?}");
        assert_eq!((exit.in_prelude, exit.stop.unwrap().cause), (true, StopCause::Requested));
        until("all of them gone", || !noted_pids(&folder).iter().any(|pid| is_running(*pid))).await;
        assert!(!folder.join("workspace/ran").exists());
        assert!(folder.join("stop").exists());
    }
}

#[tokio::test]
async fn the_next_worker_is_told_which_of_both_runs() {
    let bench = Bench::new();
    let launch = after(PATIENT, bench.shell("echo RAN; while [ ! -e end ]; do sleep 0.01; done"));
    let (folder, workspace) = (launch.task_folder.clone(), launch.workspace.clone());
    let process = bench.pool.launch(launch).await.unwrap();
    until_printed(&folder, "PREPARING").await;
    drop(process);
    let worker = bench.kill_worker();

    let pool = pool_in(worker.path());
    let mut adopted = pool.adopt().await.unwrap().remove(0);
    assert!(adopted.preparing);
    assert_eq!(event_of(&mut adopted.process).await, Some(ShimEvent::Preparing));
    std::fs::write(workspace.join("go"), "").unwrap();
    until_printed(&folder, "RAN").await;
    drop(adopted);

    let mut adopted = pool_in(worker.path()).adopt().await.unwrap().remove(0);
    assert!(!adopted.preparing);
    assert!(matches!(event_of(&mut adopted.process).await, Some(ShimEvent::Started { .. })));
    std::fs::write(workspace.join("end"), "").unwrap();
    assert_eq!(end_of(&mut adopted.process).await.wait, Wait::Exited { code: 0 });
}

/// Says what the program gets, and hands over a lock.
const TELLS: &str = r#"
import array, fcntl, json, os, socket
s = socket.socket(fileno=3)
print(s.recv(4096).decode())
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_SH)
said = {"set": [["PATH", os.environ["PATH"]], ["WHO", "prelude"]], "unset": ["GONE"]}
s.sendmsg([json.dumps(said).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [lock]))])
"#;

fn is_free(path: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let file = std::fs::File::open(path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[tokio::test]
async fn what_it_says_changes_the_programs_variables_and_its_lock_is_held_to_the_end() {
    let bench = Bench::new();
    let program = "echo $WHO; echo ${GONE-gone}; while [ ! -e go ]; do sleep 0.01; done";
    let mut launch = with_prelude(&["python3", "-c", TELLS], bench.shell(program));
    launch.env.extend([("WHO".into(), "job".into()), ("GONE".into(), "job".into())]);
    let (folder, workspace) = (launch.task_folder.clone(), launch.workspace.clone());
    let mut process = bench.pool.launch(launch).await.unwrap();
    until_printed(&folder, "gone").await;
    assert!(!is_free(&workspace.join("lock")));
    std::fs::write(workspace.join("go"), "").unwrap();
    assert_eq!(end_of(&mut process).await.wait, Wait::Exited { code: 0 });
    let texts: Vec<_> = records_of(&folder).into_iter().map(|record| record.text).collect();
    assert_eq!(texts, ["what to make", "prelude", "gone"]);
    until("the lock is free", || is_free(&workspace.join("lock"))).await;
}

#[tokio::test]
async fn only_secrets_for_its_tool_reach_it_and_none_its_log() {
    let bench = Bench::new();
    let mut launch = after("echo ${UV_TOKEN-none} ${OTHER-none}", bench.shell("echo $UV_TOKEN $OTHER"));
    launch.secrets = vec![
        ("UV_TOKEN".to_owned(), SecretValue::new("first-secret")),
        ("OTHER".to_owned(), SecretValue::new("second-secret")),
    ];
    let ended = bench.run(launch).await;
    assert_eq!(ended.texts(), ["[secret UV_TOKEN] none", "[secret UV_TOKEN] [secret OTHER]"]);
}

#[tokio::test]
async fn a_long_prelude_leaves_the_program_within_its_limits() {
    let bench = Bench::new();
    if !bench.pool.enforced().memory {
        eprintln!("NOT TESTED: this host gives no memory limits to this user");
        return;
    }
    // Longer than a shim shares its group with a program.
    let mut launch = after("sleep 1.3", bench.shell("cat /proc/self/cgroup; grep -c . /proc/$PPID/cgroup"));
    launch.limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let ended = bench.run(launch).await;
    assert_eq!(ended.exit.memory_limit_bytes, Some(64 << 20));
    let texts = ended.texts();
    let own: Vec<_> = texts.iter().filter(|line| line.contains("/gpulayer-")).collect();
    assert!(!own.is_empty() && own.iter().all(|line| !line.contains("outside")), "{texts:?}");
}
