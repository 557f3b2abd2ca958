//! What an ended job had waited for, from its tasks and events.

use gpulayer::contract::event::Event;
use gpulayer::contract::job::Job;
use gpulayer::contract::quantity::Seconds;
use gpulayer::contract::worker::Task;
use gpulayer::domain::past;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const JOB: &str = include_str!("../protocol/v1/Job.minimal.json");
const TASK: &str = include_str!("../protocol/v1/Task.minimal.json");
const EVENT: &str = include_str!("../protocol/v1/Event.minimal.json");

fn at(second: u32) -> String {
    format!("2026-01-02T03:{:02}:{:02}.000000Z", second / 60, second % 60)
}

/// What is in a golden file, with this in place of some of it.
fn with<T: DeserializeOwned>(golden: &str, changes: Value) -> T {
    let mut whole: Value = serde_json::from_str(golden).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

fn task(epoch: u32, rank: u32, assigned_at: u32, ended_at: u32, reason: &str) -> Task {
    let digit = char::from_digit(epoch * 4 + rank, 36).unwrap();
    with(
        TASK,
        json!({
            "id": format!("task_01k9zq4v5w6x7y8z9abcdefgh{digit}"), "epoch": epoch, "rank": rank, "attempt": epoch,
            "gpus": [format!("GPU-{rank}")], "assigned_at": at(assigned_at), "ended_at": at(ended_at),
            "end": {"reason": reason, "owner": "user", "exit_code": null, "signal": null, "detail": null},
        }),
    )
}

fn event(kind: &str, second: u32, data: Value) -> Event {
    with(EVENT, json!({"type": kind, "time": at(second), "data": data}))
}

fn job(ended_at: u32) -> Job {
    with(JOB, json!({"state": "succeeded", "submitted_at": at(0), "ended_at": at(ended_at)}))
}

#[test]
fn an_ended_gang_was_placed_once_with_the_gpus_of_each_rank() {
    let tasks: Vec<Task> = (0..3).map(|rank| task(1, rank, 10, 60, "completed")).collect();
    let told = json!({"epoch": 1, "waited_for": "1 worker: draining", "tasks": [{"gpus": ["GPU-0"]}]});
    let events = [event("job_queued", 0, json!({})), event("job_scheduled", 10, told)];
    let past = past::explain(&job(60), &tasks, &events, None, None);
    assert_eq!((past.placed, past.waited_s), (1, Seconds::new(10)));
    assert_eq!(past.summary, "waited 10 s, last for: 1 worker: draining");
    let ranks: Vec<_> =
        past.placements.iter().map(|placement| (placement.rank, placement.gpus.clone())).collect();
    let wanted: Vec<_> = (0..3).map(|rank| (Some(rank), vec![format!("GPU-{rank}")])).collect();
    assert_eq!(ranks, wanted);
}

#[test]
fn the_waits_before_every_place_are_counted_and_added_up() {
    let tasks = [task(1, 0, 0, 40, "preempted"), task(2, 0, 75, 90, "completed")];
    let events = [
        event("job_queued", 0, json!({})),
        event("job_scheduled", 0, json!({"epoch": 1})),
        event("job_queued", 40, json!({"cause": "retry"})),
        event("job_scheduled", 75, json!({"epoch": 2})),
    ];
    let past = past::explain(&job(90), &tasks, &events, None, None);
    let waits: Vec<_> = past.placements.iter().map(|placement| placement.waited_s).collect();
    assert_eq!((waits, past.waited_s), (vec![Seconds::new(0), Seconds::new(35)], Seconds::new(35)));
    assert_eq!((past.placed, past.preemptions, past.placements[0].rank), (2, 1, None));
    assert_eq!(
        past.summary,
        "waited 35 s in all; placed 2 times, 1 of them ended for a job of a higher priority"
    );
    // It may end while it waits again.
    let past = past::explain(&job(50), &tasks[..1], &events[..3], None, None);
    assert_eq!(past.waited_s, Seconds::new(10));
}

#[test]
fn an_array_says_when_the_first_and_the_last_of_its_children_began() {
    let array = |started_at: u32| -> Job {
        with(
            JOB,
            json!({
                "state": "succeeded", "submitted_at": at(10), "started_at": at(started_at), "ended_at": at(200),
                "end": {"reason": "completed", "owner": "user", "exit_code": null, "signal": null, "detail": null},
            }),
        )
    };
    let last_began = serde_json::from_value(json!(at(105))).unwrap();
    let past = past::explain(&array(12), &[], &[], None, Some(last_began));
    assert_eq!(past.summary, "its first child began after 2 s, its last after 95 s");
}
