//! `explain`: why a job waits, or where a spec would run, and what would help.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::json;

use super::Context;
use super::args::ExplainArgs;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::fleet::names_of;
use super::job_choice;
use super::screen::{Output, print_json, say};
use super::server_choice::OnDemand;
use super::shown::{harmless, moment, tail};
use super::spec_building;
use super::verdict::outcome_word;
use crate::client::{Call, Client};
use crate::contract::explain::{
    Explained, Explanation, Favoured, Holder, PastExplanation, PastPlacement, ReservedFor, Verdict,
    WaitingFor, WorkersAnswer,
};
use crate::contract::ids::WorkerId;
use crate::contract::job::JobState;
use crate::contract::problem::Warning;
use crate::domain::time_left::at_most;

/// What to do where there is no worker.
pub(super) const TO_HAVE_WORKERS: &str = "`gpulayer join` on a machine makes it one, `gpulayer up` on the server's machine \
                                          starts the one there and prints how others join";

/// `gpulayer explain`.
pub(super) async fn run(context: &Context, args: &ExplainArgs) -> Result<ExitStatus, CliError> {
    if args.job.is_some() && (args.like.is_some() || args.without.is_some()) {
        return Err(CliError::SupposedOfJob);
    }
    let client = context.server(OnDemand::Start)?.client;
    let (what, explanation): (String, Explanation) = match (&args.job, &args.spec) {
        (Some(job), _) => {
            let id = job_choice::one(&client, job).await?;
            let what = format!("job …{}", tail(id));
            match client.get(&format!("/v1/jobs/{id}/explain")).await? {
                Explained::Waits(explanation) => (what, *explanation),
                Explained::Past(past) => return show_past(context, &client, &what, &past).await,
            }
        }
        (None, Some(file)) => {
            let mut asked = json!({"spec": spec_building::read_file(file)?});
            for (field, value) in
                [("like", args.like.clone().map(Into::into)), ("more", args.more.map(Into::into))]
            {
                if let Some(value) = value {
                    asked[field] = value;
                }
            }
            if let Some(job) = &args.without {
                asked["without"] = json!(job_choice::one(&client, job).await?);
            }
            let call = Call::mutate("/v1/explain").json(&asked)?;
            ("a job of this spec".to_owned(), client.answer(&call).await?.json()?)
        }
        (None, None) => return Ok(ExitStatus::USAGE),
    };
    if context.json {
        print_json(&explanation)?;
        return Ok(ExitStatus::SUCCESS);
    }
    for Warning { pointer, detail } in &explanation.warnings {
        let in_file = pointer.strip_prefix("/spec").unwrap_or(pointer);
        let at = if in_file.is_empty() { String::new() } else { format!("{in_file}: ") };
        say(&format!("warning: {}{}", harmless(&at, false), harmless(detail, false)));
    }
    let mut output = Output::new();
    output.text(&page(&what, &explanation))?;
    output.flush()?;
    Ok(ExitStatus::SUCCESS)
}

async fn show_past(
    context: &Context,
    client: &Client,
    what: &str,
    past: &PastExplanation,
) -> Result<ExitStatus, CliError> {
    if context.json {
        print_json(past)?;
        return Ok(ExitStatus::SUCCESS);
    }
    let names = names_of(client, past.placements.iter().map(|placement| placement.worker)).await;
    let mut output = Output::new();
    output.text(&past_page(what, past, &names))?;
    output.flush()?;
    Ok(ExitStatus::SUCCESS)
}

/// A job's state as its verb.
fn stands(state: JobState) -> String {
    match state.ended() {
        true => outcome_word(state).to_owned(),
        false => format!("is {}", state.word()),
    }
}

