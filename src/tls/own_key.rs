//! A server's own key, which stays, and the certificates made under it. The key is the server's identity: it is made
//! once, never replaced by itself, and refused rather than used when others could have read or changed it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
};

use super::certificate::Certificate;
use super::server::{ServerTlsError, chain_of};
use crate::contract::quantity::Timestamp;
use crate::short_file;

const DAY_S: u64 = 86_400;
/// How long a certificate is good for. With a pin its end does not matter.
const LIFE_S: u64 = 365 * DAY_S;
/// Clocks of other machines may be behind.
const BEFORE_S: u64 = DAY_S;

/// Makes sure that the folder holds a key and a certificate under it that is good for these names and for a third of
/// its life more; their paths, the certificate's first.
pub(super) fn ready(
    folder: &Path,
    names: &[String],
    now: Timestamp,
) -> Result<(PathBuf, PathBuf), ServerTlsError> {
    make_folder(folder)?;
    let (certificate_path, key_path) = (folder.join("cert.pem"), folder.join("key.pem"));
    let key = key(&key_path, &certificate_path)?;
    let present = match chain_of(&certificate_path) {
        Ok(chain) => chain.first().and_then(|first| Certificate::read(first)),
        // Anybody can make it again.
        Err(_) => None,
    };
    let pin = super::certificate::pin_of_key(&key);
    let names = sorted(names);
    let good = present.is_some_and(|present| {
        present.pin == pin && sorted(&present.names) == names && !is_due(&present, now)
    });
    if !good {
        let text = make(&key, &names, now)?;
        write(&certificate_path, text.as_bytes(), 0o644)?;
    }
    Ok((certificate_path, key_path))
}

/// Whether no more than a third of a certificate's life is left.
pub(super) fn is_due(certificate: &Certificate, now: Timestamp) -> bool {
    let life = certificate.not_after.micros() - certificate.not_before.micros();
    certificate.not_after.micros() - now.micros() <= life / 3
}

/// Each once and in order; addresses as certificates show them.
fn sorted(names: &[String]) -> Vec<String> {
    let plain = |name: &String| match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.clone(),
    };
    let mut names: Vec<_> = names.iter().map(plain).collect();
    names.sort();
    names.dedup();
    names
}

fn file_fault(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> ServerTlsError {
    move |source| ServerTlsError::File { operation, path: path.to_owned(), source }
}

fn make_folder(folder: &Path) -> Result<(), ServerTlsError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(file_fault("make", folder)(error)),
        _ => Ok(()),
    }
}

fn key(path: &Path, certificate: &Path) -> Result<KeyPair, ServerTlsError> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if certificate.exists() {
                return Err(ServerTlsError::KeyGone {
                    key: path.to_owned(),
                    certificate: certificate.to_owned(),
                });
            }
            make_key(path)?;
            std::fs::metadata(path).map_err(file_fault("read", path))?
        }
        Err(error) => return Err(file_fault("read", path)(error)),
    };
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(ServerTlsError::KeyForeign { path: path.to_owned(), owner: found.uid() });
    }
    if found.mode() & 0o077 != 0 {
        return Err(ServerTlsError::KeyOpen { path: path.to_owned(), mode: found.mode() & 0o777 });
    }
    let text = short_file::read_text(path, short_file::KEY_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => ServerTlsError::KeyGarbled { path: path.to_owned() },
        _ => file_fault("read", path)(error),
    })?;
    KeyPair::from_pem(&text).map_err(|_| ServerTlsError::KeyGarbled { path: path.to_owned() })
}

/// Two at once end with one key: whoever links it first has made it.
fn make_key(path: &Path) -> Result<(), ServerTlsError> {
    let key = KeyPair::generate().map_err(|source| ServerTlsError::Make { names: Vec::new(), source })?;
    let beside = path.with_file_name(format!(".key.{}.new", std::process::id()));
    let made = private_file(&beside, 0o600).and_then(|mut file| {
        file.write_all(key.serialize_pem().as_bytes())?;
        file.sync_all()?;
        std::fs::hard_link(&beside, path)
    });
    let _ = std::fs::remove_file(&beside);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(file_fault("write", path)),
    }
}

fn make(key: &KeyPair, names: &[String], now: Timestamp) -> Result<String, ServerTlsError> {
    let fault = |source| ServerTlsError::Make { names: names.to_vec(), source };
    let mut params = CertificateParams::new(names.to_vec()).map_err(fault)?;
    let epoch = date_time_ymd(1970, 1, 1);
    let now_s = u64::try_from(now.micros() / 1_000_000).unwrap_or_default();
    params.not_before = epoch + Duration::from_secs(now_s.saturating_sub(BEFORE_S));
    params.not_after = epoch + Duration::from_secs(now_s + LIFE_S);
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, "GPUlayer");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Two certificates of one issuer must not share a number; the first bit would make it negative.
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 0x01;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params.self_signed(key).map_err(fault)?.pem())
}

fn private_file(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)
}

