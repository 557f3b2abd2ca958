//! The standalone worker over HTTP, on loopback: the same tasks, the same guarantees.

use gpulayer::client::Call;
use gpulayer::contract::job::JobState;
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, eventually, shell};

pub fn port(house: &House) -> u64 {
    let log = std::fs::read_to_string(house.path().join("log")).unwrap();
    let (_, rest) = log.rsplit_once("127.0.0.1:").unwrap_or_else(|| panic!("no port in {log}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[actix_rt::test]
async fn a_registration_whose_answer_was_lost_leaves_no_second_worker() {
    let house = House::new();
    let mut daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let token = std::fs::read_to_string(house.home().join("join-token")).unwrap();
    let joining = house.client().with_token(token.trim()).unwrap();
    let names = async |registration: &str| {
        let identity = json!({"machine_id": "m", "boot_id": "b", "incarnation": 1});
        let mut body = json!({
            "name": "far", "registration": registration,
            "capabilities": {"version": "0", "hostname": "h", "os": "linux", "arch": "x86_64", "cpus": 1, "memory_bytes": 1},
        });
        body.as_object_mut().unwrap().extend(identity.as_object().unwrap().clone());
        let call =
            Call::post("/v1/workers/register", true).header("x-gpulayer-protocol", "1").json(&body).unwrap();
        let answer: Value = joining.answer(&call).await.unwrap().json().unwrap();
        let workers: Value = house.client().get("/v1/workers").await.unwrap();
        let ids = workers["items"].as_array().unwrap().iter().map(|worker| worker["id"].clone());
        (answer["worker_id"].clone(), ids.collect::<Vec<_>>())
    };
    let (first, listed) = names("one").await;
    assert_eq!(listed, std::slice::from_ref(&first));
    let (again, listed) = names("one").await;
    assert_eq!(listed, [again], "nobody has the first one's session");
    daemon.kill();
    daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let (after, listed) = names("one").await;
    assert_eq!(listed, [after], "also when the daemon went down in between");
    assert_eq!(names("other").await.1.len(), 2);
    drop(daemon);
}

#[actix_rt::test]
async fn a_worker_over_http_runs_tasks_and_is_adopted_after_its_own_kill() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", port(&house));
    let worker = FarWorker::start(&house, &url);
    let mut spec = shell("echo up; while [ ! -e go ]; do sleep 0.05; done; echo down; echo x > out.txt");
    spec["outputs"] = json!([{"path": "out.txt"}]);
    spec["target"] = json!("remote");
    let id = house.submit(&spec).await.id;
    house.logged(id, "up").await;
    drop(worker);
    let task = std::fs::read_dir(house.path().join("far/tasks")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(task.join("workspace/go"), "").unwrap();
    let worker = FarWorker::start(&house, &url);
    let job = house.end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
    assert_eq!(house.log(id).await, ["up", "down"]);
    assert_eq!(job.outputs.len(), 1);
    let workers: Value = house.client().get("/v1/workers").await.unwrap();
    let names: Vec<_> =
        workers["items"].as_array().unwrap().iter().map(|worker| worker["name"].clone()).collect();
    assert_eq!(names, [json!("far")], "the same worker came back");
    eventually("the worker to be idle", async || {
        let workers: Value = house.client().get("/v1/workers").await.unwrap();
        (workers["items"][0]["state"] == json!("idle")).then_some(())
    })
    .await;
    drop(worker);
}
