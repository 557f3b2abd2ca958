//! Arrays: the life of a parent, which follows from its children. Children are jobs like others; the parent decides
//! which of them the scheduler is told of, counts where they are, and ends after the last of them (CONTRACT, Arrays).

mod layout;
mod life;

use std::sync::Arc;

use serde_json::json;

use super::change::{ArrayRecord, Change, JobRecord, JobStanding};
use super::dependency::{self, Wait};
use super::ledger::{Alarm, Ledger, Notice, SharedSpec};
use crate::contract::array::ArrayProgress;
use crate::contract::end::End;
use crate::contract::event::EventType;
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::contract::quantity::Timestamp;

pub use layout::Layout;

/// Children that the scheduler is told of and that have no place yet, at most: those of one array go one after the
/// other anyway, so more would only be more to tell.
pub const WINDOW: usize = 2_048;

/// An array that has not ended, or whose end is not yet durable.
#[derive(Debug)]
pub struct LiveArray {
    /// The parent's id.
    pub id: JobId,
    /// What each child runs.
    pub spec: SharedSpec,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    first_child: JobId,
    layout: Arc<Layout>,
    slots: Vec<Slot>,
    progress: ArrayProgress,
    /// Children that the scheduler was told of and that have no place.
    offered: usize,
    /// No child before this one is held.
    next: usize,
    /// The child whose end names the parent's, unless all succeed.
    worst: Option<(usize, Box<End>)>,
    waits: Vec<Wait>,
    event_seq: u64,
    state: JobState,
    scheduled_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    cancel_requested_at: Option<Timestamp>,
    end: Option<Box<End>>,
    sweep: Option<Sweep>,
    swept: usize,
    changed: bool,
}

/// One child as it was last counted.
#[derive(Debug, Clone, Copy)]
struct Slot {
    state: JobState,
    /// Not told to the scheduler yet.
    held: bool,
}

/// What is done to every child that has not ended. It goes in slices: there may be a hundred thousand.
#[derive(Debug, Clone, PartialEq)]
pub enum Sweep {
    /// Somebody cancelled the parent.
    Cancel {
        /// Without grace.
        now: bool,
    },
    /// What has not started cannot be started any more.
    End(Box<End>),
    /// `queue_timeout_s` came due.
    QueueTimeout,
}

/// What a child knows of its array.
#[derive(Debug, Clone)]
pub struct Member {
    /// The parent.
    pub parent: JobId,
    /// Its place among the children, from 0.
    pub place: usize,
    /// Whether the scheduler is not told of it yet.
    pub held: bool,
    /// The children's indices and items.
    pub layout: Arc<Layout>,
}

/// What the store kept of a live array.
#[derive(Debug)]
pub struct RestoredArray {
    /// The parent's id.
    pub id: JobId,
    /// The first child's.
    pub first_child: JobId,
    /// What each child runs.
    pub spec: SharedSpec,
    /// The children's indices and items.
    pub layout: Arc<Layout>,
    /// When its queue timeout ends.
    pub queue_deadline: Option<Timestamp>,
    /// The jobs it waits for.
    pub waits: Vec<Wait>,
    /// The parent's row.
    pub standing: JobStanding,
    /// Every child's state, whether it was ever placed, in order.
    pub children: Vec<(JobState, bool)>,
    /// The child whose end names the parent's so far, if one did not succeed.
    pub worst: Option<(usize, Box<End>)>,
}

/// An array as it is submitted.
#[derive(Debug, Clone)]
pub struct NewArray {
    /// The first child's id; the others follow it, one by one.
    pub first_child: JobId,
    /// What each child runs.
    pub spec: SharedSpec,
    /// The same as JSON.
    pub text: Arc<str>,
    /// The children's indices and items.
    pub layout: Arc<Layout>,
}

impl LiveArray {
    /// Accepts an array: parent and children are queued from now on, in one commit.
    pub fn accept(ledger: &mut Ledger, record: Box<JobRecord>, new: NewArray, waits: Vec<Wait>) -> Self {
        let total = new.layout.len();
        let mut array = Self {
            id: record.id,
            spec: new.spec,
            queue_deadline: record.queue_deadline,
            first_child: new.first_child,
            slots: vec![Slot { state: JobState::Queued, held: true }; total],
            layout: new.layout,
            progress: ArrayProgress::queued(total),
            offered: 0,
            next: 0,
            worst: None,
            waits,
            event_seq: 1,
            state: JobState::Queued,
            scheduled_at: None,
            started_at: None,
            ended_at: None,
            cancel_requested_at: None,
            end: None,
            sweep: None,
            swept: 0,
            changed: true,
        };
        ledger.change(Change::JobInserted(record.clone(), array.standing()));
        array.event_seq = 0;
        array.event(ledger, EventType::JobQueued, json!({"cause": "submitted", "children": total}));
        if !array.waits.is_empty() {
            ledger.change(Change::JobWaits(array.id, array.waits.clone()));
        }
        ledger.change(Change::ArrayInserted(Box::new(ArrayRecord {
            record,
            first_child: array.first_child,
            child_spec: new.text,
            indices: array.layout.indices().collect(),
            first_position: ledger.position + 1,
        })));
        // One event of each child; the store writes them with the children.
        ledger.position += total as u64;
        array.arm(ledger);
        array
    }

