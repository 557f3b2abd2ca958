//! What goes into a workspace and what comes out of it.

use std::io::Read;

use gpulayer::artifacts::RelativePath;
use gpulayer::contract::artifact::Digest;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::protocol::Finish;
use gpulayer::contract::spec::{Input, InputMode, InputOrigin, JobSpec, Output, Run, Workload};

use crate::server::{Server, shell, stop, until};

fn artifact(server: &Server, bytes: &[u8]) -> Digest {
    let path = server.folder().join("upload");
    std::fs::write(&path, bytes).unwrap();
    server.artifacts.import_file(&path).unwrap().digest
}

fn input(digest: Digest, path: &str, mode: InputMode) -> Input {
    Input { origin: InputOrigin::Artifact(digest), path: path.to_owned(), unpack: false, mode }
}

fn output(path: &str, optional: bool) -> Output {
    Output { path: path.to_owned(), name: None, optional }
}

fn text_of(server: &Server, finish: &Finish, path: &str) -> String {
    let file = finish.outputs.iter().find(|file| file.path == path).unwrap();
    let (mut stored, size_bytes) = server.artifacts.open_read(file.artifact.unwrap()).unwrap().unwrap();
    assert_eq!(size_bytes, file.size_bytes);
    let mut text = String::new();
    stored.read_to_string(&mut text).unwrap();
    text
}

fn bundle(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn in_folder(mut spec: JobSpec, folder: &str) -> JobSpec {
    if let Workload::Command(command) = &mut spec.workload {
        command.cwd = Some(folder.to_owned());
    }
    spec
}

#[test]
fn source_and_inputs_are_there_and_outputs_come_back() {
    let server = Server::new();
    let worker = server.start_worker();
    let source = artifact(&server, &bundle(&[("app/main.sh", "cat ../data/rows.csv > model.txt; ls ..\n")]));
    let rows = artifact(&server, b"1,2,3\n");
    let spec = JobSpec {
        source: Some(source),
        inputs: vec![input(rows, "data/rows.csv", InputMode::Ro)],
        outputs: vec![output("app/*.txt", false), output("absent.txt", true)],
        ..in_folder(shell("sh main.sh"), "app")
    };
    let (task_id, finish) = server.run(spec);
    assert_eq!(finish.end.reason, EndReason::Completed, "{:?}", finish.end);
    assert_eq!(server.lines_of(task_id), ["app", "data"]);
    assert_eq!(text_of(&server, &finish, "app/model.txt"), "1,2,3\n");
    assert_eq!(finish.outputs.len(), 1);
    // What it was given is not what it made.
    assert_eq!(finish.undeclared, []);
    until("the folder to go", || !server.task_folder(task_id).exists());
    stop(worker);
}

#[test]
fn a_missing_input_ends_the_task_before_anything_runs() {
    let server = Server::new();
    let worker = server.start_worker();
    let gone = Digest::from_bytes([7; 32]);
    let spec =
        JobSpec { inputs: vec![input(gone, "data/rows.csv", InputMode::Ro)], ..shell("echo should not run") };
    let (task_id, finish) = server.run(spec);
    assert_eq!(finish.end.reason, EndReason::InputUnavailable);
    assert!(finish.end.detail.unwrap().contains("data/rows.csv"));
    assert!(server.lines_of(task_id).is_empty());
    stop(worker);
}

#[test]
fn success_without_a_declared_output_is_none_and_failure_still_brings_what_is_there() {
    let server = Server::new();
    let worker = server.start_worker();
    let outputs = || vec![output("model.json", false), output("loss.txt", false)];
    let (_, finish) = server.run(JobSpec { outputs: outputs(), ..shell("echo 1 > loss.txt") });
    assert_eq!(finish.end.reason, EndReason::MissingOutput);
    assert!(finish.end.detail.as_deref().unwrap().contains("model.json"));
    assert_eq!(text_of(&server, &finish, "loss.txt"), "1\n");

    let (_, finish) = server.run(JobSpec { outputs: outputs(), ..shell("echo 2 > loss.txt; exit 9") });
    assert_eq!((finish.end.reason, finish.end.exit_code), (EndReason::ExitNonzero, Some(9)));
    assert_eq!(text_of(&server, &finish, "loss.txt"), "2\n");
    stop(worker);
}

#[test]
fn undeclared_files_are_named_and_kept() {
    let server = Server::new();
    let worker = server.start_worker();
    let job_id = {
        let task_id = server.offer(shell("mkdir deep; echo dumped > deep/core.txt; exit 1"));
        let finish = server.finish_of(task_id);
        let names: Vec<&str> = finish.undeclared.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["deep/core.txt"]);
        until("the task's folder to go", || !server.task_folder(task_id).exists());
        let kept = server.worker_folder().join("kept");
        let entry = std::fs::read_dir(kept).unwrap().next().unwrap().unwrap();
        entry.file_name().to_str().unwrap().parse().unwrap()
    };
    let path = RelativePath::new("deep/core.txt").unwrap();
    let mut text = String::new();
    worker.kept().open(job_id, None, &path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "dumped\n");
    stop(worker);
}

