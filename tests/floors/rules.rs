//! The rules of the house, as data where they are data: floors, homes of crates, banned names, sizes.

use super::source::{Kind, Reference, Target, Token, references, tokens};

/// Top-level modules by floor; imports point down only.
const FLOORS: &[(u8, &[&str])] = &[
    (1, &["contract"]),
    (2, &["domain"]),
    // `config` belongs to the outside world: what the environment and a file say, read by the command line too.
    (
        3,
        &[
            "store",
            "journal",
            "durability",
            "recording",
            "artifacts",
            "process",
            "client",
            "tls",
            "clock",
            "credentials",
            "config",
            "short_file",
            "gpu",
            "frameworks",
            "environments",
        ],
    ),
    (4, &["actors"]),
    (5, &["http", "cli", "worker"]),
    (6, &["daemon", "telemetry"]),
    (7, &["bin"]),
];

/// The only arrows between modules of one floor, and what they are for.
const SAME_FLOOR: &[(&str, &str)] = &[
    ("journal", "store"),          // hands its batches to the writer
    ("durability", "journal"),     // numbers of batches
    ("recording", "clock"),        // when a segment began
    ("process", "clock"),          // stamps log records
    ("client", "tls"),             // whom to trust, and why not
    ("tls", "short_file"),         // keys and certificates
    ("credentials", "short_file"), // the seed file
    ("config", "short_file"),      // settings and secrets
    ("gpu", "process"),            // asks drivers in children
    ("frameworks", "process"),     // asks interpreters in children
    ("environments", "process"),   // runs its builder in a task's shim
    ("environments", "artifacts"), // removes what nobody uses
    ("environments", "clock"),     // how old a refusal is
    ("cli", "worker"),             // `join` and `worker start` run one
];

/// Which modules may name a crate, or a part of one. The longest prefix that fits decides.
const HOMES: &[(&str, &[&str])] = &[
    ("diesel", &["store"]),
    ("diesel_migrations", &["store"]),
    ("libsqlite3_sys", &["store"]),
    ("actix_web", &["http"]),
    ("actix_tls", &["http"]),
    ("actix_http", &["http"]),
    ("actix_server", &["http"]),
    ("actix_service", &["http"]),
    ("actix", &["actors", "daemon"]),
    ("actix::Addr", &["actors", "daemon", "http", "worker"]),
    ("actix::Recipient", &["actors", "daemon", "http", "worker"]),
    ("actix::Message", &["actors", "daemon", "http", "worker"]), // as a bound beside `Recipient<M>`
    ("hyper", &["client"]),
    ("hyper_util", &["client"]),
    ("http_body_util", &["client"]),
    ("rustls", &["tls"]),
    ("tokio_rustls", &["tls", "client"]),
    ("rustls_native_certs", &["tls"]),
    ("rcgen", &["tls"]),
    ("x509_parser", &["tls"]),
    ("if_addrs", &["config"]),
    ("nvml_wrapper", &["gpu"]),
    ("std::process::Command", &["process"]),
    ("tokio::process", &["process"]),
    ("libc", &["process"]),
    ("clap", &["cli", "config", "bin"]),
    ("comfy_table", &["cli"]),
    ("indicatif", &["cli"]),
    ("anyhow", &["bin"]),
];

/// What the two lower floors never name: time, disks, networks and processes come in as arguments.
const IMPURE_PATHS: &[&str] =
    &["tokio", "actix", "actix_web", "actix_rt", "diesel", "std::fs", "std::net", "std::process"];
const IMPURE_WORDS: &[&str] = &["SystemTime", "Instant"];

const BANNED_NAMES: &[&str] =
    &["manager", "helper", "util", "utils", "misc", "common", "base", "data", "info"];

/// No file is longer than this, in lines.
const MOST_LINES: usize = 800;

/// A file of the repository: its path from the root, and its text.
#[derive(Debug)]
pub struct File {
    pub path: String,
    pub text: String,
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub rule: &'static str,
    pub place: String,
    pub message: String,
}

/// Every rule that `file` breaks.
pub fn faults(file: &File) -> Vec<Fault> {
    let tokens = tokens(&file.text);
    let mut found = shape_faults(file);
    found.extend(name_faults(file, &tokens));
    if let Some(module) = module_of(&file.path) {
        let references = references(&module, &tokens);
        found.extend(floor_faults(file, &module, &references));
        found.extend(home_faults(file, &module, &references));
        found.extend(purity_faults(file, &module, &references, &tokens));
        found.extend(unsafe_faults(file, &module, &tokens));
    }
    found
}

/// `src/actors/scheduler.rs` → `actors::scheduler`; `None` for the crate root and for files outside `src`.
fn module_of(path: &str) -> Option<Vec<String>> {
    let inner = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    (inner != "lib").then(|| inner.split('/').map(str::to_owned).collect())
}

fn floor_of(module: &str) -> Option<u8> {
    FLOORS.iter().find(|(_, modules)| modules.contains(&module)).map(|(floor, _)| *floor)
}

fn fault(rule: &'static str, file: &File, line: usize, message: String) -> Fault {
    Fault { rule, place: format!("{}:{line}", file.path), message }
}