/// As a whole or not at all.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ServerTlsError> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = private_file(&beside, mode).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    });
    written.map_err(file_fault("write", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::server::{CertificateSource, Renewal, ServerTls};
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn days(days: u64) -> Timestamp {
        NOW.plus(crate::contract::quantity::Seconds::new(days * DAY_S))
    }

    fn names() -> Vec<String> {
        ["box", "localhost", "10.0.0.7", "::1"].map(str::to_owned).to_vec()
    }

    fn open(folder: &Path, now: Timestamp) -> Result<ServerTls, ServerTlsError> {
        ServerTls::open(CertificateSource::Own { folder: folder.join("tls"), names: names() }, now)
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_key_stays_and_its_certificate_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let tls = open(folder.path(), NOW).unwrap();
        let first = tls.certificate();
        assert_eq!(sorted(&first.names), sorted(&names()));
        let mode_of = |name: &str| folder.path().join(name).metadata().unwrap().mode() & 0o777;
        assert_eq!((mode_of("tls"), mode_of("tls/key.pem")), (0o700, 0o600));
        assert_eq!(open(folder.path(), days(200)).unwrap().certificate(), first, "good for long");
        assert_eq!(tls.renew(&names(), days(200)).unwrap(), Renewal::Kept);
        let Renewal::Replaced(second) = tls.renew(&names(), days(250)).unwrap() else { panic!("kept") };
        assert_eq!((second.pin, second.names.clone()), (first.pin, first.names.clone()));
        assert!(second.not_after > first.not_after);
        let mut more = names();
        more.push("other".to_owned());
        let Renewal::Replaced(third) = tls.renew(&more, days(250)).unwrap() else { panic!("kept") };
        assert!(third.names.contains(&"other".to_owned()) && third.pin == first.pin);
        // Long after its end.
        assert_eq!(open(folder.path(), days(2000)).unwrap().pin(), first.pin);
    }

    #[test]
    fn a_certificate_that_was_lost_or_garbled_is_made_again_under_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let pin = open(folder.path(), NOW).unwrap().pin();
        let certificate = folder.path().join("tls/cert.pem");
        std::fs::write(&certificate, "x").unwrap();
        assert_eq!(open(folder.path(), NOW).unwrap().pin(), pin);
        std::fs::remove_file(&certificate).unwrap();
        assert_eq!(open(folder.path(), NOW).unwrap().pin(), pin);
    }

    #[test]
    fn a_key_that_is_garbled_open_or_gone_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), NOW).unwrap();
        let key = folder.path().join("tls/key.pem");
        mode(&key, 0o640);
        let open_key = open(folder.path(), NOW).unwrap_err();
        assert!(matches!(open_key, ServerTlsError::KeyOpen { mode: 0o640, .. }), "{open_key}");
        mode(&key, 0o600);
        let good = std::fs::read(&key).unwrap();
        for bad in [&b""[..], b"x", &good[..good.len() / 2], b"\xff\xfe"] {
            std::fs::write(&key, bad).unwrap();
            let garbled = open(folder.path(), NOW).unwrap_err();
            assert!(matches!(garbled, ServerTlsError::KeyGarbled { .. }), "{garbled}");
            assert_eq!(std::fs::read(&key).unwrap(), bad);
        }
        std::fs::remove_file(&key).unwrap();
        let gone = open(folder.path(), NOW).unwrap_err();
        assert!(matches!(gone, ServerTlsError::KeyGone { .. }) && !key.exists(), "{gone}");
    }

    #[test]
    fn a_key_of_somebody_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), NOW).unwrap();
        let key = folder.path().join("tls/key.pem");
        // Only root can give a file away; the rule is the same for everybody.
        if std::os::unix::fs::chown(&key, Some(65534), None).is_err() {
            eprintln!("NOT TESTED: this user cannot give files away");
            return;
        }
        let foreign = open(folder.path(), NOW).unwrap_err();
        assert!(matches!(foreign, ServerTlsError::KeyForeign { owner: 65534, .. }), "{foreign}");
    }

    #[test]
    fn given_files_are_checked_and_read_anew_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, other) = (folder.path().join("a"), folder.path().join("b"));
        for place in [&ours, &other] {
            std::fs::create_dir(place).unwrap();
            open(place, NOW).unwrap();
        }
        let source = |certificate: &Path, key: &Path| CertificateSource::Given {
            certificate: certificate.join("tls/cert.pem"),
            key: key.join("tls/key.pem"),
        };
        let no_pair = ServerTls::open(source(&ours, &other), NOW).unwrap_err();
        assert!(matches!(no_pair, ServerTlsError::NoPair { .. }), "{no_pair}");
        let tls = ServerTls::open(source(&ours, &ours), NOW).unwrap();
        assert_eq!(tls.renew(&[], NOW).unwrap(), Renewal::Kept);
        let before = tls.pin();
        let replace = |name: &str, at_s: u64| {
            std::fs::copy(other.join(name), ours.join(name)).unwrap();
            let later = std::time::SystemTime::now() + Duration::from_secs(at_s);
            File::options().write(true).open(ours.join(name)).unwrap().set_modified(later).unwrap();
        };
        // A renewal that is half done is no reason to show nothing.
        replace("tls/key.pem", 1);
        assert!(tls.renew(&[], NOW).is_err());
        assert_eq!(tls.pin(), before);
        replace("tls/cert.pem", 2);
        assert!(matches!(tls.renew(&[], NOW).unwrap(), Renewal::Replaced(_)));
        assert_ne!(tls.pin(), before);
    }
}
