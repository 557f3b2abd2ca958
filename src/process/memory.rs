//! Memory of this process that its allocator holds and nobody uses.

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
