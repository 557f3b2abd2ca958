//! The system calls that the safe crates do not offer: the only unsafe code of this floor.

use std::ffi::{CStr, CString, c_char, c_int, c_short};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::domain::secrets::wipe;

/// Strings for `execve`: owned, with the null-terminated pointer list it wants.
pub(super) struct ExecStrings {
    // The pointers point into these.
    owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Drop for ExecStrings {
    fn drop(&mut self) {
        self.pointers.clear();
        for text in self.owned.drain(..) {
            // An environment may hold secrets.
            wipe(&mut text.into_bytes());
        }
    }
}

impl ExecStrings {
    pub(super) fn new(owned: Vec<CString>) -> Self {
        let pointers = owned.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Self { owned, pointers }
    }

    /// The list, for as long as this lives.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// One process to start.
pub(super) struct Spawn<'a> {
    /// Relative to `cwd`, or absolute.
    pub(super) path: &'a CStr,
    pub(super) argv: &'a ExecStrings,
    pub(super) env: &'a ExecStrings,
    pub(super) cwd: &'a CStr,
    /// What the child finds at which number. All other descriptors of this process must be close-on-exec.
    pub(super) descriptors: &'a [(BorrowedFd<'a>, c_int)],
}

fn checked(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Starts a process in a session of its own, with every signal at its default and none blocked. The error is
/// that of the first thing that failed: entering `cwd` or the exec.
///
/// `posix_spawn` and not fork: it shares the memory until the exec, so that its cost does not grow with ours.
pub(super) fn spawn(plan: &Spawn<'_>) -> io::Result<Pid> {
    struct Attributes(libc::posix_spawnattr_t);
    impl Drop for Attributes {
        fn drop(&mut self) {
            // SAFETY: it was initialised, and is not used afterwards.
            unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
        }
    }
    struct Actions(libc::posix_spawn_file_actions_t);
    impl Drop for Actions {
        fn drop(&mut self) {
            // SAFETY: it was initialised, and is not used afterwards.
            unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
        }
    }
    // SAFETY: each object is initialised by its `_init` before any other use, which is checked; the pointers of
    // `plan` are null-terminated lists of null-terminated strings that `plan` keeps alive for the whole call;
    // the descriptors are borrowed, hence open; nothing but C code runs in the child.
    unsafe {
        let mut attributes = MaybeUninit::uninit();
        checked(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
        let mut attributes = Attributes(attributes.assume_init());
        let flags = libc::POSIX_SPAWN_SETSID as c_short
            | libc::POSIX_SPAWN_SETSIGDEF as c_short
            | libc::POSIX_SPAWN_SETSIGMASK as c_short;
        checked(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags))?;
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        // Not `sigfillset`: it leaves out the two that glibc uses itself, and those it would make ignored.
        signals.as_mut_ptr().write_bytes(0xFF, 1);
        checked(libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, signals.as_ptr()))?;
        libc::sigemptyset(signals.as_mut_ptr());
        checked(libc::posix_spawnattr_setsigmask(&raw mut attributes.0, signals.as_ptr()))?;

        let mut actions = MaybeUninit::uninit();
        checked(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
        let mut actions = Actions(actions.assume_init());
        for (descriptor, number) in plan.descriptors {
            let descriptor = descriptor.as_raw_fd();
            checked(libc::posix_spawn_file_actions_adddup2(&raw mut actions.0, descriptor, *number))?;
        }
        checked(libc::posix_spawn_file_actions_addchdir_np(&raw mut actions.0, plan.cwd.as_ptr()))?;

        let mut pid = 0;
        checked(libc::posix_spawn(
            &raw mut pid,
            plan.path.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            plan.argv.pointers.as_ptr().cast(),
            plan.env.pointers.as_ptr().cast(),
        ))?;
        Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

/// What [`reap_any`] found.
pub(super) enum Reaped {
    /// A child that had ended, now gone.
    Child { pid: Pid, status: c_int, peak_memory_bytes: u64 },
    /// There are children, none of them has ended.
    AllAlive,
    /// There is no child: the proof that a task's tree is gone.
    NoChild,
}

/// Reaps one ended child, whichever it is, without waiting. Only for the shim, whose children all belong to
/// its task; elsewhere this would steal the children of others.
pub(super) fn reap_any() -> io::Result<Reaped> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are valid for writes; a zeroed rusage is a valid one.
    let (pid, usage) = unsafe {
        let pid = libc::wait4(-1, &raw mut status, libc::WNOHANG, usage.as_mut_ptr());
        (pid, usage.assume_init())
    };
    if pid < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(Reaped::NoChild) } else { Err(error) };
    }
    Ok(match Pid::from_raw(pid) {
        None => Reaped::AllAlive,
        Some(pid) => {
            let peak_memory_bytes = u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024);
            Reaped::Child { pid, status, peak_memory_bytes }
        }
    })
}

/// The most memory this process itself ever had, in bytes. A child begins as its parent's image, and the kernel
/// counts that as its peak: a child's peak that is no larger says nothing about the child.
pub(super) fn own_peak_memory_bytes() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for writes; a zeroed rusage is a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024)
}

/// Blocks every signal in this (the only) thread and returns a descriptor that becomes readable when a child
/// ends. Close-on-exec, non-blocking.
pub(super) fn child_signals() -> io::Result<OwnedFd> {
    let mut all = MaybeUninit::uninit();
    let mut child = MaybeUninit::uninit();
    // SAFETY: the sets are initialised by sigfillset and sigemptyset before they are read; the descriptor is
    // new and owned by nobody else.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        checked(libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut()))?;
        libc::sigemptyset(child.as_mut_ptr());
        libc::sigaddset(child.as_mut_ptr(), libc::SIGCHLD);
        let descriptor = libc::signalfd(-1, child.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Takes over a descriptor that this process was started with, makes it close-on-exec, and closes all above it.
/// Only to be called once, before anything else was opened.
pub(super) fn inherited_descriptor(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the caller calls this before anything of this process owns a descriptor from `number` on, so
    // those above belong to nobody, and `number` is ours if fcntl says that it is open.
    unsafe {
        libc::close_range(number as u32 + 1, u32::MAX, 0);
        if libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// Registers a process handle with the runtime, to be told of the process's end.
pub(super) fn watched(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same descriptor, and keeps it open until it is dropped, which
    // `AsyncFd` does only after taking it out of the runtime.
    unsafe { Ok(AsyncFd::register_with_interest(process, Interest::READABLE)?) }
}
