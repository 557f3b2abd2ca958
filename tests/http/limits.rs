//! Clients that mean no good: what they send is refused cheaply, their connections end, and others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gpulayer::http::{NewcomerLimits, Patience};
use serde_json::json;

use crate::stand::{CLIENT, SESSION, Stand, TASK, eventually};

/// Longer than anything here takes; a test that gets here has failed.
const DEADLINE: Duration = Duration::from_secs(20);
/// So long is waited for what does not come: short, as the tests wait it out. (actix sets its clocks by one that it
/// reads twice a second: less than that would be over before it began.)
const SHORT: Duration = Duration::from_secs(1);

fn impatient() -> Stand {
    Stand::start_with(Patience { head: SHORT, body: SHORT }, NewcomerLimits::default())
}

fn connect(stand: &Stand) -> TcpStream {
    let socket = TcpStream::connect(stand.tcp).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.set_write_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Everything until the server closes, however it closes.
fn read_to_the_end(socket: &mut TcpStream) -> String {
    let (mut all, mut piece) = (Vec::new(), [0; 64 << 10]);
    loop {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => {
                panic!("the server did not close: {error}; it said {}", String::from_utf8_lossy(&all))
            }
        }
    }
    String::from_utf8(all).unwrap()
}

/// Sends `piece` over and over until the server does not take it any more.
fn send_for_ever(socket: &TcpStream, piece: &[u8], pause: Duration) {
    let began = Instant::now();
    let mut socket = socket;
    while socket.write_all(piece).is_ok() {
        assert!(began.elapsed() < DEADLINE, "the server goes on taking in what nobody reads");
        // A dribble, or a flood: what a client of this kind does.
        std::thread::sleep(pause);
    }
}

/// What the server says to a client that sends `head` and then `piece` for ever.
fn answer_to_endless(stand: &Stand, head: &str, piece: &[u8], pause: Duration) -> String {
    let mut socket = connect(stand);
    socket.write_all(head.as_bytes()).unwrap();
    let sending = socket.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_for_ever(&sending, piece, pause));
        read_to_the_end(&mut socket)
    })
}

fn statuses(answers: &str) -> Vec<&str> {
    answers.split("HTTP/1.1 ").skip(1).map(|answer| answer.split(' ').next().unwrap()).collect()
}

fn still_serves(stand: &Stand) {
    stand.tcp("GET", "/v1/whoami").token(CLIENT).send().ok(200);
}

#[test]
fn a_head_that_never_ends_is_given_up() {
    let stand = impatient();
    let answer = answer_to_endless(&stand, "GET /healthz HTTP/1.1\r\n", b"x", Duration::from_millis(10));
    assert_eq!(statuses(&answer), ["408"]);
    let mut silent = connect(&stand);
    assert_eq!(statuses(&read_to_the_end(&mut silent)), ["408"], "nor is one that never begins waited for");
    still_serves(&stand);
}

#[test]
fn a_stranger_has_one_request_per_connection() {
    let stand = Stand::start();
    let mut socket = connect(&stand);
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea").unwrap();
    assert_eq!(statuses(&read_to_the_end(&mut socket)), ["200"]);
    let mut socket = connect(&stand);
    let two =
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    socket.write_all(two).unwrap();
    // What came along with the first may be answered, but nothing is waited for.
    let answers = read_to_the_end(&mut socket);
    assert!(matches!(statuses(&answers)[..], ["401"] | ["401", "200"]), "{answers}");
}

#[test]
fn a_body_that_dribbles_is_given_up() {
    let stand = impatient();
    let jobs = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CLIENT}\r\n\
         Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    );
    let put = format!(
        "PUT /v1/artifacts/sha256/{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CLIENT}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n",
        "a".repeat(64)
    );
    for head in [jobs, put] {
        let answer = answer_to_endless(&stand, &head, b" ", Duration::from_millis(10));
        assert_eq!(statuses(&answer), ["408"], "{answer}");
        assert!(answer.contains("\"request_timeout\""), "{answer}");
        // And one that stops.
        let mut socket = connect(&stand);
        socket.write_all(head.as_bytes()).unwrap();
        assert_eq!(statuses(&read_to_the_end(&mut socket)), ["408"]);
    }
    still_serves(&stand);
}

