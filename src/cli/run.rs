//! `run`, `submit`, `attach`, `wait`: from flags to a submitted job, and from a job to an exit status.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::Context;
use super::args::{Jobs, OneJob, RunArgs, SubmitArgs};
use super::array;
use super::carry::{Baggage, Source};
use super::contact::Contact;
use super::dry_run;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::fetch;
use super::follow::{LogPrinter, end_of, log_to_end};
use super::hand_over;
use super::job_choice::{self, Namesake};
use super::news;
use super::next_step::NextStep;
use super::screen::{print, print_json, say};
use super::server_choice::{OnDemand, Server};
use super::shown::{harmless, tail};
use super::spec_args::SpecArgs;
use super::spec_building::{Draft, Surroundings};
use super::typed::Typed;
use super::verdict::{noticed, undeclared, verdict};
use super::waiting::WaitReason;
use crate::client::{Call, Client, ClientError, Endpoint};
use crate::contract::error_code::ErrorCode;
use crate::contract::ids::JobId;
use crate::contract::job::{CancelRequest, Job, LEFT_OUT_HEADER, LeftOutOfSource};
use crate::contract::problem::{BEYOND_QUOTA, Problem, Warning};
use crate::domain::spec::{self, ReadOptions};
use crate::domain::verdict::left_out;

/// After this long in the queue a foreground job says why.
const REASON_AFTER: Duration = Duration::from_secs(2);
/// Between two looks whether the reason has changed.
const REASON_AGAIN: Duration = Duration::from_secs(30);
/// After a job's end its log ends at once; longer than this means that it never will.
const LOG_GRACE: Duration = Duration::from_secs(30);

/// The code of a fault: an artifact of the spec is not on the server.
const MISSING_ARTIFACT: &str = "missing_artifact";

/// The part of the answer to a submission that a command needs, and the whole of it.
#[derive(Debug, Deserialize)]
struct Submitted {
    id: JobId,
    #[serde(default)]
    warnings: Vec<Warning>,
    /// Only an array's.
    #[serde(default)]
    progress: Option<serde_json::Value>,
    spec: Asked,
    #[serde(skip, default = "nothing")]
    whole: Box<RawValue>,
}

/// The part of its spec that the log's form depends on.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    distributed: Option<serde::de::IgnoredAny>,
}

impl Asked {
    /// Of a job; one whose spec cannot be read is no gang.
    pub(super) fn of(job: &Job) -> Self {
        serde_json::from_str(job.spec.get()).unwrap_or(Self { distributed: None })
    }

    /// Whether the job is a gang.
    pub(super) fn is_gang(&self) -> bool {
        self.distributed.is_some()
    }
}

fn nothing() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// `gpulayer submit`.
pub(super) async fn submit(context: &Context, args: &SubmitArgs) -> Result<ExitStatus, CliError> {
    let server = context.server(OnDemand::Start)?;
    submit_alone(context, &server, &args.spec).await
}

async fn submit_alone(context: &Context, server: &Server, args: &SpecArgs) -> Result<ExitStatus, CliError> {
    let packed = packed(context, server, args)?;
    if let Some(submitted) = submitted(context, server, args, packed, Impossible::Waits).await? {
        print_id(context, submitted.id, &submitted.whole)?;
    }
    Ok(ExitStatus::SUCCESS)
}

/// `gpulayer run`.
pub(super) async fn run(context: &Context, args: &RunArgs) -> Result<ExitStatus, CliError> {
    let server = context.server(OnDemand::Start)?;
    if args.detach {
        return submit_alone(context, &server, &args.spec).await;
    }
    // Reading what goes along may take long, and an interrupt ends it: there is no job yet.
    let packed = packed(context, &server, &args.spec)?;
    // From here on an interrupt is meant for the job, also while it is being submitted.
    let interrupts = Interrupts::listen()?;
    let submitted = match submitted(context, &server, &args.spec, packed, Impossible::IsRefused).await {
        Ok(Some(submitted)) => submitted,
        Ok(None) => return Ok(ExitStatus::SUCCESS),
        // Nothing ran, so there is no status of its own to end with.
        Err(
            error @ (CliError::Client(ClientError::Refused(_))
            | CliError::SpecRefused { .. }
            | CliError::NoWorkerFits { .. }),
        ) => {
            say(error.rendered(&context.next()).trim_end());
            return Ok(ExitStatus::NO_STATUS);
        }
        Err(error) => return Err(error),
    };
    followed(context, &server, &submitted, Interrupted::Cancels, interrupts, args.to.as_deref()).await
}

