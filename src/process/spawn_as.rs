//! Starts a program as another user. The shim stays who it is (root): only the child gives its rights up, as the last
//! thing before the exec, and proves that they are gone.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use libc::c_int;
use rustix::fs::{Gid, Uid};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::RunAs;
use super::system::Spawn;

/// What a child that could not begin was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Streams = 1,
    Identity = 2,
    Folder = 3,
    Program = 4,
}

/// As [`super::system::spawn`], as this user: groups, group and user are set in this order and looked at again, then
/// the working folder is entered and the program executed with that user's rights. The error of an exec is the
/// system's; any other says in words what failed.
///
/// A fork, which `posix_spawn` cannot replace here: it knows no user but the caller's own. Only for a process with one
/// thread.
pub(super) fn spawn_as(plan: &Spawn<'_>, user: &RunAs) -> io::Result<Pid> {
    for (descriptor, _) in plan.descriptors {
        // A program may open its streams anew (`/dev/stderr`), for which a pipe has to be its own.
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        rustix::fs::fchown(descriptor, Some(uid), Some(gid))?;
    }
    let (told, telling) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has one thread, so the child has everything as it was; it makes system calls on memory that
    // was prepared before, and ends in an exec or at once.
    let pid = match unsafe { libc::fork() } {
        0 => unsafe { begin(plan, user, telling.as_raw_fd()) },
        pid => Pid::from_raw(pid).ok_or_else(io::Error::last_os_error)?,
    };
    drop(telling);
    let mut failure = [0; 5];
    let mut told = File::from(told);
    match told.read_exact(&mut failure) {
        // The exec closed it.
        Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(pid),
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    // Nobody else is to see a child that never was one.
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let [step, code @ ..] = failure;
    let error = io::Error::from_raw_os_error(i32::from_le_bytes(code));
    Err(match step {
        step if step == Step::Program as u8 => error,
        step if step == Step::Folder as u8 => {
            io::Error::other(format!("the working folder cannot be entered by user {}: {error}", user.uid))
        }
        step if step == Step::Identity as u8 => {
            io::Error::other(format!("the rights of user {} cannot be taken on: {error}", user.uid))
        }
        _ => io::Error::other(format!("its streams cannot be set up: {error}")),
    })
}

/// The child's whole life before its program.
///
/// # Safety
/// Only in the child of a fork of a process with one thread; `plan` holds what [`Spawn`] says.
unsafe fn begin(plan: &Spawn<'_>, user: &RunAs, telling: c_int) -> ! {
    // SAFETY: system calls with pointers into memory of this process, which `plan` and `user` keep alive.
    unsafe {
        let (step, code) = match prepare(plan, user) {
            Ok(()) => {
                libc::execve(plan.path.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr());
                (Step::Program, last_code())
            }
            Err(failed) => failed,
        };
        let mut failure = [step as u8, 0, 0, 0, 0];
        failure[1..].copy_from_slice(&code.to_le_bytes());
        libc::write(telling, failure.as_ptr().cast(), failure.len());
        libc::_exit(127)
    }
}

/// # Safety
/// As [`begin`].
unsafe fn prepare(plan: &Spawn<'_>, user: &RunAs) -> Result<(), (Step, c_int)> {
    // SAFETY: as the caller says; every set and array is initialised before it is read.
    unsafe {
        libc::setsid();
        for signal in 1..=libc::SIGRTMAX() {
            // Refused for those that nobody can change, and those of the C library, which no exec passes on.
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        for (descriptor, number) in plan.descriptors {
            let descriptor = descriptor.as_raw_fd();
            let kept = if descriptor == *number {
                libc::fcntl(descriptor, libc::F_SETFD, 0)
            } else {
                libc::dup2(descriptor, *number)
            };
            if kept < 0 {
                return Err((Step::Streams, last_code()));
            }
        }
        become_user(user).map_err(|code| (Step::Identity, code))?;
        if libc::chdir(plan.cwd.as_ptr()) < 0 {
            return Err((Step::Folder, last_code()));
        }
        Ok(())
    }
}

/// Gives up the rights of this process for those of a user, for good, and looks whether that is so.
///
/// # Safety
/// Only in a process with one thread: the system calls are per thread, and the C library is not told.
unsafe fn become_user(user: &RunAs) -> Result<(), c_int> {
    let checked = |code: libc::c_long| if code < 0 { Err(last_code()) } else { Ok(()) };
    // SAFETY: pointers into `user` and into this frame, valid for the calls.
    unsafe {
        checked(libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()))?;
        checked(libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid))?;
        checked(libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid))?;
        let (mut uids, mut gids) = ([u32::MAX; 3], [u32::MAX; 3]);
        let [real, effective, saved] = &mut uids;
        libc::getresuid(real, effective, saved);
        let [real, effective, saved] = &mut gids;
        libc::getresgid(real, effective, saved);
        let groups = libc::getgroups(0, std::ptr::null_mut());
        let is_so = uids == [user.uid; 3]
            && gids == [user.gid; 3]
            && usize::try_from(groups) == Ok(user.groups.len())
            // A capability that was left would let it come back.
            && (user.uid == 0 || libc::syscall(libc::SYS_setresuid, 0, 0, 0) < 0);
        if is_so { Ok(()) } else { Err(libc::EPERM) }
    }
}

fn last_code() -> c_int {
    // SAFETY: the C library's own place for the code, one per thread.
    unsafe { *libc::__errno_location() }
}
