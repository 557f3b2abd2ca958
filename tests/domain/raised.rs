//! The end of a function job whose function raised: by what its runner wrote down, whatever its log ends with.

use gpulayer::contract::end::{Certainty, End, EndReason};
use gpulayer::contract::log::Stream;
use gpulayer::contract::quantity::Timestamp;
use gpulayer::contract::spec::{Function, JobSpec, Serializer, Workload};
use gpulayer::domain::verdict::{Exit, ExitFacts, LastLine, MemoryFacts, Raised, Scene, verdict};
use serde_json::json;

fn function() -> JobSpec {
    JobSpec::new(Workload::Function(Box::new(Function {
        payload: "{}".to_owned(),
        serializer: Serializer::Json,
        entrypoint: Some("m:f".to_owned()),
        values: Vec::new(),
        reuse: false,
    })))
}

fn raised(class: &str, module: &str, message: &str, traceback: &str, advice: Option<&str>) -> Raised {
    let told = json!({"type": class, "module": module, "message": message, "traceback": traceback,
        "pickle": null, "python": [3, 12, 1], "stage": "call", "advice": advice});
    Raised::read(told.to_string().as_bytes()).unwrap()
}

/// The facts of a task whose log ended with these lines.
fn facts(raised: Option<Raised>, log: &str) -> ExitFacts {
    let line = |text: &str| LastLine {
        stream: Stream::Stderr,
        time: Timestamp::from_micros(1),
        text: text.to_owned(),
    };
    let scene = Scene { lines: log.lines().map(line).collect(), raised, ..Scene::default() };
    ExitFacts { scene: Some(Box::new(scene)), ..ExitFacts::of(Exit::Exited { code: 1 }) }
}

fn end(raised: &Raised, log: &str) -> End {
    verdict(&facts(Some(raised.clone()), log), &function(), &[])
}

fn traceback(last: &str) -> String {
    format!("Traceback (most recent call last):\n  File \"/w/m.py\", line 3, in f\n    g()\n{last}\n")
}

#[test]
fn what_was_raised_decides_whatever_the_log_ends_with() {
    let oom = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.00 GiB";
    let of_import = "No module named 'sys'";
    let long = format!("{}\n", "IMPORTANT: PLEASE READ THIS\n".repeat(60));
    for (class, module, message, reason, says) in [
        (
            "ModuleNotFoundError",
            "builtins",
            "No module named 'notthere'",
            EndReason::ImportError,
            "`notthere`",
        ),
        (
            "ImportError",
            "builtins",
            "cannot import name 'f' from 'm' (/w/m.py)",
            EndReason::ImportError,
            "`f`",
        ),
        (
            "ImportError",
            "builtins",
            "libcudnn.so.9: cannot open shared object file: No such file or directory",
            EndReason::ImportError,
            "libcudnn",
        ),
        ("ImportError", "builtins", &long, EndReason::ImportError, "PLEASE READ"),
        ("OutOfMemoryError", "torch", oom, EndReason::CudaOutOfMemory, "2.00 GiB"),
        ("OutOfMemoryError", "torch.cuda", oom, EndReason::CudaOutOfMemory, "2.00 GiB"),
        ("ValueError", "builtins", of_import, EndReason::ExitNonzero, "ValueError: No module named 'sys'"),
        ("f.<locals>.Empty", "__main__", "nothing there", EndReason::ExitNonzero, "Empty: nothing there"),
        (
            "CallError",
            "gpulayer",
            "the function was sent as code of Python 3.9",
            EndReason::ExitNonzero,
            "Python 3.9",
        ),
        (
            "TypeError",
            "builtins",
            "cannot pickle '_thread.lock' object",
            EndReason::ExitNonzero,
            "TypeError: cannot pickle",
        ),
        ("RecursionError", "builtins", "", EndReason::ExitNonzero, "RecursionError"),
    ] {
        let shown = if module == "builtins" { class.to_owned() } else { format!("{module}.{class}") };
        let shown = if module == "gpulayer" {
            format!("{message}\n")
        } else {
            traceback(&format!("{shown}: {message}"))
        };
        let told = raised(class, module, message, &shown, None);
        for log in [
            shown.clone(),
            format!(
                "{shown}a note of the exception\n[notthere is not there for /usr/bin/python3 on this worker: …]"
            ),
            // While the interpreter ends.
            format!(
                "{shown}Exception ignored in: <function A.__del__ at 0x7f>\n{}",
                traceback("ImportError: sys.meta_path is None, Python is likely shutting down")
            ),
            // Its own traceback fell out of a log that says too much.
            format!(
                "{}\nthe last of many lines",
                traceback("ModuleNotFoundError: No module named 'handled'")
            ),
            String::new(),
        ] {
            let end = end(&told, &log);
            assert_eq!(end.reason, reason, "{class}, log {log}: {end:?}");
            let said = format!("{:?} {:?}", end.detail, end.evidence);
            assert!(said.contains(says) && !end.evidence.is_empty(), "{class}, log {log}: {end:?}");
            assert!(end.certainty != Some(Certainty::Possible), "{end:?}");
        }
    }
}

