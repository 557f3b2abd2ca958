//! The kernel log, as far as this user may read it: lines that may say why a program ended.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::clock;
use crate::contract::quantity::Timestamp;
use crate::domain::verdict::KernelLog;

/// Records read at most; the log holds some thousands.
const MOST_RECORDS: usize = 32_768;
/// Lines kept.
const MOST_LINES: usize = 256;
/// The clock of the log is not quite the one of the tasks, in microseconds.
const SLACK_MICROS: i64 = 2_000_000;
/// One record of the log, at most.
const RECORD_BYTES: usize = 8_192;
/// What a line must hold to be kept: it is the whole machine's log, and most of it is not about ends.
const ABOUT_ENDS: [&str; 6] =
    ["oom-kill:", "Killed process", "segfault at", "general protection fault", " trap ", "NVRM: Xid"];

/// The lines about ends since `since`. Never waits. A log that may not be read, which is usual, is empty.
pub fn kernel_log(since: Timestamp) -> KernelLog {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open("/dev/kmsg", flags, Mode::empty()) else {
        return KernelLog::default();
    };
    let now = clock_gettime(ClockId::Monotonic);
    let now_micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000);
    let ago_micros = clock::now().micros().saturating_sub(since.micros()).max(0);
    let from_micros = now_micros.saturating_sub(ago_micros).saturating_sub(SLACK_MICROS);
    let mut log = KernelLog { readable: true, lines: Vec::new() };
    let mut buffer = vec![0; RECORD_BYTES];
    for _ in 0..MOST_RECORDS {
        match rustix::io::read(&file, &mut buffer[..]) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(length) => log.lines.extend(line(&String::from_utf8_lossy(&buffer[..length]), from_micros)),
            // Overwritten while we read, or interrupted: the next read goes on.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(Errno::PERM | Errno::ACCESS) => return KernelLog::default(),
            Err(_) => break,
        }
    }
    let skip = log.lines.len().saturating_sub(MOST_LINES);
    log.lines.drain(..skip);
    log
}

/// `6,1234,5678901,-;text`, then lines of properties: the text, if it is about an end and not older.
fn line(record: &str, from_micros: i64) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let at_micros: i64 = head.split(',').nth(2)?.parse().ok()?;
    let text = text.lines().next()?;
    (at_micros >= from_micros && ABOUT_ENDS.iter().any(|words| text.contains(words))).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_about_ends_and_not_older_is_kept() {
        let record = "4,99,5000,-;a.out[7]: segfault at 0 ip 0 sp 0 error 4\n SUBSYSTEM=x\n";
        assert_eq!(line(record, 5000).unwrap(), "a.out[7]: segfault at 0 ip 0 sp 0 error 4");
        assert_eq!(line(record, 5001), None);
        assert_eq!(line("4,99,5000,-;eth0: link up", 0), None);
        assert_eq!(line("garbage", 0), None);
    }
}
