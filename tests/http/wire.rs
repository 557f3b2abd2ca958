//! A client of few words: what a test sends is what goes over the wire.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer may take; a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// One request in the making.
#[derive(Debug, Clone)]
pub struct Request {
    place: Place,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The `code` of a problem.
    pub fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        self.json()["code"].as_str().unwrap().to_owned()
    }

    /// The pointers of a problem's faults.
    pub fn pointers(&self) -> Vec<String> {
        let problem = self.json();
        let errors = problem["errors"].as_array().unwrap();
        errors.iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect()
    }

    pub fn ok(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

impl Request {
    pub fn new(place: &Place, method: &str, path: &str) -> Self {
        Self {
            place: place.clone(),
            method: method.to_owned(),
            path: path.to_owned(),
            headers: vec![("Host".to_owned(), "localhost".to_owned())],
            body: Vec::new(),
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(present, _)| !present.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}")).header("X-GpuLayer-Protocol", "1")
    }

    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    pub fn body(mut self, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("Content-Type", kind)
    }

    fn connect(&self) -> Box<dyn Socket> {
        match &self.place {
            Place::Unix(path) => {
                let socket = UnixStream::connect(path).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.set_write_timeout(Some(PATIENCE)).unwrap();
                Box::new(socket)
            }
            Place::Tcp(address) => {
                let socket = TcpStream::connect(address).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.set_write_timeout(Some(PATIENCE)).unwrap();
                Box::new(socket)
            }
        }
    }

    fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            && (!self.body.is_empty() || self.method != "GET")
        {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head + "\r\n"
    }

    /// Sends it and reads the whole answer.
    pub fn send(&self) -> Answer {
        let mut request = self.clone();
        request.headers.push(("Connection".to_owned(), "close".to_owned()));
        let mut socket = request.connect();
        socket.write_all(request.head().as_bytes()).unwrap();
        // A refused body may be cut off by the server; its answer is there all the same.
        let _ = socket.write_all(&request.body);
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        read_answer(&bytes)
    }

    /// Sends it and leaves the answer to be read piece by piece.
    pub fn open(&self) -> Streaming {
        let mut socket = self.connect();
        socket.write_all(self.head().as_bytes()).unwrap();
        socket.write_all(&self.body).unwrap();
        Streaming { socket, bytes: Vec::new() }
    }
}

fn read_answer(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no answer: {}", String::from_utf8_lossy(bytes));
    });
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: HashMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = bytes[end + 4..].to_vec();
    if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        body = unchunked(&body);
    }
    Answer { status, headers, body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if length == 0 || rest.len() < end + 2 + length {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[(end + 4 + length).min(rest.len())..];
    }
    body
}

/// An answer that is still coming.
pub struct Streaming {
    socket: Box<dyn Socket>,
    bytes: Vec<u8>,
}

impl Streaming {
    /// Reads on until the answer so far (its chunks joined) contains `text`.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            if self.bytes.windows(4).any(|four| four == b"\r\n\r\n") {
                let body = String::from_utf8(read_answer(&self.bytes).body).unwrap();
                if body.contains(text) {
                    return body;
                }
            }
            let mut piece = [0; 4096];
            let read = self.socket.read(&mut piece).unwrap();
            assert!(read > 0, "the answer ended without `{text}`: {}", String::from_utf8_lossy(&self.bytes));
            self.bytes.extend_from_slice(&piece[..read]);
        }
    }

    /// Reads to the end of the connection.
    pub fn rest(mut self) -> Answer {
        self.socket.read_to_end(&mut self.bytes).unwrap();
        read_answer(&self.bytes)
    }
}
