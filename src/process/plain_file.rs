//! Files in a task's folder, as whoever reads them may trust them: its program can put a link or a fifo under any name
//! there, and must not lead a reader elsewhere or make it wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading; anything else is refused (`InvalidInput`, or the system's word for a link).
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    open_plain_with(OpenOptions::new().read(true), path)
}

/// The same, for what these options say.
pub(super) fn open_plain_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options.custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// All of a file, if it is no longer than that: of one without an end nothing is read.
pub(crate) fn read_short(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let size_bytes = file.metadata()?.len();
    if size_bytes > most_bytes {
        let why = format!("it is {size_bytes} bytes long, and {most_bytes} is what is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_that_is_too_long_nothing_is_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let refused = read_short(file.try_clone().unwrap(), 1 << 20).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        file.set_len(5).unwrap();
        assert_eq!(read_short(file, 5).unwrap(), [0; 5]);
    }

    #[test]
    fn links_and_fifos_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();
        assert!(open_plain(&at("file")).is_ok());
        for name in ["link", "fifo", "absent"] {
            assert!(open_plain(&at(name)).is_err(), "{name}");
        }
    }
}
