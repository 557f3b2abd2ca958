//! Starts a process that goes on without the one that started it: the per-user daemon.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::tree::signal_if;

/// Starts `program` in the background and in the folder `/`, lest it keep a file system busy that somebody wants to
/// unmount, with `stdin` as its standard input and `output` as its standard output and error. `variables` are set, or
/// (`None`) not passed on. What is left to tie it to its starter it cuts itself, by [`detach`].
///
/// The process is not waited for: it outlives its starter, and whoever adopts it reaps it.
pub fn spawn(
    program: &Path,
    arguments: &[&str],
    variables: Vec<(&str, Option<OsString>)>,
    stdin: OwnedFd,
    output: File,
) -> io::Result<()> {
    let errors = output.try_clone()?;
    let mut command = Command::new(program);
    command.arg0("gpulayer").args(arguments).current_dir("/");
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::from(stdin)).stdout(output).stderr(errors);
    // Not a group of its own: only a process that leads none may begin a session.
    command.spawn().map(drop)
}

/// Asks a process to end (SIGTERM), if it still is what it was looked up as by then.
pub fn ask_to_end(pid: u32, still: impl FnOnce() -> bool) {
    signal_if(pid, Signal::TERM, |_| still());
}

/// Leaves the starter's session and lets go of every descriptor it passed on by accident, such as the pipe of a shell
/// that would otherwise wait for the daemon. Only for the first steps of a process: nothing may be open yet beside the
/// standard streams.
pub fn detach() -> io::Result<()> {
    // Fails only for a group leader, which has a job control of its own already.
    let _ = rustix::process::setsid();
    close_all_but_standard()
}

/// Lets this process be called `gpulayer` by `ps` and `ss`; started from `/proc/self/exe` it is called `exe`. To be
/// called on the main thread.
pub fn take_name() {
    // It works under any name.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"gpulayer");
}

#[cfg(target_os = "linux")]
fn close_all_but_standard() -> io::Result<()> {
    // SAFETY: `detach` runs before this process has opened anything, so no owned descriptor is closed behind its owner.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn close_all_but_standard() -> io::Result<()> {
    Ok(())
}
