//! Verdicts against recorded failures (`verdicts/cases.toml`): how many are right, per reason, and that none is
//! confidently wrong; and whatever a program prints, judging it ends, soon, with a readable end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpulayer::contract::end::{Certainty, End, EndReason};
use gpulayer::contract::log::Stream;
use gpulayer::contract::quantity::{Seconds, Timestamp};
use gpulayer::contract::spec::JobSpec;
use gpulayer::domain::verdict::{
    Exit, ExitFacts, KernelLog, LastLine, MemoryFacts, Scene, StopSent, verdict,
};
use proptest::prelude::*;
use serde::Deserialize;

const PID: u32 = 4242;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    exit: Option<i32>,
    signal: Option<String>,
    #[serde(default)]
    stderr: String,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    stdout_later: bool,
    kernel: Option<Vec<String>>,
    oom_kills: Option<u64>,
    limit: Option<u64>,
    peak: Option<u64>,
    oom_after_s: Option<u64>,
    ran_s: Option<u64>,
    #[serde(default)]
    full: Vec<String>,
    reason: EndReason,
    certainty: Option<Certainty>,
    says: Option<String>,
    never: Option<String>,
    #[serde(default)]
    trap: bool,
}

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

fn cases() -> Vec<Case> {
    toml::from_str::<Cases>(include_str!("verdicts/cases.toml")).unwrap().case
}

fn lines(text: &str, stream: Stream, at_micros: i64) -> Vec<LastLine> {
    let line =
        |text: &str| LastLine { stream, time: Timestamp::from_micros(at_micros), text: text.to_owned() };
    text.strip_prefix('\n').unwrap_or(text).lines().map(line).collect()
}

impl Case {
    fn facts(&self) -> ExitFacts {
        let exit = match (&self.signal, self.exit) {
            (Some(signal), _) => Exit::Signalled { signal: signal.clone() },
            (None, code) => Exit::Exited { code: code.unwrap_or(1) },
        };
        let errors = lines(&self.stderr, Stream::Stderr, 10_000_000);
        let prints =
            lines(&self.stdout, Stream::Stdout, if self.stdout_later { 20_000_000 } else { 9_000_000 });
        let scene = Scene {
            lines: if self.stdout_later { [errors, prints].concat() } else { [prints, errors].concat() },
            kernel: KernelLog {
                readable: self.kernel.is_some(),
                lines: self.kernel.clone().unwrap_or_default(),
            },
            pids: vec![PID],
            group: String::new(),
            full: self.full.clone(),
            raised: None,
        };
        ExitFacts {
            duration: Some(Seconds::new(self.ran_s.unwrap_or(30))),
            peak_memory_bytes: self.peak,
            memory: MemoryFacts {
                limit_bytes: self.limit,
                oom_kills: self.oom_kills,
                oom_killed_after: self.oom_after_s.map(Seconds::new),
            },
            scene: Some(Box::new(scene)),
            ..ExitFacts::of(exit)
        }
    }

    fn end(&self) -> End {
        verdict(&self.facts(), &JobSpec::command(["x"]), &[])
    }
}

fn text(end: &End) -> String {
    let sentences = end.detail.iter().chain(&end.advice).chain(&end.basis);
    end.evidence.iter().chain(sentences).cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn recorded_failures_get_their_reason_and_none_is_confidently_wrong() {
    let cases = cases();
    let traps = cases.iter().filter(|case| case.trap).count();
    assert!(cases.len() >= 100 && traps >= 30, "{} cases, {traps} traps", cases.len());
    let mut wrong = Vec::new();
    // By reason: those that have it, those that were given it, those for which both agree.
    let mut counts: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    for case in &cases {
        let end = case.end();
        counts.entry(case.reason.word()).or_default()[0] += 1;
        counts.entry(end.reason.word()).or_default()[1] += 1;
        if end.reason == case.reason {
            counts.entry(end.reason.word()).or_default()[2] += 1;
        }
        let confident = end.certainty.is_some_and(|certainty| certainty >= Certainty::Likely);
        let says = case.says.as_ref().is_none_or(|words| text(&end).contains(words));
        let says = says && case.never.as_ref().is_none_or(|words| !text(&end).contains(words));
        let as_sure = case.certainty.is_none_or(|certainty| end.certainty == Some(certainty));
        if end.reason != case.reason || !says || !as_sure {
            wrong.push(format!("{}{}: {end:#?}", if confident { "CONFIDENTLY " } else { "" }, case.name));
        }
    }
    println!("{:<20} {:>5} {:>10} {:>7}", "reason", "cases", "precision", "recall");
    let (mut right, mut all) = (0, 0);
    for (reason, [have, given, agree]) in &counts {
        let share = |of: u32| if of == 0 { 1.0 } else { f64::from(*agree) / f64::from(of) };
        println!("{reason:<20} {have:>5} {:>10.2} {:>7.2}", share(*given), share(*have));
        (right, all) = (right + agree, all + have);
    }
    println!(
        "{:<20} {all:>5} {:>10.2} {:>7.2}",
        "all",
        f64::from(right) / f64::from(all),
        f64::from(right) / f64::from(all)
    );
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    for (reason, [have, _, agree]) in &counts {
        assert!(f64::from(*agree) >= 0.9 * f64::from(*have), "recall of {reason}");
    }
}

#[test]
fn success_is_never_judged_by_what_was_printed() {
    for case in cases() {
        let facts = ExitFacts { exit: Exit::Exited { code: 0 }, ..case.facts() };
        let end = verdict(&facts, &JobSpec::command(["x"]), &[]);
        assert_eq!((end.reason, end.evidence.len()), (EndReason::Completed, 0), "{}", case.name);
    }
}

/// Pieces that the parsers look for, so that random text gets deep into them.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "  |   File \"/w/a.py\", line 9, in <module>",
        "  File \"x.py\", line 3, in f",
        "    raise ValueError",
        "  File \"x.py\", line 3",
        "ModuleNotFoundError: No module named 'x'",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : -9 (pid: 913)",
        "[rank2]: Traceback (most recent call last):",
        "During handling of the above exception, another exception occurred:",
        "make: *** [Makefile:4: train] Error 1",
        "\x1b[31",
        "[",
        "",
    ];
    prop_oneof![
        3 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => "\\PC{0,300}",
        1 => proptest::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_was_printed_gives_a_readable_end(
        texts in proptest::collection::vec((any::<bool>(), piece()), 0..120),
        code in proptest::option::of(1..=255i32),
        kernel in proptest::collection::vec("(Killed process |oom-kill:,pid=|NVRM: Xid \\(|x\\[)[0-9]{0,12}\\PC{0,40}", 0..4),
        kills in proptest::option::of(0..3u64),
    ) {
        let line = |(error, text): (bool, String)| LastLine {
            stream: if error { Stream::Stderr } else { Stream::Stdout },
            time: Timestamp::from_micros(1),
            text,
        };
        let scene = Scene {
            lines: texts.into_iter().map(line).collect(),
            kernel: KernelLog { readable: true, lines: kernel },
            pids: vec![PID],
            ..Scene::default()
        };
        let exit = code.map_or(Exit::Signalled { signal: "SIGKILL".into() }, |code| Exit::Exited { code });
        let facts = ExitFacts {
            scene: Some(Box::new(scene)),
            memory: MemoryFacts { oom_kills: kills, ..MemoryFacts::default() },
            ..ExitFacts::of(exit)
        };
        let end = verdict(&facts, &JobSpec::command(["x"]), &[]);
        prop_assert!(end.evidence.len() <= 3);
        prop_assert!(end.evidence.iter().all(|line| line.chars().count() <= 241));
        prop_assert!(end.detail.is_some_and(|detail| !detail.is_empty() && detail.chars().count() <= 1000));
        prop_assert!(end.reason != EndReason::Completed);
    }
}

