//! Does a variable look like a credential? Then its place is among `secrets`, and a warning says how. The value
//! itself is never part of what is said.

use super::reader::quoted;

/// Parts of a name, between underscores, that say what it holds.
const NAME_PARTS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "PAT",
];
/// Ends of a name that do.
const NAME_ENDS: &[&str] = &["_KEY", "_AUTH", "_DSN"];
/// Names that look so and are not.
const HARMLESS_NAMES: &[&str] = &["PWD", "OLDPWD"];

/// How the keys of known services begin, and how long they are at least.
const VALUE_STARTS: &[(&str, usize)] = &[
    ("hf_", 16),
    ("sk-", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghs_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("ya29.", 16),
    ("glc_", 16),
    ("glj_", 16),
    ("gls_", 16),
    ("gli_", 16),
    ("npm_", 16),
    ("pypi-", 16),
    ("dckr_pat_", 16),
];

/// What to say about a variable that looks like a credential.
pub(super) fn advice(name: &str, value: &str) -> Option<String> {
    (by_value(value) || by_name(name, value)).then(|| {
        let name = quoted(name);
        let plain = name.trim_matches('`');
        format!(
            "{name} looks like a credential; values in `env` are stored with the job and shown to everyone who may read it. Put it into the [secrets] table of the worker's config.toml and pass it by name, which also keeps it out of the log: --secret {plain}=name:{plain}, or {{\"secrets\": [{{\"name\": \"{plain}\", \"ref\": \"name:{plain}\"}}]}}"
        )
    })
}

/// What to say about an argument that holds a credential.
pub(super) fn advice_on_argument(text: &str) -> Option<&'static str> {
    let value =
        text.split_once('=').filter(|(flag, _)| flag.starts_with('-')).map_or(text, |(_, value)| value);
    by_value(value).then_some(
        "looks like a credential; arguments stand in the worker's process list and with the job. Pass it as a secret (--secret NAME=name:NAME) and let the program read the variable, or write the command as a shell text that does",
    )
}

/// A name alone is not enough: `TOKENIZERS_PARALLELISM=false`, `MAX_TOKEN=512` and `SSH_KEY=/path` are no secrets.
fn by_name(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let says_so = upper.split('_').any(|part| NAME_PARTS.contains(&part))
        || NAME_ENDS.iter().any(|end| upper.ends_with(end))
        || upper.ends_with("PASSWORD")
        || upper.ends_with("TOKEN");
    says_so && !HARMLESS_NAMES.contains(&upper.as_str()) && !is_plain(value)
}

/// What no secret looks like: nothing, a word for yes or no, a number, a path, a reference to something else.
fn is_plain(value: &str) -> bool {
    let words = ["true", "false", "yes", "no", "on", "off", "none", "null"];
    value.is_empty()
        || words.contains(&value.to_ascii_lowercase().as_str())
        || value.len() < 12 && value.parse::<f64>().is_ok()
        || ["/", "./", "../", "~/", "$"].iter().any(|start| value.starts_with(start))
}

fn by_value(value: &str) -> bool {
    VALUE_STARTS.iter().any(|(start, least)| {
        value.len() >= *least && value.starts_with(start) && !value.contains(char::is_whitespace)
    }) || value.contains("-----BEGIN ") && value.contains("PRIVATE KEY-----")
        || is_web_token(value)
        || has_password_in_url(value)
}

/// `eyJ….eyJ….…`: two JSON objects and a signature.
fn is_web_token(value: &str) -> bool {
    let parts: Vec<&str> = value.split('.').collect();
    matches!(parts[..], [head, body, _] if head.starts_with("eyJ") && body.starts_with("eyJ"))
}

/// `postgres://user:password@host/…`
pub(super) fn has_password_in_url(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user, _)) = authority.rsplit_once('@') else { return false };
    let named = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    named && user.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_credential_is_told_apart() {
        let long = "a".repeat(40);
        for (name, value) in [
            ("HF_TOKEN", "hf_abcdefgh"),
            ("OPENAI_API_KEY", "whatever"),
            ("DB_PASSWORD", "hunter2"),
            ("PGPASSWORD", "hunter2"),
            ("MY_SECRET", "hunter2"),
            ("X", &format!("ghp_{long}")),
            ("X", &format!("glc_{long}")),
            ("X", "AKIAIOSFODNN7EXAMPLE"),
            ("X", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
            ("X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"),
            ("DATABASE_URL", "postgres://me:hunter2@db/x"),
        ] {
            let advice = advice(name, value).unwrap_or_else(|| panic!("{name}={value}"));
            assert!(advice.contains(&format!("--secret {name}=name:{name}")), "{advice}");
            assert!(!advice.contains(value), "{advice}");
        }
    }

    #[test]
    fn what_only_sounds_like_one_is_left_alone() {
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("MAX_TOKENS", "512"),
            ("NUM_TOKEN", "512"),
            ("HF_TOKEN", ""),
            ("SSH_KEY", "/home/me/.ssh/id"),
            ("PWD", "workspace"),
            ("KEYBOARD", "us"),
            ("MONKEY", "chimp"),
            ("X", "sk-learn"),
            ("URL", "https://example.org/a:b@c"),
            ("URL", "https://user@example.org/"),
            ("PROXY", "http://proxy:3128"),
        ] {
            assert_eq!(advice(name, value), None, "{name}={value}");
        }
    }
}
