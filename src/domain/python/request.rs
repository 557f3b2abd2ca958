//! Whether an interpreter is the one that a job asks for by its version, in the words of `uv` for the plain cases:
//! `3.12`, `3.12.1`, `3.13t`, `python3.12`, `cpython@3.12`, `>=3.11,<3.13`. Of any other request `uv` knows the meaning.

use std::str::FromStr;

use pep440_rs::{Version, VersionSpecifiers};

use super::Interpreter;

/// Whether it is of that version, and CPython. A build without the global lock is one only where the request says so.
pub fn satisfies(interpreter: &Interpreter, request: &str) -> bool {
    let request = request.trim().to_ascii_lowercase();
    let named = ["cpython", "python"].into_iter().find_map(|name| request.strip_prefix(name));
    let wanted = named.map_or(&*request, |rest| rest.strip_prefix('@').unwrap_or(rest)).trim();
    let Some(is_free_threaded) = free_threading(&interpreter.abi) else { return false };
    // Builds from a checkout call themselves `3.12.1+`.
    let version = interpreter.version.split_whitespace().next().unwrap_or_default().trim_end_matches('+');
    let (numbers, asks_for_free_threading) = match wanted.strip_suffix('t') {
        Some(numbers) => (numbers, true),
        None => (wanted, false),
    };
    let is_version = numbers.split('.').all(|part| part.parse::<u32>().is_ok());
    if is_version {
        return asks_for_free_threading == is_free_threaded && begins_with(version, numbers);
    }
    if is_free_threaded {
        return false;
    }
    let is_any = named.is_some() && wanted.is_empty();
    let range = VersionSpecifiers::from_str(wanted).ok().filter(|_| !wanted.is_empty());
    is_any
        || range.is_some_and(|range| Version::from_str(version).is_ok_and(|version| range.contains(&version)))
}

/// Of CPython by its `SOABI`: `cpython-313t-…` has no global lock, `cpython-312d-…` is no build for others.
fn free_threading(abi: &str) -> Option<bool> {
    let tag = abi.strip_prefix("cpython-")?.split('-').next()?;
    let digits = tag.strip_suffix('t');
    let is_plain = digits.unwrap_or(tag).bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then_some(digits.is_some())
}

/// Whether a version is this one, or one of this series.
fn begins_with(version: &str, series: &str) -> bool {
    let mut parts = version.split('.');
    series.split('.').all(|wanted| parts.next() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(version: &str, abi: &str) -> Interpreter {
        Interpreter {
            executable: "/opt/python/bin/python3".into(),
            version: format!("{version} (main, Jan  1 2026) [GCC 14]"),
            abi: abi.to_owned(),
            platform: "linux-x86_64".to_owned(),
            packages_of_environment: Vec::new(),
        }
    }

    #[test]
    fn a_request_is_met_by_the_versions_that_it_names() {
        let plain = "cpython-312-x86_64-linux-gnu";
        for (request, version, abi, meets) in [
            ("3.12", "3.12.1", plain, true),
            ("3", "3.12.1", plain, true),
            ("3.12.1", "3.12.1", plain, true),
            ("3.12.1", "3.12.10", plain, false),
            ("3.1", "3.12.1", plain, false),
            ("3.12.1.0", "3.12.1", plain, false),
            ("python3.12", "3.12.1", plain, true),
            ("Python3", "3.12.1", plain, true),
            ("cpython@3.12", "3.12.1", plain, true),
            ("cpython3.12", "3.12.1", plain, true),
            ("cpython", "3.12.1", plain, true),
            (">=3.11,<3.13", "3.12.1", plain, true),
            ("cpython>=3.11", "3.12.1", plain, true),
            ("~=3.12.0", "3.12.1", plain, true),
            (">=3.13", "3.12.1", plain, false),
            ("3.12", "3.12.1+", "cpython-312-darwin", true),
            ("3.14", "3.14.0rc1", "cpython-314-darwin", true),
            ("3.13", "3.13.0", "cpython-313t-darwin", false),
            ("3.13t", "3.13.0", "cpython-313t-darwin", true),
            (">=3.13", "3.13.0", "cpython-313t-darwin", false),
            ("3.13t", "3.13.0", "cpython-313-darwin", false),
            ("3.12", "3.12.1", "cpython-312d-darwin", false),
            ("3.10", "3.10.14", "pypy310-pp73", false),
            ("pypy3.10", "3.10.14", plain, false),
            ("pypy", "3.12.1", plain, false),
            ("312", "3.12.1", plain, false),
            ("cp312", "3.12.1", plain, false),
            ("cpython-3.12.1-linux-x86_64-gnu", "3.12.1", plain, false),
            ("", "3.12.1", plain, false),
            ("3.12.", "3.12.1", plain, false),
        ] {
            assert_eq!(satisfies(&interpreter(version, abi), request), meets, "{request} by {version} {abi}");
        }
    }
}
