//! The tar itself, byte for byte: ustar headers with zero times and owners, a pax header only where a name or
//! target is long or not ASCII. Written here and not by a library's builder, so that no update of it can change
//! the digest of an unchanged tree.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::super::beneath::{RelativePath, open_beneath};
use super::super::listing::FileStat;
use super::{BundleError, Plan, PlanEntry, PlanKind};
use crate::contract::artifact::Digest;

const BLOCK: u64 = 512;
const END: [u8; 1024] = [0; 1024];
/// Field widths of a ustar header.
const NAME_BYTES: usize = 100;
/// So often a file is read anew that was written to meanwhile; one that never rests is taken as it comes.
const RESTLESS_TRIES: u32 = 3;
/// The largest size in eleven octal digits; above it stands a pax record.
const MAX_USTAR_SIZE: u64 = (1 << 33) - 1;

/// Length of the whole tar in bytes.
pub(super) fn size_bytes(entries: &[PlanEntry]) -> u64 {
    let length = |entry: &PlanEntry| {
        let records = pax_records(entry);
        let pax = if records.is_empty() { 0 } else { BLOCK + padded(records.len() as u64) };
        let content = match &entry.kind {
            PlanKind::File(stat) => padded(stat.size_bytes),
            _ => 0,
        };
        pax + BLOCK + content
    };
    entries.iter().map(length).sum::<u64>() + END.len() as u64
}

/// Streams the tar and hashes it on the way.
pub(super) fn write(plan: &Plan, to: impl Write) -> Result<Digest, BundleError> {
    let mut out = Hashing { hash: Sha256::new(), to };
    let failed = |source| BundleError::Write { root: plan.root.clone(), source };
    let mut buffer = vec![0; 128 * 1024];
    for entry in &plan.entries {
        out.write_all(&headers(entry)).map_err(failed)?;
        if let PlanKind::File(stat) = &entry.kind {
            copy_file(plan, entry, stat, &mut out, &mut buffer)?;
            let padding = padded(stat.size_bytes) - stat.size_bytes;
            out.write_all(&END[..padding as usize]).map_err(failed)?;
        }
    }
    out.write_all(&END).map_err(failed)?;
    out.to.flush().map_err(failed)?;
    Ok(Digest::from_bytes(out.hash.finalize().into()))
}

/// A tree as it was read once.
pub(super) struct Snapshot {
    pub(super) digest: Digest,
    pub(super) size_bytes: u64,
    pub(super) file_count: u64,
}

/// See [`super::snapshot`].
pub(super) fn snapshot(plan: &Plan, spool: &mut File) -> Result<Snapshot, BundleError> {
    let failed = |source| BundleError::Write { root: plan.root.clone(), source };
    let mut buffer = vec![0; 128 * 1024];
    let mut file_count = 0;
    for entry in &plan.entries {
        match &entry.kind {
            PlanKind::File(_) => file_count += u64::from(take_file(plan, entry, spool, &mut buffer)?),
            _ => spool.write_all(&headers(entry)).map_err(failed)?,
        }
    }
    spool.write_all(&END).map_err(failed)?;
    let size_bytes = spool.stream_position().map_err(failed)?;
    spool.rewind().map_err(failed)?;
    let mut hashing = Hashing { hash: Sha256::new(), to: io::sink() };
    io::copy(spool, &mut hashing).map_err(failed)?;
    Ok(Snapshot { digest: Digest::from_bytes(hashing.hash.finalize().into()), size_bytes, file_count })
}

/// Appends a file as it is now; whether it is there.
fn take_file(
    plan: &Plan,
    entry: &PlanEntry,
    spool: &mut File,
    buffer: &mut [u8],
) -> Result<bool, BundleError> {
    let failed = |source| BundleError::Write { root: plan.root.clone(), source };
    let begin = spool.stream_position().map_err(failed)?;
    for tries_left in (0..RESTLESS_TRIES).rev() {
        let Some(mut file) = open(plan, entry)? else { return Ok(false) };
        let stat = |file: &File| {
            FileStat::of_file(file).map_err(BundleError::at("look at", &plan.root.join(&entry.path)))
        };
        let before = stat(&file)?;
        let kind = PlanKind::File(before);
        let size_bytes = before.size_bytes;
        spool.write_all(&headers(&PlanEntry { path: entry.path.clone(), kind })).map_err(failed)?;
        let whole = copy(plan, entry, &mut file, size_bytes, spool, buffer)?;
        if whole && (tries_left == 0 || stat(&file)? == before) {
            let padding = padded(size_bytes) - size_bytes;
            spool.write_all(&END[..padding as usize]).map_err(failed)?;
            return Ok(true);
        }
        spool.seek(SeekFrom::Start(begin)).and_then(|_| spool.set_len(begin)).map_err(failed)?;
    }
    Err(BundleError::Changed { path: plan.root.join(&entry.path) })
}

