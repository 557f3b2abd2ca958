//! The way of another user's tasks through the worker's folder: they pass through it to their own workspaces, and
//! find everything else closed.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::identity::{FolderError, failed};
use crate::process::RunAs;

/// May be passed through by everybody, and be listed by its owner alone.
const PASSABLE: u32 = 0o711;
const CLOSED: u32 = 0o700;
/// Beneath the worker's folder, on the way to workspaces.
const ON_THE_WAY: &str = "tasks";
/// Beneath the worker's folder, and nobody else's.
const BESIDE: [&str; 5] = ["shims", "kept", "cache", "spare", "trash"];

/// Makes a worker's folder for its owner alone (0700), and what is missing above it: closed as well, or, when tasks run
/// as another user, such that everybody may pass (0711, whatever the umask). What is there keeps its mode.
pub fn make_folder(folder: &Path, passed_by_others: bool) -> Result<(), FolderError> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
        match DirBuilder::new().mode(CLOSED).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            made => made.map_err(failed("make", path))?,
        }
        if passed_by_others && path != folder {
            let passable = Permissions::from_mode(PASSABLE);
            fs::set_permissions(path, passable).map_err(failed("change the mode of", path))?;
        }
    }
    Ok(())
}

/// Opens the way for this user. The folder is the worker's and there already.
pub(super) fn open(folder: &Path, user: &RunAs) -> Result<(), FolderError> {
    for name in BESIDE {
        make(&folder.join(name), CLOSED)?;
    }
    make(&folder.join(ON_THE_WAY), PASSABLE)?;
    make(folder, PASSABLE)?;
    let resolved = folder.canonicalize().map_err(failed("resolve", folder))?;
    let mut ancestors: Vec<&Path> = resolved.ancestors().collect();
    ancestors.reverse();
    for ancestor in ancestors {
        let found = fs::metadata(ancestor).map_err(failed("look at", ancestor))?;
        if !may_pass(&found, user) {
            return Err(FolderError::Closed { path: ancestor.to_owned(), uid: user.uid });
        }
    }
    Ok(())
}

fn make(path: &Path, mode: u32) -> Result<(), FolderError> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed("make", path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("change the mode of", path))
}

/// By the mode alone, as the kernel reads it: the first class that fits decides.
fn may_pass(folder: &Metadata, user: &RunAs) -> bool {
    let bit = if folder.uid() == user.uid {
        0o100
    } else if folder.gid() == user.gid || user.groups.contains(&folder.gid()) {
        0o010
    } else {
        0o001
    };
    user.uid == 0 || folder.mode() & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_above_a_folder_lets_others_pass_only_when_it_has_to() {
        let home = tempfile::tempdir().unwrap();
        let before = mode(home.path());
        for (name, others, above) in [("own", false, 0o700), ("others", true, 0o711)] {
            let folder = home.path().join(name).join("joined/box-8470");
            make_folder(&folder, others).unwrap();
            make_folder(&folder, others).unwrap();
            let modes = [&home.path().join(name), folder.parent().unwrap(), &folder].map(mode);
            assert_eq!(modes, [above, above, 0o700], "{name}");
        }
        assert_eq!(mode(home.path()), before, "what was there keeps its mode");
    }

    #[test]
    fn a_closed_folder_on_the_way_is_named() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("closed/worker");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        let closed = home.path().join("closed");
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        let nobody = RunAs { uid: 65_534, gid: 65_534, groups: vec![65_534] };
        match open(&folder, &nobody) {
            Err(FolderError::Closed { path, uid: 65_534 }) => {
                assert_eq!(path, closed.canonicalize().unwrap());
            }
            other => panic!("{other:?}"),
        }
        fs::set_permissions(&closed, Permissions::from_mode(0o711)).unwrap();
        open(&folder, &nobody).unwrap();
        assert_eq!(
            (mode(&folder), mode(&folder.join("tasks")), mode(&folder.join("kept"))),
            (0o711, 0o711, 0o700)
        );
    }
}
