//! Reads of the main database on connections of their own: blocking calls that see what is committed.

mod access;
mod arrays;
mod history;
mod jobs;
mod restart;

use super::pool::Pool;

pub use arrays::ArrayRow;
pub use history::{FeedScope, TaskFinish};
pub use jobs::{JobFilter, LabelFilter};
pub use restart::LiveRow;

/// Answers questions about what is committed. Cheap to clone; every call blocks on the disk, so call it where
/// blocking is allowed.
#[derive(Clone)]
pub struct Reads {
    pub(super) pool: Pool,
}

impl Reads {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool }
    }
}
