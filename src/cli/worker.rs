//! `worker`: the fleet, and what an operator does with it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use futures_util::future::join_all;
use serde_json::Value;

use super::Context;
use super::args::WorkerCommand;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::fleet::{HEADER, SPARE, notes, row, short_id, version, word};
use super::gpus;
use super::job_choice::{all, one};
use super::next_step::NextStep;
use super::quantities;
use super::screen::{Output, print, print_json, say, table_within};
use super::server_choice::{OnDemand, Server};
use super::shown::{harmless, moment, quoted, size, span, tail};
use crate::client::endpoint::encoded;
use crate::client::{Client, ClientError};
use crate::clock;
use crate::contract::ids::{JobId, TaskId, WorkerId};
use crate::contract::job::{Job, Page};
use crate::contract::server::{ServerStatus, WhoAmI};
use crate::contract::worker::{DrainRequest, EvictRequest, Task, Worker, WorkerKind, WorkerState};

/// Fewer characters of an id's end name nothing.
const SHORTEST_TAIL: usize = 4;
/// Workers hold far fewer; more are counted, not named.
const MOST_TASKS: usize = 500;

/// `gpulayer worker …`; without a verb it lists.
pub(super) async fn run(context: &Context, command: Option<&WorkerCommand>) -> Result<ExitStatus, CliError> {
    let server = context.server(OnDemand::Start)?;
    let client = &server.client;
    match command {
        None | Some(WorkerCommand::List) => list(context, &server).await?,
        Some(WorkerCommand::Show { workers }) => show(context, &server, workers).await?,
        Some(WorkerCommand::Drain { workers, deadline }) => {
            let span = deadline.as_deref().map(|text| quantities::span("--deadline", text)).transpose()?;
            let request = DrainRequest { deadline_s: span };
            for Meant { worker, called } in chosen(client, workers).await? {
                let path = format!("/v1/workers/{}/drain", worker.id);
                let drained: Worker = client.post(&path, &request).await?;
                told_of_drain(context, client, &drained, &called).await?;
            }
        }
        Some(WorkerCommand::Resume { workers }) => {
            for Meant { worker, .. } in chosen(client, workers).await? {
                let path = format!("/v1/workers/{}/resume", worker.id);
                let resumed: Worker = client.post(&path, &serde_json::json!({})).await?;
                match context.json {
                    true => print_json(&resumed)?,
                    false if worker.drain.is_none() => {
                        print(&format!("{} was not draining", shown_name(&resumed)))?;
                    }
                    false => print(&format!("{} takes tasks again", shown_name(&resumed)))?,
                }
            }
        }
        Some(WorkerCommand::Revoke { workers }) => {
            for Meant { worker, .. } in chosen(client, workers).await? {
                let path = format!("/v1/workers/{}/revoke", worker.id);
                let revoked: Value = client.post(&path, &serde_json::json!({})).await?;
                match context.json {
                    true => print_json(&revoked)?,
                    false => print(&format!(
                        "{} is out{}. Only a join token lets it in again",
                        shown_name(&worker),
                        match (worker.state, worker.tasks.len()) {
                            (WorkerState::Offline, _) => "; what it still runs is killed when it comes back",
                            (_, 0) => "",
                            (_, 1) => "; its task is killed",
                            _ => "; its tasks are killed",
                        },
                    ))?,
                }
            }
        }
        Some(WorkerCommand::Evict { tasks }) => evict(context, client, tasks).await?,
        // This machine's own, handled before there was a server.
        Some(WorkerCommand::Start(_) | WorkerCommand::Stop(_)) => return Ok(ExitStatus::USAGE),
    }
    Ok(ExitStatus::SUCCESS)
}

async fn fleet(client: &Client) -> Result<Vec<Worker>, CliError> {
    let page: Page<Worker> = client.get("/v1/workers").await?;
    Ok(page.items)
}

