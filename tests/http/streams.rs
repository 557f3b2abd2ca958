//! Events and log lines: pages, long polls and streams that resume, end and are cut as docs/CONTRACT.md says.

use gpulayer::clock;
use gpulayer::contract::event::EventType;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::JobState;
use gpulayer::contract::log::{LogRecord, Stream};
use serde_json::json;

use crate::stand::{Stand, TASK, eventually};

fn log(stand: &Stand, job: JobId, first_n: u64, lines: &[&str]) {
    let records = lines
        .iter()
        .map(|text| LogRecord { time: clock::now(), stream: Stream::Stdout, text: (*text).to_owned() })
        .collect();
    stand.logs.append(job, TASK, first_n, records).blocking_recv().unwrap();
}

#[test]
fn events_come_as_pages() {
    let stand = Stand::start();
    let id = stand.submit();
    stand.shared.happened(id, EventType::JobQueued);
    stand.shared.happened(id, EventType::JobScheduled);
    let page =
        |query: &str| stand.unix("GET", &format!("/v1/jobs/{id}/events?{query}")).send().ok(200).json();
    let first = page("limit=1");
    assert_eq!((&first["items"][0]["type"], &first["next_after"]), (&json!("job_queued"), &json!(1)));
    assert_eq!(first["ended"], false);
    assert_eq!(page("after=1")["items"][0]["type"], "job_scheduled");
    stand.shared.happened(id, EventType::JobEnded);
    stand.shared.moved(id, JobState::Succeeded);
    assert_eq!(page("after=1&limit=1")["ended"], false, "one more is left");
    assert_eq!(page("after=2")["ended"], true);
    let feed = stand.unix("GET", "/v1/events?after=1").send().ok(200).json();
    assert_eq!(feed["items"].as_array().unwrap().len(), 2);
    assert_eq!(feed["next_after"], 3);
}