#[test]
fn a_body_that_nobody_wants_is_not_taken_in() {
    let stand = Stand::start();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let chunked = "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    for (call, token, status) in [
        ("POST /v1/jobs", "", "401"),
        ("POST /v1/jobs", "Authorization: Bearer glc_wrong\r\n", "401"),
        ("GET /healthz", "", "200"),
        ("HEAD /healthz", "", "200"),
        ("GET /v1/whoami", &format!("Authorization: Bearer {CLIENT}\r\n"), "200"),
        ("POST /v1/jobs", &format!("Authorization: Bearer {CLIENT}\r\n"), "413"),
        ("POST /no/such/path", &format!("Authorization: Bearer {CLIENT}\r\n"), "404"),
        ("POST /v1/worker/report", &format!("Authorization: Bearer {SESSION}\r\n"), "426"),
    ] {
        let head = format!("{call} HTTP/1.1\r\n{chunked}{token}\r\n");
        let answer = answer_to_endless(&stand, &head, &chunk, Duration::ZERO);
        assert_eq!(statuses(&answer), [status], "{call} {token}");
    }
    still_serves(&stand);
}

#[test]
fn a_strangers_body_is_refused_before_it_is_sent() {
    let stand = Stand::start();
    let mut socket = connect(&stand);
    let head = "POST /v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
        Content-Length: 60000000\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    assert_eq!(statuses(&read_to_the_end(&mut socket)), ["401"]);
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let stand = Stand::start();
    let token = format!("Host: localhost\r\nAuthorization: Bearer {CLIENT}\r\n");
    let many: String = (0..100).map(|n| format!("x-{n}: y\r\n")).collect();
    let large = format!("x: {}\r\n", "y".repeat(200_000));
    let url = "z".repeat(80_000);
    for (head, refused) in [
        (format!("GET /healthz HTTP/1.1\r\n{token}{many}\r\n"), ["431"]),
        (format!("GET /healthz HTTP/1.1\r\n{token}{large}\r\n"), ["431"]),
        (format!("GET /{url} HTTP/1.1\r\n{token}\r\n"), ["400"]),
        (format!("GET /{url}{url} HTTP/1.1\r\n{token}\r\n"), ["431"]),
    ] {
        let mut socket = connect(&stand);
        // The server may close before it has all of it.
        let _ = socket.write_all(head.as_bytes());
        let answer = read_to_the_end(&mut socket);
        assert!(answer.is_empty() || statuses(&answer) == refused, "{answer}");
    }
    let answer =
        answer_to_endless(&stand, "GET / HTTP/1.1\r\nHost: localhost\r\nx: ", &[b'y'; 4096], Duration::ZERO);
    assert!(answer.is_empty() || statuses(&answer) == ["431"], "{answer}");
    still_serves(&stand);
}

#[test]
fn every_answer_names_the_start_of_the_server() {
    let start = |stand: &Stand| {
        let answers = [
            stand.unix("GET", "/healthz").send(),
            stand.tcp("GET", "/v1/whoami").token(CLIENT).send(),
            stand.tcp("GET", "/no/such/path").send(),
        ];
        let starts = answers.map(|answer| answer.headers["x-gpulayer-start"].clone());
        assert!(starts.iter().all(|start| *start == starts[0]), "{starts:?}");
        starts[0].clone()
    };
    assert_ne!(start(&Stand::start()), start(&Stand::start()));
}

#[test]
fn requests_in_a_row_are_answered_in_a_row() {
    let stand = Stand::start();
    let count = 2000;
    let request = format!("GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CLIENT}\r\n");
    let mut socket = connect(&stand);
    let mut sending = socket.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 1..count {
                sending.write_all(format!("{request}\r\n").as_bytes()).unwrap();
            }
            sending.write_all(format!("{request}Connection: close\r\n\r\n").as_bytes()).unwrap();
        });
        let answers = read_to_the_end(&mut socket);
        assert_eq!(statuses(&answers), vec!["200"; count]);
    });
}

