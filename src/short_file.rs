//! Floor 3: files of which little is expected: tokens, keys, certificates, settings. They are read up to a limit, so that a
//! device, or a file that was named by mistake, costs an error and no memory; and written whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A token has 68 characters.
pub const TOKEN_BYTES: u64 = 4 << 10;
/// An RSA key of 16,384 bits takes 13 KB.
pub const KEY_BYTES: u64 = 64 << 10;
/// All certificate authorities of a system take some 250 KB.
pub const CERTIFICATES_BYTES: u64 = 8 << 20;
/// What people write by hand.
pub const SETTINGS_BYTES: u64 = 1 << 20;

/// The bytes of a file; larger than `most_bytes` is [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    take(File::open(path)?, most_bytes)
}

/// The same of a text.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    text(read(path, most_bytes)?)
}

/// The text that a stream brings to its end.
pub fn take_text(stream: impl Read, most_bytes: u64) -> io::Result<String> {
    text(take(stream, most_bytes)?)
}

fn take(stream: impl Read, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let detail = format!("it is larger than the {most_bytes} bytes that are expected at most");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
    }
    Ok(bytes)
}

/// Puts `contents` in the place of what is there, whole or not at all and for good, also when the power goes; for this
/// user alone. Two at once in one place are the caller's to prevent.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // One that is left from before may be open to others.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    match path.parent() {
        Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_the_new_or_the_old_and_nobody_elses() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.json");
        fs::write(folder.path().join("server.json.new"), "half of an earlier one, open to all").unwrap();
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::create_dir(folder.path().join("server.json.new")).unwrap();
        assert!(replace(&path, b"third").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"second");
    }

    #[test]
    fn what_is_endless_or_too_large_is_refused_and_the_rest_is_read() {
        let endless = read(Path::new("/dev/zero"), TOKEN_BYTES).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
        assert!(endless.to_string().contains("4096 bytes"), "{endless}");
        assert_eq!(take_text(&b"glc_1\n"[..], 6).unwrap(), "glc_1\n");
        assert_eq!(take_text(&b"glc_1\n"[..], 5).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(take_text(&b"\xff"[..], 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
