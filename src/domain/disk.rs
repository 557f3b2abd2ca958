//! A worker's disk: when it is too full for more tasks, and what has to go before that. Pure: rooms and entries in,
//! words and an order of removal out.

use crate::contract::quantity::Timestamp;
use crate::domain::placement::Bytes;

/// How much of a volume stays free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// With less than this free, in bytes, the worker takes no tasks.
    pub min_free_bytes: u64,
    /// With less than this free, in bytes, what can be had again or was only kept in case goes. Below
    /// `min_free_bytes` it counts as that.
    pub evict_below_bytes: u64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { min_free_bytes: 512 << 20, evict_below_bytes: 2 << 30 }
    }
}

/// A volume that tasks write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// What people know it as: the path of the folder on it.
    pub shown: String,
    /// What an ordinary user can still write, in bytes.
    pub free_bytes: u64,
}

/// Why no tasks are taken: the fullest of the volumes with too little room; `None` = all have enough.
pub fn unhealthy(volumes: &[Volume], marks: Watermarks) -> Option<String> {
    let fullest = volumes.iter().min_by_key(|volume| volume.free_bytes)?;
    (fullest.free_bytes < marks.min_free_bytes).then(|| {
        let (free, needs) = (Bytes(fullest.free_bytes), Bytes(marks.min_free_bytes));
        format!("disk full on {}, {free} free, needs {needs}", fullest.shown)
    })
}

/// What may be removed to make room, in the order in which it goes: the order of the variants is the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disposable {
    /// It can be fetched again; the one not used for longest goes first.
    Cached {
        /// When a task last took it.
        last_used: Timestamp,
    },
    /// A kept workspace whose time is over.
    Expired {
        /// Since when.
        expires_at: Timestamp,
    },
    /// A kept workspace somebody may still want; the oldest goes first.
    Kept {
        /// Since when it is kept.
        kept_at: Timestamp,
    },
}

/// One thing on a volume that could go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<K> {
    /// Names it to whoever removes it.
    pub key: K,
    /// What it is.
    pub kind: Disposable,
    /// What its removal gives back, in bytes.
    pub size_bytes: u64,
    /// Somebody reads it right now: it stays.
    pub in_use: bool,
}

impl<K> Entry<K> {
    /// The same under another name.
    pub fn map<L>(self, rename: impl FnOnce(K) -> L) -> Entry<L> {
        Entry { key: rename(self.key), kind: self.kind, size_bytes: self.size_bytes, in_use: self.in_use }
    }
}

/// Bytes as people read them, such as `1.5 GiB`.
pub fn shown_bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// Which entries go, one after the other, until `evict_below_bytes` are free, or nothing is left that may go.
#[derive(Debug)]
pub struct Eviction<K> {
    /// The next one last.
    left: Vec<Entry<K>>,
    wanted_bytes: u64,
    /// What is free by the sizes of those that went; `None` = none was asked for yet.
    counted_bytes: Option<u64>,
}

impl<K: Ord> Eviction<K> {
    /// Of these.
    pub fn new(mut entries: Vec<Entry<K>>, marks: Watermarks) -> Self {
        entries.retain(|entry| !entry.in_use);
        entries.sort_by(|a, b| (b.kind, &b.key).cmp(&(a.kind, &a.key)));
        let wanted_bytes = marks.evict_below_bytes.max(marks.min_free_bytes);
        Self { left: entries, wanted_bytes, counted_bytes: None }
    }

