//! Paths of a spec: relative to the workspace, and inside it after `.` and `..` are resolved as text. Links are
//! the worker's concern, which resolves beneath the workspace.

use super::limits;
use super::reader::{Node, Reader};

/// Whether an output's path is a pattern rather than a name.
pub fn is_glob(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

/// Reads a path below the workspace; `.` and `..` are resolved and a trailing slash is dropped.
pub(super) fn below_workspace(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let text = reader.nul_free(node)?;
    match resolve(text) {
        Ok(path) if path.is_empty() => reader
            .invalid(node.at, "names the workspace itself; give a path inside it, such as `out/model.json`"),
        Ok(path) => Some(path),
        Err(refusal) => reader.invalid(node.at, refusal),
    }
}

/// Reads an output's path: the same, or a glob whose `*` and `?` stay within one part and `**` spans parts.
pub(super) fn output(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let path = below_workspace(reader, node)?;
    if path.chars().any(char::is_control) {
        return reader.invalid(node.at, "has a control character; an output's path is also its name");
    }
    if !is_glob(&path) {
        return Some(path);
    }
    match globset::GlobBuilder::new(&path).literal_separator(true).build() {
        Ok(_) => Some(path),
        Err(error) => reader.invalid(
            node.at,
            format!("not a valid glob ({}): `*`, `?`, `**`, `[ab]`, `{{a,b}}`", error.kind()),
        ),
    }
}

/// Reads an output's name: `fetch` makes folders of it, so it stays below the one it is given.
pub(super) fn output_name(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let name = reader.line(node, limits::NAME_BYTES)?;
    let mut parts = name.split('/');
    if parts.any(|part| matches!(part, "" | "." | "..")) {
        return reader.invalid(
            node.at,
            "becomes a path when it is fetched: without `.`, `..` and empty parts, and without a `/` at its ends",
        );
    }
    Some(name)
}

/// Reads a working folder; the workspace itself is `None`.
pub(super) fn cwd(reader: &mut Reader, node: Node<'_>, allow_absolute: bool) -> Option<String> {
    let text = reader.nul_free(node)?;
    if text.starts_with('/') {
        return match (allow_absolute, text.len() <= limits::PATH_BYTES) {
            (true, true) => Some(text.to_owned()),
            (true, false) => reader.invalid(node.at, too_long()),
            (false, _) => reader.invalid(
                node.at,
                "an absolute folder is allowed only on your own daemon (`--here`); give one relative to the workspace",
            ),
        };
    }
    match resolve(text) {
        Ok(path) => Some(path).filter(|path| !path.is_empty()),
        Err(refusal) => reader.invalid(node.at, refusal),
    }
}

fn too_long() -> String {
    let (whole, parts, part) = (limits::PATH_BYTES, limits::PATH_PARTS, limits::PATH_PART_BYTES);
    format!("a path may have {whole} bytes and {parts} parts, each of {part} bytes")
}

fn resolve(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty path; give one relative to the workspace".to_owned());
    }
    if text.starts_with('/') {
        return Err("an absolute path; give one relative to the workspace".to_owned());
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.pop() {
                Some(parent) if !is_glob(parent) => {}
                Some(_) => return Err("`..` cannot follow a pattern".to_owned()),
                None => return Err("leaves the workspace; give a path inside it".to_owned()),
            },
            part if part.len() > limits::PATH_PART_BYTES => return Err(too_long()),
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if path.len() > limits::PATH_BYTES || parts.len() > limits::PATH_PARTS {
        Err(too_long())
    } else {
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_as_text() {
        for (given, inside) in [
            ("a", "a"),
            ("a/", "a"),
            ("./a//b", "a/b"),
            ("x/../y", "y"),
            ("a/./b/..", "a"),
            (".", ""),
            ("..a/b", "..a/b"),
            ("out/*.json", "out/*.json"),
        ] {
            assert_eq!(resolve(given).as_deref(), Ok(inside), "{given}");
        }
        for outside in ["", "/", "/a", "..", "../a", "a/../..", "x/../../y", "*/../a"] {
            assert!(resolve(outside).is_err(), "{outside}");
        }
    }
}
