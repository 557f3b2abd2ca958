//! Version ranges of frameworks, in the way of PEP 440: `>=2.3`, `==2.6.*`, `>=2,<3`, `~=2.1`, `!=2.4.0`.

/// What a fault says is allowed.
pub(super) const ALLOWED: &str = "a version range such as `>=2.3`, `==2.6.*`, `>=2,<3`, `~=2.1` or `!=2.4.0`";

/// Whether a range can be read.
pub(super) fn is_range(text: &str) -> bool {
    text.len() <= 255 && text.split(',').all(|clause| is_clause(clause.trim()))
}

fn is_clause(clause: &str) -> bool {
    let operators = [">=", "<=", "==", "!=", "~=", ">", "<"];
    let Some((operator, version)) = operators
        .iter()
        .find_map(|operator| clause.strip_prefix(operator).map(|version| (*operator, version.trim_start())))
    else {
        return false;
    };
    match (operator, version.strip_suffix(".*")) {
        ("==" | "!=", Some(family)) => release_parts(family).is_some_and(|(_, rest)| rest.is_empty()),
        (_, Some(_)) => false,
        (operator, None) => release_parts(version)
            .is_some_and(|(parts, rest)| is_suffix(rest) && (operator != "~=" || parts >= 2)),
    }
}

/// Counts the leading `1.2.3` and gives what follows.
fn release_parts(version: &str) -> Option<(usize, &str)> {
    let (mut rest, mut parts) = (digits(version)?, 1);
    while let Some(next) = rest.strip_prefix('.').and_then(digits) {
        (rest, parts) = (next, parts + 1);
    }
    Some((parts, rest))
}

/// Pre-release, post-release, development release, local version: each at most once, in this order.
fn is_suffix(rest: &str) -> bool {
    let skip = |rest, words: &[&str]| -> &str {
        words.iter().find_map(|word| str::strip_prefix(rest, word).and_then(digits)).unwrap_or(rest)
    };
    let rest = skip(rest, &["rc", "a", "b"]);
    let rest = skip(rest, &[".post"]);
    let rest = skip(rest, &[".dev"]);
    match rest.strip_prefix('+') {
        Some(local) => !local.is_empty() && local.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'),
        None => rest.is_empty(),
    }
}

/// What follows one or more digits.
fn digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
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
