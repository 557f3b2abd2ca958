//! What a request for a new credential may ask: every fault at once, each with what is allowed.

use crate::contract::problem::Fault;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::contract::token::{CreateToken, Role, TokenKind};
use crate::domain::change::TokenRecord;
use crate::domain::credentials::grant::ALL_PROJECTS;

/// Characters of a name at most.
const NAME_CHARACTERS: usize = 63;
/// Projects of one token at most.
const PROJECTS: usize = 1_000;
/// The project of whoever names none.
const DEFAULT_PROJECT: &str = "default";

fn fault(pointer: impl Into<String>, detail: impl Into<String>) -> Fault {
    Fault { pointer: pointer.into(), code: "invalid".to_owned(), detail: detail.into() }
}

/// Whether this can be a credential's name: it stands in paths and tables, and is typed.
pub fn is_name(text: &str) -> bool {
    (1..=NAME_CHARACTERS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte))
        && text.bytes().any(|byte| byte.is_ascii_alphanumeric())
}

fn is_project(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
}

/// The record of what was asked for, under `hash` and made by `created_by`. `name` is what it is called if it was given
/// none.
pub fn record(
    asked: CreateToken,
    name: impl FnOnce(&str) -> String,
    hash: [u8; 32],
    created_by: &str,
    now: Timestamp,
) -> Result<TokenRecord, Vec<Fault>> {
    let mut faults = Vec::new();
    let role = match asked.kind {
        TokenKind::Client => Some(asked.role.unwrap_or(Role::Submitter)),
        TokenKind::Join | TokenKind::Instance => None,
    };
    check_names(&asked, &mut faults);
    check_bounds(&asked, role, &mut faults);
    if let Some(0) = asked.expires_s.map(Seconds::millis) {
        faults.push(fault("/expires_s", "0 given, more than 0 is expected; without it the token lives on"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut projects = asked.projects;
    projects.sort_unstable();
    projects.dedup();
    if projects.is_empty() && role.is_some_and(|role| role != Role::Admin) {
        projects.push(DEFAULT_PROJECT.to_owned());
    }
    let name = asked.name.unwrap_or_else(|| name(role.map_or(asked.kind.word(), Role::word)));
    Ok(TokenRecord {
        role,
        projects,
        max_priority: asked.max_priority,
        user: asked.user.filter(|user| *user != name),
        created_by: created_by.to_owned(),
        expires_at: asked.expires_s.map(|span| now.plus(span.min(Seconds::MAX))),
        ..TokenRecord::unconfined(hash, asked.kind, name, now)
    })
}

fn check_names(asked: &CreateToken, faults: &mut Vec<Fault>) {
    for (pointer, given) in [("/name", &asked.name), ("/user", &asked.user)] {
        if given.as_deref().is_some_and(|name| !is_name(name)) {
            let detail =
                format!("1 to {NAME_CHARACTERS} of letters, digits, `.`, `_`, `-` and `@` are expected");
            faults.push(fault(pointer, detail));
        }
    }
    for (index, project) in asked.projects.iter().enumerate().take(PROJECTS) {
        if project != ALL_PROJECTS && !is_project(project) {
            let detail = "a project's name is expected, 1 to 63 of `a-z 0-9 . _ -`, or `*` for all";
            faults.push(fault(format!("/projects/{index}"), detail));
        }
    }
    if asked.projects.len() > PROJECTS {
        faults.push(fault("/projects", format!("at most {PROJECTS} are expected; `*` stands for all")));
    }
}

/// A field that would say nothing is refused: whoever gives it expects something of it.
fn check_bounds(asked: &CreateToken, role: Option<Role>, faults: &mut Vec<Fault>) {
    if role.is_none() {
        let kind = asked.kind.word();
        let given = [
            ("/role", asked.role.is_some()),
            ("/projects", !asked.projects.is_empty()),
            ("/max_priority", asked.max_priority.is_some()),
            ("/user", asked.user.is_some()),
        ];
        for (pointer, _) in given.into_iter().filter(|(_, given)| *given) {
            faults.push(fault(
                pointer,
                format!("is of clients only; a token of kind `{kind}` registers workers"),
            ));
        }
        return;
    }
    if role == Some(Role::Admin) && !asked.projects.is_empty() {
        faults.push(fault("/projects", "an admin is confined to none; leave them out, or give another role"));
    }
    if let Some(most) = asked.max_priority {
        if role != Some(Role::Submitter) {
            faults.push(fault(
                "/max_priority",
                "is of submitters only: viewers submit nothing, admins are not bound",
            ));
        } else if !(-100..=100).contains(&most) {
            faults.push(fault("/max_priority", format!("{most} given, -100 to 100 is expected")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(asked: CreateToken) -> Result<TokenRecord, Vec<String>> {
        let named = |stem: &str| format!("{stem}-x");
        record(asked, named, [1; 32], "root", Timestamp::from_micros(5)).map_err(|faults| {
            let mut pointers: Vec<String> = faults.into_iter().map(|fault| fault.pointer).collect();
            pointers.sort();
            pointers
        })
    }

    #[test]
    fn the_least_is_given_to_whoever_says_nothing() {
        let made = read(CreateToken::default()).unwrap();
        assert_eq!((made.kind, made.role), (TokenKind::Client, Some(Role::Submitter)));
        assert_eq!((made.projects, made.name.as_str()), (vec!["default".to_owned()], "submitter-x"));
        assert_eq!((made.expires_at, made.max_priority, made.created_by.as_str()), (None, None, "root"));
        let join = read(CreateToken { kind: TokenKind::Join, ..CreateToken::default() }).unwrap();
        assert_eq!((join.role, join.projects.len(), join.name.as_str()), (None, 0, "join-x"));
    }

    #[test]
    fn bounds_are_kept_as_given() {
        let asked = CreateToken {
            name: Some("ci@lab".into()),
            projects: vec!["b".into(), "a".into(), "b".into()],
            max_priority: Some(-5),
            user: Some("ci".into()),
            expires_s: Some(Seconds::new(60)),
            ..CreateToken::default()
        };
        let made = read(asked).unwrap();
        assert_eq!((made.projects, made.max_priority), (vec!["a".to_owned(), "b".to_owned()], Some(-5)));
        assert_eq!(made.user.as_deref(), Some("ci"));
        assert_eq!(made.expires_at, Some(Timestamp::from_micros(60_000_005)));
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let asked = CreateToken {
            name: Some("a b".into()),
            role: Some(Role::Admin),
            projects: vec!["Not One".into()],
            max_priority: Some(3),
            user: Some(String::new()),
            expires_s: Some(Seconds::default()),
            ..CreateToken::default()
        };
        let faults = read(asked).unwrap_err();
        assert_eq!(faults, ["/expires_s", "/max_priority", "/name", "/projects", "/projects/0", "/user"]);
        let join = CreateToken {
            kind: TokenKind::Join,
            role: Some(Role::Viewer),
            user: Some("x".into()),
            ..CreateToken::default()
        };
        assert_eq!(read(join).unwrap_err(), ["/role", "/user"]);
        let high = CreateToken { max_priority: Some(101), ..CreateToken::default() };
        assert_eq!(read(high).unwrap_err(), ["/max_priority"]);
    }

    #[test]
    fn a_name_can_stand_in_a_path() {
        for good in ["a", "ci-2026.11", "alice@example.org", &"x".repeat(63)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "-", "a/b", "a b", "ü", "a%b", &"x".repeat(64)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