#[test]
fn the_longest_last_words_are_judged_in_bounded_time() {
    let long = "a".repeat(64 << 10);
    for text in [long.as_str(), "  File \"x\", line 1", "Traceback (most recent call last):", "| | | + + | +"]
    {
        let line =
            || LastLine { stream: Stream::Stderr, time: Timestamp::from_micros(1), text: text.to_owned() };
        let scene = Scene { lines: (0..400).map(|_| line()).collect(), ..Scene::default() };
        let facts = ExitFacts { scene: Some(Box::new(scene)), ..ExitFacts::of(Exit::Exited { code: 1 }) };
        let began = Instant::now();
        verdict(&facts, &JobSpec::command(["x"]), &[]);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?} for {}…", began.elapsed(), &text[..10]);
    }
}

#[test]
fn a_program_that_did_not_heed_its_stop_signal_is_told_so() {
    let spec = JobSpec { grace_s: Seconds::new(2), ..JobSpec::command(["x"]) };
    let end = |signal: &str, stopping_for| {
        let exit = Exit::Signalled { signal: signal.to_owned() };
        let facts = ExitFacts { stop: Some(StopSent::Order), stopping_for, ..ExitFacts::of(exit) };
        verdict(&facts, &spec, &[]).detail
    };
    let late = end("SIGKILL", Some(Seconds::new(2)));
    assert_eq!(late.as_deref(), Some("it did not end within grace_s = 2 of its stop signal and was killed"));
    assert_eq!(end("SIGTERM", Some(Seconds::new(2))), None);
    assert_eq!(end("SIGKILL", Some(Seconds::new(1))), None, "it was killed before its time: `--now`");
}

#[test]
fn a_stop_does_not_hide_what_the_kernel_killed_before() {
    let spec = JobSpec { timeout_s: Some(Seconds::new(4)), ..JobSpec::command(["x"]) };
    for (stop, reason) in [
        (StopSent::Order, EndReason::Cancelled),
        (StopSent::Timeout, EndReason::TimedOut),
        (StopSent::Orphaned, EndReason::WorkerLost),
    ] {
        let end = |kills| {
            let exit = Exit::Signalled { signal: "SIGTERM".to_owned() };
            let oom_killed_after = Some(Seconds::new(2)).filter(|_| kills == Some(1));
            let memory = MemoryFacts { oom_kills: kills, oom_killed_after, ..MemoryFacts::default() };
            verdict(&ExitFacts { stop: Some(stop), memory, ..ExitFacts::of(exit) }, &spec, &[])
        };
        let killed = end(Some(1));
        assert_eq!(killed.reason, reason);
        let said = "the kernel killed 1 of its processes for lack of memory, 2 s after start";
        assert!(killed.detail.as_ref().is_some_and(|detail| detail.ends_with(said)), "{killed:?}");
        assert_eq!(killed.evidence, ["OOM kills in the task's group: 1, the first 2 s after the start"]);
        for none in [Some(0), None] {
            assert!(end(none).evidence.is_empty());
            assert!(!end(none).detail.is_some_and(|detail| detail.contains("memory")));
        }
    }
}
