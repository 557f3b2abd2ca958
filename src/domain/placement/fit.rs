//! Whether a shape fits on one worker, and what it lacks there.

use std::fmt;

use super::{Amount, PoolWorker, Shape};
use crate::contract::quantity::Cpus;
use crate::contract::spec::{GpuCount, Target};
use crate::contract::worker::WorkerKind;

/// The first thing a shape misses on a worker. The order is the one people read: what can never be first, then
/// what may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack<'a> {
    /// Another worker was asked for.
    Worker {
        /// Id or name.
        wanted: &'a str,
    },
    /// The target leaves it out.
    Target {
        /// What was asked for.
        wanted: Target,
    },
    /// Other operating system.
    Os {
        /// What was asked for.
        wanted: &'a str,
        /// What it has.
        has: &'a str,
    },
    /// Other processor architecture.
    Arch {
        /// What was asked for.
        wanted: &'a str,
        /// What it has.
        has: &'a str,
    },
    /// A label is absent or says something else.
    Label {
        /// Its key.
        key: &'a str,
        /// What was asked for.
        wanted: &'a str,
        /// What it has.
        has: Option<&'a str>,
    },
    /// A secret that its table does not have.
    Secret {
        /// Which.
        wanted: &'a str,
    },
    /// It does not let jobs name its variables and files.
    SpecSecretRefs,
    /// GPUs are asked for; none can be granted yet.
    Gpus,
    /// More cores than it has.
    Cpus {
        /// Asked for, in thousandths.
        needs_millis: u64,
        /// In all, in thousandths.
        total_millis: u64,
    },
    /// More memory than it has.
    Memory {
        /// Asked for, in bytes.
        needs_bytes: u64,
        /// In all, in bytes.
        total_bytes: u64,
    },
    /// It is not there.
    Away,
    /// An operator empties it.
    Draining,
    /// It is there, and says why it takes none.
    Unhealthy {
        /// In its own words.
        why: &'a str,
    },
    /// Its cores are taken.
    CpusTaken {
        /// Asked for, in thousandths.
        needs_millis: u64,
        /// Free, in thousandths.
        free_millis: u64,
        /// In all, in thousandths.
        total_millis: u64,
        /// By so many tasks.
        tasks: u32,
    },
    /// Its memory is taken.
    MemoryTaken {
        /// Asked for, in bytes.
        needs_bytes: u64,
        /// Free, in bytes.
        free_bytes: u64,
        /// In all, in bytes.
        total_bytes: u64,
        /// By so many tasks.
        tasks: u32,
    },
}

impl Lack<'_> {
    /// Whether no waiting helps on this worker.
    pub const fn forever(&self) -> bool {
        !matches!(
            self,
            Lack::Away
                | Lack::Draining
                | Lack::Unhealthy { .. }
                | Lack::CpusTaken { .. }
                | Lack::MemoryTaken { .. }
        )
    }
}

/// What `shape` misses on `worker` now; `None` = it fits.
pub(super) fn lack<'a>(shape: &'a Shape, worker: &'a PoolWorker) -> Option<Lack<'a>> {
    if !worker.introduced() {
        return Some(Lack::Away);
    }
    lasting_lack(shape, worker).or_else(|| passing_lack(shape.amount(), worker))
}

fn lasting_lack<'a>(shape: &'a Shape, worker: &'a PoolWorker) -> Option<Lack<'a>> {
    let wants = &shape.resources;
    if let Some(wanted) = wants.worker.as_deref()
        && wanted != worker.name
        && wanted.parse() != Ok(worker.id)
    {
        return Some(Lack::Worker { wanted });
    }
    let on_target = match shape.target {
        Target::Any => true,
        Target::Local => worker.kind == WorkerKind::Local,
        Target::Remote => worker.kind == WorkerKind::Remote,
        Target::Cloud => false,
    };
    if !on_target {
        return Some(Lack::Target { wanted: shape.target });
    }
    if let Some(wanted) = wants.os.as_deref().filter(|wanted| *wanted != worker.os) {
        return Some(Lack::Os { wanted, has: &worker.os });
    }
    if let Some(wanted) = wants.arch.as_deref().filter(|wanted| *wanted != worker.arch) {
        return Some(Lack::Arch { wanted, has: &worker.arch });
    }
    for (key, wanted) in &wants.labels {
        let has = worker.labels.get(key).map(String::as_str);
        if has != Some(wanted) {
            return Some(Lack::Label { key, wanted, has });
        }
    }
    if let Some(wanted) = shape.secrets.iter().find(|wanted| !worker.secrets.contains(*wanted)) {
        return Some(Lack::Secret { wanted });
    }
    if shape.spec_secret_refs && !worker.spec_secret_refs {
        return Some(Lack::SpecSecretRefs);
    }
    if wants.gpus.as_ref().is_some_and(|gpus| gpus.count != GpuCount::Count(0)) {
        return Some(Lack::Gpus);
    }
    let (needs, total) = (shape.amount(), worker.total);
    if needs.cpu_millis > total.cpu_millis {
        return Some(Lack::Cpus { needs_millis: needs.cpu_millis, total_millis: total.cpu_millis });
    }
    if needs.memory_bytes > total.memory_bytes {
        return Some(Lack::Memory { needs_bytes: needs.memory_bytes, total_bytes: total.memory_bytes });
    }
    None
}

