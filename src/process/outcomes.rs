//! What came of several calls of one task: a file with an outcome for each, whole or of those before the process ended
//! (docs/CONTRACT.md, "Functions"). The runner writes it; the shim takes secrets out of it, outcome by outcome.
//!
//! Its program may have written anything there: it is read as far as it can be understood.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};

use super::raised::MOST_RAISED_BYTES;

/// Name of the file while further calls are to come.
pub const OUTCOMES_FILE: &str = "outcomes";
/// How it begins. Nothing that a single call returns begins like it.
const MARK: &[u8] = b"gpulayer outcomes 1\n";
const VALUE: u8 = b'v';
const RAISED: u8 = b'r';
/// Kind and length.
const HEAD_BYTES: u64 = 9;
/// In place of one that is too long to be looked through.
const TOO_LONG: &[u8] =
    br#"{"type": "an exception", "message": "it is too long to take the secrets of its job out of it"}"#;

/// One outcome, by where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outcome {
    kind: u8,
    start: u64,
    length: u64,
}

impl Outcome {
    fn end(&self) -> u64 {
        self.start + self.length
    }
}

/// Whether it is of several calls and one of them was through.
pub fn has_outcome(file: &File) -> io::Result<bool> {
    Ok(is_of_several(file)? && next(file, MARK.len() as u64, file.metadata()?.len())?.is_some())
}

/// Whether it is of several calls and one of them raised. Looks at each: not for a thread that others wait for.
pub fn has_exception(file: &File) -> io::Result<bool> {
    if !is_of_several(file)? {
        return Ok(false);
    }
    let (mut at, end) = (MARK.len() as u64, file.metadata()?.len());
    while let Some(outcome) = next(file, at, end)? {
        if outcome.kind == RAISED {
            return Ok(true);
        }
        at = outcome.end();
    }
    Ok(false)
}

/// Gives each exception to `clean`, and writes what that makes of it; `None` = it stays. Another kind of file is not
/// touched, and what is not whole at the end goes. `path` is where the file lies, in a folder that nobody changes now.
pub(super) fn rewrite(
    file: &mut File,
    path: &Path,
    clean: impl Fn(&[u8]) -> io::Result<Option<Vec<u8>>>,
) -> io::Result<()> {
    if !is_of_several(file)? {
        return Ok(());
    }
    let rewritten = rewrite_each(file, path, clean);
    if rewritten.is_err() {
        // Half of it holds what half of the other held, and nobody reads it.
        let _ = std::fs::remove_file(path.with_extension("clean"));
    }
    rewritten
}

fn rewrite_each(
    file: &mut File,
    path: &Path,
    clean: impl Fn(&[u8]) -> io::Result<Option<Vec<u8>>>,
) -> io::Result<()> {
    let (mut at, end) = (MARK.len() as u64, file.metadata()?.len());
    let mut rewritten: Option<File> = None;
    while let Some(outcome) = next(file, at, end)? {
        if let Some(bytes) = cleaned(file, outcome, &clean)? {
            let to = match &mut rewritten {
                Some(to) => to,
                none => {
                    let mut to = beside(file, path)?;
                    copy(file, 0, at, &mut to)?;
                    none.insert(to)
                }
            };
            to.write_all(&[RAISED])?;
            to.write_all(&(bytes.len() as u64).to_le_bytes())?;
            to.write_all(&bytes)?;
        } else if let Some(to) = &mut rewritten {
            copy(file, at, outcome.end(), to)?;
        }
        at = outcome.end();
    }
    match rewritten {
        Some(_) => std::fs::rename(path.with_extension("clean"), path),
        None if at < end => file.set_len(at),
        None => Ok(()),
    }
}

