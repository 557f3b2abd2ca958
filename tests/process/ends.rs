//! How programs begin and end by themselves.

use gpulayer::process::{ExitRecord, NotStarted, Wait};

use crate::bench::Bench;

#[tokio::test]
async fn a_status_a_signal_and_the_record_on_disk() {
    let bench = Bench::new();
    for code in [0, 1, 3, 255] {
        let ended = bench.run(bench.shell(&format!("exit {code}"))).await;
        assert_eq!(ended.exit.wait, Wait::Exited { code });
        assert_eq!(ExitRecord::read(&ended.task_folder).unwrap(), Some(ended.exit));
    }
    for (signal, name) in [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (34, "SIGRTMIN+0")] {
        let ended = bench.run(bench.shell(&format!("kill -{signal} $$"))).await;
        assert_eq!(ended.exit.wait, Wait::Signalled { signal, name: name.into() });
        assert_eq!((ended.exit.stop, ended.exit.after_stop), (None, false));
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_or_cannot_run_is_named() {
    let bench = Bench::new();
    let cases: [(&str, NotStarted, &str); 5] = [
        ("no-such-program", NotStarted::NotFound, "no-such-program"),
        ("./no-such-program", NotStarted::NotFound, "./no-such-program"),
        ("/etc/passwd", NotStarted::NotExecutable, "/etc/passwd"),
        ("/etc", NotStarted::NotExecutable, "/etc is a folder"),
        ("", NotStarted::NotFound, "PATH"),
    ];
    for (program, expected, named) in cases {
        let ended = bench.run(bench.launch_of([program])).await;
        let Wait::NotStarted { kind, detail } = &ended.exit.wait else {
            panic!("{program}: {:?}", ended.exit)
        };
        assert_eq!(*kind, expected, "{program}");
        assert!(detail.contains(named), "{detail}");
        assert_eq!(ExitRecord::read(&ended.task_folder).unwrap(), Some(ended.exit));
    }
}
