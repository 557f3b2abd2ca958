//! Whether a shape fits on one worker, and what it lacks there.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::gpus::{self, PoolGpu, Unsuited};
use super::sizes::Bytes;
use super::{Amount, Pool, PoolWorker, Shape, frameworks};
use crate::contract::gpu::{GpuStanding, GpuVendor};
use crate::contract::quantity::Cpus;
use crate::contract::spec::{GpuCount, GpuRequest, MemoryKind, Target};
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
    /// No interpreter there has this framework in the range asked for, on the backend asked for.
    Framework {
        /// Its name.
        name: &'a str,
        /// The range; empty = any.
        wanted: &'a str,
        /// What it has to compute on; empty = anything.
        backend: &'a str,
        /// The version that is there.
        has: Option<&'a str>,
        /// What it has to look at.
        offers: Offers,
    },
    /// It has too few GPUs that suit, whatever they do now.
    Gpus {
        /// Asked for.
        request: &'a GpuRequest,
        /// In all.
        has: usize,
        /// That suit.
        suitable: usize,
        /// What those that do not suit lack; the nearest.
        near: Option<Unsuited<'a>>,
    },
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
    /// Its GPUs that suit are in use, or cannot be used now.
    GpusTaken {
        /// Asked for.
        request: &'a GpuRequest,
        /// How they stand.
        standing: GpuCensus,
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

/// The interpreters of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offers {
    /// It offers none.
    None,
    /// It has not said yet what they can import.
    Unknown,
    /// It has said so.
    Known,
}

impl Lack<'_> {
    /// Whether no waiting helps on this worker.
    pub const fn forever(&self) -> bool {
        !matches!(
            self,
            Lack::Away
                | Lack::Framework { offers: Offers::Unknown, .. }
                | Lack::Draining
                | Lack::Unhealthy { .. }
                | Lack::CpusTaken { .. }
                | Lack::GpusTaken { .. }
                | Lack::MemoryTaken { .. }
        )
    }
}

/// How the GPUs of a worker stand that suit a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuCensus {
    /// All of them.
    pub suitable: usize,
    /// Can be granted.
    pub free: usize,
    /// Held by tasks.
    pub held: usize,
    /// Used by programs that are no tasks.
    pub outside: usize,
    /// Still used by what a task left behind.
    pub wedged: usize,
    /// Broken.
    pub unhealthy: usize,
}

impl GpuCensus {
    fn of<'a>(gpus: impl Iterator<Item = &'a PoolGpu>) -> Self {
        let mut census = Self::default();
        for gpu in gpus {
            census.suitable += 1;
            *match gpu.standing {
                _ if gpu.held => &mut census.held,
                GpuStanding::Ready => &mut census.free,
                GpuStanding::BusyOutside { .. } => &mut census.outside,
                GpuStanding::Wedged { .. } => &mut census.wedged,
                GpuStanding::Unhealthy { .. } => &mut census.unhealthy,
            } += 1;
        }
        census
    }
}

/// What a shape asks for, read once to be held against many workers of a pool.
#[derive(Debug)]
pub(super) struct Wants {
    pub(super) shape: Arc<Shape>,
    pub(super) amount: Amount,
    /// By kind of GPU: whether it suits, and where it stands among those that do, the least first.
    suits: Option<Vec<Option<u32>>>,
}

impl Wants {
    pub(super) fn of(shape: &Arc<Shape>, pool: &Pool) -> Self {
        let suits = request_of(shape).map(|request| pool.kinds().ranked(request));
        Self { amount: shape.amount(), shape: shape.clone(), suits }
    }

    fn rank(&self, gpu: &PoolGpu) -> Option<u32> {
        self.suits.as_ref().and_then(|suits| suits.get(gpu.kind as usize).copied().flatten())
    }

    /// How many GPUs it takes there.
    pub(super) fn gpu_count(&self, worker: &PoolWorker) -> usize {
        request_of(&self.shape).map_or(0, |request| gpus::wanted(request.count, worker.gpus().len()))
    }

