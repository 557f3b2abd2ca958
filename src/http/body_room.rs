//! The memory that request bodies may take together. A batch may have 64 MiB, and whoever may send one may send many at
//! once: beyond this they are sent away until others are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two of the largest batches.
const MOST_BYTES: usize = 128 << 20;

/// The room for all bodies.
#[derive(Debug)]
pub struct BodyRoom {
    most_bytes: usize,
    taken_bytes: AtomicUsize,
}

/// What one body takes of it, as long as this lives.
#[derive(Debug)]
pub struct Taken {
    room: Arc<BodyRoom>,
    bytes: usize,
}

impl Default for BodyRoom {
    fn default() -> Self {
        Self { most_bytes: MOST_BYTES, taken_bytes: AtomicUsize::new(0) }
    }
}

impl BodyRoom {
    /// A place for a body of which nothing has come yet.
    pub fn enter(self: &Arc<Self>) -> Taken {
        Taken { room: Arc::clone(self), bytes: 0 }
    }
}

impl Taken {
    /// Takes so many bytes more; `false` = there is no room for them.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let before = self.room.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        before.saturating_add(bytes) <= self.room.most_bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_have_so_much_and_what_goes_makes_room() {
        let room = Arc::new(BodyRoom { most_bytes: 10, taken_bytes: AtomicUsize::new(0) });
        let (mut one, mut other) = (room.enter(), room.enter());
        assert!(one.grow(6) && other.grow(4));
        assert!(!other.grow(1));
        drop(other);
        assert!(one.grow(4));
        drop(one);
        assert_eq!(room.taken_bytes.load(Ordering::Relaxed), 0);
    }
}