async fn list(context: &Context, server: &Server) -> Result<(), CliError> {
    let client = &server.client;
    let workers = fleet(client).await?;
    if context.json {
        let mut output = Output::new();
        for worker in &workers {
            output.json(worker)?;
        }
        return output.flush();
    }
    let mut workers = workers;
    workers.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
    let held = held_gpus(client, &workers).await?;
    let rows: Vec<Vec<String>> = workers
        .iter()
        .map(|worker| {
            let namesakes = workers.iter().filter(|other| other.name == worker.name).count() - 1;
            row(worker, held.as_ref(), client.server_version(), namesakes > 0)
        })
        .collect();
    table_within(&HEADER, &rows, &SPARE)?;
    if let Some(note) = why_cut_off(server, &workers).await? {
        say(&format!("note: {note}"));
    }
    Ok(())
}

/// Why machines that joined do not come back, when it is the server that nobody reaches: after `down` the next command
/// starts it without a port.
async fn why_cut_off(server: &Server, workers: &[Worker]) -> Result<Option<&'static str>, CliError> {
    let is_away = |worker: &Worker| worker.kind == WorkerKind::Remote && worker.state == WorkerState::Offline;
    if !workers.iter().any(is_away) {
        return Ok(None);
    }
    let status: ServerStatus = server.client.get("/v1/server").await?;
    Ok(match (status.listening, server.own) {
        (Some(_), _) => None,
        (None, true) => Some(
            "machines that joined cannot reach this server, which listens on no port: `gpulayer up` makes it listen, with the `--port` that it had if that was not 8470",
        ),
        (None, false) => Some("machines that joined cannot reach this server, which listens on no port"),
    })
}

/// The GPUs that tasks have; `None` for who sees some projects alone.
async fn held_gpus(client: &Client, workers: &[Worker]) -> Result<Option<BTreeSet<String>>, CliError> {
    if workers.iter().all(|worker| worker.capabilities.gpus.is_empty()) {
        return Ok(None);
    }
    let me: WhoAmI = client.get("/v1/whoami").await?;
    if !me.projects.is_empty() {
        return Ok(None);
    }
    let live = live_tasks(client, None).await?;
    Ok(Some(live.into_iter().flat_map(|live| live.task.gpus).collect()))
}

fn shown_name(worker: &Worker) -> String {
    harmless(&worker.name, false)
}

/// A task that lives on some worker, with its job.
struct Live {
    job: Job,
    task: Task,
}

/// The tasks that have not ended, on this worker or on any.
async fn live_tasks(client: &Client, on: Option<WorkerId>) -> Result<Vec<Live>, CliError> {
    let filter = on.map(|id| format!("&worker={}", encoded(&id.to_string()))).unwrap_or_default();
    let jobs = all(client, &format!("&state=running&state=scheduled{filter}"), MOST_TASKS).await?;
    let found = join_all(jobs.into_iter().map(async |job| {
        let tasks = client.get::<Page<Task>>(&format!("/v1/jobs/{}/tasks", job.id)).await?;
        let wanted = |task: &Task| !task.state.ended() && on.is_none_or(|on| task.worker == on);
        let live = tasks.items.into_iter().filter(wanted).map(|task| Live { job: job.clone(), task });
        Ok::<Vec<Live>, CliError>(live.collect())
    }))
    .await;
    let mut live = Vec::new();
    for of_job in found {
        live.extend(of_job?);
    }
    Ok(live)
}

async fn show(context: &Context, server: &Server, given: &[String]) -> Result<(), CliError> {
    let client = &server.client;
    let mut output = Output::new();
    for (index, Meant { mut worker, called }) in chosen(client, given).await?.into_iter().enumerate() {
        if context.json {
            output.json(&worker)?;
            continue;
        }
        let cut_off = why_cut_off(server, std::slice::from_ref(&worker)).await?;
        worker.notes.extend(cut_off.map(str::to_owned));
        let tasks = live_tasks(client, Some(worker.id)).await?;
        if index > 0 {
            output.line("")?;
        }
        output.text(&page(&context.next(), (&worker, &called), &tasks, client.server_version()))?;
    }
    output.flush()
}