/// The file of an entry; `None` = it is not there any more, or is no file.
fn open(plan: &Plan, entry: &PlanEntry) -> Result<Option<File>, BundleError> {
    let Ok(relative) = RelativePath::new(&entry.path) else { return Ok(None) };
    match open_beneath(plan.folder.as_fd(), &relative) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
            Ok(None)
        }
        Err(error) => Err(BundleError::at("open", &plan.root.join(&entry.path))(error)),
    }
}

fn copy_file(
    plan: &Plan,
    entry: &PlanEntry,
    planned: &FileStat,
    out: &mut impl Write,
    buffer: &mut [u8],
) -> Result<(), BundleError> {
    let path = plan.root.join(&entry.path);
    let changed = || BundleError::Changed { path: path.clone() };
    let mut file = open(plan, entry)?.ok_or_else(changed)?;
    let same = |file: &File| -> Result<bool, BundleError> {
        Ok(FileStat::of_file(file).map_err(BundleError::at("look at", &path))? == *planned)
    };
    let read = same(&file)? && copy(plan, entry, &mut file, planned.size_bytes, out, buffer)? && same(&file)?;
    if read { Ok(()) } else { Err(changed()) }
}

/// Copies so many bytes; `false` = there are less.
fn copy(
    plan: &Plan,
    entry: &PlanEntry,
    file: &mut File,
    size_bytes: u64,
    out: &mut impl Write,
    buffer: &mut [u8],
) -> Result<bool, BundleError> {
    let mut left = size_bytes;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = match file.read(&mut buffer[..want]) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(BundleError::at("read", &plan.root.join(&entry.path))(error)),
        };
        out.write_all(&buffer[..count])
            .map_err(|source| BundleError::Write { root: plan.root.clone(), source })?;
        left -= count as u64;
    }
    Ok(true)
}

/// All that stands before an entry's content.
fn headers(entry: &PlanEntry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    let records = pax_records(entry);
    if !records.is_empty() {
        let header = header(EntryType::XHeader, "pax", "", records.len() as u64, 0o644);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&records);
        bytes.resize(padded(bytes.len() as u64) as usize, 0);
    }
    let header = match &entry.kind {
        PlanKind::Folder => header(EntryType::Directory, &entry.path, "", 0, 0o755),
        PlanKind::File(stat) => {
            let mode = if stat.mode & 0o100 != 0 { 0o755 } else { 0o644 };
            let size_bytes = if stat.size_bytes > MAX_USTAR_SIZE { 0 } else { stat.size_bytes };
            header(EntryType::Regular, &entry.path, "", size_bytes, mode)
        }
        PlanKind::Link { target } => header(EntryType::Symlink, &entry.path, target, 0, 0o777),
    };
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

fn header(kind: EntryType, path: &str, target: &str, size_bytes: u64, mode: u32) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size_bytes);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let fields = header.as_old_mut();
    fill(&mut fields.name, path);
    fill(&mut fields.linkname, target);
    header.set_cksum();
    header
}

/// As much as fits; the pax record holds the rest.
fn fill(field: &mut [u8], text: &str) {
    let count = text.len().min(field.len());
    field[..count].copy_from_slice(&text.as_bytes()[..count]);
}

fn pax_records(entry: &PlanEntry) -> Vec<u8> {
    let needs = |text: &str| text.len() > NAME_BYTES || !text.is_ascii();
    let mut records = Vec::new();
    if let PlanKind::Link { target } = &entry.kind
        && needs(target)
    {
        push_record(&mut records, "linkpath", target);
    }
    if needs(&entry.path) {
        push_record(&mut records, "path", &entry.path);
    }
    if let PlanKind::File(stat) = &entry.kind
        && stat.size_bytes > MAX_USTAR_SIZE
    {
        push_record(&mut records, "size", &stat.size_bytes.to_string());
    }
    records
}

/// `length key=value\n`, where the length counts its own digits.
fn push_record(records: &mut Vec<u8>, key: &str, value: &str) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
}

const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

struct Hashing<W> {
    hash: Sha256,
    to: W,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for value_bytes in [1, 89, 90, 91, 92, 984, 985, 986] {
            let mut records = Vec::new();
            push_record(&mut records, "path", &"x".repeat(value_bytes));
            let text = String::from_utf8(records).unwrap();
            let (length, _) = text.split_once(' ').unwrap();
            assert_eq!(length.parse::<usize>().unwrap(), text.len());
        }
    }
}