#[test]
fn json_of_endless_depth_is_refused() {
    let stand = Stand::start();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(20_000), close.repeat(20_000));
        let nested = format!("{{\"jobs\": [{deep}], \"telemetry\": {deep}, \"workload\": {deep}}}");
        for body in [deep, nested] {
            for path in ["/v1/jobs", "/v1/jobs/batch", "/v1/artifacts/missing", "/v1/admin/stop"] {
                let sent = stand.unix("POST", path).body("application/json", body.clone()).send();
                assert!(matches!(sent.status, 400 | 422), "{path}: {sent:?}");
            }
            for path in
                ["/v1/worker/heartbeat", "/v1/worker/report", &format!("/v1/worker/tasks/{TASK}/finish")]
            {
                let sent = stand.worker(path, &json!({})).body("application/json", body.clone()).send();
                assert!(matches!(sent.status, 400 | 422), "{path}: {sent:?}");
            }
        }
    }
    still_serves(&stand);
}

#[test]
fn strangers_that_stay_are_cut_when_others_come_and_guests_are_not() {
    let limits = NewcomerLimits { per_address: 5, in_all: 8 };
    let stand = Stand::start_with(Patience::default(), limits);
    let ask = format!("GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CLIENT}\r\n\r\n");
    let mut guest = connect(&stand);
    let asked = |guest: &mut TcpStream| {
        guest.write_all(ask.as_bytes()).unwrap();
        let mut piece = [0; 4096];
        let length = guest.read(&mut piece).unwrap();
        assert!(
            piece[..length].starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&piece[..length])
        );
    };
    asked(&mut guest);
    let strangers: Vec<TcpStream> = (0..40).map(|_| connect(&stand)).collect();
    for socket in &strangers {
        socket.set_nonblocking(true).unwrap();
    }
    let open = || strangers.iter().filter(|socket| socket.peek(&mut [0]).is_err()).count();
    eventually("all but five are cut", || open() == 5);
    still_serves(&stand);
    asked(&mut guest);
    // One that is served leaves its place: the others need not go for it.
    assert!(open() >= 4);
    let _more: Vec<TcpStream> = (0..5).map(|_| connect(&stand)).collect();
    eventually("the newest stay", || open() == 0);
    still_serves(&stand);
    asked(&mut guest);
}

#[test]
fn unfinished_bodies_fill_no_more_than_their_room() {
    let stand = Stand::start();
    let head = format!(
        "POST /v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CLIENT}\r\n\
         Content-Type: application/json\r\nContent-Length: 60000000\r\n\r\n"
    );
    let most = vec![b' '; 50_000_000];
    let begin = |most: &[u8]| {
        let mut socket = connect(&stand);
        socket.write_all(head.as_bytes()).unwrap();
        // The one that is refused may be closed before it has sent all.
        let _ = socket.write_all(most);
        socket
    };
    let held = [begin(&most), begin(&most)];
    let mut refused = begin(&most);
    let answer = read_to_the_end(&mut refused);
    assert!(
        answer.is_empty() || statuses(&answer) == ["503"] && answer.contains("\"overloaded\""),
        "{answer}"
    );
    still_serves(&stand);
    drop(held);
    eventually("the room to be free again", || {
        let batch = json!({ "jobs": [{"workload": {"command": {"argv": ["/bin/true"]}}}] });
        let padded = format!("{}{batch}", " ".repeat(50_000_000));
        let sent = stand.tcp("POST", "/v1/jobs/batch").token(CLIENT).body("application/json", padded).send();
        sent.status == 201
    });
}

#[test]
fn two_tokens_and_two_hosts_are_one_too_many() {
    let stand = Stand::start();
    let ask = |head: String| {
        let mut socket = connect(&stand);
        socket.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let answer = read_to_the_end(&mut socket);
        statuses(&answer)[0].to_owned()
    };
    let token = format!("Authorization: Bearer {CLIENT}\r\n");
    let one = ask(format!("GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n{token}"));
    assert_eq!(one, "200");
    for other in [token.as_str(), "Authorization: Bearer glc_wrong\r\n", "Authorization: Basic eDp5\r\n"] {
        let two = ask(format!("GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n{other}{token}"));
        assert_eq!(two, "401", "{other}");
    }
    let target = |target: &str, host: &str| ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{token}"));
    assert_eq!(target("http://localhost/v1/whoami", "localhost"), "200");
    let foreign = ask(format!("GET /v1/whoami HTTP/1.1\r\nHost: evil.example\r\n{token}"));
    assert_eq!(target("http://evil.example/v1/whoami", "localhost"), foreign, "the target names the host");
    assert_eq!(target("http://localhost/v1/whoami", "evil.example"), foreign);
}