/// `gpulayer attach`.
pub(super) async fn attach(context: &Context, args: &OneJob) -> Result<ExitStatus, CliError> {
    let server = context.server(OnDemand::Start)?;
    let id = job_choice::live_one(&server.client, &args.job).await?;
    let job: Job = server.client.get(&format!("/v1/jobs/{id}")).await?;
    let spec = Asked::of(&job);
    let progress = job.is_array().then(|| job.progress.clone()).flatten();
    let joined = Submitted { id, warnings: Vec::new(), progress, spec, whole: nothing() };
    followed(context, &server, &joined, Interrupted::Leaves, Interrupts::listen()?, None).await
}

/// `gpulayer wait`.
pub(super) async fn wait(context: &Context, args: &Jobs) -> Result<ExitStatus, CliError> {
    let server = context.server(OnDemand::Start)?;
    let ids = job_choice::several(&server.client, args, Namesake::Newest).await?;
    let mut status = ExitStatus::SUCCESS;
    let contact = Contact::with(&server.client);
    let mut interrupts = Interrupts::listen()?;
    let all_ended = tokio::select! {
        ended = join_all(ids.iter().map(|id| end_of(&contact, *id))) => ended,
        () = interrupts.next() => return Ok(left(&context.next(), &ids, Left::Alone)),
    };
    for ended in all_ended {
        let job = match ended {
            Ok(job) => job,
            Err(error) => return given_up(&context.next(), error, &ids, Left::Alone),
        };
        if context.json {
            print_json(&job)?;
        } else {
            noticed(&job, &[]).for_each(|line| say(&line));
            say(&verdict(&job, &context.next(), false));
        }
        if status == ExitStatus::SUCCESS {
            status = ExitStatus::of_job(&job);
        }
    }
    Ok(status)
}

fn print_id(context: &Context, id: JobId, whole: &RawValue) -> Result<(), CliError> {
    if context.json { print(whole.get()) } else { print(&id.to_string()) }
}

/// Makes the spec and reads what goes along. Sends nothing, and holds the thread while it reads.
fn packed(context: &Context, server: &Server, args: &SpecArgs) -> Result<(Draft, Baggage), CliError> {
    if args.here && !server.own {
        return Err(CliError::HereElsewhere);
    }
    let variable = |name: &str| std::env::var(name).ok();
    let mut draft = Draft::from_flags(args, &Surroundings { variable: &variable, own: server.own })?;
    let source = match args.source.as_deref() {
        _ if args.here => Source::Here,
        None | Some("auto") => Source::Auto,
        Some("none") => Source::None,
        Some(folder) => Source::Folder(Path::new(folder)),
    };
    let baggage = Baggage::pack(&mut draft, &source, &context.settings.places)?;
    Ok((draft, baggage))
}

/// What becomes of a job that no worker could ever take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Impossible {
    /// It is queued all the same, and warned about.
    Waits,
    /// It is not accepted: somebody sits and waits for it.
    IsRefused,
}

