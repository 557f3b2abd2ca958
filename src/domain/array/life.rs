//! The steps of a parent: children move, are let go, are swept away; and what follows for the parent.

use serde_json::json;

use super::{LiveArray, Sweep, WINDOW};
use crate::contract::end::{End, EndReason};
use crate::contract::event::EventType;
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::contract::spec::JobSpec;
use crate::domain::change::Change;
use crate::domain::ledger::{Ledger, SharedSpec};
use crate::domain::spec;

/// Characters of an id's end that name a job in a sentence.
const SHOWN_TAIL: usize = 6;

impl LiveArray {
    /// A child moved.
    pub fn note(&mut self, place: usize, state: JobState, end: Option<&End>) {
        let Some(slot) = self.slots.get_mut(place).filter(|slot| slot.state != state) else { return };
        let before = slot.state;
        if before == JobState::Queued && !slot.held {
            self.offered -= 1;
        }
        if state == JobState::Queued {
            self.offered += 1;
        }
        (slot.state, slot.held) = (state, false);
        self.progress.moves(before, state);
        self.changed = true;
        if let Some(end) = end.filter(|_| state.ended() && state != JobState::Succeeded) {
            // One that was cancelled by itself names the parent's end only if nothing worse happened.
            let worse =
                |worst: &End| worst.reason == EndReason::Cancelled && end.reason != EndReason::Cancelled;
            if self.worst.as_ref().is_none_or(|(_, worst)| worse(worst)) {
                self.worst = Some((place, Box::new(end.clone())));
            }
        }
    }

    /// The children that the scheduler is told of now: no more than may run at once, and no more than the window.
    pub fn release(&mut self) -> Vec<usize> {
        let mut released = Vec::new();
        if !self.waits.is_empty() || self.sweep.is_some() {
            return released;
        }
        let most =
            self.layout.max_running().map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        while self.offered < WINDOW && self.offered + self.progress.scheduled + self.progress.running < most {
            let Some(slot) = self.slots.get_mut(self.next) else { break };
            if slot.held {
                slot.held = false;
                self.offered += 1;
                released.push(self.next);
            }
            self.next += 1;
        }
        released
    }

    /// What follows for the parent from what its children did. Says whether it moved.
    pub fn settle(&mut self, ledger: &mut Ledger) -> bool {
        if !self.changed {
            return false;
        }
        self.changed = false;
        ledger.change(Change::ArrayMoved(self.id, self.progress));
        if self.state.ended() {
            return false;
        }
        let begun = self.progress.running + self.progress.succeeded > 0;
        if self.state == JobState::Queued && begun {
            self.state = JobState::Scheduled;
            self.scheduled_at = Some(ledger.now);
            self.event(ledger, EventType::JobScheduled, json!({"children": self.len()}));
            self.moved(ledger);
            self.state = JobState::Running;
            self.started_at = Some(ledger.now);
            self.event(ledger, EventType::JobRunning, json!({}));
            self.moved(ledger);
        }
        if self.progress.ended() == self.len() {
            self.finish(ledger);
        }
        true
    }

    fn finish(&mut self, ledger: &mut Ledger) {
        let (state, mut end) = if self.progress.succeeded == self.len() {
            (JobState::Succeeded, End::of(EndReason::Completed, None))
        } else if self.cancel_requested_at.is_some() {
            let (ended, all) = (self.progress.succeeded, self.len());
            let detail = format!("{ended} of {all} children had succeeded");
            (JobState::Cancelled, End::of(EndReason::Cancelled, detail))
        } else {
            (JobState::Failed, self.worst_end())
        };
        end.duration_s = self.started_at.map(|started| ledger.now.since(started));
        if !self.waits.is_empty() {
            self.waits.clear();
            ledger.change(Change::JobWaits(self.id, Vec::new()));
        }
        self.state = state;
        self.ended_at = Some(ledger.now);
        self.event(
            ledger,
            EventType::JobEnded,
            json!({"state": state, "end": &end, "progress": self.progress}),
        );
        self.end = Some(Box::new(end));
        self.moved(ledger);
    }

