//! How programs begin and end by themselves.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

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

#[tokio::test]
async fn the_working_folder_is_beneath_the_workspace_and_a_bad_one_is_named() {
    let bench = Bench::new();
    let mut launch = bench.shell("pwd");
    launch.cwd = "a/b".into();
    let folder = launch.workspace.join("a/b");
    std::fs::create_dir_all(&folder).unwrap();
    let ended = bench.run(launch).await;
    assert_eq!(ended.texts(), [folder.canonicalize().unwrap().to_str().unwrap()]);

    for (cwd, why) in [("gone", "No such file"), ("file", "is not a folder")] {
        let mut launch = bench.launch_of(["true"]);
        std::fs::write(launch.workspace.join("file"), "").unwrap();
        launch.cwd = cwd.into();
        let ended = bench.run(launch).await;
        let Wait::NotStarted { kind: NotStarted::BadCwd, detail } = &ended.exit.wait else {
            panic!("{cwd}: {:?}", ended.exit)
        };
        assert!(detail.contains(&format!("workspace/{cwd}")) && detail.contains(why), "{detail}");
    }
}

#[tokio::test]
async fn programs_are_looked_up_in_the_path_of_the_task() {
    let bench = Bench::new();
    let mut launch = bench.launch_of(["greet", "you"]);
    let tools = launch.workspace.join("tools");
    std::fs::create_dir_all(&tools).unwrap();
    std::fs::create_dir_all(launch.workspace.join("greet")).unwrap();
    // Without `#!`, as a shell takes it too.
    executable(&tools.join("greet"), "echo hello $1\n");
    // An empty entry is the working folder, where `greet` is a folder; the second does not exist.
    launch.env[0].1 = format!(":/nowhere:{}", tools.display()).into();
    let ended = bench.run(launch).await;
    assert_eq!((ended.texts(), ended.exit.wait), (vec!["hello you".to_owned()], Wait::Exited { code: 0 }));

    let launch = bench.launch_of(["./tool"]);
    executable(&launch.workspace.join("tool"), "#!/no/such/interpreter\n");
    let ended = bench.run(launch).await;
    let Wait::NotStarted { kind: NotStarted::NotExecutable, detail } = &ended.exit.wait else {
        panic!("{:?}", ended.exit)
    };
    assert!(detail.contains("interpreter"), "{detail}");

    let launch = bench.launch_of(["./tool"]);
    executable(&launch.workspace.join("tool"), "\0\u{1}not of this machine");
    let ended = bench.run(launch).await;
    assert!(
        matches!(ended.exit.wait, Wait::NotStarted { kind: NotStarted::NotExecutable, .. }),
        "{:?}",
        ended.exit
    );

    let mut launch = bench.launch_of(["tool"]);
    std::fs::write(launch.workspace.join("tool"), "#!/bin/sh\n").unwrap();
    launch.env[0].1 = ".".into();
    let ended = bench.run(launch).await;
    let Wait::NotStarted { kind, detail } = &ended.exit.wait else { panic!("{:?}", ended.exit) };
    assert_eq!(
        (*kind, detail.contains("./tool is not executable")),
        (NotStarted::NotExecutable, true),
        "{detail}"
    );
}

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_task_folder_that_is_gone_is_an_end_and_not_a_hang() {
    let bench = Bench::new();
    let launch = bench.launch_of(["true"]);
    std::fs::remove_dir_all(&launch.task_folder).unwrap();
    let ended = bench.run(launch).await;
    assert!(
        matches!(ended.exit.wait, Wait::NotStarted { kind: NotStarted::SpawnFailed, .. }),
        "{:?}",
        ended.exit
    );
}

#[tokio::test]
async fn the_environment_is_exactly_what_was_asked_for() {
    let bench = Bench::new();
    let mut launch = bench.launch_of(["/usr/bin/env", "-0"]);
    let odd = OsString::from_vec(b"not \xff utf-8\nand two lines".to_vec());
    launch.env.push(("ODD".into(), odd.clone()));
    let expected = launch.env.clone();
    launch.argv = vec!["sh".into(), "-c".into(), "exec /usr/bin/env -0 > env".into()];
    let workspace = launch.workspace.clone();
    bench.run(launch).await;
    let written = std::fs::read(workspace.join("env")).unwrap();
    let mut seen: Vec<&[u8]> = written.split(|byte| *byte == 0).filter(|line| !line.is_empty()).collect();
    // Set by the shell itself.
    seen.retain(|line| !line.starts_with(b"PWD="));
    seen.sort();
    let mut expected: Vec<Vec<u8>> =
        expected.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_program_finds_three_descriptors_default_signals_and_a_session_of_its_own() {
    let bench = Bench::new();
    // `ls` has one more open: the folder it lists.
    let ended =
        bench.run(bench.shell("ls /proc/self/fd; umask; grep -E 'Sig(Blk|Ign)' /proc/self/status")).await;
    let texts = ended.texts();
    assert_eq!(texts[..5], ["0", "1", "2", "3", "0022"]);
    for line in &texts[5..] {
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    let ended = bench
        .run(bench.shell(
            "read -r pid comm state ppid group session rest < /proc/$$/stat; echo $pid $group $session",
        ))
        .await;
    let text = ended.texts().remove(0);
    let numbers: Vec<&str> = text.split(' ').collect();
    assert_eq!((numbers[0], numbers[0]), (numbers[1], numbers[2]));
}

#[tokio::test]
async fn stdin_is_at_its_end_and_closed_pipes_do_not_end_a_task() {
    let bench = Bench::new();
    let ended = bench.run(bench.shell("cat; echo read all")).await;
    assert_eq!(ended.texts(), ["read all"]);

    let launch = bench.shell("exec <&- >&- 2>&-; sleep 0.3; : > finished; exit 5");
    let workspace = launch.workspace.clone();
    let ended = bench.run(launch).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 5 });
    assert!(workspace.join("finished").exists());
    assert!(ended.exit.duration >= Duration::from_millis(300), "{:?}", ended.exit.duration);
}
