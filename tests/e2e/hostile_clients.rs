//! Crowds of clients that mean no good, at a real daemon: its memory stays bounded, and those with a credential are
//! served.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gpulayer::client::{Client, Endpoint, Trust};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::house::{DEADLINE, Daemon, House};

/// What a crowd may cost a daemon, whatever it sends.
const MOST_BYTES: u64 = 96 << 20;

/// A daemon on TCP, and what is needed to look at it.
struct Besieged {
    house: House,
    daemon: Daemon,
    place: SocketAddr,
    token: String,
}

impl Besieged {
    async fn start() -> Self {
        let house = House::new();
        let daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
        let place = SocketAddr::from(([127, 0, 0, 1], house.port()));
        let token = std::fs::read_to_string(house.home().join("client-token")).unwrap().trim().to_owned();
        Self { house, daemon, place, token }
    }

    fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// A client that has just arrived, with a token.
    async fn serves(&self) {
        let endpoint = Endpoint::parse(&format!("http://{}", self.place)).unwrap();
        let client = Client::new(endpoint).with_token(&self.token).unwrap();
        let who: Value = client.get("/v1/whoami").await.unwrap();
        assert_eq!(who["role"], "admin");
    }

    /// One more of the crowd, from one of many addresses of this host.
    async fn intruder(&self, number: u32, addresses: u32) -> Option<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        let own = [127, 0, 1, (number % addresses) as u8 + 1];
        socket.bind(SocketAddr::from((own, 0))).ok()?;
        socket.connect(self.place).await.ok()
    }
}

/// As many files as this test may have open.
fn open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20).min(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum }).unwrap();
    most
}

#[actix_rt::test]
async fn ten_thousand_idle_connections_cost_little_and_keep_nobody_out() {
    let besieged = Besieged::start().await;
    besieged.serves().await;
    let before = besieged.memory_bytes();
    let wanted = u32::try_from(open_files().saturating_sub(500).min(10_000)).unwrap();
    if wanted < 10_000 {
        eprintln!("ten_thousand_idle_connections: this host lets a process have only {wanted}");
    }
    let mut crowd = Vec::new();
    for number in 0..wanted {
        crowd.extend(besieged.intruder(number, 200).await);
        if number % 1000 == 0 {
            besieged.serves().await;
        }
    }
    let grown = besieged.memory_bytes().saturating_sub(before);
    println!("{} connections of 200 addresses: the daemon grew by {} kB", crowd.len(), grown / 1024);
    assert!(grown < MOST_BYTES, "{grown} bytes");
    besieged.serves().await;
    let job = besieged.house.submit(&crate::house::shell("true")).await;
    assert_eq!(job.project, "default");
}

#[actix_rt::test]
async fn heads_that_never_end_fill_no_memory() {
    let besieged = Besieged::start().await;
    besieged.serves().await;
    let before = besieged.memory_bytes();
    open_files();
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: {}", "y".repeat(120_000));
    let began = Instant::now();
    let mut crowd = Vec::new();
    for number in 0..1500 {
        if let Some(mut socket) = besieged.intruder(number, 1).await {
            // Those that are cut meanwhile do not matter.
            let _ = tokio::time::timeout(Duration::from_secs(1), socket.write_all(head.as_bytes())).await;
            crowd.push(socket);
        }
        assert!(began.elapsed() < DEADLINE, "the daemon does not keep up with {number} of them");
        if number % 250 == 0 {
            besieged.serves().await;
        }
    }
    let grown = besieged.memory_bytes().saturating_sub(before);
    println!("{} unfinished heads of 120 kB: the daemon grew by {} kB", crowd.len(), grown / 1024);
    assert!(grown < MOST_BYTES, "{grown} bytes");
    besieged.serves().await;
}

#[actix_rt::test]
async fn handshakes_that_never_end_keep_nobody_out() {
    let house = House::new();
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0", "--self-signed"]).await;
    let status: Value = house.client().get("/v1/server").await.unwrap();
    let listening =
        |name: &str| status["listening"][name].as_str().unwrap_or_else(|| panic!("{status}")).to_owned();
    let (url, pin) = (listening("url"), listening("pin"));
    let place = ("127.0.0.1", url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap());
    open_files();
    // A ClientHello that was only begun, or not even that.
    let begun = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let mut crowd = Vec::new();
    for number in 0..600 {
        let mut socket = TcpStream::connect(place).await.unwrap();
        socket.write_all(&begun[..if number % 2 == 0 { begun.len() } else { 0 }]).await.unwrap();
        crowd.push(socket);
    }
    let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
    let client = Client::new(Endpoint::parse(&url).unwrap())
        .with_trust(Trust::pinned(pin.parse().unwrap()))
        .with_token(token.trim())
        .unwrap();
    let who: Value = client.get("/v1/whoami").await.unwrap();
    assert_eq!(who["role"], "admin", "served while they are all there");
    for mut socket in crowd {
        let ended = tokio::time::timeout(DEADLINE, socket.read(&mut [0; 64])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "each is given up: {ended:?}");
    }
}

/// Files that a process has open.
fn files_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[actix_rt::test]
async fn thousands_that_never_begin_their_tls_stall_nobody_here_or_elsewhere() {
    let house = House::new();
    let daemon = house.daemon_with(&["--no-worker", "--port", "0", "--self-signed"]).await;
    let status: Value = house.client().get("/v1/server").await.unwrap();
    let listening = |name: &str| status["listening"][name].as_str().unwrap().to_owned();
    let (url, pin) = (listening("url"), listening("pin"));
    let place: SocketAddr = ([127, 0, 0, 1], url.rsplit_once(':').unwrap().1.parse().unwrap()).into();
    let token = std::fs::read_to_string(house.home().join("client-token")).unwrap();
    // Each asks over a connection of its own, and has to be answered at once.
    let answered = async |crowd: usize| {
        let far = Client::new(Endpoint::parse(&url).unwrap())
            .with_trust(Trust::pinned(pin.parse().unwrap()))
            .with_token(token.trim())
            .unwrap();
        for client in [far, house.client()] {
            let asked = client.get::<Value>("/v1/whoami");
            let who = tokio::time::timeout(Duration::from_secs(3), asked).await;
            let who = who.unwrap_or_else(|_| panic!("{} was kept waiting by {crowd}", client.endpoint()));
            assert_eq!(who.unwrap()["role"], "admin");
        }
    };
    answered(0).await;
    let (files, mut crowd) = (files_of(daemon.pid()), Vec::new());
    let wanted = open_files().saturating_sub(500).min(6_000);
    for number in 0..wanted {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 1, 1], 0).into()).unwrap();
        crowd.push(socket.connect(place).await.unwrap());
        if number % 500 == 0 {
            answered(crowd.len()).await;
        }
    }
    for _ in 0..5 {
        answered(crowd.len()).await;
    }
    // Two files each, of at most 256 from one address; the few others are ours.
    crate::house::eventually("all but the newest to be cut", async || {
        (files_of(daemon.pid()) < files + 2 * 256 + 50).then_some(())
    })
    .await;
    answered(crowd.len()).await;
}
