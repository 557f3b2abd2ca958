//! The way through a proxy: a tunnel for https, forwarding for http, and faults that name the proxy.

use std::sync::Arc;

use gpulayer::client::proxy::ProxyError;
use gpulayer::client::{Client, ClientError, Endpoint, Proxy, Trust};
use gpulayer::clock;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::peers::{own, plain, secure};

/// A proxy that lets `ann:secret` through to anywhere but port 1; the first lines and credentials it saw.
struct TestProxy {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, Arc::clone(&noted)));
            }
        });
        Self { port, seen }
    }

    fn at(&self, credentials: &str) -> Option<Proxy> {
        Proxy::parse(&format!("http://{credentials}127.0.0.1:{}", self.port))
    }
}

async fn carry(mut client: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(head).unwrap();
    seen.lock().push(text.clone());
    let words: Vec<_> = text.lines().next().unwrap().split(' ').collect();
    let refused =
        |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    if !text.to_lowercase().contains("proxy-authorization: basic ") {
        let _ = client.write_all(refused("407 Proxy Authentication Required").as_bytes()).await;
        return;
    }
    let authority = words[1].strip_prefix("http://").unwrap_or(words[1]).split('/').next().unwrap();
    if authority.ends_with(":1") {
        let _ = client.write_all(refused("403 Forbidden").as_bytes()).await;
        return;
    }
    let mut server = TcpStream::connect(authority).await.unwrap();
    if words[0] == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    } else {
        server.write_all(text.as_bytes()).await.unwrap();
    }
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

#[tokio::test]
async fn https_goes_through_a_tunnel_and_its_requests_are_none_of_the_proxys_business() {
    let folder = tempfile::tempdir().unwrap();
    let tls = own(folder.path(), &["127.0.0.1"], clock::now());
    let port = secure(tls.config().unwrap()).await;
    let proxy = TestProxy::start().await;
    let client = Client::new(Endpoint::parse(&format!("https://127.0.0.1:{port}")).unwrap())
        .with_trust(Trust::pinned(tls.pin()))
        .with_proxy(proxy.at("ann:secret@"))
        .with_token("glc_0f")
        .unwrap();
    assert_eq!(client.get::<String>("/v1/x").await.unwrap(), "ok");
    let seen = proxy.seen.lock().clone();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")), "{seen:?}");
    assert!(seen[0].contains("Basic YW5uOnNlY3JldA=="), "{seen:?}");
    assert!(!seen[0].contains("glc_"), "{seen:?}");
}

#[tokio::test]
async fn http_is_forwarded_with_the_whole_url() {
    let port = plain().await;
    let proxy = TestProxy::start().await;
    let client = Client::new(Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap())
        .with_proxy(proxy.at("ann:secret@"));
    assert_eq!(client.get::<String>("/v1/x?y=z").await.unwrap(), "ok");
    let seen = proxy.seen.lock().clone();
    assert!(seen[0].starts_with(&format!("GET http://127.0.0.1:{port}/v1/x?y=z HTTP/1.1\r\n")), "{seen:?}");
}

#[tokio::test]
async fn a_proxy_that_says_no_is_named() {
    let proxy = TestProxy::start().await;
    let refused = async |through: Option<Proxy>, url: &str| {
        let client = Client::new(Endpoint::parse(url).unwrap()).with_proxy(through);
        match client.get::<String>("/").await.unwrap_err() {
            ClientError::Proxy { source, proxy, .. } => {
                assert!(!proxy.contains("secret"), "{proxy}");
                source
            }
            other => panic!("{other:?}"),
        }
    };
    let url = "https://127.0.0.1:2";
    assert!(matches!(refused(proxy.at(""), url).await, ProxyError::Unauthorized));
    let forbidden = refused(proxy.at("ann:secret@"), "https://127.0.0.1:1").await;
    assert!(matches!(forbidden, ProxyError::Refused { status: 403 }), "{forbidden:?}");
    let gone = refused(Proxy::parse("http://ann:secret@127.0.0.1:1"), url).await;
    assert!(matches!(gone, ProxyError::Unreachable { .. }), "{gone:?}");
    assert!(matches!(refused(Proxy::parse("socks5://127.0.0.1:1"), url).await, ProxyError::Kind));
}
