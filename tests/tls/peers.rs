//! Servers that answer every request with `ok`, over TLS or without.

use std::path::Path;
use std::sync::Arc;

use gpulayer::clock;
use gpulayer::contract::quantity::Timestamp;
use gpulayer::tls::{CertificateSource, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Reads the head of a request and answers it; the head.
pub async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let answer: &[u8] = if text.contains(" HTTP/1.1\r\n") {
        b"HTTP/1.1 200 OK\r\nx-gpulayer-version: 0.1.0\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n\"ok\""
    } else {
        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
    };
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
    text
}

/// A server over TLS; its port.
pub async fn secure(config: ServerConfig) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    answer(stream).await;
                }
            });
        }
    });
    port
}

/// A server without TLS; its port.
pub async fn plain() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // What is no HTTP is answered at once, as servers do.
                let mut first = [0];
                if stream.peek(&mut first).await.is_ok() && first[0].is_ascii_alphabetic() {
                    answer(stream).await;
                } else {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    port
}

/// The certificate a server makes itself, as made at `now`.
pub fn own(folder: &Path, names: &[&str], now: Timestamp) -> ServerTls {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    ServerTls::open(CertificateSource::Own { folder: folder.join("tls"), names }, now).unwrap()
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its own certificate as a file.
    pub fn file(&self, folder: &Path, name: &str) -> std::path::PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, &self.pem).unwrap();
        path
    }

    /// A server with a certificate of this authority for `name`, which is good until so many days from now.
    pub fn server(&self, folder: &Path, name: &str, days: i64) -> ServerTls {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let now_s = clock::now().micros() / 1_000_000;
        let at =
            |days: i64| epoch + std::time::Duration::from_secs((now_s + days * 86_400).try_into().unwrap());
        (params.not_before, params.not_after) = (at(days - 100), at(days));
        let key = KeyPair::generate().unwrap();
        let (certificate, key_file) = (folder.join("server.pem"), folder.join("server.key"));
        std::fs::write(&certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        ServerTls::open(CertificateSource::Given { certificate, key: key_file }, clock::now()).unwrap()
    }
}
