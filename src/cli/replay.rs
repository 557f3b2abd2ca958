//! `replay`: makes the recorded passes of the scheduler again, from the files of this machine alone, and says whether the
//! same comes out.

mod of_job;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Context;
use super::args::ReplayArgs;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::screen::{Output, print_json};
use super::shown::{harmless, moment, tail};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::domain::causes::said;
use crate::domain::placement::replay::{Answer, Counts, Difference, Entry, Passed, RULES, Replay, Waiting};
use crate::domain::placement::{Placer, Reservation};
use crate::recording::{FOLDER, Reader, RecordError, segments};

/// What came of one segment.
#[derive(Debug, Serialize)]
struct Outcome {
    segment: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    began_at: Option<Timestamp>,
    /// Of its last pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_pass_at: Option<Timestamp>,
    #[serde(flatten)]
    counts: Counts,
    outcome: Kind,
    /// How the segment ends.
    end: End,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Box<Difference>>,
    /// What is to be said of a segment that is cut, damaged, or of other rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Equal,
    Different,
    OtherRules,
    Damaged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Closed,
    /// Written at this moment, or its writer was killed.
    Open,
    Cut,
}

/// `gpulayer replay`.
pub(super) fn run(context: &Context, args: &ReplayArgs) -> Result<ExitStatus, CliError> {
    let chosen = chosen(context, args)?;
    if let (Some(number), Some(path)) = (args.pass, chosen.first()) {
        return show_pass(context, path, number);
    }
    let mut status = ExitStatus::SUCCESS;
    let mut output = Output::new();
    for path in chosen {
        // The oldest may go while this runs.
        if args.segment.is_none()
            && path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            continue;
        }
        let outcome = replay(&path);
        if matches!(outcome.outcome, Kind::Different | Kind::Damaged) {
            status = ExitStatus::FAILED;
        }
        if context.json { output.json(&outcome)? } else { output.text(&line(&outcome))? }
    }
    output.flush()?;
    Ok(status)
}

/// `gpulayer replay --job`.
pub(super) async fn of_job(context: &Context, args: &ReplayArgs) -> Result<ExitStatus, CliError> {
    of_job::show(context, &chosen(context, args)?, args.job.as_deref().unwrap_or_default()).await
}

/// The segments that are meant.
fn chosen(context: &Context, args: &ReplayArgs) -> Result<Vec<PathBuf>, CliError> {
    let folder = context.settings.places.state.join(FOLDER);
    let mut chosen = match &args.segment {
        Some(path) => {
            // What is not there is not damaged.
            path.metadata().map_err(|source| RecordError::File { path: path.clone(), source })?;
            vec![path.clone()]
        }
        None => segments(&folder).map_err(|source| RecordError::File { path: folder.clone(), source })?,
    };
    if args.last || args.pass.is_some() {
        chosen.drain(..chosen.len().saturating_sub(1));
    }
    if chosen.is_empty() {
        return Err(CliError::NothingRecorded { folder });
    }
    Ok(chosen)
}

fn replay(path: &Path) -> Outcome {
    let mut outcome = Outcome {
        segment: path.to_owned(),
        began_at: None,
        last_pass_at: None,
        counts: Counts::default(),
        outcome: Kind::Equal,
        end: End::Open,
        difference: None,
        why: None,
    };
    if let Err(error) = play(path, &mut outcome) {
        match error {
            RecordError::Empty { .. } => {}
            error => {
                outcome.outcome = Kind::Damaged;
                outcome.why = Some(said(&error));
            }
        }
    }
    outcome
}

fn play(path: &Path, outcome: &mut Outcome) -> Result<(), RecordError> {
    let mut reader = Reader::open(path)?;
    outcome.began_at = Some(reader.header().began_at);
    if reader.header().rules != RULES {
        outcome.outcome = Kind::OtherRules;
        outcome.why = Some(other_rules(&reader));
        return Ok(());
    }
    let Some(mut replay) = start(&mut reader)? else { return Ok(()) };
    while let Some(entry) = reader.entry()? {
        match entry {
            Entry::Told(input) => replay.told(input),
            Entry::Passed(passed) => {
                outcome.last_pass_at = Some(passed.now);
                if let Err(difference) = replay.passed(passed) {
                    outcome.counts = replay.counts();
                    outcome.outcome = Kind::Different;
                    outcome.difference = Some(difference);
                    return Ok(());
                }
            }
            Entry::Cut { why } => {
                outcome.end = End::Cut;
                outcome.why = Some(why);
            }
            Entry::Closed => outcome.end = End::Closed,
            Entry::Header(_) | Entry::Start(_) => {}
        }
        outcome.counts = replay.counts();
    }
    Ok(())
}

/// The placer with which a segment starts; `None` = that had not reached the disk.
fn start(reader: &mut Reader) -> Result<Option<Replay>, RecordError> {
    match reader.entry()? {
        Some(Entry::Start(placer)) => Ok(Some(Replay::from(*placer))),
        Some(_) => Err(reader.no_start()),
        None => Ok(None),
    }
}

fn other_rules(reader: &Reader) -> String {
    let header = reader.header();
    format!(
        "made by the placement rules {} of gpulayer {}; this is {} with rules {RULES}, which may place otherwise",
        header.rules,
        header.version,
        env!("CARGO_PKG_VERSION"),
    )
}

