//! Programs that break job runners, and the end that each must come to: alone, beside its twin, under a timeout,
//! cancelled in its first moments, and with the daemon killed in the middle.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Sequence};
use gpulayer::contract::log::{LogLine, Stream};
use gpulayer::contract::quantity::Seconds;
use rand::RngExt;
use serde_json::{Value, json};

use crate::house::{House, alive, eventually};
use crate::processes;

const FLOOD_LINES: usize = 20_000;
const HUNGRY_BYTES: u64 = 128 << 20;
const SECRET: &str = "correct/horse battery+staple=47";

/// One program, and what must come of it.
struct Case {
    /// The file in `tests/e2e/programs` and its arguments.
    words: &'static [&'static str],
    /// Declared outputs.
    outputs: &'static [&'static str],
    /// How it ends when nobody disturbs it; `cancelled` = it has to be stopped.
    reason: EndReason,
    exit_code: Option<i32>,
    /// Looks at what it left when it ended undisturbed.
    check: fn(&House, &Outcome),
}

/// A job that has ended.
struct Outcome {
    pids: PathBuf,
    job: Job,
    lines: Vec<LogLine>,
}

impl Outcome {
    fn texts(&self, stream: Stream) -> Vec<&str> {
        self.lines.iter().filter(|line| line.stream == stream).map(|line| line.text.as_str()).collect()
    }

    fn stdout(&self) -> Vec<&str> {
        self.texts(Stream::Stdout)
    }
}

const fn case(words: &'static [&'static str], check: fn(&House, &Outcome)) -> Case {
    Case { words, outputs: &[], reason: EndReason::Completed, exit_code: Some(0), check }
}

const fn ends(words: &'static [&'static str], reason: EndReason, exit_code: Option<i32>) -> Case {
    Case { words, outputs: &[], reason, exit_code, check: says_how_it_ends }
}

/// Every program of `tests/e2e/programs`; the hungry one only where the worker can hold it to its limit.
async fn cases(house: &House) -> Vec<Case> {
    let worker = eventually("the worker", async || {
        let workers: Value = house.client().get("/v1/workers").await.unwrap();
        workers["items"].get(0).cloned()
    })
    .await;
    let mut cases = all_cases();
    if worker["capabilities"]["limits"]["memory"] != json!(true) {
        println!("memory is not limited here: eats_memory.py is left out");
        cases.retain(|case| case.words[0] != "eats_memory.py");
    }
    cases
}

fn all_cases() -> Vec<Case> {
    vec![
        Case {
            reason: EndReason::OomKilled,
            exit_code: Some(1),
            ..case(&["eats_memory.py"], it_ate_all_it_had)
        },
        Case { reason: EndReason::Cancelled, exit_code: None, ..case(&["deaf_tree.py"], |_, _| ()) },
        case(&["holds_stdout.sh"], |_, seen| assert_eq!(seen.stdout(), ["parent done"])),
        case(&["prints_much.py", "20000"], prints_all_of_it),
        case(&["redraws.py"], a_bar_is_a_few_lines),
        case(&["raw_bytes.py"], bytes_are_readable),
        Case { outputs: &["out.txt"], ..case(&["shuts_stdio.py"], its_file_is_there) },
        case(&["drinks_stdin.py"], |_, seen| assert_eq!(seen.stdout(), ["read 0 bytes"])),
        Case { outputs: &["out"], ..case(&["strange_files.py"], what_can_come_comes) },
        case(&["forks_and_leaves.py"], |_, seen| assert_eq!(seen.stdout(), ["the storm is over"])),
        case(&["looks_around.py"], sees_only_what_is_allowed),
        Case {
            reason: EndReason::ExitNonzero,
            exit_code: Some(1),
            ..case(&["spills_secret.py"], its_secret_is_nowhere)
        },
        ends(&["dies.py", "0"], EndReason::Completed, Some(0)),
        ends(&["dies.py", "7"], EndReason::ExitNonzero, Some(7)),
        ends(&["dies.py", "SIGSEGV"], EndReason::Signalled, None),
        ends(&["dies.py", "SIGKILL"], EndReason::Signalled, None),
        ends(&["dies.py", "import"], EndReason::ImportError, Some(1)),
        ends(&["dies.py", "cuda"], EndReason::CudaOutOfMemory, Some(1)),
        ends(&["dies.py", "nccl"], EndReason::NcclError, Some(1)),
        ends(&["dies.py", "traceback"], EndReason::ExitNonzero, Some(1)),
        ends(&["dies.py", "missing"], EndReason::ExitNonzero, Some(1)),
    ]
}

