//! The small files of control groups.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes one value, in one call, as the kernel wants it. The file must be there.
pub(super) fn write(path: &Path, value: impl ToString) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(value.to_string().as_bytes())
}

/// The whole text; `None` when it cannot be read.
pub(super) fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A counter among lines such as `oom_kill 3`.
pub(super) fn counter(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// The text of a file that stays open, from its beginning.
pub(super) fn reread(file: &File, buffer: &mut [u8; 4096]) -> Option<String> {
    let length = file.read_at(buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length]).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(counter(text, "oom_kill"), Some(3));
        assert_eq!(counter(text, "oom"), None);
        assert_eq!(counter(text, "max"), None);
    }
}