fn is_of_several(file: &File) -> io::Result<bool> {
    let mut begin = [0; MARK.len()];
    match file.read_exact_at(&mut begin, 0) {
        Ok(()) => Ok(begin == MARK),
        Err(short) if short.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The one that begins there, if it is whole.
fn next(file: &File, at: u64, end: u64) -> io::Result<Option<Outcome>> {
    if end.saturating_sub(at) < HEAD_BYTES {
        return Ok(None);
    }
    let mut head = [0; HEAD_BYTES as usize];
    file.read_exact_at(&mut head, at)?;
    let [kind, length @ ..] = head;
    let outcome = Outcome { kind, start: at + HEAD_BYTES, length: u64::from_le_bytes(length) };
    let is_whole = outcome.length <= end - outcome.start && matches!(outcome.kind, VALUE | RAISED);
    Ok(is_whole.then_some(outcome))
}

fn cleaned(
    file: &mut File,
    outcome: Outcome,
    clean: impl Fn(&[u8]) -> io::Result<Option<Vec<u8>>>,
) -> io::Result<Option<Vec<u8>>> {
    if outcome.kind != RAISED {
        return Ok(None);
    }
    if outcome.length > MOST_RAISED_BYTES {
        return Ok(Some(TOO_LONG.to_vec()));
    }
    let mut raised = Vec::new();
    file.seek(SeekFrom::Start(outcome.start))?;
    Read::by_ref(file).take(outcome.length).read_to_end(&mut raised)?;
    clean(&raised)
}

/// A new file that whoever may read the other may read, and nobody else.
fn beside(file: &File, path: &Path) -> io::Result<File> {
    let of = file.metadata()?;
    let new =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.with_extension("clean"))?;
    fchown(&new, Some(Uid::from_raw(of.uid())), Some(Gid::from_raw(of.gid())))?;
    fchmod(&new, Mode::from_raw_mode(of.mode() & 0o777))?;
    Ok(new)
}

fn copy(from: &mut File, start: u64, end: u64, to: &mut File) -> io::Result<()> {
    from.seek(SeekFrom::Start(start))?;
    io::copy(&mut Read::by_ref(from).take(end - start), to).map(drop)
}

#[cfg(test)]
pub(super) fn file_of(outcomes: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    for (kind, of) in outcomes {
        bytes.push(*kind);
        bytes.extend((of.len() as u64).to_le_bytes());
        bytes.extend(*of);
    }
    bytes
}

#[cfg(test)]
pub(super) fn read(path: &Path) -> Vec<(u8, Vec<u8>)> {
    let file = File::open(path).unwrap();
    let (mut at, end) = (MARK.len() as u64, file.metadata().unwrap().len());
    let mut found = Vec::new();
    while let Some(outcome) = next(&file, at, end).unwrap() {
        let mut bytes = vec![0; usize::try_from(outcome.length).unwrap()];
        file.read_exact_at(&mut bytes, outcome.start).unwrap();
        found.push((outcome.kind, bytes));
        at = outcome.end();
    }
    assert_eq!(at, end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(folder: &tempfile::TempDir, bytes: &[u8]) -> (File, std::path::PathBuf) {
        let path = folder.path().join(OUTCOMES_FILE);
        std::fs::write(&path, bytes).unwrap();
        (OpenOptions::new().read(true).write(true).open(&path).unwrap(), path)
    }

    #[test]
    fn exceptions_may_become_longer_or_shorter_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let all = file_of(&[(VALUE, b"secret"), (RAISED, b"secret"), (VALUE, &[7; 100_000]), (RAISED, b"x")]);
        for with in [b"" as &[u8], b"a long word in its place"] {
            let (mut file, path) = written(&folder, &all);
            rewrite(&mut file, &path, |raised| Ok((raised == b"secret").then(|| with.to_vec()))).unwrap();
            let clean =
                file_of(&[(VALUE, b"secret"), (RAISED, with), (VALUE, &[7; 100_000]), (RAISED, b"x")]);
            assert_eq!(std::fs::read(&path).unwrap(), clean);
            let file = File::open(&path).unwrap();
            assert!(has_outcome(&file).unwrap() && has_exception(&file).unwrap());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn one_that_cannot_be_cleaned_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, path) = written(&folder, &file_of(&[(RAISED, b"secret"), (RAISED, b"garbled")]));
        let clean = |raised: &[u8]| match raised {
            b"secret" => Ok(Some(b"clean".to_vec())),
            _ => Err(ErrorKind::StorageFull.into()),
        };
        assert_eq!(rewrite(&mut file, &path, clean).unwrap_err().kind(), ErrorKind::StorageFull);
        let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [OUTCOMES_FILE]);
    }

    #[test]
    fn what_is_not_whole_goes_and_another_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let whole = file_of(&[(VALUE, b"one")]);
        let mut endless = whole.clone();
        endless.extend([&[RAISED][..], &u64::MAX.to_le_bytes(), b"secret"].concat());
        let unknown = [whole.as_slice(), b"?\0\0\0\0\0\0\0\0secret"].concat();
        let cut = [whole.as_slice(), b"r\x06\0\0"].concat();
        for bytes in [&whole, &endless, &unknown, &cut] {
            let (mut file, path) = written(&folder, bytes);
            rewrite(&mut file, &path, |_| panic!("no exception is whole")).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), whole);
            assert!(has_outcome(&file).unwrap() && !has_exception(&file).unwrap());
        }
        let (none, _) = written(&folder, MARK);
        assert!(!has_outcome(&none).unwrap() && !has_exception(&none).unwrap());
        for other in [b"" as &[u8], b"\x80\x04.", &MARK[..10]] {
            let (mut file, path) = written(&folder, other);
            rewrite(&mut file, &path, |_| panic!("no exception")).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), other);
            assert!(!has_outcome(&file).unwrap() && !has_exception(&file).unwrap());
        }
    }
}
