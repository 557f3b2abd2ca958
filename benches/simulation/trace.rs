//! Traces in the style of the public ones of GPU clusters (Philly, Helios): most jobs are small and short, most of the
//! GPU time goes to few that are large and long, people work by day and submit sweeps at once, and limits are guesses.
//! The distributions are written by us; nothing was copied.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
/// Arrivals by hour of the day, of a mean of 100.
const BY_HOUR: [u64; 24] = [
    45, 35, 30, 30, 30, 35, 45, 65, 100, 140, 165, 170, 150, 150, 165, 170, 165, 150, 130, 115, 100, 85, 70,
    60,
];
/// Limits that people state.
const LIMITS: [u64; 7] = [HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 24 * HOUR, 72 * HOUR, 168 * HOUR];

/// Hosts that are all alike.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    pub hosts: usize,
    pub gpus_per_host: u32,
}

impl Cluster {
    /// All of them.
    pub fn gpus(self) -> u64 {
        self.hosts as u64 * u64::from(self.gpus_per_host)
    }
}

/// One job of a trace.
#[derive(Debug, Clone)]
pub struct TraceJob {
    pub arrives_s: u64,
    pub runs_s: u64,
    /// What it says that it takes at most.
    pub limit_s: Option<u64>,
    /// On each node.
    pub gpus: u32,
    pub nodes: usize,
    pub priority: i32,
    pub project: &'static str,
}

impl TraceJob {
    /// On all nodes together.
    pub fn all_gpus(&self) -> u64 {
        u64::from(self.gpus) * self.nodes as u64
    }
}

/// What kind of trace.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    pub jobs: usize,
    pub seed: u64,
    /// What is asked for, of all that the cluster could do while jobs arrive.
    pub load_percent: u64,
    /// One project, one priority, and a limit stated by every job.
    pub plain: bool,
}

/// The jobs of a trace, by arrival.
pub fn trace(profile: Profile, cluster: Cluster) -> Vec<TraceJob> {
    let mut random = StdRng::seed_from_u64(profile.seed);
    let mut jobs: Vec<TraceJob> = Vec::with_capacity(profile.jobs);
    let mut arrivals = 0_u64;
    while jobs.len() < profile.jobs {
        let one = job(&mut random, profile.plain);
        // Sweeps come at once.
        let sweep = one.gpus == 1 && random.random_range(0..25) == 0;
        let count = if sweep { random.random_range(8..40) } else { 1 };
        for number in 0..count.min(profile.jobs - jobs.len()) {
            let runs_s =
                if number == 0 { one.runs_s } else { one.runs_s * random.random_range(70..=100) / 100 };
            // The number of the arrival, until it is known how long the days are.
            jobs.push(TraceJob { arrives_s: arrivals, runs_s: runs_s.max(1), ..one.clone() });
        }
        arrivals += 1;
    }
    let work: u64 = jobs.iter().map(|job| job.runs_s * job.all_gpus()).sum();
    let span_ms = work * 1000 * 100 / (cluster.gpus() * profile.load_percent);
    let (mean_ms, mut now_ms, mut arrival) = (span_ms / arrivals, 8 * HOUR * 1000, 0);
    for job in &mut jobs {
        if job.arrives_s != arrival {
            arrival = job.arrives_s;
            let rate = BY_HOUR[(now_ms / 1000 / HOUR % 24) as usize];
            now_ms += exponential(&mut random, mean_ms) * 100 / rate;
        }
        job.arrives_s = now_ms / 1000;
    }
    jobs
}

fn job(random: &mut StdRng, plain: bool) -> TraceJob {
    let (gpus, nodes) = match random.random_range(0..100) {
        0..58 => (1, 1),
        58..72 => (2, 1),
        72..84 => (4, 1),
        84..95 => (8, 1),
        95..98 => (8, 2),
        _ => (8, 4),
    };
    // Large ones run longer.
    let runs_s = match random.random_range(0..100) + if gpus == 8 { 15 } else { 0 } {
        0..45 => octaves(random, 2 * MINUTE, 4),
        45..80 => octaves(random, 32 * MINUTE, 3),
        80..110 => octaves(random, 256 * MINUTE, 2),
        _ => octaves(random, 17 * HOUR, 1),
    };
    let guess = runs_s * random.random_range(110..300) / 100;
    let stated = LIMITS.into_iter().find(|limit| *limit >= guess);
    let (project, priority) = match random.random_range(0..100) {
        0..32 => ("vision", 0),
        32..60 => ("language", 0),
        60..76 => ("speech", 0),
        76..80 => ("robots", 0),
        80..84 => ("language", 10),
        // Fills what is left over, and yields.
        _ => ("spare", -10),
    };
    if plain {
        return TraceJob { arrives_s: 0, runs_s, limit_s: stated, gpus, nodes, priority: 0, project: "one" };
    }
    let limit_s = stated.filter(|_| random.random_range(0..100) < 70);
    TraceJob { arrives_s: 0, runs_s, limit_s, gpus, nodes, priority, project }
}

/// As many in each doubling from `least` on.
fn octaves(random: &mut StdRng, least: u64, octaves: u32) -> u64 {
    let low = least << random.random_range(0..octaves);
    random.random_range(low..2 * low)
}

/// -ln of a random number, in integers: the leading zeros are the logarithm, and between them lies a line.
fn exponential(random: &mut StdRng, mean: u64) -> u64 {
    const LN_2: u64 = 45_426; // of 65,536
    let number: u32 = random.random_range(1..=u32::MAX);
    let zeros = number.leading_zeros();
    let above = u64::from((number << zeros) & 0x7fff_ffff) >> 15;
    let log_2 = (u64::from(zeros + 1) << 16) - above;
    (mean * ((log_2 * LN_2) >> 16)) >> 16
}
