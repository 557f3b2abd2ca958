//! What a running program says of itself in its progress file.

use super::folder::TaskFolder;
use crate::domain::progress::{self, Word};

/// One task's file, and what was read of it last.
pub(super) struct Progress {
    folder: TaskFolder,
    stamp: Option<(u64, i128)>,
    said: Option<Word>,
}

impl Progress {
    pub(super) fn of(folder: &TaskFolder) -> Self {
        Self { folder: folder.clone(), stamp: None, said: None }
    }

    /// What it says now, if that is another word than before.
    pub(super) async fn news(&mut self) -> Option<Word> {
        // Most programs never say anything: that costs one look.
        std::fs::symlink_metadata(self.folder.progress_file()).ok()?;
        let (folder, mut stamp) = (self.folder.clone(), self.stamp);
        let looked = move || folder.progress(&mut stamp).map(|bytes| (bytes, stamp));
        let (bytes, stamp) = tokio::task::spawn_blocking(looked).await.ok()?.ok()?;
        self.stamp = stamp;
        let said = progress::read(&bytes?)?;
        if self.said.as_ref() == Some(&said) {
            return None;
        }
        self.said = Some(said.clone());
        Some(said)
    }
}
