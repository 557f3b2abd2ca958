//! Frameworks that a job needs, held against what the interpreters of a worker can import. One interpreter has to
//! have them all. Versions are compared as PEP 440 orders them; a pre-release is a release like any other.

use std::collections::BTreeMap;
use std::str::FromStr;

use pep440_rs::{Version, VersionSpecifiers};

use crate::contract::gpu::Interpreter;

/// The first framework that the interpreter that comes nearest does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing<'a> {
    pub(super) name: &'a str,
    pub(super) wanted: &'a str,
    pub(super) backend: &'a str,
    /// The version that is there.
    pub(super) has: Option<&'a str>,
}

/// What is missing for `wanted` (framework to range, empty = any version) on `backends` (framework to backend).
pub(super) fn missing<'a>(
    wanted: &'a BTreeMap<String, String>,
    backends: &'a BTreeMap<String, String>,
    interpreters: &'a [Interpreter],
) -> Option<Missing<'a>> {
    if wanted.is_empty() {
        return None;
    }
    let lacks = |interpreter: Option<&'a Interpreter>| -> Vec<Missing<'a>> {
        wanted
            .iter()
            .filter_map(|(name, range)| {
                let backend = backends.get(name).map_or("", String::as_str);
                let found = interpreter.and_then(|interpreter| interpreter.frameworks.get(name));
                let fits = found.is_some_and(|found| {
                    found.fault.is_none()
                        && is_in(&found.version, range)
                        && (backend.is_empty() || found.backends.iter().any(|has| has == backend))
                });
                let has = found.map(|found| found.version.as_str());
                (!fits).then_some(Missing { name, wanted: range, backend, has })
            })
            .collect()
    };
    let mut nearest = lacks(None);
    for interpreter in interpreters {
        let lacking = lacks(Some(interpreter));
        let nearness = |lacking: &[Missing<'_>]| {
            (lacking.len(), lacking.iter().filter(|lack| lack.has.is_none()).count())
        };
        if nearness(&lacking) < nearness(&nearest) {
            nearest = lacking;
        }
    }
    nearest.first().copied()
}

/// Whether a version is in a range. A version that cannot be read is in none but the empty one.
fn is_in(version: &str, range: &str) -> bool {
    if range.is_empty() {
        return true;
    }
    let (Ok(version), Ok(range)) = (Version::from_str(version), VersionSpecifiers::from_str(range)) else {
        return false;
    };
    range.contains(&version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::gpu::Framework;

    fn interpreter(path: &str, has: &[(&str, &str, &str)]) -> Interpreter {
        let framework = |(name, version, backend): &(&str, &str, &str)| {
            let framework =
                Framework { version: (*version).into(), backends: vec![(*backend).into()], fault: None };
            ((*name).to_owned(), framework)
        };
        Interpreter {
            path: path.into(),
            version: None,
            frameworks: has.iter().map(framework).collect(),
            fault: None,
        }
    }

    fn wanted(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, range)| ((*name).into(), (*range).into())).collect()
    }

    #[test]
    fn a_pre_release_is_a_release_like_any_other() {
        for (version, range) in [
            ("2.6.0.dev20250101+cu124", ">=2.5"),
            ("2.6.0rc1", ">=2.6.0rc1,<3"),
            ("2.5.1+cu121", "==2.5.1"),
            ("2.5.1", "==2.5.*"),
            ("2.5.1", "~=2.3"),
            ("1.0", ""),
        ] {
            assert!(is_in(version, range), "{version} in {range}");
        }
        for (version, range) in [("2.2", ">=2.3"), ("3.0", ">=2,<3"), ("2.10", "<2.9"), ("nonsense", ">=1")] {
            assert!(!is_in(version, range), "{version} in {range}");
        }
    }

    #[test]
    fn one_interpreter_has_to_have_them_all() {
        let both = wanted(&[("torch", ">=2.3"), ("jax", "")]);
        let apart =
            [interpreter("a", &[("torch", "2.5", "cpu")]), interpreter("b", &[("jax", "0.4", "cpu")])];
        let none = BTreeMap::new();
        assert_eq!(missing(&both, &none, &apart).unwrap().name, "jax", "a has the first already");
        let together = [interpreter("c", &[("torch", "2.5", "cpu"), ("jax", "0.4", "cpu")])];
        assert_eq!(missing(&both, &none, &together), None);
        assert!(missing(&both, &none, &[]).is_some());
        let on_cuda = wanted(&[("torch", "cuda")]);
        let torch = wanted(&[("torch", "")]);
        let lacks = missing(&torch, &on_cuda, &apart).unwrap();
        assert_eq!((lacks.backend, lacks.has), ("cuda", Some("2.5")));
    }
}
