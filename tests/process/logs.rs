//! What programs print, as records.

use std::time::Duration;

use gpulayer::contract::log::Stream;
use gpulayer::domain::task_run::WholeLog;
use gpulayer::process::{ShimEvent, SpoolReader, Wait};

use crate::bench::{Bench, event_of, records_of};

#[tokio::test]
async fn lines_of_both_streams_keep_their_order_and_their_numbers() {
    let bench = Bench::new();
    let program = r#"
import os
for index in range(200):
    os.write(1 + index % 2, b"line %d\n" % index)
"#;
    let ended = bench.run(bench.python(program)).await;
    let records = ended.records();
    assert_eq!(ended.exit.last_n, 200);
    for stream in [Stream::Stdout, Stream::Stderr] {
        let of_stream: Vec<&str> =
            records.iter().filter(|one| one.stream == stream).map(|one| one.text.as_str()).collect();
        let first = if stream == Stream::Stdout { 0 } else { 1 };
        let expected: Vec<String> = (first..200).step_by(2).map(|index| format!("line {index}")).collect();
        assert_eq!(of_stream, expected);
    }
    assert!(records.is_sorted_by_key(|record| record.time.micros()));
    let mut reader = SpoolReader::open(&ended.task_folder);
    reader.seek_after(150).unwrap();
    let batch = reader.read(10, 1 << 20).unwrap();
    assert_eq!((batch.first_n, batch.next_n()), (151, 161));
    assert_eq!(batch.records, records[150..160]);
}

#[tokio::test]
async fn a_silent_task_has_no_spool() {
    let bench = Bench::new();
    let ended = bench.run(bench.launch_of(["true"])).await;
    assert_eq!(ended.exit.last_n, 0);
    let mut names: Vec<String> = std::fs::read_dir(&ended.task_folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["shim.json", "workspace"]);
}

