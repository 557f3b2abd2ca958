//! The functions of the fuzz targets (`fuzz/`) on stable: every seed, and seeds that were cut, joined and bent by a
//! fixed random sequence. `scripts/soak` runs the same under libFuzzer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../fuzz/src/parsers.rs"]
mod parsers;

use std::path::Path;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Bent seeds of each parser.
const ROUNDS: usize = 3000;

/// What the parser is used to: files of `fuzz/seeds/NAME`, and the golden files of the wire for those that read JSON.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("fuzz/seeds").join(name)];
    if ["spec", "batch", "worker_bodies", "answers"].contains(&name) {
        folders.push(root.join("tests/protocol/v1"));
    }
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut paths: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!seeds.is_empty(), "no seeds of {name}");
    seeds
}

/// One seed, bent a little.
fn bent(seeds: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let one = |random: &mut SmallRng| seeds[random.random_range(0..seeds.len())].clone();
    let mut bytes = one(random);
    for _ in 0..random.random_range(1..4) {
        let length = bytes.len();
        let at = random.random_range(0..=length);
        match random.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, *[b'0', b'"', b'{', b'-', b'\n', b'/', 0, 0xff].get(at % 8).unwrap()),
            2 if at < length => bytes[at] ^= 1 << random.random_range(0..8),
            3 if at < length => drop(bytes.remove(at)),
            4 => {
                let piece = one(random);
                let from = random.random_range(0..=piece.len());
                bytes.splice(at..at, piece[from..].iter().copied().take(64));
            }
            _ => {
                let end = (at + 16).min(length);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}

#[test]
fn parsers_keep_their_promises_with_whatever_comes() {
    for (name, parser) in parsers::PARSERS {
        let seeds = seeds(name);
        seeds.iter().for_each(|seed| parser(seed));
        parser(b"");
        let mut random = SmallRng::seed_from_u64(7);
        // Those that make folders are slower.
        let rounds = if *name == "bundle" { ROUNDS / 10 } else { ROUNDS };
        for _ in 0..rounds {
            parser(&bent(&seeds, &mut random));
        }
    }
}

#[test]
fn every_parser_is_a_fuzz_target() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
    let targets = manifest["bin"].as_array().unwrap().iter().map(|target| target["name"].as_str().unwrap());
    let named: Vec<_> = parsers::PARSERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(targets.collect::<Vec<_>>(), named);
}
