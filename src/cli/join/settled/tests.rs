//! Flags, memory and settings, and what comes of them.

use super::*;

fn args(folder: &Path) -> WorkerArgs {
    WorkerArgs {
        server: Some("http://127.0.0.1:9".into()),
        folder: Some(folder.join("worker")),
        allow_root_tasks: true,
        ..WorkerArgs::default()
    }
}

fn faults(args: &WorkerArgs, settings: &Settings) -> Vec<String> {
    match settle(args, None, settings) {
        Err(JoinError::Faults { faults }) => faults.into_iter().map(|fault| fault.pointer).collect(),
        Err(error) => panic!("{error}"),
        Ok(_) => Vec::new(),
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let wrong = WorkerArgs {
        server: Some("nowhere".into()),
        token_file: Some("/nowhere/token".into()),
        cpus: Some("0".into()),
        memory: Some("much".into()),
        labels: vec!["zone".into(), "=x".into()],
        pythons: vec!["python3".into()],
        min_free: Some("-1".into()),
        advertise_address: Some("a b".into()),
        name: Some(String::new()),
        ..args(home.path())
    };
    let told = faults(&wrong, &settings);
    for flag in [
        "SERVER",
        "--token-file",
        "--cpus",
        "--memory",
        "--label",
        "--python",
        "--min-free",
        "--advertise-address",
        "--name",
    ] {
        assert!(told.iter().any(|told| told == flag), "{flag} in {told:?}");
    }
    assert_eq!(told.iter().filter(|told| *told == "--label").count(), 2);
}

#[test]
fn a_connection_string_says_all_and_keeps_its_token_out_of_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let of = |server: &str| WorkerArgs { server: Some(server.to_owned()), ..args(home.path()) };
    let pin = format!("sha256:{}", "ab".repeat(32));
    let settled = settle(&of(&format!("gpulayer://glj_0f@box:8470?pin={pin}")), None, &settings).unwrap();
    assert_eq!(settled.endpoint.to_string(), "https://box:8470");
    assert_eq!((settled.token.as_deref(), settled.trust.pins.len()), (Some("glj_0f"), 1));
    settled.remembered.write(settled.folder()).unwrap();
    let text = std::fs::read_to_string(settled.folder().join("server.json")).unwrap();
    assert!(text.contains(&pin) && !text.contains("glj_"), "{text}");
    let again = WorkerArgs { server: None, ..args(home.path()) };
    assert_eq!(settle(&again, None, &settings).unwrap().trust, settled.trust);
    assert_eq!(faults(&of("gpulayer://glc_0f@box:8470"), &settings), ["SERVER"]);
    let elsewhere = |server: &str| WorkerArgs { folder: Some(home.path().join("other")), ..of(server) };
    assert_eq!(faults(&elsewhere("http://10.1.2.3:8470"), &settings), ["SERVER"]);
    let meant = WorkerArgs { allow_insecure_remote: true, ..elsewhere("http://10.1.2.3:8470") };
    assert!(faults(&meant, &settings).is_empty());
    let bad = WorkerArgs { pin: vec!["sha256:ab".into()], ..elsewhere("https://box") };
    assert_eq!(faults(&bad, &settings), ["--pin"]);
}

#[test]
fn what_was_given_before_holds_until_something_else_is_given() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let first = WorkerArgs {
        cpus: Some("1.5".into()),
        labels: vec!["zone=a".into()],
        name: Some("box".into()),
        ..args(home.path())
    };
    let settled = settle(&first, None, &settings).unwrap();
    settled.remembered.write(settled.folder()).unwrap();
    let again = WorkerArgs { folder: first.folder.clone(), cpus: Some("2".into()), ..WorkerArgs::default() };
    let settled = settle(&again, None, &settings).unwrap();
    assert_eq!(settled.endpoint.to_string(), "http://127.0.0.1:9");
    let options = &settled.options;
    assert_eq!((options.name.as_str(), options.cpus), ("box", Some(Cpus::from_millis(2000))));
    assert_eq!(options.labels["zone"], "a");
    let other = |server: &str| WorkerArgs { server: Some(server.to_owned()), ..args(home.path()) };
    assert_eq!(faults(&other("https://box"), &settings), ["--folder"], "one folder, one server");
    assert!(settle(&other("http://127.0.0.1:10"), None, &settings).is_ok(), "a daemon here on another port");
}

