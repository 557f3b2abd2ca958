//! Memory of this process that its allocator holds and nobody uses, and memory of the machine that is left.

/// Less than this is not worth the walk.
const WORTH_GIVING_BACK_BYTES: usize = 8 << 20;

/// Gives free memory back to the system when there is much of it; whether it did. After a burst the C library keeps
/// what the burst needed (measured: 66 MB after a batch of 10,000 jobs of which 11 MB were in use).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back_free_memory() -> bool {
    // SAFETY: both calls only look at and change the allocator's own books, under its locks.
    unsafe { libc::mallinfo2().fordblks > WORTH_GIVING_BACK_BYTES && libc::malloc_trim(0) == 1 }
}

/// Other C libraries manage this by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back_free_memory() -> bool {
    false
}

/// One line of `/proc/meminfo` or of a process's `status`, which count in kibibytes; `field` with its colon.
pub fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Whether less than an eighth of the machine's memory is left, or less than this. Where the system does not tell, never.
pub(super) fn is_memory_short(needed_bytes: u64) -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let left = meminfo_bytes(&text, "MemAvailable:");
    left.zip(meminfo_bytes(&text, "MemTotal:")).is_some_and(|(left, all)| left < needed_bytes.max(all / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_in_kibibytes() {
        assert_eq!(
            meminfo_bytes("MemTotal:       24689172 kB\nMemFree: 1 kB\n", "MemTotal:"),
            Some(24_689_172 * 1024)
        );
        assert_eq!(meminfo_bytes("MemFree: 1 kB\n", "MemTotal:"), None);
    }
}
