//! From a launch to a running program, or to a sentence that says why not.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::Pid;

use super::prelude::Prelude;
use super::resident::{CALLS_DESCRIPTOR, Calls};
use super::spawn_as::spawn_as;
use super::system::{ExecStrings, Spawn, spawn};
use super::{Launch, NotStarted};
use crate::domain::secrets::SecretValue;

/// Where programs are looked for when the task has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why nothing was started.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: NotStarted,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(kind: NotStarted, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Starts the program with the two pipes as its output. The program is looked up as a shell would, in the
/// task's own `PATH`; a script without `#!` goes to `/bin/sh`, also as a shell would do it.
///
/// One that may stay has a third descriptor, whose other end is returned.
pub(super) fn start(
    launch: &Launch,
    out: BorrowedFd<'_>,
    err: BorrowedFd<'_>,
) -> Result<(Pid, Option<Calls>), Refusal> {
    let (calls, calling) = match launch.stay.as_ref().map(|_| Calls::pair()).transpose() {
        Ok(pair) => pair.unzip(),
        Err(error) => {
            let detail = format!("the socket of its calls could not be made: {error}");
            return Err(Refusal::new(NotStarted::SpawnFailed, detail));
        }
    };
    let mut descriptors = vec![(out, 1), (err, 2)];
    descriptors.extend(calling.as_ref().map(|end| (end.as_fd(), CALLS_DESCRIPTOR)));
    start_with(launch, &descriptors).map(|pid| (pid, calls))
}

fn start_with(launch: &Launch, descriptors: &[(BorrowedFd<'_>, i32)]) -> Result<Pid, Refusal> {
    let cwd = launch.workspace.join(&launch.cwd);
    let program = launch.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
    let argv = ExecStrings::new(launch.argv.iter().map(|text| exec_string(text)).collect::<Result<_, _>>()?);
    let secret = |name: &OsStr| launch.secrets.iter().any(|(secret, _)| name == secret.as_str());
    let open = launch.env.iter().filter(|(name, _)| !secret(name));
    let open = open.map(|(name, value)| variable(name, value.as_bytes()));
    let secrets = launch.secrets.iter().map(|(name, value)| variable(OsStr::new(name), value.expose()));
    let env = ExecStrings::new(open.chain(secrets).collect::<Result<_, _>>()?);
    let chdir = exec_string(cwd.as_os_str())?;
    let run = |path: &Path, argv: &ExecStrings| -> Result<io::Result<Pid>, Refusal> {
        let path = exec_string(path.as_os_str())?;
        let plan = Spawn { path: &path, argv, env: &env, cwd: &chdir, descriptors };
        Ok(match &launch.run_as {
            None => spawn(&plan),
            Some(user) => spawn_as(&plan, user),
        })
    };

    let searched = !program.as_bytes().contains(&b'/');
    let mut blocked = None;
    for path in candidates(launch, program) {
        if searched {
            match std::fs::metadata(cwd.join(&path)) {
                Ok(file) if is_executable(&file) => {}
                Ok(file) if file.is_file() => {
                    blocked.get_or_insert(path);
                    continue;
                }
                _ => continue,
            }
        }
        let mut started = run(&path, &argv)?;
        if has_code(&started, libc::ENOEXEC) && is_text(&cwd.join(&path)) {
            let shell = ["/bin/sh".into(), path.clone().into_os_string()];
            let texts = shell.iter().chain(launch.argv.iter().skip(1));
            let argv = ExecStrings::new(texts.map(|text| exec_string(text)).collect::<Result<_, _>>()?);
            started = run(Path::new("/bin/sh"), &argv)?;
        }
        match started {
            Ok(pid) => return Ok(pid),
            Err(error) => {
                check_cwd(&cwd)?;
                if searched && error.raw_os_error() == Some(libc::EACCES) {
                    blocked.get_or_insert(path);
                    continue;
                }
                return Err(refusal(&cwd, &path, &error));
            }
        }
    }
    check_cwd(&cwd)?;
    Err(match blocked {
        Some(path) => {
            Refusal::new(NotStarted::NotExecutable, format!("{} is not executable", path.display()))
        }
        None => {
            let detail =
                format!("`{}` was not found in PATH ({})", program.display(), path_of(launch).display());
            Refusal::new(NotStarted::NotFound, detail)
        }
    })
}

/// Starts what runs before the program: nothing of it is looked up.
pub(super) fn start_exactly<'a>(
    prelude: &Prelude,
    launch: &Launch,
    secrets: impl Iterator<Item = &'a (String, SecretValue)>,
    descriptors: &[(BorrowedFd<'_>, i32)],
) -> Result<Pid, Refusal> {
    let argv = ExecStrings::new(prelude.argv.iter().map(|text| exec_string(text)).collect::<Result<_, _>>()?);
    let open = prelude.env.iter().map(|(name, value)| variable(name, value.as_bytes()));
    let secrets = secrets.map(|(name, value)| variable(OsStr::new(name), value.expose()));
    let env = ExecStrings::new(open.chain(secrets).collect::<Result<_, _>>()?);
    let (path, cwd) = (exec_string(prelude.program.as_os_str())?, exec_string(launch.workspace.as_os_str())?);
    let plan = Spawn { path: &path, argv: &argv, env: &env, cwd: &cwd, descriptors };
    let started = match &launch.run_as {
        None => spawn(&plan),
        Some(user) => spawn_as(&plan, user),
    };
    started.map_err(|error| {
        let detail = format!("{} could not be started: {error}", prelude.program.display());
        Refusal::new(NotStarted::SpawnFailed, detail)
    })
}

fn path_of(launch: &Launch) -> &OsStr {
    // As `getenv` does: the first of that name.
    let path = launch.env.iter().find(|(name, _)| name == "PATH");
    path.map_or(OsStr::new(DEFAULT_PATH), |(_, value)| value.as_os_str())
}

fn candidates<'a>(launch: &'a Launch, program: &'a OsStr) -> impl Iterator<Item = PathBuf> + 'a {
    let direct = program.as_bytes().contains(&b'/').then(|| PathBuf::from(program));
    let searched = direct.is_none() && !program.is_empty();
    let folders = path_of(launch).as_bytes().split(|byte| *byte == b':').filter(move |_| searched);
    direct.into_iter().chain(folders.map(move |folder| {
        // An empty entry is the working folder; `./` keeps a name from being read as anything else.
        let folder = if folder.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(folder) };
        Path::new(folder).join(program)
    }))
}

fn exec_string(text: &OsStr) -> Result<CString, Refusal> {
    CString::new(text.as_bytes()).map_err(|_| {
        let detail = format!("`{}` holds a zero byte, which no argument or path can", text.display());
        Refusal::new(NotStarted::SpawnFailed, detail)
    })
}

fn variable(name: &OsStr, value: &[u8]) -> Result<CString, Refusal> {
    // With room for the zero byte: moving to a larger place would leave a copy behind.
    let mut text = Vec::with_capacity(name.len() + value.len() + 2);
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value);
    CString::new(text).map_err(|_| {
        let detail = format!("variable `{}` holds a zero byte, which no environment can", name.display());
        Refusal::new(NotStarted::SpawnFailed, detail)
    })
}

/// A file that may be executed, by whoever may.
pub fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| is_executable(&found))
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn has_code(started: &io::Result<Pid>, code: i32) -> bool {
    started.as_ref().is_err_and(|error| error.raw_os_error() == Some(code))
}

