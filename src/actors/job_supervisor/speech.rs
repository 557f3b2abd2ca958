//! What may be said only once the disk has come so far: answers and effects, in the order they were decided.

use std::collections::VecDeque;

use crate::contract::ids::JobId;
use crate::domain::ledger::Notice;
use crate::journal::Seq;

/// Something that waits for its commit.
pub enum Speech {
    /// An effect on another actor.
    Notice(Notice),
    /// An answer to a caller.
    Answer(Box<dyn FnOnce()>),
    /// An ended job can be forgotten: from now on the store speaks for it.
    JobOver(JobId),
    /// A queued job's spec can be left to the store.
    SpecStored(JobId),
}

/// Waiting speeches, oldest first.
#[derive(Default)]
pub struct Speeches {
    waiting: VecDeque<(Seq, Speech)>,
    durable: Seq,
}

impl Speeches {
    /// Everything up to `seq` is on disk.
    pub fn advance(&mut self, seq: Seq) {
        self.durable = self.durable.max(seq);
    }

    /// Adds one; [`Speeches::due`] hands it out once `seq` is on disk.
    pub fn push(&mut self, seq: Seq, speech: Speech) {
        self.waiting.push_back((seq, speech));
    }

    /// The next one that may be said.
    pub fn due(&mut self) -> Option<Speech> {
        let (seq, _) = self.waiting.front()?;
        if *seq <= self.durable { self.waiting.pop_front().map(|(_, speech)| speech) } else { None }
    }
}
