//! Remembers one tree's digest by the names, sizes and times of its entries, as git's index does: one small file
//! per root. A tree touched within the last two seconds is not remembered, since another write in the same tick
//! of the file system's clock would leave no trace.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{Plan, PlanKind};
use crate::contract::artifact::Digest;

/// Part of every fingerprint: a change of the bundle's format forgets all digests.
const FORMAT: &[u8] = b"gpulayer bundle 1\0";
/// The coarsest clock of a file system in use.
const RACY_NS: i64 = 2_000_000_000;

pub(super) struct StatCache {
    file: PathBuf,
    fingerprint: Digest,
    trusted: bool,
}

impl StatCache {
    pub(super) fn new(folder: &Path, plan: &Plan) -> Self {
        let root = Sha256::digest(plan.root.as_os_str().as_encoded_bytes());
        Self {
            file: folder.join(hex::encode(&root[..16])),
            fingerprint: fingerprint(plan),
            trusted: is_still(plan),
        }
    }

    /// The digest, if the tree is as it was.
    pub(super) fn lookup(&self) -> Option<Digest> {
        let text = fs::read_to_string(&self.file).ok()?;
        let (fingerprint, digest) = text.trim_end().split_once(' ')?;
        (fingerprint == self.fingerprint.hex()).then(|| Digest::from_hex(digest).ok())?
    }

    /// Remembers the digest, if the tree has been still for a while.
    pub(super) fn store(&self, digest: Digest) {
        if !self.trusted {
            return;
        }
        if let Err(error) = self.replace(digest) {
            tracing::debug!(path = %self.file.display(), %error, "cannot write the stat cache");
        }
    }

    /// By rename: two of us at once leave one whole line. A torn one after a crash reads as unknown.
    fn replace(&self, digest: Digest) -> io::Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = self.file.with_extension(std::process::id().to_string());
        let mut file = fs::File::create(&temporary)?;
        writeln!(file, "{} {}", self.fingerprint.hex(), digest.hex())?;
        fs::rename(&temporary, &self.file)
    }
}

/// Whether the last write to any file was a while before the tree was looked at.
pub(super) fn is_still(plan: &Plan) -> bool {
    newest_ns(plan) < plan.taken_ns.saturating_sub(RACY_NS)
}

fn newest_ns(plan: &Plan) -> i64 {
    let times = plan.entries.iter().filter_map(|entry| match &entry.kind {
        PlanKind::File(stat) => Some(stat.modified_ns.max(stat.changed_ns)),
        _ => None,
    });
    times.max().unwrap_or(i64::MIN)
}

fn fingerprint(plan: &Plan) -> Digest {
    let mut hash = Sha256::new();
    hash.update(FORMAT);
    for entry in &plan.entries {
        // No name or target holds a NUL, so nothing runs together.
        hash.update(entry.path.as_bytes());
        hash.update([0]);
        match &entry.kind {
            PlanKind::Folder => hash.update(b"d"),
            PlanKind::Link { target } => {
                hash.update(b"l");
                hash.update(target.as_bytes());
                hash.update([0]);
            }
            PlanKind::File(stat) => {
                hash.update(b"f");
                hash.update(stat.size_bytes.to_le_bytes());
                hash.update(stat.modified_ns.to_le_bytes());
                hash.update(stat.changed_ns.to_le_bytes());
                hash.update(stat.inode.to_le_bytes());
                hash.update(stat.mode.to_le_bytes());
            }
        }
    }
    Digest::from_bytes(hash.finalize().into())
}
