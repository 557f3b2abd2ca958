//! Which control group hierarchies this process is in, and where: a pure reading of `/proc/self/cgroup` and
//! `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// This process' own groups, as folders that can be opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// By controller, those of version 1.
    pub(super) v1: BTreeMap<String, PathBuf>,
    /// In the hierarchy of version 2, when it is mounted: alone, or beside version 1 (hybrid).
    pub(super) v2: Option<PathBuf>,
}

/// Reads both files. What is not mounted, or mounted so that our own group cannot be seen, is left out.
pub(super) fn hierarchies(cgroup: &str, mountinfo: &str) -> Hierarchies {
    let mut found = Hierarchies::default();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let mounts = mountinfo.lines().filter_map(Mount::read);
        if controllers.is_empty() {
            let folder = mounts.filter(|mount| mount.kind == "cgroup2").find_map(|mount| mount.shows(path));
            found.v2 = found.v2.or(folder);
            continue;
        }
        let names: Vec<&str> = controllers.split(',').collect();
        let folder = mounts
            .filter(|mount| mount.kind == "cgroup" && names.iter().all(|name| mount.has(name)))
            .find_map(|mount| mount.shows(path));
        if let Some(folder) = folder {
            found.v1.extend(names.into_iter().map(|name| (name.to_owned(), folder.clone())));
        }
    }
    found
}

/// One line of `mountinfo`.
struct Mount<'a> {
    root: PathBuf,
    at: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, at) = (unescaped(before.next()?), unescaped(before.next()?));
        let mut after = after.split(' ');
        let kind = after.next()?;
        Some(Self { root, at, kind, options: after.nth(1)? })
    }

    fn has(&self, controller: &str) -> bool {
        self.options.split(',').any(|option| option == controller)
    }

    /// Where this mount shows a group, if it does.
    fn shows(&self, path: &str) -> Option<PathBuf> {
        let beneath = Path::new(path).strip_prefix(&self.root).ok()?;
        // A process of another namespace is shown with `..`.
        let plain = beneath.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| self.at.join(beneath))
    }
}

/// Spaces and the like stand as `\040`.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_hybrid_host_has_both() {
        let cgroup = "9:name=systemd:/\n4:memory:/api/5759\n2:cpu,cpuacct:/\n0::/user.slice\n";
        let found = hierarchies(cgroup, HYBRID_MOUNTS);
        assert_eq!(found.v2, Some("/sys/fs/cgroup/unified/user.slice".into()));
        assert_eq!(found.v1["memory"], Path::new("/sys/fs/cgroup/memory/api/5759"));
        assert_eq!(found.v1["cpu"], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(found.v1["name=systemd"], Path::new("/sys/fs/cgroup/systemd"));
        assert!(!found.v1.contains_key("pids"));
    }

    #[test]
    fn a_host_of_version_2_has_one() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = hierarchies("0::/system.slice/gpulayer.service\n", mounts);
        assert_eq!(found.v2, Some("/sys/fs/cgroup/system.slice/gpulayer.service".into()));
        assert!(found.v1.is_empty());
    }

    #[test]
    fn a_bind_mount_in_a_container_shows_its_part_only() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let inside = hierarchies("4:memory:/docker/abc/one\n", mounts);
        assert_eq!(inside.v1["memory"], Path::new("/sys/fs/cgroup/memory/one"));
        assert!(hierarchies("4:memory:/docker/other\n", mounts).v1.is_empty());
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(hierarchies("0::/../elsewhere\n", mounts).v2, None);
    }

    #[test]
    fn odd_lines_are_skipped_and_odd_names_read() {
        let mounts = "garbage\n35 31 0:32 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(hierarchies("garbage\n0::/a\n", mounts).v2, Some("/mnt/my groups/a".into()));
        assert_eq!(hierarchies("", ""), Hierarchies::default());
    }
}
