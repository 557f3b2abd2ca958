//! The record of what a placer was told and what it answered, and the check that the same comes out again.

use serde::{Deserialize, Serialize};

use super::{Input, Pass, Placed, Placement, Placer, Preemption};
use crate::contract::ids::JobId;
use crate::contract::quantity::Timestamp;

/// The rules by which passes are made. Raised with every change after which the same inputs may give other passes:
/// a record made by other rules is not held against these.
pub const RULES: u32 = 2;

/// One line of a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// Who wrote it, first in every segment.
    Header(Header),
    /// What the placer was when the segment began, second in every segment.
    Start(Box<Placer>),
    /// It was told something.
    Told(Input),
    /// It was asked for a pass.
    Passed(Passed),
    /// Something that came after this is not in the record.
    Cut {
        /// Why.
        why: String,
    },
    /// The record goes on in the next segment, or the server stopped.
    Closed,
}

/// The first line: readable by every version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`RULES`] of the writer.
    pub rules: u32,
    /// The writer's version, for people.
    pub version: String,
    /// When the segment began.
    pub began_at: Timestamp,
}

/// One pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Its time.
    pub now: Timestamp,
    /// What it might cost.
    pub budget_checks: u32,
    /// What came out.
    pub answer: Answer,
}

/// What a pass did, as it is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// In the order they were decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<Placement>,
    /// Those that had to go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preemptions: Vec<Preemption>,
    /// How often a job was held against a worker.
    pub checks: u32,
    /// Whether the budget ran out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exhausted: bool,
}

impl From<&Pass> for Answer {
    fn from(pass: &Pass) -> Self {
        Self {
            placements: pass.placements.iter().map(Placed::proposal).collect(),
            preemptions: pass.preemptions.clone(),
            checks: pass.checks,
            exhausted: pass.exhausted,
        }
    }
}

/// A placer that is told again what another was told.
#[derive(Debug)]
pub struct Replay {
    placer: Placer,
    counts: Counts,
}

/// How much was played.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Things the placer was told, without the passes.
    pub inputs: u64,
    /// Passes.
    pub passes: u64,
    /// Jobs placed.
    pub placements: u64,
    /// Tasks that had to go for others.
    pub preemptions: u64,
}

/// A pass that came out otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Which, counted from 1 in its segment.
    pub pass: u64,
    /// What the record has.
    pub recorded: Answer,
    /// What came out now.
    pub came_out: Answer,
}

impl Replay {
    /// From where a segment starts.
    pub fn from(placer: Placer) -> Self {
        Self { placer, counts: Counts::default() }
    }

    /// Tells it something.
    pub fn told(&mut self, input: Input) {
        self.counts.inputs += 1;
        // Books that did not balance then do not balance now, in the same way.
        let _ = self.placer.apply(input);
    }

    /// Makes a pass again and holds it against what was recorded.
    pub fn passed(&mut self, recorded: Passed) -> Result<(), Box<Difference>> {
        let Passed { now, budget_checks, answer } = recorded;
        let pass = self.placer.apply(Input::Pass { now, budget_checks }).unwrap_or_default();
        let came_out = Answer::from(&pass);
        self.counts.passes += 1;
        self.counts.placements += came_out.placements.len() as u64;
        self.counts.preemptions += came_out.preemptions.len() as u64;
        if came_out == answer {
            return Ok(());
        }
        Err(Box::new(Difference { pass: self.counts.passes, recorded: answer, came_out }))
    }

    /// How much was played so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// As it stands now.
    pub fn placer(&self) -> &Placer {
        &self.placer
    }
}

/// Jobs of one project that ask for the same and wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The one that comes first.
    pub first: JobId,
    /// How many.
    pub jobs: u64,
    /// Whose share they count towards.
    pub project: String,
    /// Why the first waits.
    pub reason: String,
}

impl Placer {
    /// Who waits and why; the one whose turn comes first, first.
    pub fn waiting(&self, now: Timestamp) -> Vec<Waiting> {
        let mut heads: Vec<_> = self.queue.heads().collect();
        heads.sort_unstable();
        let waiting = heads.into_iter().filter_map(|(turn, lane)| {
            let (key, _) = self.queue.standing(lane)?;
            Some(Waiting {
                first: turn.job_id(),
                jobs: self.queue.lane_len(lane) as u64,
                project: key.project.to_string(),
                reason: self.reason_of(turn.job_id(), now)?.line,
            })
        });
        waiting.collect()
    }
}
