//! An event as a line for people: its details in words, never as JSON.

use serde_json::Value;

use super::array;
use super::shown::{harmless, moment};
use crate::contract::event::Event;
use crate::contract::worker::StuckProcess;

/// One event. `rank`: of the task it is about, in a gang.
pub(super) fn event_line(event: &Event, rank: Option<u32>) -> String {
    let mut details: Vec<String> = rank.map(|rank| format!("rank {rank}")).into_iter().collect();
    if let Value::Object(fields) = &event.data {
        details.extend(fields.iter().filter_map(|(key, value)| detail(key, value)));
    }
    let line = format!("{}  {:<20}  {}", moment(event.time), event.kind.word(), details.join(" "));
    harmless(line.trim_end(), false)
}

/// One field of an event; `None` when it says nothing.
fn detail(key: &str, value: &Value) -> Option<String> {
    let said = match value {
        Value::Null => return None,
        Value::Object(fields) => match fields.get("reason").and_then(Value::as_str) {
            Some(reason) => reason.to_owned(),
            None if key == "progress" => {
                let progress = serde_json::from_value(value.clone()).ok()?;
                return Some(format!("({})", array::counts(&progress)));
            }
            None => return None,
        },
        Value::Array(items) if key == "tasks" => items.len().to_string(),
        Value::Array(items) if key == "processes" => {
            let stuck = items.iter().filter_map(|item| serde_json::from_value(item.clone()).ok());
            stuck.map(|stuck: StuckProcess| stuck.to_string()).collect::<Vec<_>>().join("; ")
        }
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        value => plain(value),
    };
    Some(format!("{key}={said}"))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn details_are_words_and_a_gangs_tasks_have_their_rank() {
        let line = |rank: Option<u32>, data: Value| {
            let event = json!({
                "seq": 1, "position": 1, "time": "2026-01-01T00:00:00Z", "type": "job_ended",
                "job_id": "job_01hf7yat00e2g0000000a7kq2b", "task_id": null, "data": data,
            });
            let line = event_line(&serde_json::from_value(event).unwrap(), rank);
            line.split_once("job_ended").unwrap().1.trim().to_owned()
        };
        let progress = json!({"total": 3, "queued": 0, "scheduled": 0, "running": 0, "succeeded": 2, "failed": 1, "timed_out": 0,
            "cancelled": 0});
        assert_eq!(
            line(None, json!({"end": {"reason": "exit_nonzero"}, "progress": progress, "state": "failed"})),
            "end=exit_nonzero (3 of 3 children ended, 1 failed) state=failed"
        );
        let tasks = json!({"tasks": [{"task_id": "t"}, {"task_id": "u"}], "worker": null, "gpus": ["GPU-1", "GPU-2"]});
        assert_eq!(line(Some(1), tasks), "rank 1 gpus=GPU-1,GPU-2 tasks=2");
    }
}