#[test]
fn yielded_values_come_as_pages_and_as_a_stream_that_ends_with_the_last() {
    let stand = Stand::start();
    let id = stand.submit();
    let path = format!("/v1/jobs/{id}/yielded");
    let mut poll = stand.unix("GET", &format!("{path}?wait_s=60")).open();
    let mut stream = stand.unix("GET", &path).header("Accept", "text/event-stream").open();
    eventually("both are parked", || stand.shared.watchers() == 2);
    stand.shared.happened(id, EventType::JobRunning);
    assert_eq!(stand.shared.watchers(), 2, "an event is no value");
    stand.shared.yielded(id, &["one", "two"]);
    assert!(poll.until("next_after").contains(r#"{"n":1,"text":"one","size_bytes":3}"#));
    let begin = stream.until("two");
    assert!(begin.contains("id: 1\nevent: yielded\ndata: {\"n\":1,"), "{begin}");
    stand.shared.yielded(id, &["three"]);
    stand.shared.moved(id, JobState::Succeeded);
    let end = stream.until("event: end");
    assert!(end.contains("id: 3\nevent: yielded\n") && end.contains("{\"next_after\":3}"), "{end}");
    let page = |query: &str| stand.unix("GET", &format!("{path}?{query}")).send().ok(200).json();
    assert_eq!((&page("after=1&limit=1")["ended"], &page("after=2")["ended"]), (&json!(false), &json!(true)));
    assert_eq!(page("after=2")["items"][0]["text"], "three");
}

#[test]
fn a_long_poll_for_events_returns_with_the_next_one() {
    let stand = Stand::start();
    let id = stand.submit();
    let mut poll = stand.unix("GET", &format!("/v1/jobs/{id}/events?wait_s=60")).open();
    eventually("the poll is parked", || stand.shared.watchers() == 1);
    stand.shared.happened(id, EventType::JobScheduled);
    assert!(poll.until("next_after").contains("job_scheduled"));
}

#[test]
fn a_stream_of_events_is_framed_resumes_and_ends() {
    let stand = Stand::start();
    let id = stand.submit();
    stand.shared.happened(id, EventType::JobQueued);
    stand.shared.happened(id, EventType::JobScheduled);
    let request = stand.unix("GET", &format!("/v1/jobs/{id}/events")).header("Accept", "text/event-stream");
    let mut whole = request.open();
    let begin = whole.until("job_scheduled");
    assert!(begin.starts_with("id: 1\nevent: event\ndata: {\"seq\":1,"), "{begin}");
    assert!(begin.contains("}\n\nid: 2\nevent: event\ndata: {"), "{begin}");
    let mut resumed = request.clone().header("Last-Event-ID", "1").open();
    assert!(resumed.until("job_scheduled").starts_with("id: 2\n"));
    eventually("both are parked", || stand.shared.watchers() == 2);
    stand.shared.happened(id, EventType::JobEnded);
    stand.shared.moved(id, JobState::Succeeded);
    for stream in [&mut whole, &mut resumed] {
        let body = stream.until("event: end");
        assert!(body.contains("id: 3\nevent: event\n"), "{body}");
        assert!(body.ends_with("event: end\ndata: {\"next_after\":3}\n\n"), "{body}");
    }
}

#[test]
fn log_lines_come_as_pages_with_filters_and_a_tail() {
    let stand = Stand::start();
    let id = stand.submit();
    log(&stand, id, 1, &["one", "two", "three"]);
    let texts = |query: &str| {
        let page = stand.unix("GET", &format!("/v1/jobs/{id}/logs?{query}")).send().ok(200).json();
        let items = page["items"].as_array().unwrap().clone();
        items.iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts(""), ["one", "two", "three"]);
    assert_eq!(texts("after=1&limit=1"), ["two"]);
    assert_eq!(texts("tail=1"), ["three"]);
    assert_eq!(texts("stream=stderr"), Vec::<String>::new());
    assert_eq!(texts(&format!("task={TASK}&stream=stdout")), ["one", "two", "three"]);
    stand.unix("GET", &format!("/v1/jobs/{id}/logs?stream=pipe")).send().ok(422);
}

#[test]
fn a_log_stream_follows_and_ends_only_after_the_last_line() {
    let stand = Stand::start();
    let id = stand.submit();
    let mut follow =
        stand.unix("GET", &format!("/v1/jobs/{id}/logs")).header("Accept", "text/event-stream").open();
    eventually("the stream is parked", || stand.shared.watchers() == 1);
    log(&stand, id, 1, &["hello"]);
    let body = follow.until("hello");
    assert!(body.starts_with("id: 1\nevent: log\ndata: {\"seq\":1,"), "{body}");
    log(&stand, id, 2, &["good\nbye"]);
    stand.shared.moved(id, JobState::Succeeded);
    let body = follow.until("event: end");
    assert!(body.contains("good\\nbye"), "{body}");
    assert!(body.ends_with("event: end\ndata: {\"next_after\":2}\n\n"), "{body}");
}

#[test]
fn a_job_that_is_not_there_has_no_stream() {
    let stand = Stand::start();
    for path in ["events", "logs"] {
        let path = format!("/v1/jobs/job_00000000000000000000000001/{path}");
        let answer = stand.unix("GET", &path).header("Accept", "text/event-stream").send().ok(404);
        assert_eq!(answer.code(), "not_found");
    }
}

#[test]
fn the_feed_follows_all_jobs() {
    let stand = Stand::start();
    let mut feed = stand.unix("GET", "/v1/events").header("Accept", "text/event-stream").open();
    let (a, b) = (stand.submit(), stand.submit());
    stand.shared.happened(a, EventType::JobScheduled);
    stand.shared.happened(b, EventType::JobScheduled);
    let body = feed.until(&b.to_string());
    assert!(body.contains(&a.to_string()) && body.contains("id: 2\n"), "{body}");
}

#[test]
fn a_stopping_server_cuts_streams_without_an_end() {
    let mut stand = Stand::start();
    let id = stand.submit();
    stand.shared.happened(id, EventType::JobQueued);
    let mut follow = stand
        .unix("GET", &format!("/v1/jobs/{id}/events"))
        .header("Accept", "text/event-stream")
        .header("Connection", "close")
        .open();
    follow.until("job_queued");
    stand.stop();
    let body = String::from_utf8(follow.rest().body).unwrap();
    assert!(!body.contains("event: end"), "{body}");
}

#[test]
fn a_stopping_server_tells_the_end_that_it_caused() {
    let mut stand = Stand::start();
    let id = stand.submit();
    log(&stand, id, 1, &["hello"]);
    let path = |rest: &str| format!("/v1/jobs/{id}{rest}");
    let open = |rest: &str, accept: &str| {
        let request = stand.unix("GET", &path(rest)).header("Connection", "close");
        if accept.is_empty() { request.open() } else { request.header("Accept", accept).open() }
    };
    let polls = [open("?wait_s=60", ""), open("/events?wait_s=60&after=0", "")];
    let mut streams = [open("/logs", "text/event-stream"), open("/events", "text/event-stream")];
    streams[0].until("hello");
    eventually("all are parked", || stand.shared.watchers() == 4);
    stand.shared.moved_unheard(id, JobState::Cancelled);
    stand.stop();
    let text = |answer: crate::wire::Answer| String::from_utf8(answer.body).unwrap();
    let [job, page] = polls;
    assert!(text(job.rest()).contains("\"state\":\"cancelled\""));
    assert!(text(page.rest()).contains("\"ended\":true"));
    for stream in streams {
        let body = text(stream.rest());
        assert!(body.contains("event: end"), "{body}");
    }
}

#[test]
fn numbers_beyond_what_is_counted_are_refused_and_the_last_one_is_not() {
    let stand = Stand::start();
    let id = stand.submit();
    for path in [format!("/v1/jobs/{id}/events"), format!("/v1/jobs/{id}/logs"), "/v1/events".to_owned()] {
        let most = i64::MAX as u64;
        for number in [most + 1, u64::MAX] {
            let answer = stand.unix("GET", &format!("{path}?after={number}")).send().ok(422);
            assert_eq!(answer.pointers(), ["/query/after"], "{path}");
            let last = stand.unix("GET", &path).header("Last-Event-ID", &number.to_string()).send().ok(422);
            assert_eq!(last.pointers(), ["/headers/Last-Event-ID"], "{path}");
        }
        stand.unix("GET", &format!("{path}?after={most}")).send().ok(200);
    }
}

#[test]
fn a_resumed_stream_goes_on_where_it_was_whatever_its_tail() {
    let stand = Stand::start();
    let id = stand.submit();
    log(&stand, id, 1, &["one", "two", "three"]);
    let follow = stand.unix("GET", &format!("/v1/jobs/{id}/logs?tail=1"));
    let follow = follow.header("Accept", "text/event-stream").header("Last-Event-ID", "0");
    assert!(follow.open().until("three").starts_with("id: 1\n"));
}
