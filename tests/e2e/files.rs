//! Sources, inputs, outputs and undeclared files, end to end.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::job::JobState;
use serde_json::json;

use crate::far_worker::FarWorker;
use crate::house::{House, argv, eventually, shell};

#[actix_rt::test]
async fn outputs_come_back_at_every_end_and_a_missing_one_is_no_success() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let mut failing = shell("mkdir deep; echo one > deep/a.txt; echo two > b.txt; exit 3");
    failing["outputs"] = json!([{"path": "deep"}, {"path": "*.txt", "name": "texts"}]);
    let job = house.end(house.submit(&failing).await.id).await;
    assert_eq!(job.state, JobState::Failed);
    let mut paths: Vec<_> = job.outputs.iter().map(|file| (file.name.as_str(), file.path.as_str())).collect();
    paths.sort_unstable();
    assert_eq!(paths, [("deep", "deep/a.txt"), ("texts", "b.txt")]);
    let mut forgetful = shell("true");
    forgetful["outputs"] = json!([{"path": "model.json"}]);
    let job = house.end(house.submit(&forgetful).await.id).await;
    let end = job.end.unwrap();
    assert_eq!(end.reason, EndReason::MissingOutput);
    assert!(end.detail.unwrap().contains("model.json"));
}

#[test]
fn a_job_that_fails_still_yields_the_file_it_never_declared() {
    let house = House::new();
    let run = house.run(&["run", "--source", "none", "--", "sh", "-c", "echo precious > left.txt; exit 1"]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let remark = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(remark.contains("left.txt"), "{remark}");
    let fetch = house.run(&["fetch", "@last", "--undeclared", "--to", "back"]);
    assert!(fetch.status.success(), "{fetch:?}");
    assert_eq!(std::fs::read_to_string(house.path().join("back/left.txt")).unwrap(), "precious\n");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[actix_rt::test]
async fn a_kept_file_that_cannot_be_had_costs_none_of_the_others() {
    let house = House::new();
    let run = house.run(&["run", "--source", "none", "--", "sh", "-c", "touch a m z"]);
    assert!(run.status.success(), "{run:?}");
    // It is put away after the job has ended.
    eventually("the workspace to be kept", async || {
        let kept = std::fs::read_dir(house.state().join("worker/kept")).ok()?.next()?.ok()?.path();
        std::fs::remove_file(kept.join("workspace/m")).ok()
    })
    .await;
    let fetch = house.run(&["fetch", "@last", "--undeclared", "--to", "back"]);
    let said = String::from_utf8_lossy(&fetch.stderr).into_owned();
    assert!(!fetch.status.success() && said.contains("no kept file `m`"), "{said}");
    let there = ["a", "m", "z"].map(|name| house.path().join("back").join(name).exists());
    assert_eq!(there, [true, false, true], "{said}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn the_project_around_the_current_folder_travels_and_its_outputs_come_back() {
    let house = House::new();
    let project = house.path().join("project");
    std::fs::create_dir_all(project.join("sub")).unwrap();
    std::fs::write(project.join("pyproject.toml"), "").unwrap();
    std::fs::write(project.join("sub/work.sh"), "cat ../pyproject.toml; cp work.sh made.txt\n").unwrap();
    std::fs::write(project.join(".gitignore"), "data/\n").unwrap();
    std::fs::create_dir(project.join("data")).unwrap();
    std::fs::write(project.join("data/big"), vec![0; 5000]).unwrap();
    let run = house
        .command(&["run", "--output", "sub/made.txt", "--to", "out", "--", "sh", "work.sh"])
        .current_dir(project.join("sub"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let remark = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(remark.contains("sent ") && remark.contains("data/"), "{remark}");
    assert!(project.join("sub/out/sub/made.txt").exists(), "{remark}");
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[actix_rt::test]
async fn no_job_reads_what_the_disk_has_damaged_and_sending_it_again_heals_it() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--port", "0"]).await;
    let _worker = FarWorker::start(&house, &format!("http://127.0.0.1:{}", house.port()));
    for target in ["local", "remote"] {
        let input = house.path().join(target);
        std::fs::write(&input, target.repeat(100_000)).unwrap();
        let put = || house.run(&["artifact", "put", input.to_str().unwrap()]).stdout;
        let address = String::from_utf8(put()).unwrap().trim().to_owned();
        let hex = address.rsplit([':', '/']).next().unwrap().to_owned();
        let stored = house.state().join("artifacts/sha256").join(&hex[..2]).join(&hex);

        // It is damaged when the job that reads it was taken.
        let gate = house.path().join(format!("{target}.open"));
        let until = format!("until [ -e {} ]; do sleep 0.05; done", gate.display());
        let before = house.submit(&shell(&until)).await.id;
        let mut reads = argv(&["cmp", "in", input.to_str().unwrap()]);
        reads["inputs"] = json!([{"artifact": address, "path": "in"}]);
        reads["target"] = json!(target);
        let mut waits = reads.clone();
        waits["depends_on"] = json!([{"job": before}]);
        let job = house.submit(&waits).await.id;
        std::fs::OpenOptions::new().write(true).open(&stored).unwrap().set_len(1000).unwrap();
        std::fs::write(&gate, "").unwrap();
        let end = house.end(job).await.end.unwrap();
        assert_eq!(end.reason, EndReason::InputUnavailable, "{end:?}");
        let said = end.detail.unwrap();
        assert!(said.contains("input `in`") && said.contains(&hex), "{said}");

        assert_eq!(put(), format!("{address}\n").into_bytes());
        assert_eq!(house.end(house.submit(&reads).await.id).await.state, JobState::Succeeded);
    }
}