/// What a program can put in the place of its workspace without being root.
const SWAPS: [&str; 3] = [
    "cd ..; mv workspace w2; ln -s /etc workspace",
    "cd ..; mv workspace w2; mkdir workspace; echo not mine > workspace/passwd",
    "cd ../..; mv $GPULAYER_TASK_ID moved; ln -s $PWD/moved $GPULAYER_TASK_ID",
];

fn nothing_came(finish: &Finish) {
    assert_eq!(finish.end.reason, EndReason::MissingOutput, "{finish:?}");
    assert_eq!((finish.outputs.len(), finish.undeclared.len()), (0, 0), "{finish:?}");
    let said =
        finish.warnings.iter().any(|warning| warning.detail.contains("no file of this task was collected"));
    assert!(said, "{:?}", finish.warnings);
}

#[test]
fn a_workspace_that_was_swapped_is_not_collected_from() {
    let server = Server::new();
    let worker = server.start_worker();
    for swap in SWAPS {
        let spec =
            JobSpec { outputs: vec![output("passwd", false)], ..shell(&format!("echo mine > left; {swap}")) };
        let (_, finish) = server.run(spec);
        nothing_came(&finish);
    }
    // What the program made is still there, for whoever looks on the worker.
    until("what it left", || {
        let kept = std::fs::read_dir(server.worker_folder().join("kept"));
        kept.is_ok_and(|mut kept| kept.any(|job| job.unwrap().path().join("w2/left").exists()))
    });
    // Without outputs it is said all the same.
    let (_, finish) = server.run(shell("echo mine > left; cd ..; mv workspace w2"));
    assert_eq!((finish.end.reason, finish.warnings.len()), (EndReason::Completed, 1), "{finish:?}");
    stop(worker);
}

#[test]
fn a_workspace_that_was_swapped_while_the_worker_was_away_is_not_collected_from() {
    for swap in SWAPS {
        let server = Server::new();
        let worker = server.start_worker();
        let go = server.folder().join("go");
        let text = format!("echo up; until [ -e {} ]; do sleep 0.01; done; {swap}", go.display());
        let task_id = server.offer(JobSpec { outputs: vec![output("passwd", false)], ..shell(&text) });
        server.until_line(task_id, "up");
        stop(worker);
        if swap.contains("GPULAYER_TASK_ID") {
            // A folder that is a link at the start of a worker is no task of its: only what runs on is looked at here.
            let worker = server.start_worker();
            server.until("the task to be adopted", |record| record.resumes.first().map(|_| ()));
            std::fs::write(&go, "").unwrap();
            nothing_came(&server.finish_of(task_id));
            stop(worker);
            continue;
        }
        std::fs::write(&go, "").unwrap();
        until("the program's end", || server.has_ended(task_id));
        let worker = server.start_worker();
        nothing_came(&server.finish_of(task_id));
        stop(worker);
    }
}

#[test]
fn what_is_mounted_over_a_workspace_is_not_collected() {
    let server = Server::new();
    let worker = server.start_worker();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("passwd"), "not mine").unwrap();
    let text = format!("mount --bind {} $GPULAYER_WORKSPACE || exit 77", elsewhere.path().display());
    let (task_id, finish) = server.run(JobSpec { outputs: vec![output("passwd", false)], ..shell(&text) });
    if finish.end.exit_code == Some(77) {
        eprintln!("NOT TESTED: this user cannot mount");
        return stop(worker);
    }
    let mounted = Mounted(server.task_folder(task_id));
    nothing_came(&finish);
    drop(mounted);
    stop(worker);
    assert!(elsewhere.path().join("passwd").exists());
}

/// Unmounts whatever is mounted in a task's folder, wherever that was moved to.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let worker = self.0.parent().unwrap().parent().unwrap().to_str().unwrap().to_owned();
        for line in std::fs::read_to_string("/proc/self/mounts").unwrap().lines() {
            if let Some(place) = line.split(' ').nth(1).filter(|place| place.starts_with(&worker)) {
                let _ = std::process::Command::new("umount").arg(place).status();
            }
        }
    }
}

