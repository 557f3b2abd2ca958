//! The standalone worker over HTTP, on loopback: the same tasks, the same guarantees.

use gpulayer::client::Call;
use gpulayer::contract::event::{Event, EventType};
use gpulayer::contract::job::{Job, JobState, Page, Sequence};
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

/// Says that it runs, and squares its number: the first few at once, the others when they may.
const SQUARES: &str = r#"
import os, time
def square(folder, number):
    attempt = os.environ["GPULAYER_ATTEMPT"]
    open(os.path.join(folder, f"began-{number}-{attempt}"), "w").close()
    while number >= 3 and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.02)
    return [number, number * number]
"#;

#[actix_rt::test]
async fn an_array_of_calls_has_every_result_once_although_its_worker_was_lost_in_the_middle() {
    const CALLS: u64 = 10;
    let house = House::new();
    std::fs::create_dir_all(house.home()).unwrap();
    std::fs::write(house.home().join("config.toml"), "heartbeat_s = 1\nlease_ttl_s = 6\n").unwrap();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", port(&house));
    let worker = FarWorker::start(&house, &url);
    let module = house.path().join("squares.py");
    std::fs::write(&module, SQUARES).unwrap();
    let put = house.run(&["artifact", "put", module.to_str().unwrap()]);
    let address = String::from_utf8(put.stdout).unwrap().trim().to_owned();
    let parent = house
        .submit(&json!({
            "workload": {"function": {
                "serializer": "json", "entrypoint": "squares:square",
                "payload": json!({"args": [house.path()]}).to_string()}},
            "inputs": [{"artifact": address, "path": "squares.py"}],
            "array": {"items": (0..CALLS).collect::<Vec<_>>(), "max_running": 6},
            "resources": {"cpus": 0.25, "memory_bytes": 64 << 20},
            "retry": {"max_attempts": 2}, "target": "remote",
        }))
        .await
        .id;
    let children = async || -> Vec<Job> {
        let page: Page<Job> = house.client().get(&format!("/v1/jobs?parent={parent}")).await.unwrap();
        page.items
    };
    eventually("some calls to be over and others to run", async || {
        let over = children().await.iter().filter(|child| child.state == JobState::Succeeded).count();
        let began = (3..CALLS).filter(|number| house.path().join(format!("began-{number}-1")).exists());
        (over == 3 && began.count() == 6).then_some(())
    })
    .await;
    // Its programs go on without it, and are nobody's when it is back too late.
    drop(worker);
    eventually("the calls to be lost", async || {
        let lost = children().await.iter().filter(|child| child.attempt == 2).count();
        (lost == 6).then_some(())
    })
    .await;
    let _worker = FarWorker::start(&house, &url);
    eventually("their second attempts to run", async || {
        (3..9).all(|number| house.path().join(format!("began-{number}-2")).exists()).then_some(())
    })
    .await;
    std::fs::write(house.path().join("go"), "").unwrap();
    let ended = house.end(parent).await;
    assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
    let children = children().await;
    assert_eq!(children.len() as u64, CALLS);
    let mut attempts = Vec::new();
    for child in children {
        let number = child.array_index.unwrap();
        let inline = child.result.unwrap().inline.unwrap();
        let returned: Value = serde_json::from_str(inline.get()).unwrap();
        assert_eq!(returned, json!([number, number * number]));
        let path = format!("/v1/jobs/{}/events?limit=500", child.id);
        let events: Sequence<Event> = house.client().get(&path).await.unwrap();
        let ends = events.items.iter().filter(|event| event.kind == EventType::JobEnded).count();
        assert_eq!(ends, 1, "{events:?}");
        attempts.push((number, child.attempt));
    }
    attempts.sort_unstable();
    let expected: Vec<_> =
        (0..CALLS).map(|number| (number, if (3..9).contains(&number) { 2 } else { 1 })).collect();
    assert_eq!(attempts, expected);
    eventually("no process is left", async || house.leftovers().is_empty().then_some(())).await;
}