    fn suitable<'w>(&self, worker: &'w PoolWorker) -> impl Iterator<Item = &'w PoolGpu> {
        worker.gpus().iter().filter(|gpu| self.rank(gpu).is_some())
    }

    /// The GPUs to give of those that are free and not `closed`; `None` when there are too few.
    pub(super) fn gpus_of<'w>(
        &self,
        worker: &'w PoolWorker,
        closed: impl Fn(&PoolGpu) -> bool,
    ) -> Option<Vec<&'w PoolGpu>> {
        let open: Vec<_> = self.suitable(worker).filter(|gpu| gpu.free() && !closed(gpu)).collect();
        gpus::choose(&open, self.gpu_count(worker), |gpu| self.rank(gpu))
    }

    /// Whose GPUs it would take there.
    pub(super) fn vendor_on(&self, worker: &PoolWorker, pool: &Pool) -> Option<GpuVendor> {
        self.suitable(worker).next().and_then(|gpu| pool.kinds().get(gpu.kind)).map(|kind| kind.vendor)
    }

    /// Its GPUs that suit and work, whatever holds them now.
    pub(super) fn working_gpus<'w>(&self, worker: &'w PoolWorker) -> Vec<&'w PoolGpu> {
        self.suitable(worker).filter(|gpu| gpu.standing == GpuStanding::Ready).collect()
    }

    /// What is missing on `worker` now; `None` = it fits.
    pub(super) fn lack<'a>(&'a self, worker: &'a PoolWorker) -> Option<Lack<'a>> {
        if !worker.introduced() {
            return Some(Lack::Away);
        }
        self.lasting_lack(worker).or_else(|| self.passing_lack(worker))
    }

    /// The same, with what the GPUs lack that do not suit.
    fn in_words<'a>(&'a self, lack: Lack<'a>, worker: &'a PoolWorker, pool: &'a Pool) -> Lack<'a> {
        let Lack::Gpus { request, has, suitable, .. } = lack else { return lack };
        let unsuited = |gpu: &PoolGpu| gpus::unsuited(request, pool.kinds().get(gpu.kind)?);
        let near = worker.gpus().iter().filter_map(unsuited).max();
        Lack::Gpus { request, has, suitable, near }
    }

    /// What no waiting helps with: the first of it.
    pub(super) fn lasting_lack<'a>(&'a self, worker: &'a PoolWorker) -> Option<Lack<'a>> {
        match self.each_lasting_lack(worker, ControlFlow::Break) {
            ControlFlow::Break(lack) => Some(lack),
            ControlFlow::Continue(()) => None,
        }
    }

    /// All that is missing on `worker` for good, or else what is missing now; none = it fits. With what the
    /// GPUs lack that do not suit.
    pub(super) fn lacks_in_words<'a>(&'a self, worker: &'a PoolWorker, pool: &'a Pool) -> Vec<Lack<'a>> {
        let mut lacks = Vec::new();
        if worker.introduced() {
            let _ = self.each_lasting_lack(worker, |lack| {
                lacks.push(self.in_words(lack, worker, pool));
                // What is not asked at all has nothing to say.
                match lack {
                    Lack::Worker { .. } | Lack::Target { .. } => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            });
        }
        if lacks.is_empty() {
            lacks.extend(self.lack(worker).map(|lack| self.in_words(lack, worker, pool)));
        }
        lacks
    }

    /// Whether anything is missing there that will be missing for good.
    pub(super) fn lacks_for_good(&self, worker: &PoolWorker) -> bool {
        let found = |lack: Lack<'_>| match lack.forever() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        self.each_lasting_lack(worker, found).is_break()
    }

    fn each_lasting_lack<'a, B>(
        &'a self,
        worker: &'a PoolWorker,
        mut found: impl FnMut(Lack<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let (shape, wants) = (&self.shape, &self.shape.resources);
        if let Some(wanted) = wants.worker.as_deref()
            && wanted != worker.name
            && wanted.parse() != Ok(worker.id)
        {
            found(Lack::Worker { wanted })?;
        }
        let on_target = match shape.target {
            Target::Any => true,
            Target::Local => worker.kind == WorkerKind::Local,
            Target::Remote => worker.kind == WorkerKind::Remote,
            Target::Cloud => false,
        };
        if !on_target {
            found(Lack::Target { wanted: shape.target })?;
        }
        if let Some(wanted) = wants.os.as_deref().filter(|wanted| *wanted != worker.os) {
            found(Lack::Os { wanted, has: &worker.os })?;
        }
        if let Some(wanted) = wants.arch.as_deref().filter(|wanted| *wanted != worker.arch) {
            found(Lack::Arch { wanted, has: &worker.arch })?;
        }
        for (key, wanted) in &wants.labels {
            let has = worker.labels.get(key).map(String::as_str);
            if has != Some(wanted) {
                found(Lack::Label { key, wanted, has })?;
            }
        }
        if let Some(wanted) = shape.secrets.iter().find(|wanted| !worker.secrets.contains(*wanted)) {
            found(Lack::Secret { wanted })?;
        }
        if shape.spec_secret_refs && !worker.spec_secret_refs {
            found(Lack::SpecSecretRefs)?;
        }
        if let Some(missing) = frameworks::missing(&wants.frameworks, &shape.backends, &worker.interpreters) {
            let frameworks::Missing { name, wanted, backend, has } = missing;
            let offers = match worker.interpreters.as_slice() {
                [] if worker.probing => Offers::Unknown,
                [] => Offers::None,
                _ => Offers::Known,
            };
            found(Lack::Framework { name, wanted, backend, has, offers })?;
        }
        if let Some(request) = request_of(shape) {
            let suitable = self.suitable(worker).count();
            if suitable < self.gpu_count(worker) {
                found(Lack::Gpus { request, has: worker.gpus().len(), suitable, near: None })?;
            }
        }
        let (needs, total) = (self.amount, worker.total);
        if needs.cpu_millis > total.cpu_millis {
            found(Lack::Cpus { needs_millis: needs.cpu_millis, total_millis: total.cpu_millis })?;
        }
        if needs.memory_bytes > total.memory_bytes {
            found(Lack::Memory { needs_bytes: needs.memory_bytes, total_bytes: total.memory_bytes })?;
        }
        ControlFlow::Continue(())
    }

    fn passing_lack<'a>(&'a self, worker: &'a PoolWorker) -> Option<Lack<'a>> {
        let (needs, free, total, tasks) = (self.amount, worker.free(), worker.total, worker.tasks());
        if !worker.accepting {
            Some(Lack::Away)
        } else if worker.draining {
            Some(Lack::Draining)
        } else if let Some(why) = worker.unhealthy.as_deref() {
            Some(Lack::Unhealthy { why })
        } else if let Some(lack) = self.gpus_taken(worker) {
            Some(lack)
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

    fn gpus_taken<'a>(&'a self, worker: &'a PoolWorker) -> Option<Lack<'a>> {
        let request = request_of(&self.shape)?;
        let standing = GpuCensus::of(self.suitable(worker));
        (standing.free < self.gpu_count(worker)).then_some(Lack::GpusTaken { request, standing })
    }
}

/// A request for no GPUs is none.
fn request_of(shape: &Shape) -> Option<&GpuRequest> {
    shape.resources.gpus.as_deref().filter(|gpus| gpus.count != GpuCount::Count(0))
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
            Lack::Framework { name, wanted, backend, has, offers } => {
                write!(f, "needs {name}{wanted}")?;
                if !backend.is_empty() {
                    write!(f, " on {backend}")?;
                }
                match has {
                    Some(has) if backend.is_empty() => write!(f, ", has {has}"),
                    Some(has) => write!(f, ", has {has} without it or out of range"),
                    None => match offers {
                        Offers::Known => write!(
                            f,
                            ", no interpreter it offers has {name} (`join --python PATH` there offers another)"
                        ),
                        Offers::Unknown => f.write_str(", its interpreters are being looked at"),
                        Offers::None => {
                            f.write_str(", offers no interpreter (`join --python PATH` there offers one)")
                        }
                    },
                }
            }
            Lack::Gpus { request, has: 0, .. } => write!(f, "needs {}, has none", Gpus(request)),
            Lack::Gpus { request, suitable, near: Some(near), .. } => {
                write!(f, "needs {}, has ", Gpus(request))?;
                match suitable {
                    0 => write!(f, "{}", Near(near)),
                    suitable => write!(f, "{suitable} such and {}", Near(near)),
                }
            }
            Lack::Gpus { request, suitable, .. } => write!(f, "needs {}, has {suitable} in all", Gpus(request)),
            Lack::GpusTaken { request, standing } => write!(f, "needs {}, {standing}", Gpus(request)),
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

pub(super) fn plain(millis: u64) -> Cpus {
    Cpus::from_millis(u32::try_from(millis).unwrap_or(u32::MAX))
}

pub(super) struct Cores(pub(super) u64);

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", plain(self.0), if self.0 <= 1000 { "CPU" } else { "CPUs" })
    }
}

