//! How workers look in a table: what they hold, how their machines fare, and what is odd about them.

use std::collections::{BTreeMap, BTreeSet};

use super::gpus;
use super::shown::{harmless, moment, size, span};
use crate::client::Client;
use crate::clock;
use crate::contract::ids::WorkerId;
use crate::contract::worker::{Worker, WorkerState};

/// Characters of an id's end in tables.
const SHOWN_TAIL: usize = 6;
/// A clock that is no further off is right enough to say nothing.
const CLOCK_IS_RIGHT_MILLIS: u64 = 1000;

/// The names of these workers. One that is gone, or none of this caller's business, has none.
pub(super) async fn names_of(
    client: &Client,
    workers: impl IntoIterator<Item = WorkerId>,
) -> BTreeMap<WorkerId, String> {
    let mut names = BTreeMap::new();
    for id in workers.into_iter().collect::<BTreeSet<_>>() {
        if let Ok(worker) = client.get::<Worker>(&format!("/v1/workers/{id}")).await {
            names.insert(id, worker.name);
        }
    }
    names
}

/// The columns of [`row`].
pub(super) const HEADER: [&str; 12] = [
    "WORKER",
    "NAME",
    "STATE",
    "TASKS",
    "CPUS",
    "GPUS",
    "LOAD",
    "MEMORY",
    "DISK FREE",
    "VERSION",
    "SEEN",
    "NOTE",
];

/// Columns that a narrow terminal has no room for, the least needed first.
pub(super) const SPARE: [&str; 6] = ["DISK FREE", "VERSION", "LOAD", "WORKER", "SEEN", "MEMORY"];

/// One worker in a line. `held`: the GPUs that tasks have, if the caller may see that. `server` is the server's version; `has_namesake`: its name is another's too, so its machine is
/// said.
pub(super) fn row(
    worker: &Worker,
    held: Option<&BTreeSet<String>>,
    server: Option<&str>,
    has_namesake: bool,
) -> Vec<String> {
    let mut notes = notes(worker);
    if has_namesake {
        notes.push(format!("on {}, one of several of this name", worker.capabilities.hostname));
    }
    let telemetry = worker.telemetry.unwrap_or_default();
    let offered = worker.capabilities.memory_bytes;
    vec![
        short_id(&worker.id.to_string()),
        harmless(&worker.name, false),
        word(worker.state).to_owned(),
        worker.tasks.len().to_string(),
        worker.capabilities.cpus.to_string(),
        gpus::count(&worker.capabilities.gpus, held),
        telemetry.load.map(|load| format!("{load:.1}")).unwrap_or_default(),
        match telemetry.memory_available_bytes {
            // Of the machine, of which it may offer a part.
            Some(available) => format!("{} free of {}", size(available.min(offered)), size(offered)),
            None => size(offered),
        },
        telemetry.disk_free_bytes.map(size).unwrap_or_default(),
        harmless(&version(&worker.capabilities.version, server), false),
        match worker.last_seen {
            Some(seen) => format!("{} ago", span(clock::now().since(seen))),
            None if worker.state == WorkerState::Offline => "not since the server's start".to_owned(),
            None => String::new(),
        },
        harmless(&notes.join("; "), false),
    ]
}

/// What is worth a word: why it takes no tasks, and what is odd about it although it works.
pub(super) fn notes(worker: &Worker) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(worker.health.clone());
    if worker.health.is_none() {
        notes.extend(drain(worker));
        notes.extend(worker.leaving.then(|| "leaves when its tasks are over".to_owned()));
    }
    let offset = worker.clock_offset_s;
    let offset = offset.filter(|offset| offset.millis().unsigned_abs() > CLOCK_IS_RIGHT_MILLIS);
    notes.extend(offset.map(|offset| format!("its clock is {offset}")));
    notes
}

fn drain(worker: &Worker) -> Option<String> {
    let deadline = worker.drain?.deadline.map(|deadline| match clock::now() >= deadline {
        true => format!("what still ran was stopped at {}", moment(deadline)),
        false => format!("what still runs is stopped at {}", moment(deadline)),
    });
    // The state says it already, unless it is another.
    let drains = (worker.state != WorkerState::Draining).then(|| "drains".to_owned());
    let parts: Vec<String> = drains.into_iter().chain(deadline).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// A version, and how it stands to the server's.
pub(super) fn version(own: &str, server: Option<&str>) -> String {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
    };
    match server.map(|server| numbers(own).cmp(&numbers(server))) {
        Some(std::cmp::Ordering::Less) => format!("{own} (older)"),
        Some(std::cmp::Ordering::Greater) => format!("{own} (newer)"),
        Some(std::cmp::Ordering::Equal) | None => own.to_owned(),
    }
}

/// The word for a state.
pub(super) const fn word(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Idle => "idle",
        WorkerState::Busy => "busy",
        WorkerState::Draining => "draining",
        WorkerState::Unhealthy => "unhealthy",
        WorkerState::Offline => "offline",
    }
}

/// The end of an id.
pub(super) fn short_id(id: &str) -> String {
    format!("…{}", &id[id.len().saturating_sub(SHOWN_TAIL)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_held_against_the_servers() {
        assert_eq!(version("0.2.0", Some("0.10.0")), "0.2.0 (older)");
        assert_eq!(version("1.0.0", Some("0.10.0")), "1.0.0 (newer)");
        assert_eq!(version("0.1.0", Some("0.1.0")), "0.1.0");
        assert_eq!(version("0.1.0", None), "0.1.0");
    }

    #[test]
    fn a_row_says_how_a_machine_fares_and_what_is_odd() {
        let worker: Worker = serde_json::from_value(serde_json::json!({
            "id": crate::contract::ids::WorkerId::from_u128(7), "name": "box", "kind": "remote", "state": "unhealthy",
            "tasks": [], "last_seen": null, "health": "disk full", "clock_offset_s": -3.2,
            "telemetry": {"load": 1.25, "memory_available_bytes": 1_500_000_000_u64, "disk_free_bytes": 0},
            "capabilities": {"version": "0.1.0", "hostname": "h", "os": "linux", "arch": "x86_64", "cpus": 2,
                "memory_bytes": 4_000_000_000_u64}
        }))
        .unwrap();
        let row = row(&worker, None, Some("0.2.0"), true);
        assert_eq!(
            row[1..],
            [
                "box",
                "unhealthy",
                "0",
                "2",
                "",
                "1.2",
                "1.5 GB free of 4.0 GB",
                "0 B",
                "0.1.0 (older)",
                "",
                "disk full; its clock is 3.2 s behind; on h, one of several of this name"
            ]
        );
    }
}
