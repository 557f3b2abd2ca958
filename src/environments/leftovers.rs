//! What nobody needs any more in the folder of one user's environments: that of removed environments, of builds that
//! failed, and of builders that were killed. The folder is that user's, so that nothing in it is trusted: no link is
//! followed, and what else is called by these names is only removed.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, statat};

use super::layout::{ANSWERS, BUILD, GOING, LOCK, Layout, REFUSALS, is_removable};
use super::locks;
use super::notes::{self, Answer, UNFINISHED};
use crate::artifacts::{
    RelativePath, RemoveError, open_beneath, open_folder, open_folder_beneath, remove_in, remove_tree,
};
use crate::clock;

/// A note is written in less, and a refusal counts no longer.
const OLD_S: i64 = 60;

/// Why some of it stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// What was being removed.
    #[error("it stays")]
    Stays(#[from] RemoveError),
    /// A file, or what lies in a folder.
    #[error("it cannot be looked at")]
    Unseen(#[from] io::Error),
}

/// Removes all of that; what cannot be removed does not keep the rest. Blocks.
pub(super) fn clear(layout: &Layout) -> Vec<Fault> {
    let mut faults = Vec::new();
    for name in layout.names() {
        let cleared = if name.ends_with(GOING) {
            remove_tree(&layout.path().join(&name)).map_err(Fault::from)
        } else {
            clear_lock(layout, &name).map_err(Fault::from)
        };
        faults.extend(cleared.err());
    }
    faults.extend(clear_notes(layout, ANSWERS, |folder, name| leads_nowhere(layout, folder, name)).err());
    faults.extend(clear_notes(layout, REFUSALS, is_old).err());
    faults
}

/// The lock of something that is not there, if nobody has it.
fn clear_lock(layout: &Layout, name: &str) -> io::Result<()> {
    let stem = name.strip_suffix(LOCK).or_else(|| name.strip_suffix(BUILD));
    let Some(stem) = stem.filter(|stem| is_removable(stem)) else { return Ok(()) };
    let is_gone = || {
        let there = fs::symlink_metadata(layout.path().join(stem));
        there.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    if !is_gone() {
        return Ok(());
    }
    let path = layout.path().join(name);
    match locks::if_there_and_free(&path)? {
        // It may have been built in between.
        Some(held) if is_gone() => held.remove(&path),
        _ => Ok(()),
    }
}

/// Those of a folder that are `over`, and those that nobody finished writing.
fn clear_notes(layout: &Layout, folder: &str, over: impl Fn(&OwnedFd, &str) -> bool) -> Result<(), Fault> {
    let top = open_folder(layout.path())?;
    let Ok(path) = RelativePath::new(folder) else { return Ok(()) };
    let folder = match open_folder_beneath(top.as_fd(), &path) {
        Err(absent) if absent.kind() == ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    for found in Dir::read_from(&folder).map_err(io::Error::from)? {
        let found = found.map_err(io::Error::from)?;
        let Ok(name) = found.file_name().to_str() else { continue };
        let gone = match name {
            _ if name.ends_with(UNFINISHED) => is_old(&folder, name),
            _ if name.ends_with(".json") => over(&folder, name),
            _ => false,
        };
        if gone {
            remove_in(folder.as_fd(), name)?;
        }
    }
    Ok(())
}

/// An answer whose environment is gone, or one that cannot be read.
fn leads_nowhere(layout: &Layout, folder: &OwnedFd, name: &str) -> bool {
    let Ok(path) = RelativePath::new(name) else { return false };
    let answer = open_beneath(folder.as_fd(), &path).ok().and_then(notes::of_file::<Answer>);
    answer.is_none_or(|answer| fs::symlink_metadata(layout.environment(&answer.environment)).is_err())
}

fn is_old(folder: &OwnedFd, name: &str) -> bool {
    let now_s = clock::wall().micros() / 1_000_000;
    let changed = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|there| there.st_mtime);
    changed.is_ok_and(|changed_s| changed_s.saturating_add(OLD_S) < now_s)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::domain::python::Key;

    fn names(folder: &Path) -> Vec<String> {
        let listing = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn long_ago(path: &Path) {
        File::open(path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }

    fn clear_all(layout: &Layout) {
        let faults = clear(layout);
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn locks_go_with_what_they_stood_for_unless_somebody_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout(folder.path().to_owned());
        let [there, gone, used] = ["0", "1", "2"].map(|digit| digit.repeat(32));
        fs::create_dir(layout.path().join(&there)).unwrap();
        for key in [&there, &gone, &used] {
            File::create(layout.lock(key)).unwrap();
            File::create(layout.build_lock(key)).unwrap();
        }
        File::create(layout.path().join("mine.lock")).unwrap();
        let held = locks::wait_for(&layout.build_lock(&used), true, || {}).unwrap();
        clear_all(&layout);
        let left = [
            there.clone(),
            format!("{there}.build"),
            format!("{there}.lock"),
            format!("{used}.build"),
            "mine.lock".to_owned(),
        ];
        assert_eq!(names(layout.path()), left);
        drop(held);
        clear_all(&layout);
        assert!(!layout.build_lock(&used).exists());
    }

    #[test]
    fn answers_go_with_their_environment_and_what_nobody_finished_goes() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout(folder.path().to_owned());
        let [there, gone, broken] = ["0", "1", "2"].map(|digit| Key::try_from(digit.repeat(32)).unwrap());
        fs::create_dir(layout.environment(&there)).unwrap();
        fs::create_dir(layout.answers()).unwrap();
        fs::create_dir(layout.refusals()).unwrap();
        for key in [&there, &gone] {
            notes::write(&layout.answer(key), &Answer::new(key.clone(), &[]).unwrap(), false).unwrap();
            fs::write(layout.refusal(key), "{}").unwrap();
        }
        fs::write(layout.answer(&broken), "{").unwrap();
        long_ago(&layout.refusal(&gone));
        let unfinished = |number: u32| layout.answers().join(format!("{there}.{number}.new"));
        for number in [1, 2] {
            fs::write(unfinished(number), "{").unwrap();
        }
        long_ago(&unfinished(1));
        clear_all(&layout);
        assert_eq!(names(&layout.answers()), [format!("{there}.2.new"), format!("{there}.json")]);
        assert_eq!(names(&layout.refusals()), [format!("{there}.json")]);
    }

    #[test]
    fn what_lies_behind_a_link_of_the_user_stays() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout(folder.path().join("0"));
        let elsewhere = folder.path().join("elsewhere");
        for path in [layout.path(), &elsewhere] {
            fs::create_dir(path).unwrap();
        }
        let precious = elsewhere.join("precious.json");
        fs::write(&precious, "{}").unwrap();
        long_ago(&precious);
        symlink(&elsewhere, layout.answers()).unwrap();
        fs::create_dir(layout.refusals()).unwrap();
        symlink(&precious, layout.refusals().join("link.json")).unwrap();
        symlink(&precious, layout.lock(&"1".repeat(32))).unwrap();
        clear(&layout);
        assert!(precious.exists());
    }
}