/// Sends along what the spec needs, and submits it; `None` after a dry run.
async fn submitted(
    context: &Context,
    server: &Server,
    args: &SpecArgs,
    (mut draft, baggage): (Draft, Baggage),
    impossible: Impossible,
) -> Result<Option<Submitted>, CliError> {
    for after in std::mem::take(&mut draft.after) {
        let dependency = dependency(&server.client, &after).await?;
        match draft.spec.entry("depends_on").or_insert_with(|| serde_json::json!([])) {
            serde_json::Value::Array(list) => list.push(dependency),
            other => *other = serde_json::json!([dependency]),
        }
    }
    if let Some(place) = args.on.iter().rfind(|place| !place.contains('='))
        && !args.dry_run
    {
        let worker = super::worker::placed_on(server, place).await?;
        if let Some(resources) = draft.spec.get_mut("resources").and_then(serde_json::Value::as_object_mut) {
            resources.insert("worker".to_owned(), worker.into());
        }
    }
    if server.own && !args.dry_run {
        let labels: Vec<_> = args.on.iter().filter_map(|place| place.split_once('=')).collect();
        super::worker::say_if_nowhere(server, &labels).await?;
    }
    let typed = Typed { args, spec: &draft.spec };
    let options = ReadOptions {
        strict: args.spec.is_some(),
        allow_absolute_cwd: matches!(server.client.endpoint(), Endpoint::Unix(_)),
    };
    let faults = spec::read(&serde_json::Value::Object(draft.spec.clone()), "", options).err();
    if args.dry_run {
        dry_run::print(&draft.spec, &baggage, server, &context.next(), context.json)?;
        return match faults {
            Some(faults) => Err(CliError::SpecRefused { faults: typed.faults(faults) }),
            None => Ok(None),
        };
    }
    let call = || {
        let mut call = Call::mutate("/v1/jobs").json(&draft.spec)?;
        if !baggage.left_out().is_empty() {
            call = call.header(LEFT_OUT_HEADER, &ascii_json(baggage.left_out()));
        }
        let strict = options.strict.then_some("handling=strict");
        let refuse = (impossible == Impossible::IsRefused).then_some("impossible=refuse");
        let preferred: Vec<_> = strict.into_iter().chain(refuse).collect();
        Ok::<_, CliError>(match preferred.as_slice() {
            [] => call,
            preferred => call.header("prefer", &preferred.join(", ")),
        })
    };
    // The server has the last word, as it may be newer; but nothing is sent along with what looks faulty from here.
    if faults.is_none() {
        baggage.send(&server.client).await?;
    }
    let mut answer = hand_over::answer(context, server, &call()?).await;
    if faults.is_some() && answer.as_ref().is_err_and(lacks_artifacts) {
        baggage.send(&server.client).await?;
        answer = hand_over::answer(context, server, &call()?).await;
    }
    let answer = answer.map_err(|error| match error {
        CliError::Client(ClientError::Refused(problem)) if problem.code == ErrorCode::NoWorkerFits => {
            let Problem { detail, errors, .. } = *problem;
            let by_quota = errors.iter().any(|fault| fault.code == BEYOND_QUOTA);
            CliError::NoWorkerFits { detail, faults: typed.faults(errors), by_quota }
        }
        CliError::Client(ClientError::Refused(mut problem)) if !problem.errors.is_empty() => {
            if faults.is_some() {
                // Nothing was sent on purpose; that it is not there is no fault of what was typed.
                problem.errors.retain(|fault| fault.code != MISSING_ARTIFACT);
            }
            CliError::SpecRefused { faults: typed.faults(problem.errors) }
        }
        error => error,
    })?;
    let submitted = Submitted { whole: answer.json()?, ..answer.json()? };
    // What was left out is said by `sent …` already.
    for warning in submitted.warnings.iter().filter(|warning| warning.pointer != left_out::POINTER) {
        let at = match warning.pointer.as_str() {
            "" => String::new(),
            pointer => format!("{}: ", typed.place(pointer)),
        };
        say(&format!("warning: {at}{}", harmless(&warning.detail, false)));
    }
    Ok(Some(submitted))
}

