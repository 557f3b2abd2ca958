//! Lists, ids as people write them, keys that grow old, and what a purge leaves.

use gpulayer::contract::ids::{JobId, WorkerId};
use gpulayer::contract::job::JobState;
use gpulayer::contract::quantity::Seconds;
use gpulayer::domain::change::{Change, JobStanding};
use gpulayer::store::{CommitPort, FeedScope, JobFilter, KEYS_KEPT, LabelFilter, ONLY_TERM, Store, Writer};
use tempfile::TempDir;

use crate::records::{digest, event, inserted, job_id, key, record, standing, task, time};

fn open() -> (TempDir, Store, Writer) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let writer = store.writer().unwrap();
    (folder, store, writer)
}

fn numbers(store: &Store, filter: &JobFilter) -> Vec<u128> {
    store.reader().jobs(filter, None, 50).unwrap().items.iter().map(|job| job.id.as_u128()).collect()
}

#[test]
fn pages_go_from_new_to_old_and_end() {
    let (_folder, store, mut writer) = open();
    let jobs: Vec<Change> = (1..=7).map(inserted).collect();
    writer.apply(&jobs, ONLY_TERM).unwrap();
    let (mut cursor, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = store.reader().jobs(&JobFilter::default(), cursor, 3).unwrap();
        seen.extend(page.items.iter().map(|job| job.id.as_u128()));
        pages += 1;
        match page.next_cursor {
            Some(next) => cursor = Some(next.parse::<JobId>().unwrap()),
            None => break,
        }
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(pages, 3);
}

#[test]
fn each_filter_finds_its_own() {
    let (_folder, store, mut writer) = open();
    let mut one = record(1);
    one.name = Some("train".into());
    one.project = "vision".into();
    one.labels = r#"{"team":"a","odd \" key":"x"}"#.into();
    one.submitted_by = "alice".into();
    let placed = JobStanding { worker: Some(WorkerId::from_u128(7)), ..standing(JobState::Running, 2) };
    writer
        .apply(
            &[
                Change::JobInserted(Box::new(one), placed),
                inserted(2),
                Change::JobInserted(Box::new(record(3)), standing(JobState::Failed, 2)),
            ],
            ONLY_TERM,
        )
        .unwrap();
    let all = JobFilter::default();
    let label =
        |key: &str, value: Option<&str>| LabelFilter { key: key.into(), value: value.map(Into::into) };
    let cases = [
        (JobFilter { states: vec![JobState::Queued, JobState::Running], ..all.clone() }, vec![2, 1]),
        (JobFilter { states: vec![JobState::Failed], ..all.clone() }, vec![3]),
        (JobFilter { states: vec![JobState::Failed, JobState::Queued], ..all.clone() }, vec![3, 2]),
        (JobFilter { project: Some("vision".into()), ..all.clone() }, vec![1]),
        (JobFilter { name: Some("train".into()), ..all.clone() }, vec![1]),
        (JobFilter { submitted_by: Some("alice".into()), ..all.clone() }, vec![1]),
        (JobFilter { worker: Some(WorkerId::from_u128(7)), ..all.clone() }, vec![1]),
        (JobFilter { worker: Some(WorkerId::from_u128(8)), ..all.clone() }, vec![]),
        (JobFilter { parent: Some(job_id(1)), ..all.clone() }, vec![]),
        (JobFilter { submitted_after: Some(time(2)), ..all.clone() }, vec![3]),
        (JobFilter { labels: vec![label("team", Some("a"))], ..all.clone() }, vec![1]),
        (JobFilter { labels: vec![label("team", Some("b"))], ..all.clone() }, vec![]),
        (JobFilter { labels: vec![label("odd \" key", None), label("team", None)], ..all.clone() }, vec![1]),
        (JobFilter { labels: vec![label("nothing", None)], ..all }, vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(numbers(&store, &filter), expected, "{filter:?}");
    }
}

#[test]
fn people_may_write_an_id_in_many_ways() {
    let (_folder, store, mut writer) = open();
    let a = JobId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_1234);
    let b = JobId::from_u128(0x0190_0000_0000_7000_8000_0000_0001_5678);
    for (id, name, by) in [(a, "train", "alice"), (b, "train", "bob")] {
        let mut job = record(1);
        (job.id, job.name, job.submitted_by) = (id, Some(name.into()), by.into());
        writer
            .apply(&[Change::JobInserted(Box::new(job), standing(JobState::Queued, 1))], ONLY_TERM)
            .unwrap();
    }
    let reads = store.reader();
    let resolve = |text: &str| reads.resolve(text, None, None).unwrap();
    let text = a.to_string();
    assert_eq!(resolve(&text), [a]);
    assert_eq!(resolve(&text[..text.len() - 1]), [a], "a beginning that only one has");
    assert_eq!(resolve(&text[..12]), [b, a], "a beginning that both have");
    assert_eq!(resolve(&text[text.len() - 4..]), [a], "an end");
    assert_eq!(resolve(&format!("…{}", &text[text.len() - 5..])), [a], "an end as tables show it");
    assert_eq!(resolve(&text[text.len() - 3..]), [], "too short an end");
    assert_eq!(resolve("train"), [b], "the latest of a name");
    assert_eq!(resolve("@last"), [b]);
    assert_eq!(reads.resolve("@last", Some("alice"), None).unwrap(), [a]);
    assert_eq!(resolve("job_zzzz"), []);
    assert_eq!(resolve("job_ü"), []);
}

#[test]
fn used_keys_answer_for_seven_days_and_then_go() {
    let (_folder, store, mut writer) = open();
    let start = time(1_700_000_000_000_000);
    writer.apply(&[key(1, start), key(2, start.plus(Seconds::new(60)))], ONLY_TERM).unwrap();
    let almost = start.plus(KEYS_KEPT);
    writer.apply(&[key(3, almost)], ONLY_TERM).unwrap();
    let reads = store.reader();
    assert!(reads.used_key(&[1; 32]).unwrap().is_some());
    writer.apply(&[key(4, almost.plus(Seconds::new(61)))], ONLY_TERM).unwrap();
    assert!(reads.used_key(&[1; 32]).unwrap().is_none());
    assert!(reads.used_key(&[2; 32]).unwrap().is_none());
    assert_eq!(reads.used_key(&[3; 32]).unwrap().unwrap().status, 201);
    let scopes = |since| -> Vec<[u8; 32]> {
        reads.used_key_scopes(since).unwrap().into_iter().map(|(scope, _)| scope).collect()
    };
    assert_eq!(scopes(time(0)), [[3; 32], [4; 32]]);
    assert_eq!(scopes(almost.plus(Seconds::new(1))), [[4; 32]]);
}

#[test]
fn a_purge_leaves_nothing_and_gives_no_number_out_twice() {
    let (_folder, store, mut writer) = open();
    let mut named = record(2);
    named.artifacts = vec![digest(1), digest(2)];
    let mut other = record(1);
    other.artifacts = vec![digest(2)];
    let queued = || standing(JobState::Queued, 1);
    writer
        .apply(
            &[
                Change::JobInserted(Box::new(other), queued()),
                Change::JobInserted(Box::new(named), queued()),
                Change::TaskInserted(task(5, 2)),
                event(1, 1, 1),
                event(2, 1, 2),
            ],
            ONLY_TERM,
        )
        .unwrap();
    let reads = store.reader();
    assert!(reads.artifact_referenced(&digest(1), None).unwrap());
    assert!(!reads.artifact_referenced(&digest(1), Some(job_id(2))).unwrap());
    assert!(reads.artifact_referenced(&digest(2), Some(job_id(2))).unwrap());
    writer.apply(&[Change::JobPurged(job_id(2))], ONLY_TERM).unwrap();
    assert!(reads.job(job_id(2)).unwrap().is_none());
    assert!(reads.tasks(job_id(2)).unwrap().is_empty());
    assert!(reads.live_tasks().unwrap().is_empty());
    assert!(reads.events(job_id(2), 0, 9).unwrap().is_empty());
    assert!(!reads.artifact_referenced(&digest(1), None).unwrap());
    assert_eq!(reads.last_position().unwrap(), 2);
    assert_eq!(reads.feed(0, 9, &FeedScope::All).unwrap().0.len(), 1);
    assert_eq!(reads.specs(&[job_id(1), job_id(2)]).unwrap().len(), 1);
}
