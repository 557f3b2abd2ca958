//! Copies between open files: a reflink where the file system has it, else the kernel's own copy, else a
//! buffer. Holes stay holes. Never a hard link: the copy may be written to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::contract::artifact::Digest;

const CHUNK_BYTES: usize = 256 * 1024;

/// A run of bytes of a file.
struct Segment {
    start: u64,
    end: u64,
}

/// The first run of real bytes at or after `from`, up to `length`; `None` when only a hole is left.
fn next_segment(file: &File, from: u64, length: u64) -> io::Result<Option<Segment>> {
    if from >= length {
        return Ok(None);
    }
    let whole = Segment { start: from, end: length };
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::{SeekFrom, seek};
        let start = match seek(file, SeekFrom::Data(from)) {
            Ok(start) if start < length => start,
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(whole)),
            Err(errno) => return Err(errno.into()),
        };
        match seek(file, SeekFrom::Hole(start)) {
            Ok(end) => Ok(Some(Segment { start, end: end.min(length) })),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(Segment { start, end: length })),
            Err(errno) => Err(errno.into()),
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    Ok(Some(whole))
}

/// Makes `to`, which is empty, equal to the first `length` bytes of `from`. Both keep or lose their own
/// position; neither matters here. The file may have shrunk meanwhile: then `UnexpectedEof`.
pub fn copy_contents(from: &File, to: &File, length: u64) -> io::Result<()> {
    if clone_contents(from, to, length)? {
        return Ok(());
    }
    let mut at = 0;
    while let Some(segment) = next_segment(from, at, length)? {
        copy_segment(from, to, &segment)?;
        at = segment.end;
    }
    to.set_len(length)
}

/// Whether `to` now shares its blocks with `from`.
pub(super) fn clone_contents(from: &File, to: &File, length: u64) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    if length > 0 && rustix::fs::ioctl_ficlone(to, from).is_ok() {
        to.set_len(length)?;
        return Ok(true);
    }
    let _ = (from, to, length);
    Ok(false)
}

fn copy_segment(from: &File, to: &File, segment: &Segment) -> io::Result<()> {
    let mut at = segment.start;
    #[cfg(target_os = "linux")]
    while at < segment.end {
        let (mut read_at, mut write_at) = (at, at);
        let want = usize::try_from(segment.end - at).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), want) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            // Two file systems, or one that cannot: the buffer below can.
            Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM | Errno::BADF) => {
                break;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut buffer = vec![0; CHUNK_BYTES];
    while at < segment.end {
        let count = read_chunk(from, &mut buffer, at, segment.end)?;
        to.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

fn read_chunk(from: &File, buffer: &mut [u8], at: u64, end: u64) -> io::Result<usize> {
    let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
    loop {
        match from.read_at(&mut buffer[..want], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Hashes the first `length` bytes of a file. Its position is anywhere then.
pub(super) fn hash_into(hash: &mut Sha256, file: &File, length: u64) -> io::Result<()> {
    each_chunk(file, length, |_, bytes| {
        hash.update(bytes);
        Ok(())
    })
}

/// The digest of all that a file holds now. Its position is anywhere then.
pub fn digest_of(file: &File) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    hash_into(&mut hash, file, file.metadata()?.len())?;
    Ok(Digest::from_bytes(hash.finalize().into()))
}

/// Copies the first `length` bytes of `from` into the empty file `to` and hashes exactly what `to` then holds.
pub(super) fn copy_hashed(from: &File, to: &File, length: u64) -> io::Result<Sha256> {
    let mut hash = Sha256::new();
    if clone_contents(from, to, length)? {
        hash_into(&mut hash, to, length)?;
        return Ok(hash);
    }
    each_chunk(from, length, |at, bytes| {
        hash.update(bytes);
        match at {
            Some(at) => to.write_all_at(bytes, at),
            None => Ok(()),
        }
    })?;
    to.set_len(length)?;
    Ok(hash)
}

/// Visits all bytes in order, with their offset, or `None` where a hole reads as zeros.
fn each_chunk(
    file: &File,
    length: u64,
    mut visit: impl FnMut(Option<u64>, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let capacity = usize::try_from(length).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
    let mut buffer = vec![0; capacity];
    let mut at = 0;
    while at < length {
        let segment = next_segment(file, at, length)?.unwrap_or(Segment { start: length, end: length });
        if at < segment.start {
            buffer.fill(0);
        }
        while at < segment.start {
            let count = usize::try_from(segment.start - at).unwrap_or(usize::MAX).min(capacity);
            visit(None, &buffer[..count])?;
            at += count as u64;
        }
        while at < segment.end {
            let count = read_chunk(file, &mut buffer, at, segment.end)?;
            visit(Some(at), &buffer[..count])?;
            at += count as u64;
        }
    }
    Ok(())
}
