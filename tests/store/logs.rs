//! Log lines: numbered once, acknowledged when on disk, there after a restart.

use gpulayer::contract::ids::{JobId, TaskId};
use gpulayer::contract::log::{LogRecord, Stream};
use gpulayer::store::logs::{LogPage, LogQuery};
use gpulayer::store::{LogStore, Store};

use crate::records::{job_id, task_id, time};

fn line(text: impl Into<String>, stream: Stream) -> LogRecord {
    LogRecord { time: time(1), stream, text: text.into() }
}

fn lines(from: u64, count: u64) -> Vec<LogRecord> {
    (from..from + count).map(|n| line(format!("line {n}"), Stream::Stdout)).collect()
}

fn all(job_id: JobId) -> LogQuery {
    LogQuery { job_id, after: 0, limit: usize::MAX, task_id: None, stream: None }
}

fn append(logs: &LogStore, task: TaskId, first_n: u64, records: Vec<LogRecord>) -> u64 {
    logs.append(job_id(1), task, first_n, records).blocking_recv().unwrap()
}

/// Follows `next_after` as a client does.
fn read_on(logs: &LogStore, mut query: LogQuery) -> Vec<String> {
    let mut texts = Vec::new();
    let last = logs.last_seq(query.job_id).unwrap();
    while query.after < last {
        let LogPage { items, next_after } = logs.read(&query).unwrap();
        assert!(next_after > query.after, "no way on from {next_after}");
        texts.extend(items.into_iter().map(|line| line.text));
        query.after = next_after;
    }
    texts
}

#[test]
fn repeats_are_dropped_and_gaps_told_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = Store::open(folder.path()).unwrap();
        let logs = store.logs().unwrap();
        assert_eq!(append(&logs, task_id(1), 1, lines(1, 10)), 11);
        assert_eq!(append(&logs, task_id(1), 1, lines(1, 10)), 11);
        assert_eq!(append(&logs, task_id(1), 20, lines(20, 1)), 11);
    }
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    assert_eq!(append(&logs, task_id(1), 6, lines(6, 10)), 16);
    assert_eq!(append(&logs, task_id(2), 1, lines(100, 1)), 2, "another task counts for itself");
    assert_eq!(append(&logs, task_id(1), 15, lines(15, 1)), 16);
    let page = logs.read(&all(job_id(1))).unwrap();
    let seqs: Vec<u64> = page.items.iter().map(|line| line.seq).collect();
    assert_eq!(seqs, (1..=16).collect::<Vec<_>>());
    assert_eq!(page.items[14].text, "line 15");
    assert_eq!(page.items[15].task_id, task_id(2));
    assert_eq!(page.next_after, 16);
    assert_eq!(logs.last_seq(job_id(1)).unwrap(), 16);
}

#[test]
fn a_long_log_is_read_in_pieces_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    let mut expected = Vec::new();
    let mut n = 1;
    for round in 0..120u64 {
        let count = 1 + round * 7 % 400;
        let texts = (0..count).map(|k| format!("{n}.{k} {}", "x".repeat((k * 13 % 300) as usize)));
        let records: Vec<LogRecord> = texts.map(|text| line(text, Stream::Stdout)).collect();
        expected.extend(records.iter().map(|record| record.text.clone()));
        n = append(&logs, task_id(1), n, records);
    }
    assert_eq!(read_on(&logs, all(job_id(1))), expected);
    for after in [0, 1, 17, 1000, expected.len() as u64 - 1] {
        let few = logs.read(&LogQuery { after, limit: 3, ..all(job_id(1)) }).unwrap();
        let wanted: Vec<&String> = expected.iter().skip(after as usize).take(3).collect();
        assert_eq!(few.items.iter().map(|line| &line.text).collect::<Vec<_>>(), wanted, "after {after}");
    }
    let past = logs.read(&LogQuery { after: u64::MAX >> 1, ..all(job_id(1)) }).unwrap();
    assert!(past.items.is_empty());
    // Far smaller than its lines, on disk.
    let bytes: usize = expected.iter().map(String::len).sum();
    drop((logs, store));
    let stored = std::fs::metadata(folder.path().join("logs.db")).unwrap().len() as usize;
    assert!(stored < bytes, "{stored} bytes for {bytes}");
}

#[test]
fn filters_go_on_past_what_does_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    append(&logs, task_id(1), 1, vec![line("out", Stream::Stdout), line("err", Stream::Stderr)]);
    append(&logs, task_id(2), 1, vec![line("second", Stream::Stdout)]);
    let errors = LogQuery { stream: Some(Stream::Stderr), ..all(job_id(1)) };
    assert_eq!(read_on(&logs, errors), ["err"]);
    let second = LogQuery { task_id: Some(task_id(2)), ..all(job_id(1)) };
    assert_eq!(read_on(&logs, second), ["second"]);
}

#[test]
fn a_follower_is_told_each_durable_line_and_starts_where_the_log_stands() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    append(&logs, task_id(1), 1, lines(1, 5));
    let mut follower = logs.watch(job_id(1)).unwrap();
    assert_eq!(*follower.borrow_and_update(), 5);
    append(&logs, task_id(1), 6, lines(6, 2));
    assert!(follower.has_changed().unwrap(), "told before the writer was answered");
    assert_eq!(*follower.borrow_and_update(), 7);
    append(&logs, task_id(1), 6, lines(6, 2));
    assert!(!follower.has_changed().unwrap(), "a repeat is nothing new");
}

#[test]
fn a_purge_takes_the_lines_and_the_numbering() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    append(&logs, task_id(1), 1, lines(1, 5));
    logs.purge(job_id(1)).blocking_recv().unwrap();
    assert_eq!(logs.last_seq(job_id(1)).unwrap(), 0);
    assert!(logs.read(&all(job_id(1))).unwrap().items.is_empty());
}

#[test]
fn more_jobs_than_are_remembered_at_once_keep_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let logs = store.logs().unwrap();
    for round in 0..2 {
        let answers: Vec<_> = (1..=700u64)
            .map(|number| logs.append(job_id(number), task_id(number), round + 1, lines(round + 1, 1)))
            .collect();
        for answer in answers {
            assert_eq!(answer.blocking_recv().unwrap(), round + 2);
        }
    }
    assert_eq!(logs.last_seq(job_id(1)).unwrap(), 2);
    assert_eq!(read_on(&logs, all(job_id(700))), ["line 1", "line 2"]);
}