fn past_page(what: &str, past: &PastExplanation, names: &BTreeMap<WorkerId, String>) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "{what} {}: {}", stands(past.state), harmless(&past.summary, false));
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(page, "  {name:<11} {}", harmless(text, false));
    };
    line("queued", &moment(past.queued_at));
    // The tasks of a gang were placed together.
    let shown: BTreeSet<_> = past.placements.iter().map(|placement| placement.placed_at).collect();
    let unshown = (past.placed as usize).saturating_sub(shown.len());
    if unshown > 0 {
        line("placed", &format!("{unshown} times before"));
    }
    for placement in &past.placements {
        let worker = names.get(&placement.worker).cloned().unwrap_or_else(|| placement.worker.to_string());
        let gpus = if placement.gpus.is_empty() {
            String::new()
        } else {
            format!(" ({})", placement.gpus.join(", "))
        };
        let end = placement.reason.map_or_else(String::new, |reason| format!(", {}", reason.word()));
        let rank = placement.rank.map_or_else(String::new, |rank| format!("rank {rank} "));
        let PastPlacement { placed_at, attempt, waited_s, .. } = placement;
        let waited = match waited_s.millis() / 1000 {
            0 => String::new(),
            seconds => format!(" after {seconds} s"),
        };
        line(
            "placed",
            &format!("{}{waited}: {rank}on {worker}{gpus}, attempt {attempt}{end}", moment(*placed_at)),
        );
    }
    if let Some(left) = &past.left_queue {
        if let Some(quota) = &left.quota {
            line("quota", quota);
        }
        if left.workers.is_empty() {
            line("workers", "none was connected");
        }
        for answer in &left.workers {
            let count = answer.workers;
            let name = if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") };
            let more = count.saturating_sub(answer.names.len() as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            line(&name, &format!("{}{more}: {}", answer.names.join(", "), answer.reason));
        }
        if let Some(remedy) = left.remedy.as_ref().filter(|_| left.suggestions.is_empty()) {
            let _ = writeln!(page, "It would have been possible, though not at once, with this:");
            let _ = writeln!(page, "  {}", harmless(&remedy.change, false));
        }
        if !left.suggestions.is_empty() {
            let _ = writeln!(page, "It would have started then with any of these:");
            for suggestion in &left.suggestions {
                let _ = writeln!(page, "  {}", harmless(&suggestion.change, false));
            }
        }
    }
    page
}

fn page(what: &str, explanation: &Explanation) -> String {
    let mut page = String::new();
    let could_take = |answer: &WorkersAnswer| answer.verdict != Verdict::Never;
    let verdict = match explanation.verdict {
        Verdict::Never if explanation.quota.is_some() && explanation.workers.iter().any(could_take) => {
            "is more than its project may have, however long it waits"
        }
        Verdict::Never => "fits on no worker there is, however long it waits",
        Verdict::NotNow => "has to wait",
        Verdict::Fits if explanation.quota.is_some() => "would find room, but has to wait",
        Verdict::Fits => "finds room now",
    };
    let _ = match explanation.held {
        Some(_) => writeln!(page, "{what} does not wait for a worker yet"),
        None => writeln!(page, "{what} {verdict}"),
    };
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(page, "  {name:<11} {}", harmless(text, false));
    };
    if let Some(held) = &explanation.held {
        line("first", held);
        line("then", &format!("as it stands now, it {verdict}"));
    }
    if let Some(quota) = &explanation.quota {
        let held_by = holders(&explanation.quota_held_by, 0);
        let held_by = if held_by.is_empty() { held_by } else { format!("; held by {held_by}") };
        line("quota", &format!("{quota}{held_by}"));
    }
    if let Some(nodes) = explanation.nodes {
        line("gang", &format!("needs {nodes} workers at once"));
    }
    if explanation.workers.is_empty() {
        line("workers", &format!("none is connected; {TO_HAVE_WORKERS}"));
    }
    for answer in &explanation.workers {
        let count = answer.workers.len();
        let name = if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") };
        let reason = answer.reserved_for.as_ref().map_or_else(|| answer.reason.clone(), kept);
        line(&name, &format!("{}: {reason}{}", named(&answer.workers), remedy_of(answer)));
    }
    if let Some(waiting) = &explanation.waiting_for {
        line("waits for", &format!("{} (on {})", held(waiting), waiting.worker));
    }
    if let Some(untested) = &explanation.untested {
        line("untested", untested);
    }
    if explanation.ahead.is_some() {
        line("queue", &turn(explanation));
    }
    if let Some(reservation) = &explanation.reservation {
        let by = reservation
            .free_by
            .map_or_else(String::new, |time| format!(", free by {} at the latest", moment(time)));
        line("reserved", &format!("{}{by}", named(&reservation.workers)));
    }
    if let Some(starts_by) = explanation.starts_by.filter(|_| explanation.verdict != Verdict::Fits) {
        line(
            "starts by",
            &format!("{}, if every job before it takes all the time it may", moment(starts_by)),
        );
    }
    if let Some(remedy) = explanation.remedy.as_ref().filter(|_| explanation.suggestions.is_empty()) {
        let _ = writeln!(page, "It would be possible, though not at once, with this:");
        let _ = writeln!(page, "  {}", harmless(&remedy.change, false));
    }
    if !explanation.suggestions.is_empty() {
        let _ = writeln!(page, "It would start now with any of these:");
        for suggestion in &explanation.suggestions {
            let _ = writeln!(page, "  {}", harmless(&suggestion.change, false));
        }
    }
    page
}