/// JSON as a header takes it.
fn ascii_json(left_out: &[LeftOutOfSource]) -> String {
    let mut ascii = String::new();
    for character in serde_json::to_string(left_out).unwrap_or_default().chars() {
        if character.is_ascii() {
            ascii.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
}

/// Whether a submission was refused only because what goes along is not there yet.
fn lacks_artifacts(error: &CliError) -> bool {
    let CliError::Client(ClientError::Refused(problem)) = error else { return false };
    !problem.errors.is_empty() && problem.errors.iter().all(|fault| fault.code == MISSING_ARTIFACT)
}

/// One `--after JOB[:ended]`.
async fn dependency(client: &Client, given: &str) -> Result<serde_json::Value, CliError> {
    // A name may have a colon in it.
    let (job, when) = match given.rsplit_once(':') {
        Some((job, when @ ("succeeded" | "ended"))) => (job, when),
        _ => (given, "succeeded"),
    };
    let id = job_choice::one(client, job).await?;
    Ok(serde_json::json!({ "job": id, "when": when }))
}

/// SIGINT and SIGTERM. SIGHUP keeps its default and ends only this process: the job goes on.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|source| CliError::Runtime { source });
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What an interrupt is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    /// The job: it was submitted by this command.
    Cancels,
    /// This command: it only looks on.
    Leaves,
}

/// Follows a job to its end: log, interrupts, why it waits, and the closing line. One parked call answers at the end;
/// the log has its own stream.
async fn followed(
    context: &Context,
    server: &Server,
    submitted: &Submitted,
    interrupted: Interrupted,
    mut interrupts: Interrupts,
    to: Option<&Path>,
) -> Result<ExitStatus, CliError> {
    let client = &server.client;
    let id = submitted.id;
    let next = context.next();
    let contact = Contact::with(client);
    let mut printer = LogPrinter::new(context.json).naming_ranks(submitted.spec.is_gang());
    let job = {
        let mut end = std::pin::pin!(end_of(&contact, id));
        let mut log = std::pin::pin!(async {
            match &submitted.progress {
                Some(_) => array::logs_to_end(&contact, id, &mut printer).await,
                None => log_to_end(&contact, id, &mut printer).await,
            }
        });
        let mut news = std::pin::pin!(news::told(&contact, id));
        let mut look = std::pin::pin!(tokio::time::sleep(REASON_AFTER));
        let mut reason = WaitReason::default();
        let mut log_deadline = std::pin::pin!(tokio::time::sleep(Duration::MAX));
        let (mut ended, mut log_ended, mut interrupts_seen) = (None, false, 0_u32);
        let mut news_over = context.json;
        loop {
            if let (Some(_), true) = (&ended, log_ended) {
                break ended;
            }
            tokio::select! {
                job = &mut end, if ended.is_none() => match job {
                    Ok(job) => {
                        ended = Some(job);
                        log_deadline.as_mut().reset(Instant::now() + LOG_GRACE);
                    }
                    Err(error) => return given_up(&next, error, &[id], Left::after(interrupts_seen)),
                },
                log = &mut log, if !log_ended => match log {
                    Ok(()) => log_ended = true,
                    Err(error) => return given_up(&next, error, &[id], Left::after(interrupts_seen)),
                },
                // The others notice a server that is gone for good.
                _ = &mut news, if !news_over => news_over = true,
                () = &mut log_deadline, if ended.is_some() => {
                    let logs = next.command(&format!("logs {}", tail(id)));
                    say(&format!("gpulayer: the job has ended but its log has not; `{logs}` may show more later"));
                    break ended;
                }
                () = interrupts.next() => {
                    if interrupted == Interrupted::Leaves {
                        return Ok(left(&next, &[id], Left::Alone));
                    }
                    interrupts_seen += 1;
                    match interrupts_seen {
                        1 | 2 => cancel(client.clone(), next.clone(), id, interrupts_seen == 2),
                        _ => return given_up_by_hand(&next, id),
                    }
                }
                () = &mut look, if ended.is_none() && !reason.started => {
                    reason.look(client, &next, id).await;
                    look.as_mut().reset(Instant::now() + REASON_AGAIN);
                }
            }
        }
    };
    let Some(job) = job else { return Ok(ExitStatus::GIVEN_UP) };
    printer.job(&job)?;
    let fetched = match to {
        Some(to) if !job.outputs.is_empty() => {
            let written = fetch::outputs(client, &job.outputs, to).await?;
            say(&fetch::brought(job.outputs.len(), written, to));
            true
        }
        Some(to) => {
            say(&format!("no output, so nothing was brought to {}", to.display()));
            false
        }
        None => false,
    };
    if let Some(text) = undeclared(&job, &next) {
        say(&text);
    }
    noticed(&job, &submitted.warnings).for_each(|line| say(&line));
    say(&verdict(&job, &next, fetched));
    Ok(ExitStatus::of_job(&job))
}

/// Asks for the end of the job without holding up what is shown meanwhile.
fn cancel(client: Client, next: NextStep, id: JobId, now: bool) {
    say(if now { "killing the job" } else { "stopping the job" });
    tokio::spawn(async move {
        let path = format!("/v1/jobs/{id}/cancel");
        match client.post::<Job>(&path, &CancelRequest { now }).await {
            // What had not started has ended with that.
            Ok(job) if !now && !job.state.ended() => say("interrupt again to kill it at once"),
            Ok(_) => {}
            Err(error) => say(CliError::from(error).rendered(&next).trim_end()),
        }
    });
}

/// How a job is when this command ends before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It goes on.
    Alone,
    /// It was told to stop.
    Stopping,
    /// The server is gone, and what becomes of the job is not known from here: what had not started waits, `down` may
    /// have cancelled the rest.
    Unseen,
}