fn page(next: &NextStep, (worker, called): (&Worker, &str), tasks: &[Live], server: Option<&str>) -> String {
    let mut page = String::new();
    let mut field = |name: &str, value: &str| {
        let _ = writeln!(page, "{name:<16} {}", harmless(value, false));
    };
    field("worker", &worker.id.to_string());
    field("name", &worker.name);
    // The state is of the last heartbeat, the tasks are of now.
    let state = match worker.state {
        WorkerState::Idle if !tasks.is_empty() => WorkerState::Busy,
        state => state,
    };
    field("state", word(state));
    for note in notes(worker) {
        field("", &note);
    }
    if let Some(seen) = worker.last_seen {
        field("seen", &moment(seen));
    }
    if let Some(silence) = worker.longest_silence_s {
        field("longest silence", &span(silence));
    }
    let telemetry = worker.telemetry.unwrap_or_default();
    for (name, value) in [
        ("load", telemetry.load.map(|load| format!("{load:.2} in the last minute"))),
        ("memory free", telemetry.memory_available_bytes.map(size)),
        ("disk free", telemetry.disk_free_bytes.map(size)),
        ("processes", telemetry.task_processes.map(|count| format!("{count} of its tasks"))),
    ] {
        if let Some(value) = value {
            field(name, &value);
        }
    }
    for note in &worker.notes {
        field("note", note);
    }
    // Whatever it says it has, also what newer workers add.
    if let Ok(Value::Object(capabilities)) = serde_json::to_value(&worker.capabilities) {
        for (name, value) in capabilities {
            if name == "gpus" {
                for gpu in &worker.capabilities.gpus {
                    let holder = tasks.iter().find(|live| live.task.gpus.contains(&gpu.uuid));
                    field("gpu", &gpus::line(gpu, holder.map(|live| live.job.id)));
                }
                continue;
            }
            match said(&name, &value) {
                text if text.is_empty() => {}
                text if name == "version" => field(&name, &version(&text, server)),
                text => field(&name, &text),
            }
        }
    }
    for Live { job, task } in tasks {
        let age = task.started_at.map_or_else(
            || "not started".to_owned(),
            |started| format!("for {}", span(clock::now().since(started))),
        );
        let name = job.name.as_deref().unwrap_or_default();
        field("task", &format!("{} {} {age} · job …{} {name}", task.id, task.state.word(), tail(job.id)));
    }
    if worker.drain.is_some() {
        let resume = next.command(&format!("worker resume {called}"));
        let _ = writeln!(page, "\nnext: {resume}");
    }
    page
}

/// One thing a worker has, in a line.
fn said(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if name.ends_with("_bytes") => {
            number.as_u64().map_or_else(|| number.to_string(), size)
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| said("", item)).collect();
            items.join(", ")
        }
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}={}", said(name, value))).collect();
            fields.join(" ")
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Says what a drain leaves running, and what comes next.
async fn told_of_drain(
    context: &Context,
    client: &Client,
    worker: &Worker,
    called: &str,
) -> Result<(), CliError> {
    if context.json {
        return print_json(worker);
    }
    let tasks = live_tasks(client, Some(worker.id)).await?;
    let name = shown_name(worker);
    let count = match tasks.len() {
        0 => "nothing runs on it".to_owned(),
        1 => "1 task still runs".to_owned(),
        count => format!("{count} tasks still run"),
    };
    let then = match worker.drain.and_then(|drain| drain.deadline) {
        _ if tasks.is_empty() => String::new(),
        Some(deadline) => format!("; what is left at {} is stopped with its grace", moment(deadline)),
        None => ", and may end by itself".to_owned(),
    };
    print(&format!("{name} takes no new tasks; {count}{then}"))?;
    for Live { job, task } in &tasks {
        let job_name = harmless(job.name.as_deref().unwrap_or_default(), false);
        print(format!("  {} · job …{} {job_name}", task.id, tail(job.id)).trim_end())?;
    }
    say(&format!(
        "next: {} shows it, {} takes it back",
        context.next().command(&format!("worker show {called}")),
        context.next().command(&format!("worker resume {called}")),
    ));
    Ok(())
}

async fn evict(context: &Context, client: &Client, given: &[String]) -> Result<(), CliError> {
    let live = live_tasks(client, None).await?;
    let mut meant = Vec::new();
    for text in given {
        meant.push(task_meant(client, &live, text).await?);
    }
    for Live { job, task } in meant {
        let path = format!("/v1/workers/{}/evict", task.worker);
        let worker: Worker = client.post(&path, &EvictRequest { task_id: task.id }).await?;
        if context.json {
            print_json(&worker)?;
            continue;
        }
        let what = match task.started_at {
            Some(_) => "is stopped with its grace",
            None => "goes elsewhere",
        };
        print(&format!("{} of job …{} {what}", task.id, tail(job.id)))?;
    }
    Ok(())
}

