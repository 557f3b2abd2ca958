//! Files in a task's folder, as whoever reads them may trust them: its program can put a link or a fifo under any name
//! there, and must not lead a reader elsewhere or make it wait.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading; anything else is refused (`InvalidInput`, or the system's word for a link).
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

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
