//! Who a job is: version, labels, project, priority.

use std::collections::BTreeMap;

use super::limits;
use super::reader::{Node, Reader, quoted};
use crate::contract::ids::JobId;
use crate::contract::spec::API_VERSION;
use crate::contract::worker::is_unseen;

pub(super) fn api_version(reader: &mut Reader, node: Node<'_>) -> Option<()> {
    let given = reader.text(node)?;
    if given == API_VERSION {
        return Some(());
    }
    reader
        .invalid(node.at, format!("{} is not spoken here; this server speaks `{API_VERSION}`", quoted(given)))
}

/// A job's name, which commands take in the place of an id.
pub(super) fn name(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let name = reader.line(node, limits::NAME_BYTES)?;
    if name.starts_with('@') {
        return reader
            .invalid(node.at, "a name does not begin with `@`: `@last` and the like stand for jobs");
    }
    if name.parse::<JobId>().is_ok() {
        return reader.invalid(node.at, "looks like a job's id; commands could not tell them apart");
    }
    Some(name)
}

pub(super) fn labels(reader: &mut Reader, node: Node<'_>) -> Option<BTreeMap<String, String>> {
    reader.map(node, limits::ENTRIES, |reader, key, node| {
        if key.is_empty() || key.len() > limits::LABEL_KEY_BYTES || key.chars().any(is_unseen) {
            let most = limits::LABEL_KEY_BYTES;
            reader.fault(
                node.at,
                "invalid",
                format!("a label's key has 1 to {most} bytes, no characters that are not seen"),
            );
        }
        let value = reader.text(node)?;
        if value.len() > limits::LABEL_VALUE_BYTES || value.chars().any(is_unseen) {
            let most = limits::LABEL_VALUE_BYTES;
            return reader.invalid(
                node.at,
                format!("a label's value has at most {most} bytes, no characters that are not seen"),
            );
        }
        Some(value.to_owned())
    })
}

/// A project's name goes into file names and URLs, so it keeps to what is safe in both.
pub(super) fn project(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let given = reader.text(node)?;
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let well_formed = given.len() <= 63
        && given.bytes().next().is_some_and(letter)
        && given.bytes().all(|byte| letter(byte) || b"._-".contains(&byte));
    if well_formed {
        return Some(given.to_owned());
    }
    reader
        .invalid(node.at, "a project's name has 1 to 63 of `a-z 0-9 . _ -` and begins with a letter or digit")
}

pub(super) fn priority(reader: &mut Reader, node: Node<'_>) -> Option<i32> {
    let priority = reader.integer(node, -100..=100)?;
    i32::try_from(priority).ok()
}
