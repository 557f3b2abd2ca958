//! Bad input: a clear answer with all faults, and nothing stored half.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::house::{House, argv};

#[actix_rt::test]
async fn every_fault_of_a_spec_is_named_at_once_and_nothing_is_stored() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut spec = argv(&["true"]);
    spec["priority"] = json!(101);
    spec["timeout_s"] = json!("10m");
    spec["env"] = json!({"A=B": "x"});
    spec["outputs"] = json!([{"path": "../secrets"}]);
    let refusal = house.client().post::<Job>("/v1/jobs", &spec).await.unwrap_err();
    let Some(problem) = refusal.problem() else { panic!("{refusal:?}") };
    let mut pointers: Vec<&str> = problem.errors.iter().map(|fault| fault.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/env/A=B", "/outputs/0/path", "/priority", "/timeout_s"]);
    let batch = json!({"jobs": [argv(&["true"]), {"workload": {}}]});
    let refusal = house.client().post::<Value>("/v1/jobs/batch", &batch).await.unwrap_err();
    assert!(refusal.problem().unwrap().errors[0].pointer.starts_with("/jobs/1/workload"));
    let jobs: Value = house.client().get("/v1/jobs").await.unwrap();
    assert_eq!(jobs["items"], json!([]), "all or nothing");
}

#[actix_rt::test]
async fn a_program_that_is_not_there_and_a_folder_that_is_not_there_are_told_apart() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let missing = house.end(house.submit(&argv(&["no-such-program"])).await.id).await;
    let end = missing.end.unwrap();
    assert_eq!((end.reason, end.exit_code), (EndReason::ExecutableNotFound, Some(127)));
    assert!(end.detail.unwrap().contains("no-such-program"));
    let mut elsewhere = argv(&["true"]);
    elsewhere["workload"]["command"]["cwd"] = json!("nowhere");
    let job = house.end(house.submit(&elsewhere).await.id).await;
    assert_eq!(job.state, JobState::Failed);
    assert!(job.end.unwrap().detail.unwrap().contains("nowhere"));
}

#[test]
fn an_input_that_may_never_end_is_refused_and_a_run_that_still_reads_can_be_interrupted() {
    let house = House::new();
    let pipe = house.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for given in [pipe.to_str().unwrap(), "/dev/zero:zero"] {
        let refused = house.run(&["run", "--source", "none", "--input", given, "--", "true"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains("a pipe, a device"), "{refused:?}");
    }
    // Far more than is read before the interrupt comes.
    let large = house.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    let mut run = house
        .command(&["run", "--source", "none", "--input", large.to_str().unwrap(), "--", "true"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(run.stderr.as_mut().unwrap()), &mut said)
        .unwrap();
    assert!(said.starts_with("reading "), "{said}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&run), rustix::process::Signal::INT)
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&run.wait().unwrap()), Some(2));
}

#[actix_rt::test]
async fn a_queue_timeout_ends_a_job_that_never_started() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut spec = argv(&["true"]);
    spec["resources"] = json!({"cpus": 5000});
    spec["queue_timeout_s"] = json!(0.3);
    let job = house.end(house.submit(&spec).await.id).await;
    assert_eq!((job.state, job.end.unwrap().reason), (JobState::TimedOut, EndReason::QueueTimedOut));
}

#[actix_rt::test]
async fn a_token_file_that_is_endless_costs_an_error_and_no_memory() {
    let house = House::new();
    let connect = ["connect", "https://127.0.0.1:9", "--token-file", "/dev/zero"];
    let join = ["join", "https://127.0.0.1:9", "--allow-root-tasks", "--token-file"];
    let zero = || std::fs::File::open("/dev/zero").unwrap();
    let from_file = house.command(&connect).output().unwrap();
    let joined = house.command(&join).arg("/dev/zero").output().unwrap();
    let from_stdin = house.command(&join).arg("-").stdin(zero()).output().unwrap();
    let all = house.command(&["connect", "-"]).stdin(zero()).output().unwrap();
    for output in [from_file, joined, from_stdin, all] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("larger than the"), "{said}");
    }
}
