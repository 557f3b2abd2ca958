//! Whom a client believes: by key, by authority, and never a server that cannot prove its key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulayer::client::{Client, ClientError, Endpoint, Trust};
use gpulayer::clock;
use gpulayer::contract::pin::Pin;
use gpulayer::contract::quantity::Timestamp;
use gpulayer::tls::{Distrust, TlsFault};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ServerConfig, crypto};

use crate::peers::{Authority, own, plain, secure};

async fn ask(url: &str, trust: Trust) -> Result<String, ClientError> {
    let client = Client::new(Endpoint::parse(url).unwrap()).with_trust(trust);
    client.get::<String>("/healthz").await
}

/// What was wrong, which must be known at once: waiting changes nothing.
async fn fault(url: &str, trust: Trust) -> TlsFault {
    let begun = Instant::now();
    let error = ask(url, trust).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{error:?}");
    match error {
        ClientError::Tls { source, .. } => *source,
        other => panic!("{other:?}"),
    }
}

fn by(ca_file: std::path::PathBuf) -> Trust {
    Trust { pins: Vec::new(), ca_file: Some(ca_file) }
}

#[tokio::test]
async fn a_pinned_key_is_believed_whatever_its_certificate_says() {
    let folder = tempfile::tempdir().unwrap();
    // Made three years ago, for another name.
    let long_ago = Timestamp::from_micros(clock::now().micros() - 3 * 365 * 86_400_000_000);
    let tls = own(folder.path(), &["elsewhere.example"], long_ago);
    let port = secure(tls.config().unwrap()).await;
    let url = format!("https://127.0.0.1:{port}");
    assert_eq!(ask(&url, Trust::pinned(tls.pin())).await.unwrap(), "ok");
    let either = Trust { pins: vec![Pin::from_bytes([7; 32]), tls.pin()], ca_file: None };
    assert_eq!(ask(&url, either).await.unwrap(), "ok", "while a server changes its key, both are pinned");
}

#[tokio::test]
async fn another_key_is_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let tls = own(folder.path(), &["127.0.0.1"], clock::now());
    let port = secure(tls.config().unwrap()).await;
    let pinned = Pin::from_bytes([7; 32]);
    let refused = fault(&format!("https://127.0.0.1:{port}"), Trust::pinned(pinned)).await;
    assert!(
        matches!(&refused, TlsFault::Distrust(Distrust::WrongKey { seen, pinned: known })
            if *seen == tls.pin() && *known == [pinned]),
        "{refused:?}"
    );
    let told = refused.to_string();
    assert!(told.contains(&tls.pin().to_string()) && told.contains(&pinned.to_string()), "{told}");
}

#[derive(Debug)]
struct Copied(Arc<CertifiedKey>);