    /// The first child that did not succeed names the end.
    fn worst_end(&self) -> End {
        let Some((place, worst)) = &self.worst else {
            return End::of(EndReason::Internal, "no child says why".to_owned());
        };
        let id = self.child(*place).to_string();
        let (bad, all) = (self.len() - self.progress.succeeded, self.len());
        let why = worst.detail.clone().unwrap_or_else(|| match worst.exit_code {
            Some(code) if code != 0 => format!("exit status {code}"),
            _ => worst.reason.word().to_owned(),
        });
        let detail = format!(
            "{bad} of {all} children did not succeed; the first was index {} (…{}): {why}",
            self.layout.index(*place),
            &id[id.len() - SHOWN_TAIL..],
        );
        let mut end = End::of(worst.reason, detail);
        end.exit_code = worst.exit_code;
        end.signal.clone_from(&worst.signal);
        end.evidence.clone_from(&worst.evidence);
        end.certainty = worst.certainty;
        end.basis.clone_from(&worst.basis);
        end.advice.clone_from(&worst.advice);
        end
    }

    /// Somebody cancels the parent, and with it every child. Says whether anything changed.
    pub fn cancel(&mut self, ledger: &mut Ledger, now: bool) -> bool {
        let harder = now && self.sweep != Some(Sweep::Cancel { now });
        if self.state.ended() || self.cancel_requested_at.is_some() && !harder {
            return false;
        }
        self.cancel_requested_at.get_or_insert(ledger.now);
        self.event(ledger, EventType::JobCancelRequested, json!({"cause": "cancel", "now": now}));
        self.moved(ledger);
        self.begin(Sweep::Cancel { now });
        true
    }

    /// What has not started has waited too long. Says whether that is so.
    pub fn queue_timeout(&mut self, ledger: &Ledger) -> bool {
        let due = self.queue_deadline.is_some_and(|deadline| deadline <= ledger.now);
        due && !self.state.ended() && self.sweep.is_none() && {
            self.begin(Sweep::QueueTimeout);
            true
        }
    }

    /// A dependency is over as it should be.
    pub fn dependency_met(&mut self, ledger: &mut Ledger, on: JobId, filled: Option<SharedSpec>) {
        let before = self.waits.len();
        self.waits.retain(|wait| wait.job != on);
        if self.state != JobState::Queued || self.waits.len() == before {
            return;
        }
        if let Some(filled) = filled {
            let whole = JobSpec { array: Some(Box::new(self.layout.array())), ..(*filled).clone() };
            let (whole, child) = (spec::to_json(&whole).into(), spec::to_json(&filled).into());
            ledger.change(Change::ArrayFilled(self.id, whole, child, spec::artifacts(&filled)));
            self.spec = filled;
        }
        ledger.change(Change::JobWaits(self.id, self.waits.clone()));
        if self.waits.is_empty() {
            self.event(ledger, EventType::JobQueued, json!({"cause": "dependencies_met", "last": on}));
            self.moved(ledger);
        }
    }

    /// A dependency is over and cannot be met any more: so ends every child. The parent keeps what it waits for until
    /// then, so that a restart comes to the same.
    pub fn dependency_failed(&mut self, end: Box<End>) {
        if self.state == JobState::Queued && self.sweep.is_none() {
            self.begin(Sweep::End(end));
        }
    }

    /// Whether its children are being ended.
    pub fn sweeps(&self) -> bool {
        self.sweep.is_some()
    }

    fn begin(&mut self, sweep: Sweep) {
        self.sweep = Some(sweep);
        self.swept = 0;
    }

    /// The next children that have not ended, at most so many, and what is done to them; empty when all were looked at.
    pub fn sweep(&mut self, most: usize) -> Option<(Sweep, Vec<usize>)> {
        let sweep = self.sweep.clone()?;
        let mut places = Vec::new();
        while places.len() < most {
            let Some(slot) = self.slots.get(self.swept) else { break };
            if !slot.state.ended() {
                places.push(self.swept);
            }
            self.swept += 1;
        }
        (!places.is_empty()).then_some((sweep, places))
    }
}