fn says_how_it_ends(_: &House, seen: &Outcome) {
    let way = seen.stdout()[0].strip_prefix("about to end by ").unwrap().to_owned();
    let end = seen.job.end.as_ref().unwrap();
    let signal = way.starts_with("SIG").then_some(way.as_str());
    assert_eq!(end.signal.as_deref(), signal);
    let said = seen.texts(Stream::Stderr).join("\n");
    let evidence = end.evidence.join("\n");
    match way.as_str() {
        "import" => assert!(evidence.contains("No module named 'no_such_module_anywhere'"), "{end:?}"),
        "cuda" => assert!(evidence.contains("RuntimeError: CUDA out of memory."), "{end:?}"),
        "nccl" => assert!(evidence.contains("RuntimeError: NCCL error in"), "{end:?}"),
        "traceback" if !evidence.contains("IndexError: list index out of range") => panic!("{end:?}"),
        "missing" if !evidence.contains("no-such-program-anywhere") => panic!("{end:?}"),
        "traceback" => assert!(said.contains("IndexError: list index out of range"), "{said}"),
        "missing" => assert!(said.contains("FileNotFoundError"), "{said}"),
        _ => assert_eq!(said, ""),
    }
}

fn prints_all_of_it(_: &House, seen: &Outcome) {
    let lines = seen.stdout();
    assert_eq!(lines.last(), Some(&"LAST"));
    if seen.job.log_artifact.is_none() {
        assert_eq!(lines.len(), FLOOD_LINES + 1);
        let right = |(at, line): (usize, &&str)| line.starts_with(&format!("{} ...", at + 1));
        assert!(lines[..FLOOD_LINES].iter().enumerate().all(right), "in order, and none twice");
    }
}

fn a_bar_is_a_few_lines(_: &House, seen: &Outcome) {
    assert_eq!(seen.stdout(), ["step 0", "step 1", "step 2", "step 3", "step 4"]);
    let bar = seen.texts(Stream::Stderr);
    assert_eq!(bar.last(), Some(&"done"));
    assert!((2..20).contains(&bar.len()), "{} lines", bar.len());
    assert!(bar[bar.len() - 2].ends_with("] 1499"), "{bar:?}");
}

fn bytes_are_readable(_: &House, seen: &Outcome) {
    let lines = seen.stdout();
    let (long, rest) = lines.split_at(lines.len() - 5);
    let letters: usize = long.iter().map(|line| line.matches('a').count()).sum();
    assert_eq!(letters, 1 << 20);
    assert!(long.iter().all(|line| line.len() < (64 << 10) + 10), "long lines are cut");
    assert!(
        rest[0].starts_with("no utf-8: ") && rest[1].starts_with("a nul: ") && rest[2].contains("red"),
        "{rest:?}"
    );
    assert!(rest[3].contains("é 🚀") && rest[4] == "no line end", "{rest:?}");
}

fn it_ate_all_it_had(_: &House, seen: &Outcome) {
    let peak = seen.job.end.as_ref().unwrap().peak_memory_bytes.unwrap();
    assert!((HUNGRY_BYTES / 2..=HUNGRY_BYTES).contains(&peak), "{peak}");
    assert_eq!(seen.stdout(), ["the child ended with 9"]);
}

fn its_file_is_there(_: &House, seen: &Outcome) {
    assert_eq!(seen.job.outputs.len(), 1);
    assert_eq!(seen.job.outputs[0].size_bytes, 9);
}

fn what_can_come_comes(house: &House, seen: &Outcome) {
    let to = house.path().join(seen.job.id.to_string());
    let fetch = house.run(&["fetch", &seen.job.id.to_string(), "--to", to.to_str().unwrap()]);
    assert!(fetch.status.success(), "{fetch:?}");
    for name in ["plain", "two words", "two\nlines", "--help", "ünïcødé", "a/b/deep", "void"] {
        let text = if name == "void" { String::new() } else { format!("I am {name}") };
        assert_eq!(std::fs::read_to_string(to.join("out").join(name)).unwrap(), text, "{name}");
    }
    assert_eq!(std::fs::read_link(to.join("out/link_inside")).unwrap(), Path::new("plain"));
    let holes = std::fs::metadata(to.join("out/holes")).unwrap();
    assert_eq!(holes.len(), (64 << 20) + 3);
    assert!(std::os::unix::fs::MetadataExt::blocks(&holes) < 2048, "holes stay holes");
    let warned = |what: &str| seen.job.warnings.iter().any(|warning| warning.detail.contains(what));
    assert!(warned("link_outside") && warned("out/pipe"), "{:?}", seen.job.warnings);
    assert_eq!(seen.job.outputs.len(), 9, "{:?}", seen.job.outputs);
}