impl Left {
    fn after(interrupts: u32) -> Self {
        if interrupts > 0 { Self::Stopping } else { Self::Alone }
    }
}

/// Whether the server does not let this command look on any longer, which concerns no job. A token that was never good
/// is another matter: whoever comes with it has not seen the job.
fn is_shut_out(error: &ClientError) -> bool {
    let code = error.problem().map(|problem| problem.code);
    matches!(code, Some(ErrorCode::TokenExpired | ErrorCode::TokenRevoked))
}

/// 75 when the connection is given up while the job still runs (CONTRACT, Command line).
fn given_up(next: &NextStep, error: CliError, ids: &[JobId], how: Left) -> Result<ExitStatus, CliError> {
    let how = match &error {
        CliError::Client(error)
            if error.is_connection() || matches!(error, ClientError::NotStarted { .. }) =>
        {
            Left::Unseen
        }
        CliError::Client(error) if is_shut_out(error) => how,
        error if error.is_broken_pipe() => how,
        _ => return Err(error),
    };
    if error.is_broken_pipe() {
        say("nobody reads the output any more");
    } else {
        say(error.rendered(next).trim_end());
    }
    Ok(left(next, ids, how))
}

/// This command ends, the jobs do not: says how to come back to them.
fn left(next: &NextStep, ids: &[JobId], how: Left) -> ExitStatus {
    say(&goes_on(next, ids, how));
    ExitStatus::GIVEN_UP
}

fn goes_on(next: &NextStep, ids: &[JobId], how: Left) -> String {
    match ids {
        [id] => {
            let does = match how {
                Left::Alone => "goes on",
                Left::Stopping => "was told to stop and ends by itself",
                Left::Unseen => "is left as it is",
            };
            format!("job {} {does} · {}", tail(*id), next.command(&format!("attach {}", tail(*id))))
        }
        ids => {
            let tails: Vec<_> = ids.iter().map(|id| tail(*id)).collect();
            let go = if how == Left::Unseen { "are left as they are" } else { "go on" };
            format!("the jobs {go} · {}", next.command(&format!("wait {}", tails.join(" "))))
        }
    }
}

fn given_up_by_hand(next: &NextStep, id: JobId) -> Result<ExitStatus, CliError> {
    let attach = next.command(&format!("attach {}", tail(id)));
    say(&format!("given up while the job is being killed · {attach}"));
    Ok(ExitStatus::GIVEN_UP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_named_with_the_way_back() {
        let id = |text: &str| text.parse::<JobId>().unwrap();
        let (one, other) = (id("job_01hf7yat00e2g0000000a7kq2b"), id("job_01hf7yat00e2g0000000a7kq2c"));
        let next = NextStep::default();
        insta::assert_snapshot!(goes_on(&next, &[one], Left::Alone), @"job a7kq2b goes on · gpulayer attach a7kq2b");
        insta::assert_snapshot!(goes_on(&next, &[one], Left::Stopping), @"job a7kq2b was told to stop and ends by itself · gpulayer attach a7kq2b");
        insta::assert_snapshot!(goes_on(&next, &[one], Left::Unseen), @"job a7kq2b is left as it is · gpulayer attach a7kq2b");
        insta::assert_snapshot!(goes_on(&next, &[one, other], Left::Alone), @"the jobs go on · gpulayer wait a7kq2b a7kq2c");
    }
}
