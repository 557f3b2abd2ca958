//! What `uv` says when it does not make an environment, and whether it would say so again.

/// What it says about what was asked for, which nothing but another question changes.
const OF_THE_QUESTION: [&str; 6] = [
    "no solution found when resolving",
    "couldn't parse requirement",
    "couldn't parse `",
    "unsupported requirement",
    "failed to parse",
    "needs to be updated, but",
];
/// What it says where an index could not be reached or did not answer as it should: the next one may be luckier, or be
/// let in.
const OF_THE_WAY: [&str; 14] = [
    "failed to fetch",
    "failed to download",
    "request failed",
    "error sending request",
    "client error",
    "server error",
    "dns error",
    "connect error",
    "connection",
    "timed out",
    "network",
    "unauthorized",
    "forbidden",
    "authentication",
];

/// Whether asking once more would give the same answer: it was about what was asked for, and nothing else was wrong.
pub fn will_repeat(said: &str) -> bool {
    let said = said.to_lowercase();
    let holds = |words: &[&str]| words.iter().any(|word| said.contains(word));
    holds(&OF_THE_QUESTION) && !holds(&OF_THE_WAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_refused_again() {
        for repeats in [
            "  × No solution found when resolving dependencies:\n  ╰─▶ Because nosuch was not found in the package registry and you require nosuch==3, no.",
            "error: Couldn't parse requirement in `-` at position 0: Expected one of `@`",
        ] {
            assert!(will_repeat(repeats), "{repeats}");
        }
        for may_go_well in [
            "error: Failed to fetch: `https://pypi.org/simple/numpy/`\n  Caused by: dns error: no such host",
            "  × Failed to build `lxml==4`\n  ├─▶ The build backend returned an error",
            "No solution found when resolving dependencies: hint: An index URL could not be queried due to a lack of valid authentication credentials (401 Unauthorized).",
            "No solution found when resolving dependencies: Because a was not found in the cache and network was disabled",
            "error: Failed to install: torch\n  cause: No space left on device (os error 28)",
            "",
        ] {
            assert!(!will_repeat(may_go_well), "{may_go_well}");
        }
    }
}