#[test]
fn a_real_folder_is_used_and_left_alone() {
    let server = Server::new();
    let worker = server.start_worker();
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("mine.txt"), "mine").unwrap();
    let run = Run::Shell("cat mine.txt; echo new > result.txt".to_owned());
    let mut spec = in_folder(shell(""), here.path().to_str().unwrap());
    if let Workload::Command(command) = &mut spec.workload {
        command.run = run;
    }
    spec.outputs = vec![output("result.txt", false)];
    let (task_id, finish) = server.run(spec);
    assert_eq!(finish.end.reason, EndReason::Completed, "{:?}", finish.end);
    assert_eq!(server.lines_of(task_id), ["mine"]);
    assert_eq!(text_of(&server, &finish, "result.txt"), "new\n");
    assert_eq!(finish.undeclared, []);
    until("the folder to go", || !server.task_folder(task_id).exists());
    assert!(here.path().join("mine.txt").exists() && here.path().join("result.txt").exists());
    stop(worker);
}

#[test]
fn an_input_is_fetched_once_whoever_asks_and_tasks_cannot_change_the_copy_that_is_kept() {
    let server = Server::new();
    let worker = server.start_worker();
    let digest = artifact(&server, &vec![b'x'; 300_000]);
    let spec = JobSpec {
        inputs: vec![input(digest, "in.bin", InputMode::Rw)],
        ..shell("test $(stat -c %h in.bin) = 1 && echo changed >> in.bin && sha256sum < /dev/null")
    };
    let together: Vec<_> = (0..4).map(|_| server.offer(spec.clone())).collect();
    for task_id in together {
        assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    }
    assert_eq!(server.change(|record| record.fetches), 1, "four at once, one fetch");
    stop(worker);

    // Damaged while no worker looked, without a trace in size or time: hashed once after a start.
    let kept = server.worker_folder().join("cache/sha256").join(digest.hex());
    let modified = std::fs::metadata(&kept).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&kept).unwrap();
    assert_eq!(bytes.len(), 300_000, "what a task appended is not in it");
    bytes[150_000] ^= 1;
    let damage = |bytes: &[u8]| {
        std::fs::remove_file(&kept).unwrap();
        std::fs::write(&kept, bytes).unwrap();
    };
    damage(&bytes);
    std::fs::File::options().write(true).open(&kept).unwrap().set_modified(modified).unwrap();
    let worker = server.start_worker();
    let check = JobSpec {
        inputs: vec![input(digest, "in.bin", InputMode::Ro)],
        ..shell(&format!("echo '{}  in.bin' | sha256sum -c", digest.hex()))
    };
    assert_eq!(server.run(check.clone()).1.end.reason, EndReason::Completed);
    assert_eq!(server.change(|record| record.fetches), 2, "fetched again");
    assert_eq!(server.run(check.clone()).1.end.reason, EndReason::Completed);
    assert_eq!(server.change(|record| record.fetches), 2, "and not once more");
    // Cut short while the worker runs.
    damage(&bytes[..1000]);
    assert_eq!(server.run(check).1.end.reason, EndReason::Completed);
    assert_eq!(server.change(|record| record.fetches), 3);
    stop(worker);
}

#[test]
fn folders_are_whole_after_a_restart_that_finds_them_in_the_cache() {
    let server = Server::new();
    let digest = artifact(&server, &bundle(&[("a.txt", "of the source"), ("b/c.txt", "deep")]));
    let data = Input { unpack: true, ..input(digest, "data", InputMode::Ro) };
    let spec = JobSpec {
        source: Some(digest),
        inputs: vec![data],
        ..shell("cat a.txt b/c.txt data/a.txt data/b/c.txt")
    };
    for _ in 0..3 {
        let worker = server.start_worker();
        for _ in 0..2 {
            assert_eq!(server.run(spec.clone()).1.end.reason, EndReason::Completed);
        }
        stop(worker);
    }
    assert_eq!(server.change(|record| record.fetches), 1);
}

#[test]
fn many_outputs_all_come_back_and_one_that_two_outputs_declare_is_sent_once() {
    let server = Server::new();
    let worker = server.start_worker();
    let spec = JobSpec {
        outputs: vec![output("out", false), output("out/7", false)],
        ..shell("mkdir out; for i in $(seq 300); do echo $i > out/$i; done")
    };
    let (_, finish) = server.run(spec);
    assert_eq!((finish.end.reason, finish.outputs.len()), (EndReason::Completed, 301), "{:?}", finish.end);
    assert_eq!(server.change(|record| record.publishes), 300);
    let paths: Vec<_> = finish.outputs.iter().map(|file| file.path.clone()).collect();
    let mut sorted = paths.clone();
    sorted.sort();
    assert_eq!(paths, sorted, "in order, whoever was ready first");
    for number in [1, 7, 300] {
        assert_eq!(text_of(&server, &finish, &format!("out/{number}")), format!("{number}\n"));
    }
    stop(worker);
}