/// `2 jobs are served before it (…a7kq2b, …x2m9q1)`.
pub(super) fn turn(explanation: &Explanation) -> String {
    let ahead = explanation.ahead.unwrap_or_default();
    let said = match ahead {
        0 => return "no job is served before it".to_owned(),
        1 => "1 job is served before it".to_owned(),
        ahead => format!("{ahead} jobs are served before it"),
    };
    let said = match &explanation.favoured {
        None => said,
        Some(Favoured { project: Some(project) }) => {
            format!("{said}, as project {project} has had less than its share")
        }
        Some(Favoured { project: None }) => {
            format!("{said}, as a project that is not yours to see has had less than its share")
        }
    };
    let mut named: Vec<String> =
        explanation.served_before.iter().map(|job| format!("…{}", tail(*job))).collect();
    if named.is_empty() {
        return said;
    }
    let more = ahead.saturating_sub(named.len() as u64);
    if more > 0 {
        named.push(format!("{more} more"));
    }
    format!("{said} ({})", listed(named))
}

/// What brings a worker back that takes no tasks now.
fn remedy_of(answer: &WorkersAnswer) -> String {
    let Some(first) = answer.workers.first() else { return String::new() };
    match answer.reason.as_str() {
        "draining" => format!(" · `gpulayer worker resume {first}` lets it take tasks again"),
        "takes no tasks now (offline)" => {
            format!(
                " · `gpulayer worker show {first}` says since when; `gpulayer worker start` there brings it back"
            )
        }
        _ => String::new(),
    }
}

/// `has room, reserved for job …z68y2d until 10:23`.
pub(super) fn kept(reserved_for: &ReservedFor) -> String {
    let until = reserved_for.until.map_or_else(String::new, |time| format!(" until {}", moment(time)));
    format!("has room, {}{until}", reserved(reserved_for))
}

/// `reserved for job …z68y2d`.
fn reserved(reserved_for: &ReservedFor) -> String {
    match reserved_for.job {
        Some(job) => format!("reserved for job …{}", tail(job)),
        None => "reserved for a job that is not yours to see".to_owned(),
    }
}

