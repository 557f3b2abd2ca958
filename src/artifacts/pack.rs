//! Collected files as one tar, for whoever wants them again as they were. Not a bundle: nothing is left out by rules, and
//! the same files need not have the same digest.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;

use tar::{Builder, Header};

use super::collect::{CollectedContent, CollectedFile};

/// Writes the regular files among these, each opened by `open`. Blocks; constant memory. A file that shrinks meanwhile
/// fails (`UnexpectedEof`), of one that grows only its first bytes are there.
pub fn pack(
    files: &[CollectedFile],
    folder: BorrowedFd<'_>,
    mut open: impl FnMut(&CollectedFile, BorrowedFd<'_>) -> io::Result<File>,
    to: &File,
) -> io::Result<()> {
    let mut tar = Builder::new(BufWriter::with_capacity(256 * 1024, to));
    for file in files.iter().filter(|file| file.content == CollectedContent::Regular) {
        let opened = open(file, folder)?;
        let size_bytes = opened.metadata()?.len();
        let mut header = Header::new_gnu();
        header.set_size(size_bytes);
        header.set_mode(if file.mode & 0o100 != 0 { 0o755 } else { 0o644 });
        header.set_mtime(0);
        tar.append_data(&mut header, &file.path, Exact { file: opened, left: size_bytes })?;
    }
    tar.into_inner()?.flush()
}

/// As many bytes as the header says, or an error.
struct Exact {
    file: File,
    left: u64,
}

impl io::Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}
