//! `kill -9` of a process that writes: everything it acknowledged is there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use gpulayer::journal::{Journal, Seq};
use gpulayer::store::{ONLY_TERM, Store};

use crate::records::{event, inserted, job_id};

const FOLDER: &str = "GPULAYER_TEST_CRASH_FOLDER";

/// Runs in the child: writes without end and prints each number that is durable.
#[test]
fn child_writes_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let store = Store::open(folder.as_ref()).unwrap();
    let first = store.reader().last_position().unwrap() + 1;
    let offset = first - 1;
    let mut out = std::io::stdout();
    let journal = Journal::start(
        store.writer().unwrap(),
        ONLY_TERM,
        move |Seq(seq)| {
            writeln!(out, "durable {}", offset + seq).unwrap();
            out.flush().unwrap();
        },
        |error| panic!("{error}"),
    )
    .unwrap();
    for number in first.. {
        journal.append(vec![inserted(number), event(number, 1, number)]);
        // As many in flight as a busy daemon has, and no more.
        while journal.newest().0 - journal.durable().0 > 64 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for kill_after in [1, 40, 7, 200, 23] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child_writes_until_killed", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut commits = 0;
        while commits < kill_after {
            let line = lines.next().expect("the child ended by itself").unwrap();
            if let Some(number) = line.split("durable ").nth(1) {
                acknowledged = number.trim().parse::<u64>().unwrap();
                commits += 1;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let store = Store::open(folder.path()).unwrap();
        let reads = store.reader();
        let position = reads.last_position().unwrap();
        assert!(position >= acknowledged, "{position} < {acknowledged}");
        // Nothing half: each job came with its event.
        assert_eq!(reads.live_jobs().unwrap().len() as u64, position);
        for number in [1, acknowledged, position] {
            assert!(reads.job(job_id(number)).unwrap().is_some());
            assert_eq!(reads.events(job_id(number), 0, 10).unwrap().len(), 1);
        }
    }
}