fn line(outcome: &Outcome) -> String {
    let Counts { inputs, passes, placements, preemptions } = outcome.counts;
    let name = outcome.segment.file_name().unwrap_or(outcome.segment.as_os_str()).to_string_lossy();
    let times = match (outcome.began_at, outcome.last_pass_at) {
        (Some(began), Some(last)) => format!("{} to {}  ", moment(began), moment(last)),
        (Some(began), None) => format!("from {}  ", moment(began)),
        (None, _) => String::new(),
    };
    let mut text = format!(
        "{}  {times}{inputs} inputs, {passes} passes, {placements} placements, {preemptions} preemptions: ",
        harmless(&name, false)
    );
    let why = outcome.why.as_deref().map(|why| harmless(why, false)).unwrap_or_default();
    let _ = match outcome.outcome {
        Kind::Equal => write!(text, "equal"),
        Kind::Different => write!(text, "DIFFERENT"),
        Kind::OtherRules => write!(text, "not compared: {why}"),
        Kind::Damaged => write!(text, "damaged: {why}"),
    };
    let _ = match outcome.end {
        _ if outcome.outcome != Kind::Equal => Ok(()),
        End::Closed => Ok(()),
        End::Open => write!(text, " (still written, or torn at its end)"),
        End::Cut => write!(text, " (cut: {why})"),
    };
    text.push('\n');
    if let Some(difference) = &outcome.difference {
        let _ = writeln!(text, "  pass {} came out otherwise", difference.pass);
        for (what, answer) in [("recorded", &difference.recorded), ("came out", &difference.came_out)] {
            let _ = writeln!(text, "  {what}: {}", in_one_line(answer));
        }
        let _ = writeln!(
            text,
            "  see it with: gpulayer replay --segment {} --pass {}",
            outcome.segment.display(),
            difference.pass
        );
    }
    text
}

fn in_one_line(answer: &Answer) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}

/// One pass of a segment, and what stood after it.
#[derive(Debug, Serialize)]
struct PassPage {
    segment: PathBuf,
    pass: u64,
    now: Timestamp,
    budget_checks: u32,
    #[serde(flatten)]
    answer: Answer,
    reservations: Vec<ReservationLine>,
    waiting: Vec<Waiting>,
}

#[derive(Debug, Serialize)]
struct ReservationLine {
    job: JobId,
    workers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_by: Option<Timestamp>,
}

fn show_pass(context: &Context, path: &Path, number: u64) -> Result<ExitStatus, CliError> {
    let mut reader = Reader::open(path)?;
    if reader.header().rules != RULES {
        return Err(CliError::OtherRules { path: path.to_owned(), why: other_rules(&reader) });
    }
    let mut passes = 0;
    if let Some(mut replay) = start(&mut reader)? {
        while let Some(entry) = reader.entry()? {
            match entry {
                Entry::Told(input) => replay.told(input),
                Entry::Passed(passed) => {
                    let Passed { now, budget_checks, .. } = passed;
                    let outcome = replay.passed(passed.clone());
                    passes = replay.counts().passes;
                    if passes == number {
                        let answer =
                            outcome.map_or_else(|difference| difference.came_out, |()| passed.answer);
                        let page = PassPage {
                            segment: path.to_owned(),
                            pass: number,
                            now,
                            budget_checks,
                            answer,
                            reservations: reservations(replay.placer()),
                            waiting: replay.placer().waiting(now),
                        };
                        if context.json {
                            print_json(&page)?;
                        } else {
                            let mut output = Output::new();
                            output.text(&page_of(&page, replay.placer()))?;
                            output.flush()?;
                        }
                        return Ok(ExitStatus::SUCCESS);
                    }
                }
                Entry::Header(_) | Entry::Start(_) | Entry::Cut { .. } | Entry::Closed => {}
            }
        }
    }
    Err(CliError::NoSuchPass { path: path.to_owned(), passes })
}

fn reservations(placer: &Placer) -> Vec<ReservationLine> {
    let line = |(job, reservation): (JobId, &Reservation)| ReservationLine {
        job,
        workers: reservation.parts.iter().map(|part| placer.name_of(part.worker_id)).collect(),
        free_by: reservation.free_by,
    };
    placer.reservations().all().map(line).collect()
}

fn page_of(page: &PassPage, placer: &Placer) -> String {
    let Answer { placements, preemptions, checks, exhausted } = &page.answer;
    let more = if *exhausted { ", to be gone on with" } else { "" };
    let mut text = format!(
        "pass {} of {} at {}: {checks} of {} checks{more}\n",
        page.pass,
        page.segment.display(),
        moment(page.now),
        page.budget_checks
    );
    let named = |names: &[String]| harmless(&names.join(", "), false);
    for placement in placements {
        let seats: Vec<String> = placement
            .seats
            .iter()
            .map(|seat| match seat.gpus.len() {
                0 => placer.name_of(seat.worker_id),
                _ => format!("{} ({})", placer.name_of(seat.worker_id), seat.gpus.join(", ")),
            })
            .collect();
        let _ = writeln!(text, "  placed     …{} on {}", tail(placement.job_id), named(&seats));
    }
    for preemption in preemptions {
        let _ =
            writeln!(text, "  preempted  …{} for …{}", tail(preemption.place.job_id), tail(preemption.by));
    }
    for reservation in &page.reservations {
        let by = reservation.free_by.map(|by| format!(", free by {}", moment(by))).unwrap_or_default();
        let _ =
            writeln!(text, "  reserved   {} for …{}{by}", named(&reservation.workers), tail(reservation.job));
    }
    for Waiting { first, jobs, project, reason } in &page.waiting {
        let others = if *jobs > 1 { format!(" and {} like it", jobs - 1) } else { String::new() };
        let _ = writeln!(
            text,
            "  waits      …{}{others} (project {}): {}",
            tail(*first),
            harmless(project, false),
            harmless(reason, false)
        );
    }
    text
}