fn its_secret_is_nowhere(house: &House, seen: &Outcome) {
    let said = seen.stdout();
    assert_eq!(said.iter().filter(|line| line.starts_with("here it is: ")).count(), 4, "{said:?}");
    let forms = std::fs::read_to_string(seen.pids.with_extension("forms")).unwrap();
    let mut known = serde_json::to_string(&seen.job).unwrap();
    known.push_str(&serde_json::to_string(&seen.lines).unwrap());
    let events = house.run(&["events", "--json", &seen.job.id.to_string()]);
    known.push_str(&String::from_utf8_lossy(&events.stdout));
    for file in ["gpulayer.db", "gpulayer.db-wal", "logs.db", "logs.db-wal"] {
        known
            .push_str(&String::from_utf8_lossy(&std::fs::read(house.state().join(file)).unwrap_or_default()));
    }
    let form = forms.lines().find(|form| known.contains(form));
    assert_eq!(form, None, "{said:?}");
}

fn sees_only_what_is_allowed(_: &House, seen: &Outcome) {
    let saw: Value = serde_json::from_str(seen.stdout()[0]).unwrap();
    let allowed = |name: &str| {
        let own = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "PIDS"];
        let of_gpulayer = ["PYTHONUNBUFFERED", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];
        own.contains(&name)
            || of_gpulayer.contains(&name)
            || name.starts_with("LC_")
            || name.starts_with("GPULAYER_")
    };
    let names: Vec<&str> =
        saw["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.iter().all(|name| allowed(name)), "{names:?}");
    let secret = |name: &&str| ["TOKEN", "HOME", "STATE", "URL"].iter().any(|word| name.contains(word));
    assert!(!names.iter().filter(|name| name.starts_with("GPULAYER_")).any(secret), "{names:?}");
    assert_eq!(saw["descriptors"], json!([0, 1, 2, 3]), "its own three, and that of its look");
    assert_eq!(saw["ignored"], "0000000001001000", "what Python itself ignores");
    assert_eq!(saw["blocked"], "0000000000000000");
    assert_eq!((&saw["leads_its_session"], &saw["umask"]), (&json!(true), &json!(0o22)));
}

/// The interpreter itself: what stands in `PATH` may be a script that sets variables of its own.
fn python() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let words = ["-c", "import sys; print(sys.executable, end='')"];
        String::from_utf8(Command::new("python3").args(words).output().unwrap().stdout).unwrap()
    });
    &PYTHON
}

/// A job of one case that was submitted.
struct Run {
    case: Case,
    id: JobId,
    pids: PathBuf,
}

impl Run {
    async fn submit(house: &House, case: Case, extra: Value) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/programs");
        let program = folder.join(case.words[0]);
        let interpreter = if case.words[0].ends_with(".py") { python() } else { "sh" };
        let pids = house.path().join(format!("pids-{:x}", rand::random::<u64>()));
        let mut argv = vec![interpreter, program.to_str().unwrap()];
        argv.extend(&case.words[1..]);
        let outputs: Vec<Value> = case.outputs.iter().map(|path| json!({"path": path})).collect();
        let mut spec = json!({
            "name": case.words.join(" "),
            "workload": {"command": {"argv": argv}},
            "resources": {"cpus": 0.25},
            "env": {"PIDS": pids},
            "outputs": outputs,
            "grace_s": 0.2,
        });
        if case.words[0] == "eats_memory.py" {
            spec["resources"]["memory_bytes"] = json!(HUNGRY_BYTES);
        }
        if case.words[0] == "spills_secret.py" {
            let secret = house.path().join("secret");
            if !secret.exists() {
                // Once: the worker may be reading it for the copy before.
                std::fs::write(&secret, SECRET).unwrap();
            }
            spec["secrets"] = json!([{"name": "API_KEY", "ref": format!("file:{}", secret.display())}]);
        }
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let id = house.submit(&spec).await.id;
        Self { case, id, pids }
    }

    async fn cancel(&self, house: &House) {
        let _: Value =
            house.client().post(&format!("/v1/jobs/{}/cancel", self.id), &json!({})).await.unwrap();
    }

    /// Waits until it is well under way, as far as that can be seen.
    async fn is_under_way(&self, house: &House) {
        if self.case.reason == EndReason::Cancelled {
            return house.logged(self.id, "READY").await;
        }
        eventually("the start", async || {
            let job: Job = house.client().get(&format!("/v1/jobs/{}", self.id)).await.unwrap();
            (job.state == JobState::Running || job.state.ended()).then_some(())
        })
        .await;
    }

    /// Waits for the end; nothing it has started is alive then.
    async fn outcome(&self, house: &House) -> Outcome {
        let job = house.end(self.id).await;
        let noted = std::fs::read_to_string(&self.pids).unwrap_or_default();
        for pid in noted.lines().map(|line| line.parse().unwrap()) {
            assert!(!alive(pid), "{}: {} is left", self.name(), processes::command_line(pid));
        }
        let (mut lines, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/v1/jobs/{}/logs?limit=500&after={after}", self.id);
            let page: Sequence<LogLine> = house.client().get(&path).await.unwrap();
            if page.items.is_empty() {
                return Outcome { pids: self.pids.clone(), job, lines };
            }
            after = page.next_after;
            lines.extend(page.items);
        }
    }

    fn name(&self) -> String {
        self.case.words.join(" ")
    }

    fn assert_right(&self, house: &House, seen: &Outcome) {
        let end = seen.job.end.as_ref().unwrap();
        let right = (self.case.reason, self.case.exit_code, 1);
        assert_eq!((end.reason, end.exit_code, seen.job.attempt), right, "{}: {end:?}", self.name());
        println!("{}: {}", self.name(), end.reason.word());
        (self.case.check)(house, seen);
    }
}

