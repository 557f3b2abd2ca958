//! What is counted, and how it is shown to Prometheus. `docs/METRICS.md` is printed from the same registry.

use std::fmt::Write;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::state::Measured;
use crate::actors::messages::front_desk::JobCounts;
use crate::contract::job::JobState;
use crate::contract::worker::WorkerState;

/// The content type of the text form.
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnRoute {
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

/// What is read at the moment somebody looks.
pub struct Gauges<'a> {
    /// Live jobs.
    pub jobs: JobCounts,
    /// Every worker's state.
    pub workers: &'a [WorkerState],
    /// Newest durable batch of the journal.
    pub journal_seq: u64,
    /// The daemon's counters.
    pub measured: Measured,
}

/// All metrics of the daemon.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Family<OnRoute, Histogram>,
    jobs: Family<InState, Gauge>,
    workers: Family<InState, Gauge>,
    journal_seq: Gauge,
    commits: Counter,
    log_bytes: Counter,
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let durations = Family::<OnRoute, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_25, 4.0, 10))
        });
        let mut metrics = Self {
            registry: Registry::with_prefix("gpulayer"),
            requests: Family::default(),
            durations,
            jobs: Family::default(),
            workers: Family::default(),
            journal_seq: Gauge::default(),
            commits: Counter::default(),
            log_bytes: Counter::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("jobs", "Live jobs by state", metrics.jobs.clone());
        registry.register("workers", "Known workers by state", metrics.workers.clone());
        registry.register(
            "http_requests",
            "Answered HTTP requests by route and status",
            metrics.requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "Time from a request's head to its answer's head, parked time included, by route",
            metrics.durations.clone(),
        );
        registry.register(
            "journal_seq",
            "Newest batch of the journal that is on disk",
            metrics.journal_seq.clone(),
        );
        registry.register("commits", "Transactions of the main database", metrics.commits.clone());
        registry.register("log_bytes", "Bytes of log text taken in", metrics.log_bytes.clone());
        metrics
    }

    /// Counts an answer.
    pub fn answered(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&Answered { route, status }).inc();
        self.durations.get_or_create(&OnRoute { route }).observe(took.as_secs_f64());
    }

    /// Everything in the text form.
    pub fn encode(&self, now: &Gauges<'_>) -> Result<String, std::fmt::Error> {
        let jobs = [
            (JobState::Queued, now.jobs.queued),
            (JobState::Scheduled, now.jobs.scheduled),
            (JobState::Running, now.jobs.running),
        ];
        for (state, count) in jobs {
            self.jobs.get_or_create(&InState { state: state.word() }).set(count as i64);
        }
        for (state, word) in WORKER_STATES {
            let count = now.workers.iter().filter(|present| **present == state).count();
            self.workers.get_or_create(&InState { state: word }).set(count as i64);
        }
        self.journal_seq.set(now.journal_seq as i64);
        raise(&self.commits, now.measured.commits);
        raise(&self.log_bytes, now.measured.log_bytes);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// `docs/METRICS.md`: every metric with its kind and what it counts.
    pub fn document() -> Result<String, std::fmt::Error> {
        let metrics = Self::new();
        metrics.answered("/v1/jobs", 200, Duration::ZERO);
        let shown = metrics.encode(&Gauges {
            jobs: JobCounts::default(),
            workers: &[],
            journal_seq: 0,
            measured: Measured::default(),
        })?;
        let mut page = String::from(
            "# Metrics\n\nPrinted from the code (`UPDATE=1 cargo nextest run --test http documents` rewrites it). Served at \
             `GET /metrics`\nin Prometheus' text form. Counters carry the suffix `_total` there.\n\n\
             | metric | kind | what it is |\n|---|---|---|\n",
        );
        let described = |line: &str, word: &str| {
            let rest = line.strip_prefix("# ")?.strip_prefix(word)?.strip_prefix(' ')?;
            rest.split_once(' ').map(|(name, text)| (name.to_owned(), text.to_owned()))
        };
        let mut help = None;
        for line in shown.lines() {
            if let Some(found) = described(line, "HELP") {
                help = Some(found);
            } else if let (Some((name, kind)), Some((_, text))) = (described(line, "TYPE"), &help) {
                writeln!(page, "| `{name}` | {kind} | {} |", text.trim_end_matches('.'))?;
            }
        }
        Ok(page)
    }
}

const WORKER_STATES: [(WorkerState, &str); 5] = [
    (WorkerState::Idle, "idle"),
    (WorkerState::Busy, "busy"),
    (WorkerState::Draining, "draining"),
    (WorkerState::Unhealthy, "unhealthy"),
    (WorkerState::Offline, "offline"),
];

// The daemon counts; the counter follows.
fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