#[test]
fn variables_say_whom_to_believe_when_nothing_else_does() {
    let home = tempfile::tempdir().unwrap();
    let mut settings = Settings::under(home.path()).unwrap();
    let [theirs, other] = ["ab", "cd"].map(|digits| format!("sha256:{}", digits.repeat(32)));
    settings.pins = vec![theirs.parse().unwrap()];
    let box_ = WorkerArgs { server: Some("https://box".into()), ..args(home.path()) };
    assert_eq!(settle(&box_, None, &settings).unwrap().trust.pins, settings.pins);
    let given = WorkerArgs { pin: vec![other.clone()], ..box_.clone() };
    assert_eq!(settle(&given, None, &settings).unwrap().trust.pins, [other.parse().unwrap()]);
    settings.url = Some("https://elsewhere".into());
    assert!(settle(&box_, None, &settings).unwrap().trust.pins.is_empty(), "they are for another server");
    assert!(settle(&args(home.path()), None, &settings).is_ok(), "and for https only");
}

#[test]
fn a_server_that_has_moved_is_known_by_its_key() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let pinned = |server: &str, digits: &str| WorkerArgs {
        server: Some(server.into()),
        pin: vec![format!("sha256:{}", digits.repeat(32))],
        ..args(home.path())
    };
    let settled = settle(&pinned("https://box", "ab"), None, &settings).unwrap();
    settled.remembered.write(settled.folder()).unwrap();
    let moved = settle(&pinned("https://10.0.0.7:9", "ab"), None, &settings).unwrap();
    assert_eq!(moved.remembered.url, "https://10.0.0.7:9");
    assert_eq!(faults(&pinned("https://10.0.0.7:9", "cd"), &settings), ["--folder"]);
}

#[test]
fn a_folder_that_nobody_named_is_the_servers_own_and_found_again() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let unnamed = |server: Option<&str>| WorkerArgs {
        server: server.map(str::to_owned),
        allow_root_tasks: true,
        ..WorkerArgs::default()
    };
    assert_eq!(faults(&unnamed(None), &settings), ["SERVER"]);
    let first = settle(&unnamed(Some("http://[::1]:9")), None, &settings).unwrap();
    assert_eq!(first.folder(), settings.places.state.join("joined/1--9"));
    first.remembered.write(first.folder()).unwrap();
    let again = settle(&unnamed(None), None, &settings).unwrap();
    assert_eq!(again.folder(), first.folder());
    let second = settle(&unnamed(Some("https://box")), None, &settings).unwrap();
    assert_eq!(second.folder(), settings.places.state.join("joined/box-8470"));
    second.remembered.write(second.folder()).unwrap();
    assert_eq!(faults(&unnamed(None), &settings), ["SERVER"], "it could be either");
}

#[test]
fn root_has_to_say_whom_tasks_run_as() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings::under(home.path()).unwrap();
    let unsaid = WorkerArgs { allow_root_tasks: false, ..args(home.path()) };
    let as_root = WorkerArgs { task_user: Some("root".into()), ..unsaid.clone() };
    if rustix::process::geteuid().is_root() {
        assert_eq!(faults(&unsaid, &settings), ["--task-user USER"]);
        assert!(faults(&as_root, &settings).is_empty());
    } else {
        assert!(faults(&unsaid, &settings).is_empty());
        assert_eq!(faults(&as_root, &settings), ["--task-user"]);
    }
    let unknown = WorkerArgs { task_user: Some("no-such-user-here".into()), ..unsaid };
    assert!(faults(&unknown, &settings).contains(&"--task-user".to_owned()));
}
