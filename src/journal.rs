//! The pipelined group commit between the actors and the store.

/// Numbers the batches in the order they were appended; 0 = nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Seq(pub u64);