#[test]
fn what_the_runner_advises_is_what_to_try() {
    let shown = traceback("ModuleNotFoundError: No module named 'notthere'");
    let advice =
        "notthere is not there for /usr/bin/python3 on this worker: add it to the job's requirements";
    let told = raised("ModuleNotFoundError", "builtins", "No module named 'notthere'", &shown, Some(advice));
    let end = end(&told, "");
    assert_eq!(end.advice.as_deref(), Some(advice));
    assert_eq!(
        end.evidence,
        ["  File \"/w/m.py\", line 3, in f", "    g()", "ModuleNotFoundError: No module named 'notthere'"]
    );
    let unsent = raised(
        "TypeError",
        "builtins",
        "cannot pickle",
        &traceback("TypeError: cannot pickle"),
        Some("return what can be sent"),
    );
    let end = self::end(&unsent, "");
    assert_eq!(
        (end.reason, end.advice.as_deref()),
        (EndReason::ExitNonzero, Some("return what can be sent"))
    );
}

#[test]
fn it_decides_nothing_where_another_cause_is_known() {
    let shown = traceback("ModuleNotFoundError: No module named 'notthere'");
    let told = raised("ModuleNotFoundError", "builtins", "No module named 'notthere'", &shown, None);
    // A command's folder is its own affair: whatever lies there is not the runner's word.
    let command = verdict(&facts(Some(told.clone()), ""), &JobSpec::command(["x"]), &[]);
    assert_eq!(command.reason, EndReason::ExitNonzero);
    let killed = MemoryFacts { oom_kills: Some(1), ..MemoryFacts::default() };
    let killed = ExitFacts { memory: killed, ..facts(Some(told.clone()), "") };
    assert_eq!(verdict(&killed, &function(), &[]).reason, EndReason::OomKilled);
    let later = ExitFacts { exit: Exit::Exited { code: 3 }, ..facts(Some(told), "") };
    assert_eq!(
        verdict(&later, &function(), &[]).reason,
        EndReason::ExitNonzero,
        "it went on and ended otherwise"
    );
    // A launcher only says that a child failed, which said why.
    let launcher =
        traceback("subprocess.CalledProcessError: Command '['train']' returned non-zero exit status 1.");
    let told = raised(
        "CalledProcessError",
        "subprocess",
        "Command '['train']' returned non-zero exit status 1.",
        &launcher,
        None,
    );
    let log = format!("{}{launcher}", traceback("ModuleNotFoundError: No module named 'einops'"));
    assert_eq!(end(&told, &log).reason, EndReason::ImportError);
    assert_eq!(end(&told, "").reason, EndReason::ExitNonzero);
}

#[test]
fn a_group_is_what_it_begins_with_and_garbage_is_nothing() {
    let shown = "  + Exception Group Traceback (most recent call last):\n  |   File \"/w/m.py\", line 9, in f\n  |     g()\n  | ExceptionGroup: two of them (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"/w/m.py\", line 4, in g\n    |     import notthere\n    | ModuleNotFoundError: No module named 'notthere'\n    +---------------- 2 ----------------\n    | ValueError: x\n    +------------------------------------\n";
    let told = raised("ExceptionGroup", "builtins", "two of them (2 sub-exceptions)", shown, None);
    assert_eq!(end(&told, "").reason, EndReason::ImportError);
    for garbage in
        ["", "{}", "[1]", "{\"type\": 1, \"module\": \"m\", \"message\": \"\", \"traceback\": \"\"}", "\u{0}"]
    {
        assert_eq!(Raised::read(garbage.as_bytes()), None, "{garbage}");
    }
    // Of any length, and of any form.
    let vast = "x\n".repeat(1 << 20);
    let told = raised("E\n", "m\u{0}", &vast, &vast, Some(&vast));
    let end = end(&told, &vast);
    assert!(end.evidence.iter().all(|line| line.chars().count() <= 241), "{:?}", end.evidence);
    assert!(end.advice.is_some_and(|advice| advice.chars().count() <= 481));
}
