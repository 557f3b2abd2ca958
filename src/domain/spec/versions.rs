//! Version ranges of frameworks, in the way of PEP 440: `>=2.3`, `==2.6.*`, `>=2,<3`, `~=2.1`, `!=2.4.0`.

use std::str::FromStr;

use pep440_rs::VersionSpecifiers;

/// What a fault says is allowed.
pub(super) const ALLOWED: &str = "a version range such as `>=2.3`, `==2.6.*`, `>=2,<3`, `~=2.1` or `!=2.4.0`";

/// Whether a range can be read, by what the scheduler compares versions with.
pub(super) fn is_range(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= 255 && VersionSpecifiers::from_str(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_ranges_and_nothing_else() {
        for good in [
            ">=2.3",
            "==2.6.*",
            ">=2,<3",
            ">= 2 , < 3",
            "~=2.1",
            "!=2.4.0",
            ">=2.6.0.dev20250101",
            "==2.6.0rc1+cu126",
            "<3.0a1.post2.dev3",
        ] {
            assert!(is_range(good), "{good}");
        }
        for bad in
            ["", "2.3", ">>2", ">=", "=2", "~=2", ">=2.*", ">=2,", "==2.*.1", ">=2.x", ">=2..3", "==2+"]
        {
            assert!(!is_range(bad), "{bad}");
        }
    }
}
