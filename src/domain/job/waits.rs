//! Dependencies: a job that waits for others is queued, and the scheduler is not told of it before they are over.

use serde_json::json;

use super::{LiveJob, Stage};
use crate::contract::end::End;
use crate::contract::event::EventType;
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;
use crate::domain::array::Member;
use crate::domain::change::Change;
use crate::domain::dependency::Wait;
use crate::domain::ledger::{Ledger, SharedSpec};
use crate::domain::spec;

impl LiveJob {
    /// What it still waits for, in the order it was asked for.
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// A dependency is over as it should be. `filled` is the spec with its outputs as inputs, if there were any to fill
    /// in. Says whether the job waits for nothing more.
    pub fn dependency_met(&mut self, ledger: &mut Ledger, on: JobId, filled: Option<SharedSpec>) -> bool {
        let before = self.waits.len();
        self.waits.retain(|wait| wait.job != on);
        if !matches!(self.stage, Stage::Queued) || self.waits.len() == before {
            return false;
        }
        if let Some(filled) = filled {
            let text = spec::to_json(&filled).into();
            ledger.change(Change::InputsFilled(self.id, text, spec::artifacts(&filled)));
            self.spec = Some(filled);
        }
        ledger.change(Change::JobWaits(self.id, self.waits.clone()));
        if !self.waits.is_empty() {
            return false;
        }
        self.event(ledger, None, EventType::JobQueued, json!({"cause": "dependencies_met", "last": on}));
        self.moved(ledger);
        self.enqueue(ledger);
        true
    }

    /// Whether the scheduler was told that it waits for a place.
    pub fn waits_for_place(&self, now: Timestamp) -> bool {
        matches!(self.stage, Stage::Queued)
            && self.waits.is_empty()
            && !self.held()
            && self.not_before.is_none_or(|time| time <= now)
    }

    /// Nothing keeps it from its end.
    pub(super) fn wait_no_more(&mut self, ledger: &mut Ledger) {
        if !self.waits.is_empty() {
            self.waits.clear();
            ledger.change(Change::JobWaits(self.id, Vec::new()));
        }
    }

    /// A job of an array, which is written with its array. `self` is what they have in common.
    pub fn child(&self, id: JobId, member: Member) -> Self {
        Self { id, member: Some(Box::new(member)), ..self.clone() }
    }

    /// Its turn among the children of its array has come.
    pub fn take_turn(&mut self, ledger: &mut Ledger, spec: SharedSpec) {
        if let Some(member) = &mut self.member
            && member.held
        {
            member.held = false;
            self.spec = Some(spec);
            if matches!(self.stage, Stage::Queued) {
                self.enqueue(ledger);
            }
        }
    }

    /// Whether the scheduler is not told of it because others of its array go first.
    pub(super) fn held(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.held)
    }

    /// A dependency is over and cannot be met any more.
    pub fn dependency_failed(&mut self, ledger: &mut Ledger, end: End) {
        if matches!(self.stage, Stage::Queued) && !self.waits.is_empty() {
            self.end(ledger, end, Vec::new());
        }
    }
}