async fn submit_all(house: &House, copies: usize, extra: Value) -> Vec<Run> {
    let mut runs = Vec::new();
    for _ in 0..copies {
        for case in cases(house).await {
            runs.push(Run::submit(house, case, extra.clone()).await);
        }
    }
    runs
}

async fn nothing_is_left(house: &House) {
    eventually("every process to be gone", async || house.leftovers().is_empty().then_some(())).await;
    eventually("every task folder to be gone", async || {
        std::fs::read_dir(house.state().join("worker/tasks")).ok()?.next().is_none().then_some(())
    })
    .await;
}

/// Those that have to be stopped are, once they are ready; then all are looked at.
async fn all_end_right(house: &House, runs: Vec<Run>) {
    for run in runs.iter().filter(|run| run.case.reason == EndReason::Cancelled) {
        run.is_under_way(house).await;
        run.cancel(house).await;
    }
    for run in &runs {
        run.assert_right(house, &run.outcome(house).await);
    }
    nothing_is_left(house).await;
}

#[actix_rt::test]
async fn every_program_ends_as_it_must_alone_and_beside_its_twin() {
    let house = House::new();
    let _daemon = house.daemon().await;
    for copies in [1, 2] {
        let runs = submit_all(&house, copies, json!({})).await;
        all_end_right(&house, runs).await;
    }
}

#[actix_rt::test]
async fn under_a_timeout_of_a_second_every_program_ends_by_itself_or_is_stopped() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let timeout = Seconds::from_millis(1000);
    for run in submit_all(&house, 1, json!({"timeout_s": timeout})).await {
        let seen = run.outcome(&house).await;
        let end = seen.job.end.as_ref().unwrap();
        if end.reason == EndReason::TimedOut {
            assert!(end.duration_s.unwrap() >= timeout, "{}: {end:?}", run.name());
        } else {
            run.assert_right(&house, &seen);
        }
        let lasting = ["deaf_tree.py", "shuts_stdio.py", "redraws.py"].contains(&run.case.words[0]);
        assert!(!lasting || end.reason == EndReason::TimedOut, "{}: {end:?}", run.name());
    }
    nothing_is_left(&house).await;
}

#[actix_rt::test]
async fn cancelled_in_its_first_moments_every_program_ends_once() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let cancelling = cases(&house).await.into_iter().map(|case| async {
        let run = Run::submit(&house, case, json!({})).await;
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..50))).await;
        run.cancel(&house).await;
        run
    });
    for run in futures_util::future::join_all(cancelling).await {
        let seen = run.outcome(&house).await;
        let end = seen.job.end.as_ref().unwrap();
        if end.reason != EndReason::Cancelled {
            run.assert_right(&house, &seen);
        }
    }
    nothing_is_left(&house).await;
}

#[actix_rt::test]
async fn with_the_daemon_killed_in_the_middle_every_program_ends_as_if_it_had_not_been() {
    let house = House::new();
    let daemon = house.daemon().await;
    let runs = submit_all(&house, 1, json!({})).await;
    for run in &runs {
        run.is_under_way(&house).await;
    }
    tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..300))).await;
    daemon.kill();
    let _daemon = house.daemon().await;
    all_end_right(&house, runs).await;
}