fn shape_faults(file: &File) -> Vec<Fault> {
    let mut found = Vec::new();
    let lines = file.text.lines().count();
    if lines > MOST_LINES {
        found.push(fault("size", file, lines, format!("{lines} lines; split it before {MOST_LINES}")));
    }
    if !file.text.trim_start().starts_with("//!") {
        found.push(fault("module doc", file, 1, "begins without a `//!` that says what it owns".to_owned()));
    }
    if file.path.ends_with("/mod.rs") {
        found.push(fault("mod.rs", file, 1, "write `foo.rs` beside `foo/`".to_owned()));
    }
    let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    if let Some(word) = banned_word(stem) {
        found.push(fault("name", file, 1, format!("`{word}` says nothing about what the file holds")));
    }
    found
}

fn name_faults(file: &File, tokens: &[Token]) -> Vec<Fault> {
    let mut found = Vec::new();
    for pair in tokens.windows(2) {
        let [Token { kind: Kind::Word(keyword), .. }, Token { kind: Kind::Word(name), line }] = pair else {
            continue;
        };
        let is_thing = matches!(keyword.as_str(), "struct" | "enum" | "trait" | "mod");
        if let Some(word) = banned_word(name).filter(|_| is_thing) {
            found.push(fault("name", file, *line, format!("`{name}`: `{word}` says nothing")));
        }
        if keyword == "fn" && name.starts_with("get_") {
            found.push(fault("name", file, *line, format!("`{name}`: leave `get_` out")));
        }
    }
    found
}

/// The banned word in a name, by its parts: `TaskManager` and `task_manager`, but not `database`.
fn banned_word(name: &str) -> Option<&'static str> {
    let mut parts = String::new();
    for c in name.chars() {
        if c.is_uppercase() {
            parts.push('_');
        }
        parts.extend(c.to_lowercase());
    }
    parts.split('_').find_map(|part| BANNED_NAMES.iter().copied().find(|banned| *banned == part))
}

fn floor_faults(file: &File, module: &[String], references: &[Reference]) -> Vec<Fault> {
    let own = &module[0];
    let Some(own_floor) = floor_of(own) else {
        return vec![fault(
            "floor",
            file,
            1,
            format!("`{own}` has no floor; give it one in tests/floors/rules.rs"),
        )];
    };
    let mut found = Vec::new();
    for Reference { line, target } in references {
        let Target::Inside(path) = target else { continue };
        let Some(other) = path.first() else { continue };
        let Some(floor) = floor_of(other) else { continue };
        let drawn = SAME_FLOOR.contains(&(own.as_str(), other.as_str()));
        if floor > own_floor {
            found.push(fault("floor", file, *line, format!("`{own}` looks up to `{other}`")));
        } else if floor == own_floor && own != other && !drawn {
            found.push(fault("floor", file, *line, format!("`{own}` looks sideways to `{other}`")));
        }
        if own == "actors" && other == "actors" {
            let (actor, named) = (module.get(1), path.get(1));
            let foreign =
                named.is_some_and(|named| named != "messages" && Some(named) != actor && named != "self");
            if actor.is_some() && foreign {
                found.push(fault(
                    "actor",
                    file,
                    *line,
                    format!("names actor `{}`; tell it by message", path[1]),
                ));
            }
        }
    }
    found
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    prefix.split("::").enumerate().all(|(at, part)| path.get(at).is_some_and(|own| own == part))
}

fn home_faults(file: &File, module: &[String], references: &[Reference]) -> Vec<Fault> {
    let mut found = Vec::new();
    for Reference { line, target } in references {
        let Target::Outside(path) = target else { continue };
        let home = HOMES
            .iter()
            .filter(|(prefix, _)| starts_with(path, prefix))
            .max_by_key(|(prefix, _)| prefix.len());
        if let Some((prefix, modules)) = home
            && !modules.contains(&module[0].as_str())
        {
            let homes = modules.join(", ");
            found.push(fault(
                "home",
                file,
                *line,
                format!("`{}`: `{prefix}` lives in {homes}", path.join("::")),
            ));
        }
    }
    found
}

fn purity_faults(file: &File, module: &[String], references: &[Reference], tokens: &[Token]) -> Vec<Fault> {
    if !matches!(module[0].as_str(), "contract" | "domain") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for Reference { line, target } in references {
        if let Target::Outside(path) = target
            && let Some(named) = IMPURE_PATHS.iter().find(|named| starts_with(path, named))
        {
            found.push(fault("pure", file, *line, format!("names `{named}`")));
        }
    }
    for Token { line, kind } in tokens {
        if let Kind::Word(word) = kind
            && IMPURE_WORDS.contains(&word.as_str())
        {
            found.push(fault("pure", file, *line, format!("names `{word}`; take `now` as an argument")));
        }
    }
    found
}

fn unsafe_faults(file: &File, module: &[String], tokens: &[Token]) -> Vec<Fault> {
    if module[0] == "process" {
        return Vec::new();
    }
    tokens
        .iter()
        .filter(|token| token.kind == Kind::Word("unsafe".to_owned()))
        .map(|token| fault("unsafe", file, token.line, "`unsafe` lives in process".to_owned()))
        .collect()
}
