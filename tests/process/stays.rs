//! Programs that stay after their task.

use std::time::Duration;

use gpulayer::process::{Launch, ShimEvent, Stay, StopCause, Wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, Ended, end_of, event_of, is_running, shims, until, until_printed};

/// Says who it is, how often it was called, for which task and in which workspace; does what it is told, and may stay.
const PROGRAM: &str = r#"
import ctypes, json, os, socket, subprocess, sys, time
link = socket.socket(fileno=3)
os.set_inheritable(3, False)
ctypes.CDLL(None).prctl(1, 9)
calls, status = 0, 0
while True:
    calls += 1
    print(os.getpid(), calls, os.environ["GPULAYER_TASK_ID"], os.readlink(sys.argv[1]), flush=True)
    exec(os.environ["GPULAYER_DO"])
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1), os.dup2(nothing, 2), os.close(nothing), os.chdir("/")
    link.send(json.dumps({"status": status}).encode())
    said, streams, _, _ = socket.recv_fds(link, 1 << 20, 2)
    if not said:
        sys.exit(9)
    for number, stream in zip((1, 2), streams):
        os.dup2(stream, number), os.close(stream)
    os.environ.update(json.loads(said)["env"])
"#;

const LONG: Duration = Duration::from_secs(600);

fn launch(bench: &Bench, key: &str, told: &str) -> Launch {
    let mut launch = bench.python(PROGRAM);
    launch.env.push(("GPULAYER_DO".into(), told.into()));
    launch.stay = Some(Stay::new(key.to_owned(), LONG));
    launch
}

