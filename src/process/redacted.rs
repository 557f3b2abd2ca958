//! What a task's shim does with its secrets: they go into the environment, and out of everything the task prints.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::remark::remark;
use super::resolve::Refusal;
use super::{Launch, NotStarted};
use crate::domain::redaction::Redactor;

/// Stands between a pipe and its lines. Costs nothing for a task without secrets.
#[derive(Debug, Default)]
pub(super) struct Redacted {
    redactor: Option<Redactor>,
    clean: Vec<u8>,
}

impl Redacted {
    /// For each of a task's two streams.
    pub(super) fn pair(launch: &Launch) -> Result<[Self; 2], Refusal> {
        if launch.secrets.is_empty() {
            return Ok(Default::default());
        }
        let secrets: Vec<_> = launch.secrets.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let redactor = Redactor::new(&secrets)
            .map_err(|error| Refusal::new(NotStarted::SpawnFailed, error.to_string()))?;
        let other = redactor.another();
        Ok([redactor, other].map(|redactor| Self { redactor: Some(redactor), clean: Vec::new() }))
    }

    /// Hands on what was read, as far as it is certain.
    pub(super) fn feed(&mut self, bytes: &[u8], hand_on: impl FnOnce(&[u8])) {
        match &mut self.redactor {
            None => hand_on(bytes),
            Some(redactor) => {
                self.clean.clear();
                redactor.feed(bytes, &mut self.clean);
                hand_on(&self.clean);
            }
        }
    }

    /// The stream has ended: hands on what was held back.
    pub(super) fn finish(&mut self, hand_on: impl FnOnce(&[u8])) {
        if let Some(redactor) = &mut self.redactor {
            self.clean.clear();
            redactor.finish(&mut self.clean);
            hand_on(&self.clean);
        }
    }

    /// What takes them out, when the task has any.
    pub(super) fn redactor(&self) -> Option<&Redactor> {
        self.redactor.as_ref()
    }

    /// A sentence that was made from what the task was given.
    pub(super) fn sentence(&self, text: String) -> String {
        match &self.redactor {
            None => text,
            Some(redactor) => redactor.redact(&text),
        }
    }
}

/// While it lives, neither this process nor what it starts leaves a core file, which would hold the secrets. The
/// task may raise its limit again.
#[derive(Debug)]
pub(super) struct NoCoreFiles {
    before: Rlimit,
}

impl NoCoreFiles {
    /// For a task with secrets.
    pub(super) fn if_secrets(launch: &Launch) -> Option<Self> {
        if launch.secrets.is_empty() {
            return None;
        }
        let before = getrlimit(Resource::Core);
        set(Rlimit { current: Some(0), maximum: before.maximum }).then_some(Self { before })
    }
}

impl Drop for NoCoreFiles {
    fn drop(&mut self) {
        set(self.before);
    }
}

fn set(limit: Rlimit) -> bool {
    let done = setrlimit(Resource::Core, limit);
    if let Err(error) = &done {
        remark(format_args!("core files cannot be limited: {error}"));
    }
    done.is_ok()
}
