//! `explain`: why a job waits, or where a spec would run, and what would help.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use serde_json::json;

use super::Context;
use super::args::ExplainArgs;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::job_choice;
use super::screen::{Output, print_json};
use super::server_choice::OnDemand;
use super::shown::{harmless, moment, tail};
use super::spec_building;
use crate::client::{Call, Client};
use crate::contract::explain::{Explained, Explanation, PastExplanation, Verdict};
use crate::contract::ids::WorkerId;
use crate::contract::worker::Worker;

/// `gpulayer explain`.
pub(super) async fn run(context: &Context, args: &ExplainArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let (what, explanation): (String, Explanation) = match (&args.job, &args.spec) {
        (Some(job), _) => {
            let id = job_choice::one(&client, job).await?;
            let what = format!("job …{}", tail(id));
            match client.get(&format!("/v1/jobs/{id}/explain")).await? {
                Explained::Waits(explanation) => (what, explanation),
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
    let mut names = HashMap::new();
    let workers: BTreeSet<WorkerId> = past.placements.iter().map(|placement| placement.worker).collect();
    for id in workers {
        // One that is gone, or not to be seen, is named by its id.
        let worker = client.get::<Worker>(&format!("/v1/workers/{id}")).await.ok();
        names.insert(id, worker.map_or_else(|| id.to_string(), |worker| worker.name));
    }
    let mut output = Output::new();
    output.text(&past_page(what, past, &names))?;
    output.flush()?;
    Ok(ExitStatus::SUCCESS)
}

fn past_page(what: &str, past: &PastExplanation, names: &HashMap<WorkerId, String>) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "{what} is {}: {}", past.state.word(), harmless(&past.summary, false));
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(page, "  {name:<11} {}", harmless(text, false));
    };
    line("queued", &moment(past.queued_at));
    let unshown = past.placed as usize - past.placements.len().min(past.placed as usize);
    if unshown > 0 {
        line("placed", &format!("{unshown} times before"));
    }
    for placement in &past.placements {
        let worker = names.get(&placement.worker).cloned().unwrap_or_default();
        let gpus = if placement.gpus.is_empty() {
            String::new()
        } else {
            format!(" ({})", placement.gpus.join(", "))
        };
        let end = placement.reason.map_or_else(String::new, |reason| format!(", {}", reason.word()));
        line(
            "placed",
            &format!("{} on {worker}{gpus}, attempt {}{end}", moment(placement.placed_at), placement.attempt),
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
    let verdict = match explanation.verdict {
        Verdict::Never => "fits on no worker there is, however long it waits",
        Verdict::NotNow => "has to wait",
        Verdict::Fits if explanation.quota.is_some() => "would find room, but has to wait",
        Verdict::Fits => "finds room now",
    };
    let _ = writeln!(page, "{what} {verdict}");
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(page, "  {name:<11} {}", harmless(text, false));
    };
    if let Some(quota) = &explanation.quota {
        line("quota", quota);
    }
    if explanation.workers.is_empty() {
        line("workers", "none is connected");
    }
    for answer in &explanation.workers {
        let count = answer.workers.len();
        let name = if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") };
        line(&name, &format!("{}: {}", named(&answer.workers), answer.reason));
    }
    match explanation.ahead {
        None => {}
        Some(0) => line("queue", "no job is served before it"),
        Some(1) => line("queue", "1 job is served before it"),
        Some(ahead) => line("queue", &format!("{ahead} jobs are served before it")),
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
    if !explanation.suggestions.is_empty() {
        let _ = writeln!(page, "It would start now with any of these:");
        for suggestion in &explanation.suggestions {
            let _ = writeln!(page, "  {}", harmless(&suggestion.change, false));
        }
    }
    page
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
mod tests {
    use super::*;
    use crate::contract::explain::{ReservedPlace, Suggestion, WorkersAnswer};
    use crate::contract::quantity::Timestamp;

    #[test]
    fn a_page_says_who_lacks_what_whose_turn_it_is_and_what_would_help() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let explanation = Explanation {
            verdict: Verdict::NotNow,
            summary: String::new(),
            workers: vec![
                WorkersAnswer {
                    verdict: Verdict::NotNow,
                    reason: "needs 8 GPUs, 4 free of 8 (4 held by tasks)".into(),
                    workers: names(&["a1", "a2", "a3", "a4", "a5", "a6"]),
                },
                WorkersAnswer {
                    verdict: Verdict::Never,
                    reason: "needs 8 GPUs, has none".into(),
                    workers: names(&["login"]),
                },
            ],
            ahead: Some(3),
            quota: None,
            reservation: Some(ReservedPlace { workers: names(&["a1"]), free_by: None }),
            starts_by: Some(Timestamp::from_micros(1_700_000_000_000_000)),
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
          queue       3 jobs are served before it
          reserved    a1
          starts by   22:13:20, if every job before it takes all the time it may
        It would start now with any of these:
          4 GPUs instead of 8
        ");
    }
}
