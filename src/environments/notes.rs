//! What is written down beside environments: that one is complete, and which one a question led to.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::domain::python::{Built, Key};

/// Ends the name of a note that is being written.
pub(super) const UNFINISHED: &str = ".new";
/// No note is longer.
const MOST_BYTES: u64 = 1 << 20;

/// That an environment is complete, and how a program finds it. Its file is the last that a build writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Complete {
    /// Where it was built: its programs name that place, so that a copy of it elsewhere is none.
    pub(super) at: PathBuf,
    pub(super) built: Built,
}

/// Which environment a question led to, and the files of the interpreter that it then led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) environment: Key,
    interpreter: Vec<(PathBuf, Stamp)>,
}

/// By these a file that was replaced or changed is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let there = fs::metadata(path)?;
        Ok(Self {
            device: there.dev(),
            inode: there.ino(),
            size_bytes: there.len(),
            changed_s: there.mtime(),
            changed_ns: there.mtime_nsec(),
        })
    }
}

impl Answer {
    /// `None` = what it depends on cannot be told from files: a script decides what the interpreter is.
    pub(super) fn new(environment: Key, programs: &[&Path]) -> Option<Self> {
        let stamped = |path: &&Path| {
            let stamp = Stamp::of(path).ok().filter(|_| !is_script(path))?;
            Some((path.to_path_buf(), stamp))
        };
        let interpreter = programs.iter().map(stamped).collect::<Option<Vec<_>>>()?;
        Some(Self { environment, interpreter })
    }

    /// The environment, as long as the interpreter is the same.
    pub(super) fn holds(self) -> Option<Key> {
        let same = |(path, stamp): &(PathBuf, Stamp)| Stamp::of(path).is_ok_and(|now| now == *stamp);
        self.interpreter.iter().all(same).then_some(self.environment)
    }
}

/// Begins with `#!`. What cannot be read is none.
fn is_script(path: &Path) -> bool {
    let mut front = [0; 2];
    File::open(path).and_then(|mut file| file.read_exact(&mut front)).is_ok() && front == *b"#!"
}

/// What a note says; `None` = there is none, or it cannot be understood.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    of_file(File::open(path).ok()?)
}

/// The same of a file that is open.
pub(super) fn of_file<T: DeserializeOwned>(file: File) -> Option<T> {
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes one whole or not at all. `durably`: everything that was written to its file system before is on disk first,
/// and the note itself afterwards.
pub(super) fn write<T: Serialize>(path: &Path, note: &T, durably: bool) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}{UNFINISHED}", std::process::id()));
    let mut file = File::create(&unfinished)?;
    file.write_all(&serde_json::to_vec(note)?)?;
    if durably {
        rustix::fs::syncfs(&file)?;
    }
    fs::rename(&unfinished, path)?;
    if durably && let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// The note of a complete environment that still has its Python: without it, programs would meet another one.
pub(super) fn complete(layout: &Layout, key: &Key) -> Option<Built> {
    let Complete { at, built } = read(&layout.marker(key))?;
    let has_python = built.programs.first().is_some_and(|programs| programs.join("python").exists());
    (at == layout.environment(key) && has_python).then_some(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_its_python_is_not_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, key) = (Layout(folder.path().to_owned()), Key::try_from("0".repeat(32)).unwrap());
        let programs = layout.environment(&key).join("bin");
        fs::create_dir_all(&programs).unwrap();
        let built = Built { programs: vec![programs.clone()], ..Built::default() };
        let note = Complete { at: layout.environment(&key), built: built.clone() };
        write(&layout.marker(&key), &note, false).unwrap();
        assert_eq!(complete(&layout, &key), None);
        std::os::unix::fs::symlink("/nowhere/python3", programs.join("python")).unwrap();
        assert_eq!(complete(&layout, &key), None, "its interpreter is gone");
        fs::remove_file(programs.join("python")).unwrap();
        fs::write(programs.join("python"), "").unwrap();
        assert_eq!(complete(&layout, &key), Some(built));
    }

    #[test]
    fn an_answer_holds_until_the_interpreter_changes_and_never_for_a_script() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("python3");
        fs::write(&program, "\u{7f}ELF").unwrap();
        let key = Key::try_from("0".repeat(32)).unwrap();
        let answer = Answer::new(key.clone(), &[&program]).unwrap();
        let note = folder.path().join("answer.json");
        write(&note, &answer, false).unwrap();
        assert_eq!(read::<Answer>(&note).unwrap().holds(), Some(key.clone()));
        fs::write(&program, "\u{7f}ELF 2").unwrap();
        assert_eq!(answer.clone().holds(), None);
        fs::remove_file(&program).unwrap();
        assert_eq!(answer.holds(), None);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        assert_eq!(Answer::new(key, &[&program]), None);
    }

    #[test]
    fn a_half_written_note_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("complete.json");
        assert_eq!(read::<Complete>(&path), None);
        fs::write(&path, "{\"built\":").unwrap();
        assert_eq!(read::<Complete>(&path), None);
        let note = Complete { at: folder.path().to_owned(), built: Built::default() };
        write(&path, &note, true).unwrap();
        assert_eq!(read::<Complete>(&path), Some(note));
    }
}
