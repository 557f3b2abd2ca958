//! The bounds of a spec: those of the contract, those of the kernel that will run it, and sane ones for the rest.

/// Entries of `argv`.
pub(super) const ARGV_ENTRIES: usize = 10_000;
/// Entries of `env`.
pub(super) const ENV_ENTRIES: usize = 4_096;
/// One argument, or one `NAME=value`, with its NUL: Linux refuses longer ones (`MAX_ARG_STRLEN`).
pub(super) const ARGUMENT_BYTES: usize = 128 * 1024;
/// Of an array, as the value of a variable whose name counts, too.
pub(super) const ITEM_BYTES: usize = 127 * 1024;
/// All arguments and variables together; Linux allows 2 MiB and the task's own variables come on top.
pub(super) const ARGUMENTS_BYTES: usize = 1024 * 1024;
/// A path below the workspace (`PATH_MAX` with room for the workspace itself).
pub(super) const PATH_BYTES: usize = 3_072;
/// Parts of a path: deeper than any real tree, and it bounds the work of comparing paths.
pub(super) const PATH_PARTS: usize = 100;
/// One part of a path (`NAME_MAX`).
pub(super) const PATH_PART_BYTES: usize = 255;
/// The lines of requirements together.
pub(super) const REQUIREMENTS_BYTES: usize = 64 * 1024;
/// Names people give: jobs, outputs, workers.
pub(super) const NAME_BYTES: usize = 255;
/// Keys of labels.
pub(super) const LABEL_KEY_BYTES: usize = 63;
/// Values of labels.
pub(super) const LABEL_VALUE_BYTES: usize = 255;
/// Entries of every list or map that has no bound of its own.
pub(super) const ENTRIES: usize = 1_000;
/// Attempts in all.
pub(super) const ATTEMPTS: u64 = 100;
/// Tasks of a gang.
pub(super) const NODES: u64 = 10_000;
/// Children of an array.
pub(super) const ARRAY_JOBS: usize = 100_000;
/// Memory of one task.
pub(super) const LEAST_MEMORY_BYTES: u64 = 8 << 20;
/// Cores of one task.
pub(super) const CPUS: f64 = 1_000_000.0;
/// Faults, and warnings, reported of one spec; past these it says that there are more.
pub(super) const REMARKS: usize = 1_000;
/// Unknown fields of one object that are reported: a nearest name is sought for each.
pub(super) const UNKNOWN_FIELDS: usize = 100;