/// The live task that this text names: by its id, the id's beginning or end, or by its job.
async fn task_meant<'a>(client: &Client, live: &'a [Live], given: &str) -> Result<&'a Live, CliError> {
    let text = given.strip_prefix('…').unwrap_or(given);
    let found: Vec<&Live> =
        live.iter().filter(|one| names(&one.task.id.to_string(), TaskId::PREFIX, text)).collect();
    match found.as_slice() {
        [only] => return Ok(only),
        [] => {}
        several => {
            let shown: Vec<_> = several.iter().map(|one| short_id(&one.task.id.to_string())).collect();
            return Err(CliError::AmbiguousJob { given: given.to_owned(), candidates: shown.join(", ") });
        }
    }
    let no_such = || CliError::NoSuchTask { given: given.to_owned() };
    let job: JobId = one(client, given).await.map_err(|error| match error {
        CliError::NoSuchJob { .. } => no_such(),
        other => other,
    })?;
    live.iter().find(|one| one.job.id == job).ok_or_else(no_such)
}

/// Whether `text` is this id, its beginning or its end.
fn names(id: &str, prefix: &str, text: &str) -> bool {
    id == text
        || (text.starts_with(prefix) && text.len() > prefix.len() && id.starts_with(text))
        || (text.len() >= SHORTEST_TAIL && id.ends_with(text))
}

/// A worker, and how commands name it.
struct Meant {
    worker: Worker,
    called: String,
}

/// The workers meant, each once, in the order given.
async fn chosen(client: &Client, given: &[String]) -> Result<Vec<Meant>, CliError> {
    let fleet = fleet(client).await?;
    let mut chosen: Vec<Meant> = Vec::new();
    for text in given {
        let worker = worker_meant(&fleet, text)?;
        if !chosen.iter().any(|known| known.worker.id == worker.id) {
            chosen.push(Meant { worker: worker.clone(), called: called(&fleet, worker) });
        }
    }
    Ok(chosen)
}

/// What `--on` means to the server: a worker's name as it is, the beginning or end of one worker's id as the whole id.
/// What names no worker of now is left as it is: it may join.
pub(super) async fn placed_on(server: &Server, given: &str) -> Result<String, CliError> {
    let Some(fleet) = visible_fleet(&server.client).await? else { return Ok(given.to_owned()) };
    if fleet.iter().any(|worker| worker.name == given) {
        return Ok(given.to_owned());
    }
    match worker_meant(&fleet, given) {
        Ok(worker) => Ok(worker.id.to_string()),
        Err(CliError::NoSuchWorker { .. }) => {
            let given = given.to_owned();
            let known: Vec<_> = fleet.iter().map(|worker| harmless(&worker.name, false)).collect();
            let known =
                if known.is_empty() { String::new() } else { format!(" (there: {})", known.join(", ")) };
            say(&format!(
                "warning: no worker is called {} now{known}. A label is KEY=VALUE{}",
                harmless(&given, false),
                own_daemon_note(server, &fleet)
            ));
            Ok(given)
        }
        Err(error) => Err(error),
    }
}

