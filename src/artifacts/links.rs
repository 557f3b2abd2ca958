//! Where a link leads, judged inside one tree only: the answer never depends on what the machine has outside.

use std::os::fd::BorrowedFd;

use rustix::fs::readlinkat;
use rustix::io::Errno;

/// As many hops as the kernel allows.
const MAX_HOPS: u32 = 40;

/// Where following a link ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// At this path within the tree, whether or not something is there.
    Inside(String),
    /// Outside the tree, or at an absolute path.
    Outside,
    /// Nowhere.
    Loop,
}

/// Whether a link at `path` with this target stays in the tree as far as the text tells.
pub(super) fn stays_inside(path: &str, target: &str) -> bool {
    if target.starts_with('/') {
        return false;
    }
    let mut depth = path.matches('/').count();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if depth == 0 => return false,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

/// Follows `path` through every link on its way.
pub(super) fn follow(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<LinkEnd> {
    let mut pending: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let mut resolved: Vec<String> = Vec::new();
    let mut hops = 0;
    while let Some(part) = pending.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                if resolved.pop().is_none() {
                    return Ok(LinkEnd::Outside);
                }
                continue;
            }
            _ => resolved.push(part),
        }
        let target = match readlinkat(root, resolved.join("/"), Vec::new()) {
            Ok(target) => target,
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => continue,
            Err(errno) => return Err(errno),
        };
        hops += 1;
        if hops > MAX_HOPS {
            return Ok(LinkEnd::Loop);
        }
        resolved.pop();
        // A target that is not UTF-8 cannot name anything that travels.
        let Ok(target) = target.to_str() else { return Ok(LinkEnd::Outside) };
        if target.starts_with('/') {
            return Ok(LinkEnd::Outside);
        }
        pending.extend(target.split('/').rev().map(str::to_owned));
    }
    Ok(LinkEnd::Inside(resolved.join("/")))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn ends_are_judged_within_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/file"), "x").unwrap();
        for (target, link) in [
            ("a/file", "plain"),
            ("../file", "a/b/up"),
            ("a/b/up", "twice"),
            ("nothing/here", "dangling"),
            ("/etc/hostname", "absolute"),
            ("../x", "above"),
            ("absolute/deeper", "through"),
            ("loop_b", "loop_a"),
            ("loop_a", "loop_b"),
            ("..", "a/top"),
            ("a/top/..", "sneaky"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let root = super::super::beneath::open_folder(folder.path()).unwrap();
        let end = |link: &str| follow(root.as_fd(), link).unwrap();
        let inside = |path: &str| LinkEnd::Inside(path.to_owned());
        assert_eq!(end("plain"), inside("a/file"));
        assert_eq!(end("a/b/up"), inside("a/file"));
        assert_eq!(end("twice"), inside("a/file"));
        assert_eq!(end("dangling"), inside("nothing/here"));
        assert_eq!(end("a/top"), inside(""));
        for outside in ["absolute", "above", "through", "sneaky"] {
            assert_eq!(end(outside), LinkEnd::Outside, "{outside}");
        }
        assert_eq!(end("loop_a"), LinkEnd::Loop);
    }

    #[test]
    fn the_text_of_a_target_tells_most() {
        assert!(stays_inside("a/b/link", "../../x"));
        assert!(!stays_inside("a/b/link", "../../../x"));
        assert!(!stays_inside("link", "/x"));
        assert!(!stays_inside("link", "x/../../y"));
    }
}
