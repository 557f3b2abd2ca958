//! What answering one question may cost, in checks of a job against a worker, over all the passes that it plays. When it
//! is spent the answer comes without what was not found by then.

use super::Placer;

/// Of one question: some tenths of a second.
const QUESTION_CHECKS: u32 = 300_000;
/// Scans of all workers that are kept back for what every answer says, and for the last step of a pass, which may overrun
/// what the pass was given.
const SCANS_KEPT_BACK: usize = 16;
/// Jobs that are copied, lanes that are put in order, or ends that are looked through cost about one check together.
const AS_MUCH_AS_A_CHECK: usize = 4;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    left: u32,
    spent: u32,
}

impl Default for Budget {
    /// Of one question.
    fn default() -> Self {
        Self::of(QUESTION_CHECKS)
    }
}

impl Budget {
    /// So many checks.
    pub const fn of(checks: u32) -> Self {
        Self { left: checks, spent: 0 }
    }

    /// Checks that were made.
    pub const fn spent(&self) -> u32 {
        self.spent
    }

    /// Checks that are left.
    pub const fn left(&self) -> u32 {
        self.left
    }

    pub(super) fn spend(&mut self, checks: u32) {
        self.left = self.left.saturating_sub(checks);
        self.spent = self.spent.saturating_add(checks);
    }

    /// So many times all workers.
    pub(super) fn spend_scans(&mut self, scans: usize, placer: &Placer) {
        self.spend(checks(scans * placer.pool.workers().count()));
    }

    /// What a pass over this may cost; `None` = too little is left for one.
    pub(super) fn for_pass(&self, placer: &Placer) -> Option<u32> {
        let kept_back = checks(SCANS_KEPT_BACK * placer.pool.workers().count());
        self.left.checked_sub(kept_back).filter(|left| *left > 0)
    }

    /// Leaves half of it for what comes after.
    pub(super) fn within_half<T>(&mut self, ask: impl FnOnce(&mut Budget) -> T) -> T {
        let mut half = Budget::of(self.left / 2);
        let answer = ask(&mut half);
        self.spend(half.spent);
        answer
    }
}

/// What it costs to touch so many jobs, lanes or ends.
pub(super) fn for_touching(things: usize) -> u32 {
    checks(things.div_ceil(AS_MUCH_AS_A_CHECK))
}

pub(super) fn checks(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
