//! The documents keep up with the tree: links lead somewhere, the book lists every page, and what is a closed list in
//! the code is complete on the page that explains it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use gpulayer::contract::end::EndReason;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("book") {
            found.extend(pages_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// Targets of `[text](target)` that are files: no web addresses, anchors cut off.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

/// Links of a page that lead nowhere.
fn dead_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let folder = page.parent().unwrap();
    links(&text).into_iter().filter(|target| !folder.join(target).exists()).map(str::to_owned).collect()
}

#[test]
fn every_link_leads_to_a_file() {
    let mut pages = pages_below(&root().join("docs"));
    pages.push(root().join("README.md"));
    let dead: Vec<_> = pages
        .iter()
        .flat_map(|page| dead_links(page).into_iter().map(move |link| format!("{}: {link}", page.display())))
        .collect();
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn a_dead_link_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    fs::write(&page, "[a](page.md#here) [b](gone.md) [c](https://example.org/x)").unwrap();
    assert_eq!(dead_links(&page), ["gone.md"]);
}

#[test]
fn the_book_lists_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<_> = links(&summary).into_iter().map(|target| docs.join(target)).collect();
    let missing: Vec<_> = pages_below(&docs)
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn every_end_reason_is_explained_with_its_owner() {
    let page = fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap();
    for reason in EndReason::ALL {
        let owner = serde_json::to_string(&reason.owner()).unwrap();
        let row = format!("| `{}` | {} |", reason.word(), owner.trim_matches('"'));
        assert!(page.contains(&row), "docs/TROUBLESHOOTING.md lacks a row that begins {row}");
        let section = page.split(&format!("### `{}`\n", reason.word())).nth(1).unwrap_or_default();
        let section = section.split("\n#").next().unwrap_or_default();
        for title in ["What it means:", "Known from:", "How sure:", "What to try:"] {
            assert!(section.contains(title), "the section of `{}` lacks `{title}`", reason.word());
        }
    }
}

#[test]
fn quoted_messages_are_printed_somewhere() {
    let mut source = String::new();
    for path in sources_below(&root().join("src")) {
        source += &fs::read_to_string(path).unwrap();
    }
    // A text that goes on in the next line of the source.
    let source = regex::Regex::new(r"\\\n\s*").unwrap().replace_all(&source, "");
    let quoted = regex::Regex::new(r"`` ?(.+?) ?``|`([^`]+)`").unwrap();
    let page = fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap();
    let mut looked_at = 0;
    for section in ["## The command says …", "## A worker does not join, or leaves"] {
        let rows = page.split(section).nth(1).unwrap().split("\n## ").next().unwrap();
        for message in rows.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next()) {
            let message = format!("`{message}");
            for parts in quoted.captures_iter(&message) {
                let text = parts.get(1).or(parts.get(2)).unwrap().as_str();
                for part in text.split('…').map(|part| part.trim_matches([' ', ',', '(', ')'])) {
                    // Shorter ones are words of any text.
                    assert!(part.len() < 6 || source.contains(part), "nothing says `{part}` ({section})");
                    looked_at += 1;
                }
            }
        }
    }
    assert!(looked_at > 80, "{looked_at}");
}

fn sources_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
