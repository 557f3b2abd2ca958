//! Logs whose spool was cut, overwritten or replaced: what can be read of them comes, and what is missing is named.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::TaskId;
use gpulayer::contract::protocol::Finish;
use gpulayer::process::SpoolReader;

use crate::server::{Server, shell, stop, until};

/// Prints `l 1` to `l 10`, then ten more for each file that appears.
struct Talker {
    server: Arc<Server>,
    task_id: TaskId,
}

impl Talker {
    fn start(server: &Arc<Server>, between: &str) -> Self {
        let go = server.folder().join("go");
        let text = format!(
            "for t in 0 1 2; do for n in 1 2 3 4 5 6 7 8 9 10; do echo l $((t * 10 + n)); sleep 0.01; done; \
             until [ $t = 2 ] || [ -e {}$t ]; do sleep 0.01; done; {between}; done",
            go.display()
        );
        Self { server: Arc::clone(server), task_id: server.offer(shell(&text)) }
    }

    fn go(&self, round: u32) {
        File::create(self.server.folder().join(format!("go{round}"))).unwrap();
    }

    fn spool(&self) -> PathBuf {
        self.server.task_folder(self.task_id).join("spool")
    }

    fn until_in_spool(&self, n: u64) {
        until("the spool to grow", || {
            SpoolReader::open(&self.server.task_folder(self.task_id)).last_n().is_ok_and(|last_n| last_n >= n)
        });
    }

    fn finish(&self) -> (Finish, Vec<String>) {
        let finish = self.server.finish_of(self.task_id);
        assert_eq!(finish.end.reason, EndReason::Completed, "{finish:?}");
        (finish, self.server.lines_of(self.task_id))
    }
}

fn lines(numbers: impl Iterator<Item = u32>) -> Vec<String> {
    numbers.map(|number| format!("l {number}")).collect()
}

fn lacks(finish: &Finish) -> Vec<&str> {
    finish
        .warnings
        .iter()
        .map(|warning| warning.detail.as_str())
        .filter(|said| said.contains("the log lacks"))
        .collect()
}

#[test]
fn damage_to_lines_that_are_on_the_server_costs_nothing() {
    for cut in [false, true] {
        let server = Server::new();
        let worker = server.start_worker();
        let talker = Talker::start(&server, ":");
        server.until_line(talker.task_id, "l 10");
        stop(worker);
        if cut {
            OpenOptions::new().write(true).open(talker.spool()).unwrap().set_len(37).unwrap();
        } else {
            let mut spool = OpenOptions::new().write(true).open(talker.spool()).unwrap();
            spool.seek(SeekFrom::Start(0)).unwrap();
            spool.write_all(&[0xa7; 30]).unwrap();
        }
        talker.go(0);
        talker.go(1);
        let worker = server.start_worker();
        let (finish, log) = talker.finish();
        assert_eq!(log, lines(1..=30), "cut: {cut}");
        assert_eq!(lacks(&finish), [""; 0]);
        stop(worker);
    }
}

#[test]
fn lines_that_are_lost_are_named_in_their_place_and_the_log_goes_on() {
    let server = Server::new();
    let worker = server.start_worker();
    let talker = Talker::start(&server, ":");
    server.until_line(talker.task_id, "l 10");
    stop(worker);
    talker.go(0);
    talker.until_in_spool(20);
    OpenOptions::new().write(true).open(talker.spool()).unwrap().set_len(37).unwrap();
    talker.go(1);
    let worker = server.start_worker();
    let (finish, log) = talker.finish();
    let mark = log.iter().position(|line| line.starts_with("10 lines lost here")).unwrap();
    assert_eq!(log[..mark], lines(1..=10));
    assert_eq!(log[mark + 1..], lines(21..=30));
    let [said] = lacks(&finish)[..] else { panic!("{finish:?}") };
    assert!(said.contains("its lines 11 to 20 of this task"), "{said}");
    stop(worker);
}

#[test]
fn a_program_that_empties_or_removes_its_spool_is_heard_all_the_same() {
    for between in
        [": > ../spool", "rm ../spool", "rm ../spool; mkfifo ../spool", "mv ../spool ../s; ln -s s ../spool"]
    {
        let server = Server::new();
        let worker = server.start_worker();
        let talker = Talker::start(&server, &format!("[ $t != 0 ] || {{ {between}; }}"));
        server.until_line(talker.task_id, "l 10");
        talker.go(0);
        talker.go(1);
        let (finish, log) = talker.finish();
        let all: Vec<String> = lines(1..=30);
        if log != all {
            // What came between the word of it and the deed is lost, and said to be.
            assert_eq!(lacks(&finish).len(), 1, "{between}: {log:?} {finish:?}");
            assert!(log.iter().any(|line| line.contains("lost here")), "{between}: {log:?}");
        }
        stop(worker);
    }
}

#[test]
fn a_spool_in_which_nothing_can_be_read_is_a_gap_up_to_the_last_line() {
    let server = Server::new();
    let worker = server.start_worker();
    let talker = Talker::start(&server, ":");
    server.until_line(talker.task_id, "l 10");
    stop(worker);
    talker.go(0);
    talker.go(1);
    until("the program's end", || server.has_ended(talker.task_id));
    std::fs::remove_file(talker.spool()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, talker.spool(), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let worker = server.start_worker();
    let (finish, log) = talker.finish();
    assert_eq!(log[..10], lines(1..=10));
    assert!(log.len() == 11 && log[10].starts_with("20 lines lost here"), "{log:?}");
    assert!(lacks(&finish)[0].contains("its lines 11 to 30 of this task"), "{finish:?}");
    assert_eq!(server.run(shell("true")).1.end.reason, EndReason::Completed);
    stop(worker);
}

#[test]
fn what_could_not_be_written_is_said_at_the_end_of_the_log_and_in_the_whole_text() {
    let server = Server::new();
    let worker = server.start_worker();
    let go = server.folder().join("go");
    let text = format!("echo up; until [ -e {} ]; do sleep 0.01; done", go.display());
    let task_id = server.offer(shell(&text));
    server.until_line(task_id, "up");
    stop(worker);
    std::fs::write(go, "").unwrap();
    until("the program's end", || server.has_ended(task_id));
    let path = server.task_folder(task_id).join("shim.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let (shim, record) = text.split_once('\n').unwrap();
    let mut record: serde_json::Value = serde_json::from_str(record).unwrap();
    // As a shim writes it that found no room for its last two lines.
    record["lost_records"] = 2.into();
    record["whole_log"] = "kept".into();
    std::fs::write(&path, format!("{shim}\n{record}\n")).unwrap();
    let worker = server.start_worker();
    let finish = server.finish_of(task_id);
    let mark = "2 lines missing here: they could not be written on the worker";
    assert_eq!(server.lines_of(task_id), ["up", mark]);
    assert!(
        finish.warnings.iter().any(|warning| warning.detail.contains("last 2 lines of the log are lost"))
    );
    let (whole, _) = server.artifacts.open_read(finish.log_artifact.unwrap()).unwrap().unwrap();
    let whole = String::from_utf8(zstd::stream::decode_all(whole).unwrap()).unwrap();
    assert_eq!(whole, format!("up\n[gpulayer: {mark}]\n"));
    stop(worker);
}
