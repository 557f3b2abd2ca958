//! The house keeps its plan: imports point down, crates stay at home, the lower floors are pure, files stay small
//! and are named for what they hold. Each rule is also fed a file that breaks it, so that none can only pass.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "floors/rules.rs"]
mod rules;
#[path = "floors/source.rs"]
mod source;

use std::fs;
use std::path::Path;

use rules::{File, faults};

/// Every Rust file below these folders of the repository.
fn files(folders: &[&str]) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut open: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push(File { path, text });
            }
        }
    }
    found
}

/// The rules that a file with this text at this path breaks.
fn broken(path: &str, text: &str) -> Vec<&'static str> {
    let file = File { path: path.to_owned(), text: format!("//! Doc.\n{text}") };
    faults(&file).into_iter().map(|fault| fault.rule).collect()
}

#[test]
fn the_house_keeps_every_rule() {
    let files = files(&["src", "tests", "benches"]);
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "looked in the wrong place");
    let found: Vec<String> = files
        .iter()
        .flat_map(faults)
        .map(|fault| format!("{}: [{}] {}", fault.place, fault.rule, fault.message))
        .collect();
    assert!(found.is_empty(), "{} broken rules:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_median_file_stays_small() {
    let mut sizes: Vec<(usize, String)> =
        files(&["src"]).into_iter().map(|file| (file.text.lines().count(), file.path)).collect();
    sizes.sort();
    let median = sizes[sizes.len() / 2].0;
    let total: usize = sizes.iter().map(|(lines, _)| lines).sum();
    println!("{} files, {total} lines, median {median}; the longest:", sizes.len());
    for (lines, path) in sizes.iter().rev().take(5) {
        println!("{lines:5} {path}");
    }
    assert!(median <= 200, "the median file has {median} lines; plan is near 150");
}

#[test]
fn an_import_that_points_up_is_refused() {
    assert_eq!(broken("src/store/writer.rs", "use crate::http::Server;"), ["floor"]);
    assert_eq!(broken("src/domain/job.rs", "fn f(x: crate::store::Row) {}"), ["floor"]);
    assert_eq!(broken("src/contract/job.rs", "use crate::{domain::lease};"), ["floor"]);
    assert_eq!(broken("src/http/routes.rs", "use super::super::daemon::Handle;"), ["floor"]);
    assert_eq!(broken("src/http/routes.rs", "use crate::{store::Read, contract::job::Job};"), [""; 0]);
}

#[test]
fn an_import_from_the_same_floor_is_refused_unless_drawn() {
    assert_eq!(broken("src/http.rs", "use crate::cli::Flags;"), ["floor"]);
    assert_eq!(broken("src/journal.rs", "use crate::store::Writer;"), [""; 0]);
    assert_eq!(broken("src/store.rs", "use crate::journal::Seq;"), ["floor"]);
}

#[test]
fn a_module_without_a_floor_is_refused() {
    assert_eq!(broken("src/sundries.rs", ""), ["floor"]);
}

#[test]
fn an_actor_that_names_another_actor_is_refused() {
    assert_eq!(broken("src/actors/scheduler.rs", "use super::lease_reaper::LeaseReaper;"), ["actor"]);
    assert_eq!(broken("src/actors/scheduler/pass.rs", "use crate::actors::task_runner::Slot;"), ["actor"]);
    assert_eq!(broken("src/actors/scheduler.rs", "use super::messages::scheduler::JobQueued;"), [""; 0]);
    assert_eq!(broken("src/actors/scheduler.rs", "use crate::actors::scheduler::pass;"), [""; 0]);
}

#[test]
fn a_crate_away_from_home_is_refused() {
    assert_eq!(broken("src/actors/scheduler.rs", "use diesel::prelude::*;"), ["home"]);
    assert_eq!(broken("src/cli/run.rs", "use actix_web::HttpServer;"), ["home"]);
    assert_eq!(broken("src/worker/channel.rs", "use hyper::Request;"), ["home"]);
    assert_eq!(broken("src/cli/up.rs", "use std::process::{Command, ExitCode};"), ["home"]);
    assert_eq!(broken("src/http/state.rs", "use actix::{Actor, Addr};"), ["home"]);
    assert_eq!(broken("src/http/state.rs", "use actix::{Addr, Recipient};"), [""; 0]);
    assert_eq!(broken("src/store/writer.rs", "use diesel::prelude::*;"), [""; 0]);
}

#[test]
fn the_lower_floors_name_no_runtime_and_no_clock() {
    assert_eq!(broken("src/domain/lease.rs", "use std::fs::File;"), ["pure"]);
    assert_eq!(broken("src/domain/lease.rs", "async fn f() { tokio::spawn(g()); }"), ["pure"]);
    assert_eq!(broken("src/contract/job.rs", "use std::net::IpAddr;"), ["pure"]);
    assert_eq!(broken("src/domain/lease.rs", "use std::time::{Duration, Instant};"), ["pure"]);
    assert_eq!(broken("src/contract/job.rs", "fn f(now: std::time::SystemTime) {}"), ["pure"]);
    assert_eq!(broken("src/domain/lease.rs", "use std::time::Duration; // not Instant"), [""; 0]);
}

#[test]
fn unsafe_code_lives_in_process() {
    assert_eq!(broken("src/store/map.rs", "fn f() { unsafe { g() } }"), ["unsafe"]);
    assert_eq!(broken("src/process/spawn.rs", "fn f() { unsafe { g() } }"), [""; 0]);
}

#[test]
fn size_doc_and_place_are_checked() {
    assert_eq!(broken("src/store/rows.rs", &"\n".repeat(800)), ["size"]);
    assert_eq!(broken("src/store/rows.rs", &"\n".repeat(799)), [""; 0]);
    assert_eq!(broken("src/store/mod.rs", ""), ["mod.rs"]);
    let bare = File { path: "src/store/rows.rs".to_owned(), text: "use std::fs;\n".to_owned() };
    assert_eq!(faults(&bare)[0].rule, "module doc");
}

#[test]
fn names_that_say_nothing_are_refused() {
    assert_eq!(broken("src/store/utils.rs", ""), ["name"]);
    assert_eq!(broken("src/store/rows.rs", "pub struct JobInfo;"), ["name"]);
    assert_eq!(broken("src/store/rows.rs", "mod common { }"), ["name"]);
    assert_eq!(broken("src/store/rows.rs", "fn get_job() {}"), ["name"]);
    assert_eq!(
        broken("src/store/rows.rs", "struct Database; fn read_base32() {} fn budget_left() {}"),
        [""; 0]
    );
}