/// As shells decide it: no zero byte at the front. A program for another machine is not fed to a shell.
fn is_text(path: &Path) -> bool {
    let mut front = [0; 256];
    let read = File::open(path).and_then(|mut file| file.read(&mut front));
    read.is_ok_and(|length| !front[..length].contains(&0))
}

/// The error of a spawn does not say whether the folder or the program was at fault.
fn check_cwd(cwd: &Path) -> Result<(), Refusal> {
    let bad = |why: &dyn std::fmt::Display| {
        Err(Refusal::new(NotStarted::BadCwd, format!("working folder {}: {why}", cwd.display())))
    };
    match std::fs::metadata(cwd) {
        Err(error) => bad(&error),
        Ok(folder) if !folder.is_dir() => bad(&"is not a folder"),
        Ok(_) => match rustix::fs::access(cwd, Access::EXEC_OK) {
            Err(error) => bad(&error),
            Ok(()) => Ok(()),
        },
    }
}

fn refusal(cwd: &Path, path: &Path, error: &io::Error) -> Refusal {
    let shown = path.display();
    let found = std::fs::metadata(cwd.join(path));
    match (error.raw_os_error(), found) {
        (Some(libc::ENOENT), Ok(_)) => Refusal::new(
            NotStarted::NotExecutable,
            format!("{shown}: its interpreter (first line) does not exist"),
        ),
        (Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG), _) => {
            Refusal::new(NotStarted::NotFound, format!("{shown}: {error}"))
        }
        (Some(libc::EACCES), Ok(file)) if file.is_dir() => {
            Refusal::new(NotStarted::NotExecutable, format!("{shown} is a folder"))
        }
        (Some(libc::EACCES), _) => {
            Refusal::new(NotStarted::NotExecutable, format!("{shown} is not executable"))
        }
        (Some(libc::ENOEXEC), _) => Refusal::new(
            NotStarted::NotExecutable,
            format!("{shown} is no program that this machine can run"),
        ),
        _ => Refusal::new(NotStarted::SpawnFailed, format!("{shown} could not be started: {error}")),
    }
}
