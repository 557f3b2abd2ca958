//! The worker's GPUs: where they are looked for, and what of them (and of interpreters) is news to the server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::WorkerError;
use crate::contract::gpu::{Gpu, GpuNews, GpuStanding, Interpreter};
use crate::gpu::locks::Locks;
use crate::gpu::{Devices, GpuOptions};
use crate::process::ShimPool;

/// A driver that nobody has used since the machine started loads first.
const FIRST_WITHIN: Duration = Duration::from_secs(30);
/// With tasks of an earlier start it is loaded, and their leases do not wait for one that hangs.
const FIRST_WITH_TASKS_WITHIN: Duration = Duration::from_secs(5);
/// After so many heartbeats all is told anew: a server that was restored from an older state hears of it then.
const ALL_EVERY: u64 = 30;

/// Begins to look at the machine's GPUs.
pub(super) fn start(
    mut options: GpuOptions,
    folder: &Path,
    shims: &ShimPool,
) -> Result<Devices, WorkerError> {
    let has_tasks = folder.join("tasks").read_dir().is_ok_and(|mut tasks| tasks.next().is_some());
    let first_within = if has_tasks { FIRST_WITH_TASKS_WITHIN } else { FIRST_WITHIN };
    let shims = shims.clone();
    let locks = Locks::in_folders(&std::mem::take(&mut options.lock_folders));
    let whose = Box::new(move |pid| shims.whose(pid));
    Devices::start(options, Some(folder), locks, whose, first_within).map_err(WorkerError::Thread)
}

/// What the server has been told.
#[derive(Debug, Default)]
pub(super) struct Told {
    standings: BTreeMap<String, GpuStanding>,
    interpreters: bool,
}

/// What a heartbeat told.
#[derive(Debug, Clone)]
pub(super) struct News {
    pub(super) gpus: Option<Vec<GpuNews>>,
    /// Whether it told of interpreters.
    pub(super) interpreters: bool,
}

impl Told {
    /// When the session was opened.
    pub(super) fn at_first(gpus: &[Gpu]) -> Self {
        let standings = gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.standing.clone()));
        Self { standings: standings.collect(), interpreters: false }
    }

    /// What this heartbeat has to say.
    pub(super) fn news(&self, seq: u64, now: BTreeMap<String, GpuStanding>) -> Option<Vec<GpuNews>> {
        let all = seq.is_multiple_of(ALL_EVERY);
        let news =
            now.into_iter().filter(|(uuid, standing)| all || self.standings.get(uuid) != Some(standing));
        let news: Vec<GpuNews> = news.map(|(uuid, standing)| GpuNews { uuid, standing }).collect();
        (!news.is_empty()).then_some(news)
    }

    /// The same of interpreters, which do not change.
    pub(super) fn news_of_interpreters(
        &self,
        seq: u64,
        found: &Option<Vec<Interpreter>>,
    ) -> Option<Vec<Interpreter>> {
        found.clone().filter(|_| !self.interpreters || seq.is_multiple_of(ALL_EVERY))
    }

    /// It was answered, so the server has it.
    pub(super) fn heard(&mut self, news: News) {
        self.interpreters |= news.interpreters;
        self.standings.extend(news.gpus.into_iter().flatten().map(|news| (news.uuid, news.standing)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_repeated_until_they_were_heard() {
        let mut told = Told::default();
        let wedged = GpuStanding::Wedged { pids: vec![7] };
        let now = || BTreeMap::from([("GPU-1".to_owned(), wedged.clone())]);
        let news = told.news(1, now());
        assert_eq!(news, Some(vec![GpuNews { uuid: "GPU-1".into(), standing: wedged.clone() }]));
        assert_eq!(told.news(2, now()), news);
        told.heard(News { gpus: news.clone(), interpreters: false });
        assert_eq!(told.news(3, now()), None);
        assert_eq!(told.news(ALL_EVERY, now()), news);
        assert_eq!(
            told.news(4, BTreeMap::from([("GPU-1".to_owned(), GpuStanding::Ready)])).unwrap().len(),
            1
        );
    }
}
