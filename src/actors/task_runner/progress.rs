//! What a running program says of itself in its progress file.

use std::sync::Arc;

use super::Surroundings;
use super::folder::TaskFolder;
use super::hidden_names::redactor;
use crate::config::SecretSource;
use crate::contract::spec::JobSpec;
use crate::domain::progress::{self, Word};
use crate::domain::redaction::Redactor;

/// One task's file, and what was read of it last.
pub(super) struct Progress {
    folder: TaskFolder,
    stamp: Option<(u64, i128)>,
    said: Option<Word>,
    /// Where its secrets are looked up, if it has any.
    secrets: Option<(SecretSource, Arc<JobSpec>)>,
    redactor: Option<Redactor>,
}

impl Progress {
    pub(super) fn of(around: &Surroundings, spec: &Arc<JobSpec>, folder: &TaskFolder) -> Self {
        let secrets = (!spec.secrets.is_empty()).then(|| (around.options.secrets.clone(), Arc::clone(spec)));
        Self { folder: folder.clone(), stamp: None, said: None, secrets, redactor: None }
    }

    /// What it says now, if that is another word than before.
    pub(super) async fn news(&mut self) -> Option<Word> {
        // Most programs never say anything: that costs one look.
        std::fs::symlink_metadata(self.folder.progress_file()).ok()?;
        let (folder, mut stamp) = (self.folder.clone(), self.stamp);
        let looked = move || folder.progress(&mut stamp).map(|bytes| (bytes, stamp));
        let (bytes, stamp) = tokio::task::spawn_blocking(looked).await.ok()?.ok()?;
        self.stamp = stamp;
        let said = self.without_secrets(progress::read(&bytes?)?).await;
        if self.said.as_ref() == Some(&said) {
            return None;
        }
        self.said = Some(said.clone());
        Some(said)
    }

    /// Its metrics have names, and may be texts.
    async fn without_secrets(&mut self, mut said: Word) -> Word {
        let Some(progress) = said.progress.as_mut().filter(|progress| !progress.metrics.is_empty()) else {
            return said;
        };
        if let Some((source, spec)) = self.secrets.take() {
            let found = tokio::task::spawn_blocking(move || redactor(&source, &spec.secrets)).await;
            self.redactor = found.ok().flatten();
        }
        if let Some(redactor) = &self.redactor {
            progress::hide(progress, |text| redactor.redact(text));
        }
        said
    }
}