    /// The one to remove now that so much is measured to be free. Where files share their bytes, more comes back than
    /// the sizes say; where a file system gives them back later, less is measured: the larger of the two counts.
    pub fn next(&mut self, free_bytes: u64) -> Option<K> {
        let counted = *self.counted_bytes.get_or_insert(free_bytes);
        if counted.max(free_bytes) >= self.wanted_bytes {
            return None;
        }
        let entry = self.left.pop()?;
        self.counted_bytes = Some(counted.saturating_add(entry.size_bytes));
        Some(entry.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARKS: Watermarks = Watermarks { min_free_bytes: 512 << 20, evict_below_bytes: 2 << 30 };

    #[test]
    fn the_fullest_volume_is_named_with_what_it_lacks() {
        let volume = |shown: &str, mib: u64| Volume { shown: shown.to_owned(), free_bytes: mib << 20 };
        assert_eq!(unhealthy(&[volume("/a", 512), volume("/b", 9000)], MARKS), None);
        assert_eq!(
            unhealthy(&[volume("/a", 300), volume("/b", 120)], MARKS).unwrap(),
            "disk full on /b, 120 MiB free, needs 512 MiB"
        );
        assert_eq!(unhealthy(&[], MARKS), None);
    }

    #[test]
    fn what_gives_back_more_than_its_size_saves_the_workspaces() {
        let at = Timestamp::from_micros;
        let entry = |key: &'static str, kind, size_bytes| Entry { key, kind, size_bytes, in_use: false };
        let entries = vec![
            entry("environment", Disposable::Cached { last_used: at(1) }, 0),
            entry("what it is linked to", Disposable::Cached { last_used: at(2) }, 0),
            entry("kept", Disposable::Kept { kept_at: at(1) }, 1 << 30),
        ];
        let mut eviction = Eviction::new(entries, MARKS);
        assert_eq!(eviction.next(1 << 30), Some("environment"));
        assert_eq!(eviction.next(1 << 30), Some("what it is linked to"));
        assert_eq!(eviction.next(3 << 30), None);
        assert_eq!(eviction.next(1 << 30), Some("kept"), "it was written to again");
        // By its size that is enough, whenever it can be measured.
        assert_eq!(eviction.next(1 << 30), None);
    }

    #[test]
    fn caches_go_before_workspaces_and_the_oldest_first() {
        let at = Timestamp::from_micros;
        let entry = |key: &'static str, kind| Entry { key, kind, size_bytes: 1 << 30, in_use: false };
        let mut entries = [
            entry("kept young", Disposable::Kept { kept_at: at(9) }),
            entry("kept old", Disposable::Kept { kept_at: at(1) }),
            entry("expired", Disposable::Expired { expires_at: at(50) }),
            entry("cache new", Disposable::Cached { last_used: at(90) }),
            entry("cache old", Disposable::Cached { last_used: at(3) }),
        ];
        assert_eq!(evict(&entries, 2 << 30, MARKS), Vec::<&str>::new());
        assert_eq!(evict(&entries, 1, MARKS), ["cache old", "cache new"]);
        entries[4].in_use = true;
        assert_eq!(evict(&entries, 0, MARKS), ["cache new", "expired"]);
        let all = Watermarks { evict_below_bytes: u64::MAX, ..MARKS };
        assert_eq!(evict(&entries, 0, all), ["cache new", "expired", "kept old", "kept young"]);
    }

    /// All that go while nothing is measured to come back.
    fn evict<K: Ord + Clone>(entries: &[Entry<K>], free_bytes: u64, marks: Watermarks) -> Vec<K> {
        let mut eviction = Eviction::new(entries.to_vec(), marks);
        std::iter::from_fn(|| eviction.next(free_bytes)).collect()
    }

    fn any_entry() -> impl Strategy<Value = (u8, i64, u64, bool)> {
        (0..3u8, 0..20i64, 0..1000u64, any::<bool>())
    }

    proptest! {
        #[test]
        fn nothing_in_use_goes_and_never_more_than_is_needed(
            made in prop::collection::vec(any_entry(), 0..30), free in 0..3000u64, low in 0..2000u64, high in 0..4000u64,
        ) {
            let marks = Watermarks { min_free_bytes: low, evict_below_bytes: high };
            let entries: Vec<Entry<usize>> = made.iter().enumerate().map(|(key, &(kind, time, size_bytes, in_use))| {
                let time = Timestamp::from_micros(time);
                let kind = match kind {
                    0 => Disposable::Cached { last_used: time },
                    1 => Disposable::Expired { expires_at: time },
                    _ => Disposable::Kept { kept_at: time },
                };
                Entry { key, kind, size_bytes, in_use }
            }).collect();
            let gone = evict(&entries, free, marks);
            let wanted = low.max(high);
            let bytes = |keys: &[usize]| keys.iter().map(|&key| entries[key].size_bytes).sum::<u64>();
            prop_assert!(gone.iter().all(|&key| !entries[key].in_use));
            // Without the last one there would be too little; with all of them enough, or nothing is left to remove.
            if let Some((_, before)) = gone.split_last() {
                prop_assert!(free + bytes(before) < wanted);
            }
            let idle = entries.iter().filter(|entry| !entry.in_use).count();
            prop_assert!(free + bytes(&gone) >= wanted || gone.len() == idle);
            // What stays is never older, within a kind, than what goes, and no kind is begun before the one before is
            // gone.
            for stays in entries.iter().filter(|entry| !entry.in_use && !gone.contains(&entry.key)) {
                for &key in &gone {
                    prop_assert!(entries[key].kind <= stays.kind);
                }
            }
            let mut shuffled = entries.clone();
            shuffled.reverse();
            prop_assert_eq!(evict(&shuffled, free, marks), gone);
        }
    }
}
