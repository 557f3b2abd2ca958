//! What the kernel log says about a task: kills for want of memory, faults of programs, faults of GPUs. A line counts
//! only when it names a process of the task or its group; the log is the whole machine's.

/// The kernel log, as far as it could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelLog {
    /// Whether it could be read at all; often it may not.
    pub readable: bool,
    /// Lines from the task's time, oldest first.
    pub lines: Vec<String>,
}

/// What one line says about the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KernelWord<'a> {
    /// A process of it was killed for want of memory.
    OomKill {
        /// Of the whole machine, not of the task's own limit.
        of_machine: bool,
        line: &'a str,
    },
    /// A program of it failed: `segfault at 0 ip …`.
    Fault { line: &'a str },
    /// A GPU reported a fault while a process of it used it.
    Gpu { xid: u32, line: &'a str },
}

/// Faults of the device or its link rather than of the program: ECC, NVLink, fallen off the bus, GSP firmware
/// (NVIDIA, XID errors).
const DEVICE_XIDS: &[u32] =
    &[46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 123, 136, 140, 143, 145, 149];

/// Whether a fault of the device itself.
pub(super) fn is_device_fault(xid: u32) -> bool {
    DEVICE_XIDS.contains(&xid)
}

/// The words about processes `pids`, or about the group that `task` names.
pub(super) fn words<'a>(log: &'a KernelLog, pids: &[u32], task: &str) -> Vec<KernelWord<'a>> {
    log.lines.iter().filter_map(|line| word(line, pids, task)).collect()
}

fn word<'a>(line: &'a str, pids: &[u32], task: &str) -> Option<KernelWord<'a>> {
    let names_task = !task.is_empty() && line.contains(task);
    let ours = |pid: Option<u32>| pid.is_some_and(|pid| pids.contains(&pid));
    if let Some(rest) = after(line, "NVRM: Xid (") {
        let (_, rest) = rest.split_once("): ")?;
        let xid = number(rest)?;
        return ours(after(rest, "pid=").and_then(number)).then_some(KernelWord::Gpu { xid, line });
    }
    if let Some(rest) = after(line, "oom-kill:") {
        let of_machine = rest.contains("global_oom") || rest.contains("CONSTRAINT_NONE");
        return (names_task || ours(after(rest, ",pid=").and_then(number)))
            .then_some(KernelWord::OomKill { of_machine, line });
    }
    if let Some(rest) = after(line, "Killed process ") {
        let of_machine = !line.contains("emory cgroup");
        return ours(number(rest)).then_some(KernelWord::OomKill { of_machine, line });
    }
    let (head, _) = [": segfault at ", " general protection fault", " trap "]
        .iter()
        .find_map(|mark| line.split_once(mark))?;
    let pid = head.rsplit_once('[').and_then(|(_, pid)| number(pid));
    ours(pid).then_some(KernelWord::Fault { line })
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.split_once(mark).map(|(_, rest)| rest)
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim_start_matches('\'');
    let end = text.find(|each: char| !each.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_name_the_task_count() {
        let lines = [
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=python3,pid=77,uid=0",
            "Out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB",
            "Memory cgroup out of memory: Killed process 78 (python3) total-vm:9000kB",
            "python3[77]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6[7f+1000]",
            "traps: a.out[77] trap divide error ip:401000 sp:7ff error:0 in a.out[400000+1000]",
            "NVRM: Xid (PCI:0000:65:00): 79, pid=77, name=python3, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "usb 1-1: new device",
        ];
        let log = KernelLog { readable: true, lines: lines.map(str::to_owned).to_vec() };
        let found = words(&log, &[77], "");
        let global = |index: usize, of_machine| KernelWord::OomKill { of_machine, line: lines[index] };
        assert_eq!(
            found,
            [
                global(0, true),
                global(1, true),
                KernelWord::Fault { line: lines[3] },
                KernelWord::Fault { line: lines[4] },
                KernelWord::Gpu { xid: 79, line: lines[5] },
            ]
        );
        assert_eq!(words(&log, &[78], ""), [global(2, false)]);
        assert_eq!(words(&log, &[1], ""), []);
        assert_eq!(words(&log, &[1], "task_memcg=/x"), [global(0, true)]);
    }
}