/// `2 GPUs with ≥ 40 GiB`.
struct Gpus<'a>(&'a GpuRequest);

impl fmt::Display for Gpus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.0;
        let one = request.count == GpuCount::Count(1);
        match request.count {
            GpuCount::Count(1) => f.write_str("1 ")?,
            GpuCount::Count(count) => write!(f, "{count} ")?,
            GpuCount::All => f.write_str("all ")?,
        }
        if let Some(vendor) = &request.vendor {
            write!(f, "{vendor} ")?;
        }
        if !request.models.is_empty() {
            write!(f, "{} ", request.models.join(" or "))?;
        }
        f.write_str(if one { "GPU" } else { "GPUs" })?;
        let mut word = " with";
        if let Some(bytes) = request.memory_bytes {
            write!(f, "{word} ≥ {}", Bytes(bytes))?;
            word = " and";
        }
        if let Some(kind) = request.memory_kind {
            let kind = if kind == MemoryKind::Unified { "unified" } else { "dedicated" };
            write!(f, "{word} {kind} memory")?;
            word = " and";
        }
        match &request.min_compute_capability {
            Some(capability) => write!(f, "{word} compute capability ≥ {capability}"),
            None => Ok(()),
        }
    }
}

/// What the nearest GPU that does not suit has.
struct Near<'a>(Unsuited<'a>);