    /// Rebuilds a live array from the store. Its children are rebuilt like other jobs.
    pub fn restore(restored: RestoredArray) -> Self {
        let RestoredArray { standing, children, .. } = restored;
        let mut progress = ArrayProgress { total: children.len(), ..ArrayProgress::default() };
        progress.queued = children.len();
        let mut offered = 0;
        let slots = children.into_iter().map(|(state, placed)| {
            progress.moves(JobState::Queued, state);
            let held = state == JobState::Queued && !placed;
            offered += usize::from(state == JobState::Queued && placed);
            Slot { state, held }
        });
        let slots: Vec<Slot> = slots.collect();
        Self {
            id: restored.id,
            spec: restored.spec,
            queue_deadline: restored.queue_deadline,
            first_child: restored.first_child,
            layout: restored.layout,
            slots,
            progress,
            offered,
            next: 0,
            worst: restored.worst,
            waits: restored.waits,
            event_seq: standing.event_seq,
            state: standing.state,
            scheduled_at: standing.scheduled_at,
            started_at: standing.started_at,
            ended_at: standing.ended_at,
            cancel_requested_at: standing.cancel_requested_at,
            end: standing.end,
            sweep: standing.cancel_requested_at.map(|_| Sweep::Cancel { now: false }),
            swept: 0,
            changed: true,
        }
    }

    /// After a restart, or at its submission: what comes due by itself.
    pub fn arm(&self, ledger: &mut Ledger) {
        if let Some(deadline) = self.queue_deadline {
            ledger.tell(Notice::Wake(deadline, Alarm::QueueTimeout(self.id)));
        }
    }

    /// The id of a child.
    pub fn child(&self, place: usize) -> JobId {
        JobId::from_u128(self.first_child.as_u128() + place as u128)
    }

    /// What a child has to know of its array.
    pub fn member(&self, place: usize) -> Member {
        let held = self.slots.get(place).is_some_and(|slot| slot.held);
        Member { parent: self.id, place, held, layout: self.layout.clone() }
    }

    /// How many children there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// No array is.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Where the parent stands.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// How the parent ended.
    pub fn end(&self) -> Option<&End> {
        self.end.as_deref()
    }

    /// Number of its newest event.
    pub fn event_seq(&self) -> u64 {
        self.event_seq
    }

    /// Where its children are.
    pub fn progress(&self) -> ArrayProgress {
        self.progress
    }

    /// The jobs it waits for.
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// The first child that waits for a place, if the scheduler knows of one.
    pub fn first_offered(&self) -> Option<JobId> {
        let offered = |slot: &Slot| slot.state == JobState::Queued && !slot.held;
        self.slots.iter().position(offered).map(|place| self.child(place))
    }

    /// Why the scheduler was not told of a child; `None` when it was.
    pub fn why_held(&self, place: usize) -> Option<String> {
        self.slots.get(place).filter(|slot| slot.held)?;
        if let Some(reason) = dependency::queue_reason(&self.waits) {
            return Some(format!("its array {reason}"));
        }
        if self.sweep.is_some() {
            return Some("its array is being stopped".to_owned());
        }
        Some(match self.layout.max_running() {
            Some(most) if self.offered < WINDOW => {
                format!("waits its turn: at most {most} of its array run at once")
            }
            _ => format!("waits its turn: {} children of its array stand before it", self.offered),
        })
    }

    /// The row as it stands.
    pub fn standing(&self) -> JobStanding {
        JobStanding {
            state: self.state,
            attempt: 1,
            preemptions: 0,
            epoch: 0,
            event_seq: self.event_seq,
            worker: None,
            phase: None,
            scheduled_at: self.scheduled_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            unreachable_since: None,
            cancel_requested_at: self.cancel_requested_at,
            not_before: None,
            avoid: None,
            went_for: None,
            memory_bytes: None,
            checkpoint: None,
            yielded: 0,
            end: self.end.clone(),
        }
    }

    fn event(&mut self, ledger: &mut Ledger, kind: EventType, data: serde_json::Value) {
        self.event_seq += 1;
        ledger.event(self.id, self.event_seq, None, kind, data);
    }

    fn moved(&self, ledger: &mut Ledger) {
        ledger.change(Change::JobMoved(self.id, self.standing()));
    }
}
