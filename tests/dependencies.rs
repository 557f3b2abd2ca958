//! The rules of `deny.toml` that need no tool: nothing banned is in the lock file, everything comes from crates.io,
//! every licence is on the list. `cargo deny check bans licenses sources` checks the same and more, where installed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read_toml(name: &str) -> toml::Table {
    std::fs::read_to_string(format!("{ROOT}/{name}")).unwrap().parse().unwrap()
}

fn texts(list: &toml::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect()
}

/// Whether an SPDX expression can be met with these licences; `/` is an old way to write `OR`.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "cannot read the licence expression `{expression}`");
    met
}

fn either(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at).copied() else { return false };
    *at += 1;
    if word == "(" {
        let met = either(words, at, allowed);
        *at += 1;
        return met;
    }
    if words.get(*at) == Some(&"WITH") {
        // An exception may only widen what a licence allows, but it is another licence: not on the list.
        *at += 2;
        return false;
    }
    allowed.contains(&word)
}

#[test]
fn nothing_banned_and_nothing_from_elsewhere_is_in_the_lock_file() {
    let (rules, lock) = (read_toml("deny.toml"), read_toml("Cargo.lock"));
    let banned: Vec<&str> = rules["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["crate"].as_str().unwrap())
        .collect();
    let sources = texts(&rules["sources"]["allow-registry"]);
    assert!(!banned.is_empty() && !sources.is_empty());
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        assert!(
            !banned.contains(&name),
            "{name} is banned in deny.toml; find out who brings it: cargo tree -i {name}"
        );
        let Some(source) = package.get("source") else {
            assert_eq!(name, "gpulayer", "{name} has no source");
            continue;
        };
        let registry = source.as_str().unwrap().strip_prefix("registry+").unwrap_or_default();
        assert!(sources.contains(&registry), "{name} comes from {source}");
    }
}

#[test]
fn every_licence_is_on_the_list() {
    let rules = read_toml("deny.toml");
    let allowed = texts(&rules["licenses"]["allow"]);
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Only what is built on this platform: the rest need not have been downloaded.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "only {} packages: asked the wrong question", packages.len());
    for package in packages.iter().filter(|package| package["name"] != "gpulayer") {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(
            is_met(licence, &allowed),
            "{}: licence `{licence}` is not on the list in deny.toml",
            package["name"]
        );
    }
}

#[test]
fn licence_expressions_are_read_as_they_are_meant() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
    for good in
        ["MIT", "MIT OR GPL-3.0-only", "GPL-3.0-only/MIT", "(MIT OR X) AND Unicode-3.0", "X WITH Y OR MIT"]
    {
        assert!(is_met(good, &allowed), "{good}");
    }
    for bad in
        ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR X) AND Y", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}