impl ResolvesServerCert for Copied {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// A certificate is no secret: whoever shows one must sign with its key.
#[tokio::test]
async fn a_copied_certificate_without_its_key_is_worth_nothing() {
    let (honest, thief) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = own(honest.path(), &["127.0.0.1"], clock::now()).pin();
    own(thief.path(), &["127.0.0.1"], clock::now());
    let provider = Arc::new(crypto::ring::default_provider());
    let chain = CertificateDer::from_pem_file(honest.path().join("tls/cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(thief.path().join("tls/key.pem")).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    for version in [&tokio_rustls::rustls::version::TLS13, &tokio_rustls::rustls::version::TLS12] {
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Copied(Arc::new(CertifiedKey::new(
                vec![chain.clone()],
                Arc::clone(&key),
            )))));
        let port = secure(config).await;
        let refused = fault(&format!("https://127.0.0.1:{port}"), Trust::pinned(pin)).await;
        assert!(matches!(refused, TlsFault::Handshake { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn an_authority_is_asked_for_name_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("Our Lab"), Authority::new("Elsewhere"));
    let ca = ours.file(folder.path(), "ca.pem");
    let good = ours.server(folder.path(), "127.0.0.1", 30);
    let url = format!("https://127.0.0.1:{}", secure(good.config().unwrap()).await);
    assert_eq!(ask(&url, by(ca.clone())).await.unwrap(), "ok");
    let strange = fault(&url, by(other.file(folder.path(), "other.pem"))).await;
    assert!(
        matches!(&strange, TlsFault::Distrust(Distrust::UnknownIssuer { issuer, seen, own_roots: true, .. })
            if issuer.contains("Our Lab") && *seen == good.pin()),
        "{strange:?}"
    );
    let expired = ours.server(folder.path(), "127.0.0.1", -2);
    let url = format!("https://127.0.0.1:{}", secure(expired.config().unwrap()).await);
    let late = fault(&url, by(ca.clone())).await;
    assert!(matches!(late, TlsFault::Distrust(Distrust::Expired { .. })), "{late:?}");
    assert_eq!(ask(&url, Trust::pinned(expired.pin())).await.unwrap(), "ok");
    let early = ours.server(folder.path(), "127.0.0.1", 110);
    let url = format!("https://127.0.0.1:{}", secure(early.config().unwrap()).await);
    let early = fault(&url, by(ca.clone())).await;
    assert!(matches!(early, TlsFault::Distrust(Distrust::NotYetValid { .. })), "{early:?}");
    let named = ours.server(folder.path(), "box.example", 30);
    let url = format!("https://127.0.0.1:{}", secure(named.config().unwrap()).await);
    let misnamed = fault(&url, by(ca)).await;
    assert!(
        matches!(&misnamed, TlsFault::Distrust(Distrust::WrongName { asked, presented, .. })
            if asked == "127.0.0.1" && *presented == ["box.example"]),
        "{misnamed:?}"
    );
}

/// What `--cacert` of curl and Python's `cafile` do with the file that `up` writes.
#[tokio::test]
async fn a_servers_own_certificate_may_stand_in_for_an_authority() {
    let folder = tempfile::tempdir().unwrap();
    let tls = own(folder.path(), &["127.0.0.1", "box"], clock::now());
    let port = secure(tls.config().unwrap()).await;
    let url = format!("https://127.0.0.1:{port}");
    assert_eq!(ask(&url, by(folder.path().join("tls/cert.pem"))).await.unwrap(), "ok");
}

#[tokio::test]
async fn a_ca_file_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let absent = fault("https://127.0.0.1:9", by(folder.path().join("no.pem"))).await;
    assert!(matches!(&absent, TlsFault::CaFile { path, .. } if path.ends_with("no.pem")), "{absent:?}");
    std::fs::write(folder.path().join("x.pem"), "x").unwrap();
    let empty = fault("https://127.0.0.1:9", by(folder.path().join("x.pem"))).await;
    assert!(matches!(empty, TlsFault::CaFileEmpty { .. }), "{empty:?}");
}

#[tokio::test]
async fn http_and_https_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let tls = own(folder.path(), &["127.0.0.1"], clock::now());
    let (open, encrypted) = (plain().await, secure(tls.config().unwrap()).await);
    let no_tls = fault(&format!("https://127.0.0.1:{open}"), Trust::pinned(tls.pin())).await;
    assert!(matches!(no_tls, TlsFault::PlainHttp), "{no_tls:?}");
    let only_tls = fault(&format!("http://127.0.0.1:{encrypted}"), Trust::default()).await;
    assert!(matches!(only_tls, TlsFault::HttpsOnly), "{only_tls:?}");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_from_the_next_connection_on() {
    let folder = tempfile::tempdir().unwrap();
    let tls = own(folder.path(), &["127.0.0.1"], clock::now());
    let port = secure(tls.config().unwrap()).await;
    let client = Client::new(Endpoint::parse(&format!("https://127.0.0.1:{port}")).unwrap());
    let names = async || client.look_at_tls().await.unwrap().certificate.unwrap().names;
    assert_eq!(names().await, ["127.0.0.1"]);
    tls.renew(&["127.0.0.1".to_owned(), "box".to_owned()], clock::now()).unwrap();
    assert_eq!(names().await.len(), 2);
}
