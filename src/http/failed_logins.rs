//! The limiter on failed log-ins. It never sees a valid token, so it cannot stand in one's way, whatever else comes
//! from the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

/// Failed log-ins that an address may make at once.
const BURST: u32 = 20;
/// Milliseconds after which one more is forgiven.
const REFILL_MS: u64 = 1000;
/// Addresses remembered at most; when full, all are forgiven rather than memory spent.
const ADDRESSES: usize = 10_000;

/// A token bucket per address, emptied by failed log-ins only.
#[derive(Debug, Default)]
pub struct FailedLogins {
    failures: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl FailedLogins {
    /// Records one more; whether the address made too many of late.
    pub fn record(&self, address: IpAddr, now: Instant) -> bool {
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES && !failures.contains_key(&address) {
            failures.clear();
        }
        let (count, since) = failures.entry(address).or_insert((0, now));
        let forgiven = now.duration_since(*since).as_millis() as u64 / REFILL_MS;
        if forgiven > 0 {
            *count = count.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
            *since = now;
        }
        *count = count.saturating_add(1).min(BURST + 1);
        *count > BURST
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn too_many_failures_are_limited_and_forgiven_with_time() {
        let logins = FailedLogins::default();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let start = Instant::now();
        assert!((0..BURST).all(|_| !logins.record(address, start)));
        assert!(logins.record(address, start));
        assert!(!logins.record("10.0.0.2".parse().unwrap(), start), "another address is not affected");
        assert!(!logins.record(address, start + Duration::from_secs(60)));
    }
}
