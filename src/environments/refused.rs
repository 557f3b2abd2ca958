//! Refusals that were just heard: the tasks that want the same share them, instead of asking `uv` one after the other.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::layout::Layout;
use super::notes;
use crate::clock;
use crate::contract::quantity::Timestamp;
use crate::domain::python::{Key, OF_UV, will_repeat};
use crate::domain::redaction::Redactor;
use crate::domain::secrets::{MIN_VALUE_BYTES, SecretValue};

/// So long a refusal counts: as long as it takes those who wait, not as long as it takes to mend something.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What `uv` refused.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    /// Why there is no environment, in a sentence.
    sentence: String,
    /// What it said last.
    pub(super) said: String,
    at: Timestamp,
}

impl Refused {
    /// The refusal of an environment, if it is still to be counted.
    pub(super) fn of(layout: &Layout, key: &Key) -> Option<Self> {
        notes::read::<Self>(&layout.refusal(key)).filter(|refused| refused.age().is_some())
    }

    /// Notes a failure that would be the same for the next one. Not one that shows what may be a secret of this task.
    pub(super) fn note(layout: &Layout, key: &Key, failure: &Failure) {
        let Failure::Step { said, .. } = failure else { return };
        if !will_repeat(said) || shows_variables(said, std::env::vars_os()) {
            return;
        }
        let refused = Self { sentence: failure.sentence(), said: said.clone(), at: clock::wall() };
        let folder = layout.refusals();
        for old in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if notes::read::<Self>(&old.path()).is_none_or(|refused| refused.age().is_none()) {
                let _ = fs::remove_file(old.path());
            }
        }
        // Without it the next one asks again.
        let _ =
            fs::create_dir_all(&folder).and_then(|()| notes::write(&layout.refusal(key), &refused, false));
    }

    /// The same for another task.
    pub(super) fn failure(&self) -> Failure {
        let ago_s = self.age().unwrap_or_default().as_secs();
        Failure::Refused { sentence: self.sentence.clone(), ago_s, for_s: REMEMBERED.as_secs() }
    }

    /// `None` = too old, or from a time to come.
    fn age(&self) -> Option<Duration> {
        let micros = clock::wall().micros().checked_sub(self.at.micros())?;
        let age = Duration::from_micros(u64::try_from(micros).ok()?);
        (age < REMEMBERED).then_some(age)
    }
}

/// Those of `uv` may be secrets: a build has no others. A value that is no text is looked for as `said` would have it: what was heard was made text too.
fn shows_variables(said: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> bool {
    let text = |part: OsString| part.to_string_lossy().into_owned();
    let variables = variables.map(|(name, value)| (text(name), text(value)));
    let of_uv = variables.filter(|(name, value)| name.starts_with(OF_UV) && value.len() >= MIN_VALUE_BYTES);
    let values: Vec<_> = of_uv.map(|(name, value)| (name, SecretValue::new(value))).collect();
    let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value)).collect();
    !values.is_empty() && Redactor::new(&values).map_or(true, |redactor| redactor.redact(said) != said)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn step(said: &str) -> Failure {
        Failure::Step {
            shown: "uv pip install",
            how: "exited with status 1".to_owned(),
            said: said.to_owned(),
        }
    }

    #[test]
    fn what_shows_a_variable_is_noticed_whatever_bytes_that_has() {
        let shows = |said: &str, name: &str, value: &[u8]| {
            let odd = (OsString::from_vec(vec![0xff]), OsString::from_vec(vec![0xfe; 9]));
            let variable = (OsString::from(name), OsString::from_vec(value.to_vec()));
            shows_variables(said, [odd, variable].into_iter())
        };
        assert!(shows("no: https://me:secret-7@index", "UV_INDEX_URL", b"https://me:secret-7@index"));
        assert!(!shows("no: https://me:secret-7@index", "HOME", b"https://me:secret-7@index"));
        assert!(!shows("no solution found", "UV_INDEX_URL", b"https://caf\xe9"));
        assert!(shows("no: https://caf\u{fffd}", "UV_INDEX_URL", b"https://caf\xe9"));
    }

    #[test]
    fn what_would_be_refused_again_is_remembered_for_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, key) = (Layout(folder.path().to_owned()), Key::try_from("0".repeat(32)).unwrap());
        Refused::note(&layout, &key, &step("error: Failed to fetch: `https://pypi.org/simple/a/`"));
        assert!(Refused::of(&layout, &key).is_none());
        let said = "error: No solution found when resolving dependencies";
        Refused::note(&layout, &key, &step(said));
        let refused = Refused::of(&layout, &key).unwrap();
        assert_eq!(refused.said, said);
        let sentence = refused.failure().sentence();
        assert!(
            sentence.starts_with("`uv pip install` exited with status 1 for another task, "),
            "{sentence}"
        );
        for moved_s in [-61, 61] {
            let at = Timestamp::from_micros(clock::wall().micros() + moved_s * 1_000_000);
            notes::write(
                &layout.refusal(&key),
                &Refused { at, said: String::new(), sentence: String::new() },
                false,
            )
            .unwrap();
            assert!(Refused::of(&layout, &key).is_none(), "{moved_s}");
        }
        // What is over goes with the next note.
        let other = Key::try_from("1".repeat(32)).unwrap();
        Refused::note(&layout, &other, &step(said));
        assert!(!layout.refusal(&key).exists() && layout.refusal(&other).exists());
    }
}
