//! What the tasks of a gang do to each other, and what their ends and files come to together. A job with one task is a
//! gang of one.
//!
//! A gang cannot go on without one of its tasks: when one has not ended well, those that have not started are taken
//! back, the others are stopped with their grace, and the placement is over when the last is. Which of them was the
//! cause is decided then, by [`outcome`]: the first to fall is often not the first to be heard of.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tasks::{LiveTask, NotStarted, Outcome, Over, Placed};
use super::{LiveJob, finish};
use crate::contract::artifact::OutputFile;
use crate::contract::end::{End, EndReason};
use crate::contract::problem::Warning;
use crate::domain::change::{JobResults, StopCause};
use crate::domain::ledger::Ledger;

impl LiveJob {
    /// One task has not ended well: the others have to go. One whose worker does not answer is not waited for; what it
    /// holds there stays taken.
    pub(super) fn break_up(&mut self, ledger: &mut Ledger) {
        for rank in self.assigned() {
            self.take_back_for_gang(ledger, rank);
        }
        for rank in self.running() {
            let Some((placed, run)) = self.runs(rank) else { continue };
            if run.unreachable_since.is_some() {
                let detail = "its worker did not answer when its gang ended";
                // Of two causes the first names the end: what was being cancelled is cancelled.
                let reason = run.stop.map_or(EndReason::WorkerLost, |stop| stop.cause.end_reason());
                self.lose(ledger, (rank, &placed, &run), reason, detail, true);
            } else {
                self.stop_task(ledger, rank, StopCause::Gang, false);
            }
        }
    }
}

/// How the placement went, and by which task: the one that fell for a reason of its own, and of several the one whose
/// reason is least likely to come from the fall of another, then the earliest. Needs all of them over.
pub(super) fn outcome(tasks: &[LiveTask], results: &JobResults) -> Option<(Placed, Outcome)> {
    let all: Vec<(&Placed, &Over)> = tasks.iter().filter_map(LiveTask::over).collect();
    let fallen = all.iter().filter(|(_, over)| !over.ended_well());
    let (placed, decided) = *fallen.min_by_key(|(_, over)| (depth(over), over.at)).or(all.first())?;
    let how = match &decided.how {
        Outcome::NotStarted(why) => Outcome::NotStarted(*why),
        Outcome::Ended(end) => Outcome::Ended(together(&all, (placed, decided), end.clone(), results)),
    };
    Some((placed.clone(), how))
}

/// How likely it is that a task fell because another did; the least first. What somebody stopped decides before all.
fn depth(over: &Over) -> u8 {
    match (&over.how, over.stop) {
        (Outcome::NotStarted(_), Some(StopCause::Gang)) => 5,
        (Outcome::Ended(end), Some(StopCause::Gang)) if end.reason == EndReason::Cancelled => 5,
        (Outcome::Ended(end), Some(cause)) if end.reason == cause.end_reason() => 0,
        (Outcome::NotStarted(NotStarted::Withdrawn), _) => 4,
        (Outcome::NotStarted(_), _) => 1,
        (Outcome::Ended(end), _) => match end.reason {
            EndReason::NcclError | EndReason::RendezvousFailed => 3,
            EndReason::ExitNonzero | EndReason::Signalled => 2,
            _ => 1,
        },
    }
}

/// The deciding end, as the end of them all.
fn together(
    all: &[(&Placed, &Over)],
    (placed, decided): (&Placed, &Over),
    mut end: End,
    results: &JobResults,
) -> End {
    let Some(gang) = &placed.gang else { return end };
    let ends = || {
        all.iter().filter_map(|(_, over)| match &over.how {
            Outcome::Ended(end) => Some(end),
            Outcome::NotStarted(_) => None,
        })
    };
    end.peak_memory_bytes = ends().filter_map(|end| end.peak_memory_bytes).max();
    if end.reason == EndReason::Completed {
        end.duration_s = ends().filter_map(|end| end.duration_s).max();
        return finish::with_all_outputs(&placed.spec, end, &results.outputs);
    }
    let for_all = matches!(
        decided.stop,
        Some(StopCause::Cancel | StopCause::Shutdown | StopCause::Preempt | StopCause::Timeout)
    );
    if let (false, Some(peer)) = (for_all, gang.peers.get(gang.rank as usize)) {
        let which = format!("rank {} on {}", gang.rank, peer.name);
        end.detail = Some(end.detail.map_or_else(|| which.clone(), |detail| format!("{which}: {detail}")));
    }
    end
}

/// What all of them brought back. Of several files with one path the one of the lowest rank stands.
pub(super) fn results(tasks: &[LiveTask]) -> Arc<JobResults> {
    let of = |task: &LiveTask| task.over().map(|(_, over)| over.results.clone()).unwrap_or_default();
    if let [only] = tasks {
        return of(only);
    }
    let mut all = JobResults::default();
    // One file may be declared under several names.
    let mut owners: BTreeMap<&str, (u32, &OutputFile)> = BTreeMap::new();
    let ends: Vec<_> = tasks.iter().filter_map(LiveTask::over).collect();
    for (placed, over) in &ends {
        let Some(gang) = &placed.gang else { continue };
        let (rank, results) = (gang.rank, &over.results);
        let mut remark = |detail: String| all.warnings.push(Warning { pointer: String::new(), detail });
        for warning in &results.warnings {
            remark(format!("rank {rank}: {}", warning.detail));
        }
        for file in &results.outputs {
            let (owner, first) = *owners.entry(&file.path).or_insert((rank, file));
            if owner == rank {
                all.outputs.push(file.clone());
            } else if !same_bytes(first, file) {
                remark(format!(
                    "output `{}` of rank {rank} is another than that of rank {owner}, which was kept: give each rank a path of \
                     its own, such as `shard-$GPULAYER_RANK`",
                    file.path
                ));
            }
        }
        match results.undeclared.len() {
            0 => {}
            _ if rank == 0 => all.undeclared.clone_from(&results.undeclared),
            count => remark(format!(
                "rank {rank} left {count} undeclared files on its worker; they are not brought back: declare them as outputs"
            )),
        }
        all.log_artifact = all.log_artifact.or(results.log_artifact);
    }
    all.outputs.sort_by(|one, other| (&one.path, &one.name).cmp(&(&other.path, &other.name)));
    Arc::new(all)
}

fn same_bytes(one: &OutputFile, other: &OutputFile) -> bool {
    (one.artifact, &one.link_target, one.size_bytes) == (other.artifact, &other.link_target, other.size_bytes)
}
