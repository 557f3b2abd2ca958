//! Who is in a group, and its removal.

use std::path::{Path, PathBuf};

use super::files;

/// How deep groups made by a task beneath its own are followed.
const DEPTH: usize = 8;

/// The groups beneath this one, the deepest first, and itself last.
pub(super) fn subgroups(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, DEPTH, &mut found);
    found
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if depth > 0
        && let Ok(entries) = std::fs::read_dir(folder)
    {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                collect(&entry.path(), depth - 1, found);
            }
        }
    }
    found.push(folder.to_owned());
}

/// Every process in it and beneath it. A group that is gone has none.
pub(super) fn members(folder: &Path) -> Vec<u32> {
    let lists = subgroups(folder).into_iter().filter_map(|group| files::read(&group.join("cgroup.procs")));
    lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Whether the process is (still) in this group or beneath it: a pid may be used again.
pub(super) fn is_member(pid: u32, folder: &Path) -> bool {
    let (Some(name), Some(base)) = (folder.file_name(), folder.parent().and_then(Path::file_name)) else {
        return false;
    };
    let end = Path::new(base).join(name);
    let text = files::read(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // Both names are made to be unlike any other: the worker's folder, and (pid, start time) of its shim.
    paths.map(Path::new).any(|path| path.ancestors().any(|above| above.ends_with(&end)))
}

/// Removes a group with all beneath it; what somebody is in stays.
pub(super) fn remove_tree(folder: &Path) {
    for group in subgroups(folder) {
        let _ = std::fs::remove_dir(group);
    }
}