/// `None` = this caller may not see it; whoever may not can still name a worker.
async fn visible_fleet(client: &Client) -> Result<Option<Vec<Worker>>, CliError> {
    match fleet(client).await {
        Ok(fleet) => Ok(Some(fleet)),
        Err(CliError::Client(ClientError::Refused(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says so when no worker of now has all these labels.
pub(super) async fn say_if_nowhere(server: &Server, labels: &[(&str, &str)]) -> Result<(), CliError> {
    if labels.is_empty() {
        return Ok(());
    }
    let Some(fleet) = visible_fleet(&server.client).await? else { return Ok(()) };
    let has = |worker: &Worker, key: &str, value: &str| {
        worker.capabilities.labels.get(key).is_some_and(|found| found.as_str() == value)
    };
    if !fleet.iter().any(|worker| labels.iter().all(|(key, value)| has(worker, key, value))) {
        let shown: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        say(&format!(
            "warning: no worker has {} now{}",
            harmless(&shown.join(" and "), false),
            own_daemon_note(server, &fleet)
        ));
    }
    Ok(())
}

/// The machine's own daemon is easily taken for a server elsewhere, as long as nobody has joined it.
fn own_daemon_note(server: &Server, fleet: &[Worker]) -> &'static str {
    if server.own && fleet.iter().all(|worker| worker.kind == WorkerKind::Local) {
        ". This is the own daemon of this machine; `gpulayer connect` chooses a server elsewhere"
    } else {
        ""
    }
}

/// How a worker is called in a command: by its name, or by its id when another has that name.
fn called(fleet: &[Worker], worker: &Worker) -> String {
    let alone = fleet.iter().filter(|other| other.name == worker.name).count() < 2;
    if alone { quoted(&worker.name) } else { worker.id.to_string() }
}

/// A name goes before the end of an id: people choose names.
fn worker_meant<'a>(fleet: &'a [Worker], given: &str) -> Result<&'a Worker, CliError> {
    let text = given.strip_prefix('…').unwrap_or(given);
    let named: Vec<&Worker> = fleet.iter().filter(|worker| worker.name == given).collect();
    let found = if named.is_empty() {
        let by_id = |worker: &&Worker| names(&worker.id.to_string(), WorkerId::PREFIX, text);
        fleet.iter().filter(by_id).collect()
    } else {
        named
    };
    match found.as_slice() {
        [only] => Ok(only),
        [] => Err(CliError::NoSuchWorker { given: given.to_owned() }),
        several => {
            let shown = several.iter().map(|worker| {
                let host = harmless(&worker.capabilities.hostname, false);
                format!("{} (on {host}, {})", worker.id, word(worker.state))
            });
            Err(CliError::AmbiguousWorker { given: given.to_owned(), candidates: shown.collect() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: u128, name: &str) -> Worker {
        serde_json::from_value(serde_json::json!({
            "id": WorkerId::from_u128(id), "name": name, "kind": "remote", "state": "idle",
            "tasks": [], "last_seen": null,
            "capabilities": {"version": "0", "hostname": "h", "os": "linux", "arch": "x86_64", "cpus": 2,
                "memory_bytes": 4_000_000_000_u64, "labels": {"zone": "a"}}
        }))
        .unwrap()
    }

    #[test]
    fn a_worker_is_meant_by_name_by_id_and_by_the_ends_of_its_id() {
        let fleet = [worker(7, "box"), worker(8 << 64, "far"), worker(9, "box")];
        let meant = |text: &str| worker_meant(&fleet, text).map(|worker| worker.id);
        let id = fleet[1].id.to_string();
        for text in ["far", &id, &id[..id.len() - 1]] {
            assert_eq!(meant(text).unwrap(), fleet[1].id, "{text}");
        }
        let tail = fleet[0].id.to_string();
        assert_eq!(meant(&tail[tail.len() - 4..]).unwrap(), fleet[0].id);
        assert_eq!(
            meant("box").unwrap_err().to_string(),
            format!("`box` could mean {} (on h, idle) or {} (on h, idle)", fleet[0].id, fleet[2].id)
        );
        assert_eq!(called(&fleet, &fleet[0]), fleet[0].id.to_string(), "the name says too little");
        assert_eq!(called(&fleet, &fleet[1]), "far");
        assert!(matches!(meant("007"), Err(CliError::NoSuchWorker { .. })), "three characters name nothing");
        assert!(matches!(meant("wkr_"), Err(CliError::NoSuchWorker { .. })));
    }

    #[test]
    fn a_worker_is_shown_with_all_it_says_it_has() {
        let page = page(&NextStep::default(), (&worker(7, "box"), "box"), &[], Some("1"));
        let said = |field: &str, value: &str| {
            page.lines().any(|line| {
                line.split_once(' ').is_some_and(|(name, rest)| (name, rest.trim()) == (field, value))
            })
        };
        for (field, value) in [
            ("name", "box"),
            ("state", "idle"),
            ("cpus", "2"),
            ("memory_bytes", "4.0 GB"),
            ("labels", "zone=a"),
            ("version", "0 (older)"),
        ] {
            assert!(said(field, value), "{field} in {page}");
        }
    }
}