/// Who it was, and for how many calls.
fn who(ended: &Ended) -> (u32, u32) {
    let texts = ended.texts();
    let words: Vec<&str> = texts[0].split(' ').collect();
    let folder = ended.task_folder.to_str().unwrap();
    assert!(folder.ends_with(words[2]), "its own task: {texts:?}");
    assert_eq!(words[3], format!("{folder}/workspace"));
    (words[0].parse().unwrap(), words[1].parse().unwrap())
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Those of this pool. One that goes must be gone before the next launch: it may still be handed that, and a worker
/// launches it again then.
async fn until_gone(shims: &[u32]) {
    until("their shims are gone", || !shims.iter().any(|shim| is_running(*shim))).await;
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_program_that_stays_serves_its_own_kind_and_goes_with_the_worker() {
    let bench = Bench::new();
    let first = bench.run(launch(&bench, "a", "status = 3; print('one', file=sys.stderr)")).await;
    assert_eq!(first.exit.wait, Wait::Exited { code: 3 });
    let (pid, calls) = who(&first);
    assert!(calls == 1 && is_stopped(pid), "it waits");
    let other = bench.run(launch(&bench, "b", "pass")).await;
    let alone = bench.run(bench.shell("echo $$")).await;
    assert!(who(&other).0 != pid && alone.texts() != [pid.to_string()]);
    let second = bench.run(launch(&bench, "a", "status = 0; data = bytearray(64 << 20)")).await;
    assert_eq!((second.exit.wait.clone(), who(&second)), (Wait::Exited { code: 0 }, (pid, 2)));
    let third = bench.run(launch(&bench, "a", "data = None")).await;
    assert_eq!((who(&third), third.texts().len(), first.texts().len()), ((pid, 3), 1, 2), "each its own log");
    let peak = |ended: &Ended| ended.exit.peak_memory_bytes.unwrap();
    assert!(peak(&second) > 64 << 20, "{}", peak(&second));
    let waiting = who(&other).0;
    drop(bench.pool);
    until("nobody is left", || !is_running(pid) && !is_running(waiting)).await;
}

#[tokio::test]
async fn one_that_leaves_somebody_does_not_stay_nor_do_they() {
    let bench = Bench::new();
    for left in ["", ", start_new_session=True"] {
        let told = format!("print(subprocess.Popen(['sleep', '600']{left}).pid, flush=True)");
        let ended = bench.run(launch(&bench, "a", &told)).await;
        let (pid, calls) = who(&ended);
        assert_eq!((ended.exit.wait.clone(), calls), (Wait::Exited { code: 0 }, 1));
        let child: u32 = ended.texts()[1].parse().unwrap();
        assert!(!is_running(pid) && !is_running(child));
    }
}

#[tokio::test]
async fn one_that_ends_or_is_ended_in_its_call_is_a_program_like_any() {
    let bench = Bench::new();
    let (pid, _) = who(&bench.run(launch(&bench, "a", "pass")).await);
    let ended = bench.run(launch(&bench, "a", "sys.exit(4)")).await;
    assert_eq!((ended.exit.wait.clone(), who(&ended)), (Wait::Exited { code: 4 }, (pid, 2)));
    let ended = bench.run(launch(&bench, "a", "link.close(); sys.exit(5)")).await;
    assert_eq!((ended.exit.wait.clone(), who(&ended).1), (Wait::Exited { code: 5 }, 1));

    let (pid, _) = who(&bench.run(launch(&bench, "a", "pass")).await);
    let mut limited = launch(&bench, "a", "time.sleep(600)");
    limited.timeout = Some(Duration::from_millis(50));
    let ended = bench.run(limited).await;
    assert_eq!(who(&ended), (pid, 2));
    assert_eq!(ended.exit.stop.unwrap().cause, StopCause::Timeout);
    assert!(matches!(ended.exit.wait, Wait::Signalled { .. }) && !is_running(pid));

    // What it says after the signal counts, and it goes all the same.
    let patient = "import signal; signal.signal(signal.SIGTERM, lambda *_: None); print('here', flush=True); \
                   signal.pause(); status = 6";
    let stopped = launch(&bench, "a", patient);
    let task_folder = stopped.task_folder.clone();
    let mut process = bench.pool.launch(stopped).await.unwrap();
    until_printed(&task_folder, "here").await;
    process.stop(false).await.unwrap();
    let exit = end_of(&mut process).await;
    assert_eq!((exit.wait.clone(), exit.after_stop), (Wait::Exited { code: 6 }, true));
    let pid = who(&Ended { exit, task_folder }).0;
    assert!(!is_running(pid));
}

#[tokio::test]
async fn it_waits_no_longer_than_it_may() {
    let bench = Bench::new();
    let mut brief = launch(&bench, "a", "pass");
    brief.stay = Some(Stay::new("a".to_owned(), Duration::from_millis(20)));
    let (pid, _) = who(&bench.run(brief).await);
    until_gone(&shims(bench.path())).await;
    assert!(!is_running(pid) && shims(bench.path()).is_empty());
    assert_eq!(std::fs::read_dir(bench.path().join("resident")).unwrap().count(), 0, "its link too");
    let (next, calls) = who(&bench.run(launch(&bench, "a", "pass")).await);
    assert!(next != pid && calls == 1);
}

#[tokio::test]
async fn whoever_of_the_two_is_killed_takes_the_other_along() {
    let bench = Bench::new();
    let (first, _) = who(&bench.run(launch(&bench, "a", "pass")).await);
    let [shim] = shims(bench.path())[..] else { panic!("{:?}", shims(bench.path())) };
    kill(shim);
    until("the stopped program is gone", || !is_running(first)).await;
    let (second, calls) = who(&bench.run(launch(&bench, "a", "pass")).await);
    assert_eq!(calls, 1);
    let all = shims(bench.path());
    kill(second);
    until_gone(&all).await;
    assert_eq!(who(&bench.run(launch(&bench, "a", "pass")).await).1, 1);
}

/// Its shim stands still while its program dies, and finds both at once: that, and the next task.
#[tokio::test]
async fn a_task_that_comes_with_the_death_of_the_program_begins_elsewhere() {
    let bench = Bench::new();
    let (first, _) = who(&bench.run(launch(&bench, "a", "pass")).await);
    let [shim] = shims(bench.path())[..] else { panic!("{:?}", shims(bench.path())) };
    let signal = |signal| kill_process(Pid::from_raw(shim as i32).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    until("the shim stands still", || is_stopped(shim)).await;
    kill(first);
    until("the program is dead", || !is_running(first)).await;
    let next = launch(&bench, "a", "pass");
    let taken = next.task_folder.join("shim.json");
    let mut process = bench.pool.launch(next).await.unwrap();
    signal(Signal::CONT);
    let event = event_of(&mut process).await;
    assert!(matches!(event, Some(ShimEvent::ShimLost) | None), "{event:?}");
    assert!(!taken.exists(), "a worker launches it again");
}

#[tokio::test]
async fn in_place_of_one_that_cannot_be_called_another_starts() {
    let bench = Bench::new();
    // It hears no more, and does not end of that: it waits to be stopped as any does.
    let told = "link.shutdown(socket.SHUT_RD); socket.recv_fds = lambda *_: time.sleep(600)";
    let (first, _) = who(&bench.run(launch(&bench, "a", told)).await);
    assert!(is_stopped(first));
    let second = bench.run(launch(&bench, "a", "pass")).await;
    assert_eq!(second.exit.wait, Wait::Exited { code: 0 });
    assert!(who(&second).0 != first && who(&second).1 == 1 && !is_running(first));
    let third = bench.run(launch(&bench, "a", "pass")).await;
    assert_eq!(who(&third), (who(&second).0, 2), "and stays as any does");
}

#[tokio::test]
async fn one_that_cannot_be_stopped_holds_up_nobody() {
    let bench = Bench::new();
    let told = "child = os.fork()\nwhile child == 0: os.kill(os.getppid(), 18)";
    let mut launch = launch(&bench, "a", told);
    launch.timeout = Some(LONG);
    let ended = bench.run(launch).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 });
    assert!(!is_running(who(&ended).0));
}

#[tokio::test]
async fn one_that_is_woken_while_it_waits_is_ended() {
    let bench = Bench::new();
    let (pid, _) = who(&bench.run(launch(&bench, "a", "pass")).await);
    assert_eq!(who(&bench.run(launch(&bench, "a", "pass")).await), (pid, 2), "its shim may wake it");
    assert!(is_stopped(pid));
    let all = shims(bench.path());
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::CONT).unwrap();
    until_gone(&all).await;
    assert!(!is_running(pid));
    assert_eq!(who(&bench.run(launch(&bench, "a", "pass")).await).1, 1);
}

#[tokio::test]
async fn one_that_forgot_to_die_with_its_shim_is_killed_by_the_pool() {
    let bench = Bench::new();
    let (pid, _) = who(&bench.run(launch(&bench, "a", "ctypes.CDLL(None).prctl(1, 0)")).await);
    let [shim] = shims(bench.path())[..] else { panic!("{:?}", shims(bench.path())) };
    kill(shim);
    until("it is gone", || !is_running(pid)).await;
}

#[tokio::test]
async fn a_pool_keeps_no_more_of_them_than_of_idle_shims() {
    let bench = Bench::new();
    let mut pids = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        pids.push(who(&bench.run(launch(&bench, key, "pass")).await).0);
    }
    until("the two that waited longest are gone", || !is_running(pids[0]) && !is_running(pids[1])).await;
    assert!(pids[2..].iter().all(|pid| is_stopped(*pid)));
}
