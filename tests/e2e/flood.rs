//! A program that prints as fast as it can: memory stays bounded, the last line is there, others are served.

use std::time::{Duration, Instant};

use gpulayer::contract::job::JobState;
use serde_json::json;

use crate::house::{House, argv, eventually};
use crate::processes;

/// What the daemon and a shim may hold at most while they carry a flood: batches of 256 KiB on their way, one chunk
/// being packed, SQLite's cache; and what an unoptimised build and an allocator waste. Far below any flood.
const MOST_BYTES: u64 = 160 << 20;
const SHIM_MOST_BYTES: u64 = 48 << 20;

const PRINTS: &str = r#"
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
block, n = b"x" * 99 + b"\n", 0
block *= 10_000
while time.monotonic() < end:
    n += os.write(1, block)
os.write(1, b"\nLAST\n")
sys.stderr.write(f"{n}\n")
"#;

#[actix_rt::test]
async fn a_flood_leaves_memory_bounded_its_last_line_there_and_others_served() {
    let seconds: u64 = std::env::var("GPULAYER_FLOOD_S").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let house = House::new();
    let daemon = house.daemon().await;
    let mut spec = argv(&["python3", "-c", PRINTS, &seconds.to_string()]);
    spec["resources"] = json!({"cpus": 0.5});
    let id = house.submit(&spec).await.id;
    let began = Instant::now();
    let mut served = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        let mut other = argv(&["true"]);
        other["resources"] = json!({"cpus": 0.5});
        let other = house.end(house.submit(&other).await.id).await;
        assert_eq!(other.state, JobState::Succeeded, "{other:?}");
        served += 1;
    }
    let shims = processes::shims(&house.state().join("worker"));
    let shim_peak = shims.iter().filter_map(|pid| processes::peak_memory_bytes(*pid)).max().unwrap();
    let job = house.end(id).await;
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    let printed = house.run(&["logs", "--stream", "stdout", "--tail", "1", &id.to_string()]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "LAST\n");
    let peak = processes::peak_memory_bytes(daemon.pid()).unwrap();
    let said = house.run(&["logs", "--stream", "stderr", "--tail", "1", &id.to_string()]);
    println!(
        "{} bytes printed in {seconds} s, {served} others served, daemon {peak}, shim {shim_peak}, after {:?}",
        String::from_utf8_lossy(&said.stderr).trim(),
        began.elapsed()
    );
    assert!(peak < MOST_BYTES, "the daemon took {peak} bytes");
    assert!(shim_peak < SHIM_MOST_BYTES, "the shim took {shim_peak} bytes");
    assert!(served > 0, "somebody else was served");
    eventually("no process to be left", async || house.leftovers().is_empty().then_some(())).await;
}
