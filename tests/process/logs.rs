//! What programs print, as records.

use std::time::Duration;

use gpulayer::contract::log::Stream;
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
async fn a_flood_arrives_whole_and_the_shim_stays_small() {
    let bench = Bench::new();
    let launch = bench.shell(
        "grep VmHWM /proc/$PPID/status; head -c 50000000 /dev/zero | tr '\\0' x | fold -w 99; echo; grep VmHWM /proc/$PPID/status",
    );
    let ended = bench.run(launch).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 });
    let records = ended.records();
    assert_eq!(records.len() as u64, ended.exit.last_n);
    let bytes: usize = records[1..records.len() - 1].iter().map(|record| record.text.len()).sum();
    assert_eq!(bytes, 50_000_000);
    let kib = |text: &str| text.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let (before, after) = (kib(&records[0].text), kib(&records[records.len() - 1].text));
    assert!(after < before + 4096, "from {before} KiB to {after} KiB");
    assert!(ended.exit.duration < Duration::from_secs(25));
}