#[tokio::test]
async fn odd_bytes_become_readable_and_none_is_lost() {
    let bench = Bench::new();
    let program = r#"
import os
os.write(1, b"a" * (5 << 20))
os.write(1, b"\n\xff\xfe bad utf-8 \xc3\x28\n")
os.write(1, b"nul\x00inside\r\n")
os.write(1, "ünïcødé 🚀 line\u2028separator\n".encode())
os.write(1, b"no newline at the end")
"#;
    let texts = bench.run(bench.python(program)).await.texts();
    let (long, rest) = texts.split_at(80);
    for (index, text) in long.iter().enumerate() {
        let mark = if index < 79 { " […]" } else { "" };
        assert_eq!(text.strip_suffix(mark).map(str::len), Some(64 << 10), "part {index}");
    }
    let expected = [
        "\\xFF\\xFE bad utf-8 \\xC3(",
        "nul\\0inside",
        "ünïcødé 🚀 line\u{2028}separator",
        "no newline at the end",
    ];
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn a_progress_bar_is_a_handful_of_lines_and_moves() {
    let bench = Bench::new();
    let program = r#"
import sys, time
for i in range(1301):
    sys.stderr.write(f"\r{i:4d}/1300 |{'#' * (i // 50):40s}|")
    if i % 500 == 0:
        print(f"step {i}", flush=True)
    time.sleep(0.001)
sys.stderr.write("\ndone\n")
"#;
    let ended = bench.run(bench.python(program)).await;
    let records = ended.records();
    let bar: Vec<&str> =
        records.iter().filter(|one| one.stream == Stream::Stderr).map(|one| one.text.as_str()).collect();
    assert!((3..10).contains(&bar.len()), "{bar:?}");
    assert!(bar[bar.len() - 2].starts_with("1300/1300"), "{bar:?}");
    assert_eq!(bar.last(), Some(&"done"));
    let whole = String::from_utf8(ended.whole_log().unwrap()).unwrap();
    let drawn: String = (0..1301).map(|i| format!("\r{i:4}/1300 |{:40}|", "#".repeat(i / 50))).collect();
    let steps = ["step 0\n", "step 500\n", "step 1000\n"];
    let of_stderr = steps.iter().fold(whole, |whole, step| whole.replacen(step, "", 1));
    assert_eq!(of_stderr, drawn + "\ndone\n", "every byte of it");
}

#[tokio::test]
async fn news_of_lines_come_while_the_task_runs_and_not_for_each() {
    let bench = Bench::new();
    let launch =
        bench.shell("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; echo LAST; exec sleep 60");
    let folder = launch.task_folder.clone();
    let mut process = bench.pool.launch(launch).await.unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&3001) {
        match event_of(&mut process).await {
            Some(ShimEvent::Started { .. }) => assert!(told.is_empty(), "a log before the start"),
            Some(ShimEvent::Logged { through_n }) => {
                assert!(records_of(&folder).len() as u64 >= through_n, "told before it can be read");
                told.push(through_n);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(told.is_sorted() && told.len() < 600, "{} for 3001 lines", told.len());
    process.stop(true).await.unwrap();
    let exit = crate::bench::end_of(&mut process).await;
    assert_eq!(exit.last_n, 3001);
}

#[tokio::test]
async fn a_flood_is_elided_its_last_line_is_there_and_the_shim_stays_small() {
    let bench = Bench::new();
    let launch = bench.shell(
        "grep VmHWM /proc/$PPID/status; head -c 50000000 /dev/zero | tr '\\0' x | fold -w 99; echo; grep VmHWM /proc/$PPID/status",
    );
    let ended = bench.run(launch).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 });
    assert_eq!(ended.exit.whole_log, WholeLog::Kept);
    let records = ended.records();
    assert_eq!(records.len() as u64, ended.exit.last_n);
    let marks: Vec<&str> =
        records.iter().filter(|one| one.stream == Stream::System).map(|one| one.text.as_str()).collect();
    assert!(!marks.is_empty() && marks.len() < 30, "{}", marks.len());
    assert!(
        marks.iter().all(|mark| mark.ends_with("the whole text is kept: gpulayer logs --full …")),
        "{marks:?}"
    );
    let kib = |text: &str| text.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let (before, after) = (kib(&records[0].text), kib(&records[records.len() - 1].text));
    assert!(after < before + 6144, "from {before} KiB to {after} KiB");
    let spooled = std::fs::metadata(ended.task_folder.join("spool")).unwrap().len();
    assert!(spooled < 20 << 20, "{spooled}");
    let whole = ended.whole_log().unwrap();
    let text = whole.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"xx"));
    assert_eq!(text.map(<[u8]>::len).sum::<usize>(), 50_000_000);
    assert!(ended.exit.duration < Duration::from_secs(25));
}

#[tokio::test]
async fn a_follower_sees_a_flood_alive() {
    let bench = Bench::new();
    let launch = bench.shell("exec yes some line");
    let folder = launch.task_folder.clone();
    let mut process = bench.pool.launch(launch).await.unwrap();
    let marks = |folder: &std::path::Path| {
        records_of(folder).iter().filter(|one| one.stream == Stream::System).count()
    };
    crate::bench::until("three glimpses", || marks(&folder) >= 3).await;
    let newest = records_of(&folder).pop().unwrap();
    assert_eq!((newest.stream, newest.text.as_str()), (Stream::Stdout, "some line"));
    process.stop(true).await.unwrap();
    crate::bench::end_of(&mut process).await;
}

#[tokio::test]
async fn odd_bytes_are_kept_exactly() {
    let bench = Bench::new();
    let program = r#"
import os
os.write(1, b"a" * (5 << 20))
os.write(1, b"\n\xff\xfe bad utf-8 \xc3\x28\n")
os.write(1, b"nul\x00inside\r\n")
os.write(1, b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n")
os.write(1, "ünïcødé 🚀 line\u2028separator\n".encode())
os.write(1, b"no newline at the end")
"#;
    let ended = bench.run(bench.python(program)).await;
    let long = b"a".repeat(5 << 20);
    let expected = [
        long.as_slice(),
        b"\n\xff\xfe bad utf-8 \xc3\x28\nnul\x00inside\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\n",
        "ünïcødé 🚀 line\u{2028}separator\nno newline at the end".as_bytes(),
    ];
    assert!(ended.whole_log().unwrap() == expected.concat());
}