fn passing_lack(needs: Amount, worker: &PoolWorker) -> Option<Lack<'_>> {
    let (free, total, tasks) = (worker.free(), worker.total, worker.tasks());
    if !worker.accepting {
        Some(Lack::Away)
    } else if worker.draining {
        Some(Lack::Draining)
    } else if let Some(why) = worker.unhealthy.as_deref() {
        Some(Lack::Unhealthy { why })
    } else if needs.cpu_millis > free.cpu_millis {
        let (free_millis, total_millis) = (free.cpu_millis, total.cpu_millis);
        Some(Lack::CpusTaken { needs_millis: needs.cpu_millis, free_millis, total_millis, tasks })
    } else if needs.memory_bytes > free.memory_bytes {
        let (free_bytes, total_bytes) = (free.memory_bytes, total.memory_bytes);
        Some(Lack::MemoryTaken { needs_bytes: needs.memory_bytes, free_bytes, total_bytes, tasks })
    } else {
        None
    }
}

impl fmt::Display for Lack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Lack::Worker { wanted } => write!(f, "is not worker {wanted}"),
            Lack::Target { wanted: Target::Local } => f.write_str("is not the server's own host"),
            Lack::Target { wanted: Target::Remote } => f.write_str("is the server's own host"),
            Lack::Target { .. } => f.write_str("is no provider's instance"),
            Lack::Os { wanted, has } => write!(f, "needs {wanted}, runs {has}"),
            Lack::Arch { wanted, has } => write!(f, "needs {wanted}, is {has}"),
            Lack::Label { key, wanted, has: Some(has) } => {
                write!(f, "needs label {key}={wanted}, has {key}={has}")
            }
            Lack::Label { key, wanted, has: None } => write!(f, "needs label {key}={wanted}, has no {key}"),
            Lack::Secret { wanted } => {
                write!(f, "needs secret {wanted}, which the [secrets] table of its config.toml does not have")
            }
            Lack::SpecSecretRefs => {
                f.write_str("takes secrets by `name:` alone, from the [secrets] table of its config.toml, unless allow_spec_secret_refs = true stands there")
            }
            Lack::Gpus => f.write_str("needs a GPU, which this build does not place yet"),
            Lack::Cpus { needs_millis, total_millis } => {
                write!(f, "needs {}, has {} in all", Cores(needs_millis), plain(total_millis))
            }
            Lack::Memory { needs_bytes, total_bytes } => {
                write!(f, "needs {} of memory, has {} in all", Bytes(needs_bytes), Bytes(total_bytes))
            }
            Lack::Away => f.write_str("takes no tasks now (offline)"),
            Lack::Draining => f.write_str("draining"),
            Lack::Unhealthy { why } => write!(f, "{why} (unhealthy)"),
            Lack::CpusTaken { needs_millis, free_millis, total_millis, tasks } => {
                let (needs, free, total) = (Cores(needs_millis), plain(free_millis), plain(total_millis));
                write!(f, "needs {needs}, {free} free of {total} ({})", Holders(tasks))
            }
            Lack::MemoryTaken { needs_bytes, free_bytes, total_bytes, tasks } => {
                let (needs, free, total) = (Bytes(needs_bytes), Bytes(free_bytes), Bytes(total_bytes));
                write!(f, "needs {needs} of memory, {free} free of {total} ({})", Holders(tasks))
            }
        }
    }
}

fn plain(millis: u64) -> Cpus {
    Cpus::from_millis(u32::try_from(millis).unwrap_or(u32::MAX))
}

struct Cores(u64);

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", plain(self.0), if self.0 <= 1000 { "CPU" } else { "CPUs" })
    }
}

/// Binary units with one decimal, in integers; rounded to the nearest.
pub(in crate::domain) struct Bytes(pub(in crate::domain) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in UNITS {
            if self.0 >> shift > 0 {
                let tenths = ((u128::from(self.0) * 10) + (1u128 << (shift - 1))) >> shift;
                return match tenths % 10 {
                    0 => write!(f, "{} {unit}", tenths / 10),
                    tenth => write!(f, "{}.{tenth} {unit}", tenths / 10),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

struct Holders(u32);

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("held by 1 task"),
            tasks => write!(f, "held by {tasks} tasks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_people_write_them() {
        for (bytes, text) in
            [(512, "512 B"), (1 << 30, "1 GiB"), (1_610_612_736, "1.5 GiB"), (80_000_000_000, "74.5 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Cores(250).to_string(), "0.25 CPU");
        assert_eq!(Cores(8000).to_string(), "8 CPUs");
    }
}