impl fmt::Display for Near<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unsuited::Vendor { has } => write!(f, "{} ones", has.word()),
            Unsuited::MemoryKind { has_unified, model } => {
                write!(f, "{model} with {} memory", if has_unified { "unified" } else { "dedicated" })
            }
            Unsuited::Model { has } => f.write_str(has),
            Unsuited::Capability { has: Some(has), model } => write!(f, "{model} with {has}"),
            Unsuited::Capability { has: None, model } => write!(f, "{model} without one"),
            Unsuited::Memory { has_bytes, model } => write!(f, "{} ({model})", Bytes(has_bytes)),
        }
    }
}

/// `1 free of 8 (5 held by tasks, 2 used by programs outside)`.
impl fmt::Display for GpuCensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free of {}", self.free, self.suitable)?;
        let parts = [
            (self.held, "held by tasks"),
            (self.outside, "used by programs outside"),
            (self.wedged, "not let go of by an ended task"),
            (self.unhealthy, "unhealthy"),
        ];
        for (index, (count, what)) in parts.iter().filter(|(count, _)| *count > 0).enumerate() {
            write!(f, "{}{count} {what}", if index == 0 { " (" } else { ", " })?;
        }
        if self.free < self.suitable { f.write_str(")") } else { Ok(()) }
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
    fn cores_read_like_people_write_them() {
        assert_eq!(Cores(250).to_string(), "0.25 CPU");
        assert_eq!(Cores(8000).to_string(), "8 CPUs");
    }
}