/// `a, b and c`.
fn listed(mut words: Vec<String>) -> String {
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

/// `1 GPU: held by job …a7kq2b (alice), up to 40 min`.
pub(super) fn held(waiting: &WaitingFor) -> String {
    let holders = holders(&waiting.held_by, waiting.more);
    if let Some(first) = &waiting.reserved_for {
        return match holders.is_empty() {
            true => format!("{}: {}", waiting.what, reserved(first)),
            false => format!("{}: held by {holders}, then {}", waiting.what, reserved(first)),
        };
    }
    let up_to = match waiting.up_to_s {
        Some(left) => format!("up to {}", at_most(left)),
        None => "nobody knows for how long".to_owned(),
    };
    if waiting.preempted {
        return format!("{} (preempted: {holders}), {up_to}", waiting.what);
    }
    format!("{}: held by {holders}, {up_to}", waiting.what)
}

/// `job …a7kq2b (alice), job …x2m9q1 and 2 more`.
fn holders(held_by: &[Holder], more: u64) -> String {
    let named = held_by.iter().map(|holder| match (holder.job, &holder.submitted_by) {
        (Some(job), Some(whose)) => format!("job …{} ({whose})", tail(job)),
        (Some(job), None) => format!("job …{}", tail(job)),
        (None, _) => "a job that is not yours to see".to_owned(),
    });
    let mut holders: Vec<String> = named.collect();
    if more > 0 {
        holders.push(format!("{more} more"));
    }
    listed(holders)
}

/// The first names of many.
fn named(workers: &[String]) -> String {
    const SHOWN: usize = 4;
    match workers.len().checked_sub(SHOWN) {
        None | Some(0) => workers.join(", "),
        Some(more) => format!("{} and {more} more", workers[..SHOWN].join(", ")),
    }
}

#[cfg(test)]
mod worked;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::explain::{ReservedPlace, Suggestion};
    use crate::contract::quantity::{Seconds, Timestamp};

    #[test]
    fn a_page_says_who_lacks_what_whose_turn_it_is_and_what_would_help() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let explanation = Explanation {
            verdict: Verdict::NotNow,
            summary: String::new(),
            held: None,
            workers: vec![
                WorkersAnswer {
                    verdict: Verdict::NotNow,
                    reason: "needs 8 GPUs, 4 free of 8 (4 held by tasks)".into(),
                    workers: names(&["a1", "a2", "a3", "a4", "a5", "a6"]),
                    reserved_for: None,
                },
                WorkersAnswer {
                    verdict: Verdict::Never,
                    reason: "needs 8 GPUs, has none".into(),
                    workers: names(&["login"]),
                    reserved_for: None,
                },
            ],
            ahead: Some(3),
            served_before: vec!["job_01hf7yat00e2g0000000a7kq2b".parse().unwrap()],
            favoured: Some(Favoured { project: Some("alpha".into()) }),
            nodes: None,
            warnings: Vec::new(),
            quota: None,
            quota_held_by: Vec::new(),
            reservation: Some(ReservedPlace { workers: names(&["a1"]), free_by: None }),
            waiting_for: Some(WaitingFor {
                what: "4 GPUs".into(),
                worker: "a1".into(),
                held_by: vec![
                    Holder {
                        job: Some("job_01hf7yat00e2g0000000a7kq2b".parse().unwrap()),
                        submitted_by: Some("alice".into()),
                        up_to_s: Some(Seconds::new(60)),
                    },
                    Holder { job: None, submitted_by: None, up_to_s: None },
                ],
                more: 2,
                up_to_s: Some(Seconds::new(2401)),
                preempted: false,
                reserved_for: None,
            }),
            untested: None,
            starts_by: Some(Timestamp::from_micros(1_700_000_000_000_000)),
            remedy: None,
            suggestions: vec![Suggestion {
                change: "4 GPUs instead of 8".into(),
                pointer: "/resources/gpus/count".into(),
                value: json!(4),
            }],
        };
        let starts = moment(Timestamp::from_micros(1_700_000_000_000_000));
        insta::assert_snapshot!(page("job …a7kq2b", &explanation).replace(&starts, "22:13:20"), @r"
        job …a7kq2b has to wait
          6 workers   a1, a2, a3, a4 and 2 more: needs 8 GPUs, 4 free of 8 (4 held by tasks)
          1 worker    login: needs 8 GPUs, has none
          waits for   4 GPUs: held by job …a7kq2b (alice), a job that is not yours to see and 2 more, up to 40 min 1 s (on a1)
          queue       3 jobs are served before it, as project alpha has had less than its share (…a7kq2b and 2 more)
          reserved    a1
          starts by   22:13:20, if every job before it takes all the time it may
        It would start now with any of these:
          4 GPUs instead of 8
        ");
        let says = |reason: &str| {
            let answer = WorkersAnswer {
                verdict: Verdict::NotNow,
                reason: reason.into(),
                workers: names(&["a1"]),
                reserved_for: None,
            };
            remedy_of(&answer)
        };
        assert!(says("draining").contains("`gpulayer worker resume a1`"));
        assert!(says("takes no tasks now (offline)").contains("`gpulayer worker show a1`"));
        assert_eq!(says("has room"), "");
        let mut leaving = explanation.waiting_for.clone().unwrap();
        (leaving.what, leaving.preempted, leaving.more) = ("2 tasks to leave".into(), true, 0);
        leaving.up_to_s = Some(Seconds::new(20));
        assert_eq!(
            held(&leaving),
            "2 tasks to leave (preempted: job …a7kq2b (alice) and a job that is not yours to see), up to 20 s"
        );
        let job = Some("job_01hf7yat00e2g0000000z68y2d".parse().unwrap());
        let first = ReservedFor { job, until: None };
        let mut behind = WaitingFor { reserved_for: Some(first.clone()), up_to_s: None, ..leaving.clone() };
        (behind.what, behind.preempted) = ("1 GPU".into(), false);
        behind.held_by.truncate(1);
        assert_eq!(held(&behind), "1 GPU: held by job …a7kq2b (alice), then reserved for job …z68y2d");
        behind.held_by.clear();
        assert_eq!(held(&behind), "1 GPU: reserved for job …z68y2d");
        assert_eq!(kept(&first), "has room, reserved for job …z68y2d");
        let until = Timestamp::from_micros(1_700_000_000_000_000);
        let hidden = ReservedFor { job: None, until: Some(until) };
        assert_eq!(
            kept(&hidden),
            format!("has room, reserved for a job that is not yours to see until {}", moment(until))
        );
        let beyond = Explanation {
            verdict: Verdict::Never,
            quota: Some("project vision may have 4 GPUs at most, needs 8".into()),
            ..explanation
        };
        let page = page("a job of this spec", &beyond);
        assert!(page.starts_with("a job of this spec is more than its project may have, however"), "{page}");
    }
}
