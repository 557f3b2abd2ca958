//! The builder: this binary under another name, run by a task's shim before its program, with the task's rights. It
//! finds the environment, waits for whoever builds it, or builds it, and hands its lock to the shim.

use std::cell::RefCell;
use std::ffi::{CStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::layout::{Layout, UV_CACHE};
use super::locks::{Held, wait_for};
use super::notes::{self, Answer, Complete};
use super::refused::Refused;
use super::time_limit::TimeLimit;
use super::tools::Tools;
use crate::artifacts::remove_tree;
use crate::contract::quantity::Seconds;
use crate::domain::python::{
    Built, CLOSING, Change, Contents, Interpreter, Key, Recipe, TOO_LONG, satisfies, steps, surroundings,
};
use crate::process::is_program;
use crate::process::prelude::{Prepared, Telling};

/// The name under which the binary is a builder.
pub const BUILDER_NAME: &str = "gpulayer-environment";
const PROCESS_NAME: &CStr = c"gpulayer-env";
/// No lock file of a job is larger.
const MOST_FILE_BYTES: u64 = 64 << 20;
/// Where the packages of the interpreter's own virtual environment are named to a new one.
const BEHIND: &str = "_gpulayer_behind.pth";

/// What is to be had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) recipe: Recipe,
    /// What the job's paths are relative to.
    pub(super) workspace: OsString,
    /// The folder of the user's environments.
    pub(super) folder: OsString,
    /// The configured `uv`.
    pub(super) uv: Option<OsString>,
    /// How long a build may take.
    pub(super) timeout: Seconds,
    /// The worker's interpreters, which go before any that `uv` finds.
    #[serde(default)]
    pub(super) pythons: Vec<OsString>,
}

/// Is this process to be a builder? Then does that and never returns. Must be among the first things in `main`, before
/// any thread exists.
pub fn run_if_builder() {
    let name = std::env::args_os().next().map(PathBuf::from);
    if name.as_deref().and_then(Path::file_name).is_none_or(|name| name != BUILDER_NAME) {
        return;
    }
    let _ = rustix::thread::set_name(PROCESS_NAME);
    let status = match serve() {
        Ok(()) => 0,
        Err(failure) => {
            say(&format!("{CLOSING}{}", failure.sentence()));
            1
        }
    };
    // Not back into the binary's own `main`.
    std::process::exit(status);
}

/// A line of the task's log.
fn say(line: &str) {
    use std::io::Write;
    // Who cannot write has nobody to tell it.
    let _ = writeln!(io::stderr(), "{line}");
}

fn serve() -> Result<(), Failure> {
    let telling = Telling::inherited().map_err(Failure::Order)?;
    let order: Order =
        serde_json::from_slice(&telling.asked().map_err(Failure::Order)?).map_err(Failure::Garbled)?;
    let layout = Layout(order.folder.into());
    let workspace = PathBuf::from(order.workspace);
    let build = Build {
        contents: contents(&order.recipe, &workspace)?,
        tools: Tools::new(&layout, &workspace, order.uv.map(PathBuf::from)),
        recipe: &order.recipe,
        layout: &layout,
        workspace: &workspace,
        timeout: order.timeout,
        pythons: order.pythons.into_iter().map(PathBuf::from).collect(),
        waits: Waits::default(),
    };
    let (built, held) = build.find_or_make()?;
    let project = order.recipe.project().map(|folder| workspace.join(folder).join("src"));
    let code = project.filter(|folder| folder.is_dir());
    let Change { set, unset } = surroundings(&built, &|name| std::env::var_os(name), code.as_deref());
    let held: Vec<File> = held.into_iter().map(|held| held.0).collect();
    telling.tell(&Prepared { set, unset }, &held).map_err(Failure::Order)
}

/// The job's files that say which packages.
fn contents(recipe: &Recipe, workspace: &Path) -> Result<Contents, Failure> {
    let mut contents = Contents::default();
    for (name, needed) in recipe.files() {
        let read = fs::metadata(workspace.join(&name)).and_then(|found| {
            if !found.is_file() || found.len() > MOST_FILE_BYTES {
                return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file, or too large"));
            }
            fs::read(workspace.join(&name))
        });
        match read {
            Ok(bytes) => contents.0.push((name, bytes)),
            Err(absent) if !needed && absent.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Failure::Missing { name, source }),
        }
    }
    Ok(contents)
}

struct Build<'a> {
    recipe: &'a Recipe,
    contents: Contents,
    layout: &'a Layout,
    workspace: &'a Path,
    tools: Tools<'a>,
    timeout: Seconds,
    pythons: Vec<PathBuf>,
    waits: Waits,
}

/// How the interpreter is looked for.
enum Sought {
    Path(PathBuf),
    Version(String),
    Project(PathBuf),
}

impl Build<'_> {
    /// The environment, with the lock that keeps it.
    fn find_or_make(&self) -> Result<(Built, Option<Held>), Failure> {
        let sought = self.sought()?;
        if let (Sought::Path(path), false) = (&sought, self.recipe.has_packages())
            && let Some(built) = as_it_is(path)
        {
            return Ok((built, None));
        }
        let found = match &sought {
            Sought::Path(path) => path.display().to_string(),
            Sought::Version(version) if self.pythons.is_empty() => format!("version {version}"),
            // Another choice may give another one.
            Sought::Version(version) => format!("version {version} of {:?}", self.pythons),
            Sought::Project(_) => "the project's".to_owned(),
        };
        let note = self.layout.answer(&self.recipe.question(&self.contents, &found));
        if let Some(key) = notes::read::<Answer>(&note).and_then(Answer::holds)
            && let Some((built, held)) = self.held(&key)?
        {
            return Ok((built, Some(held)));
        }
        let limit = self.limit();
        let (path, known) = match &sought {
            Sought::Path(path) => (path.clone(), None),
            Sought::Version(version) => match self.offered(version) {
                Some((path, interpreter)) => (path, Some(interpreter)),
                None => (self.tools.find(Some(version), None)?, None),
            },
            Sought::Project(folder) => (self.tools.find(None, Some(folder))?, None),
        };
        if let Some(built) = as_it_is(&path).filter(|_| !self.recipe.has_packages()) {
            return Ok((built, None));
        }
        let interpreter = match known {
            Some(interpreter) => interpreter,
            None => self.tools.interpreter(&path, false)?,
        };
        // Others are waited for as long as it takes: they have a limit themselves.
        drop(limit);
        let key = self.recipe.key(&self.contents, &interpreter);
        let (built, held) = self.made(&key, &interpreter)?;
        // One that nobody will ask for again would only be left.
        if !self.recipe.is_of_one_task(&self.contents)
            && let Some(answer) = Answer::new(key, &[&path, &interpreter.executable])
        {
            // Without it the next one asks the interpreter again.
            let _ = self
                .make_folder(&self.layout.answers())
                .and_then(|()| notes::write(&note, &answer, false).map_err(Failure::file("write", &note)));
        }
        Ok((built, Some(held)))
    }

    /// The first of the worker's own interpreters that is of this version. One that this user cannot start, or that is
    /// broken, is none: `worker show` has its fault.
    fn offered(&self, version: &str) -> Option<(PathBuf, Interpreter)> {
        let mut runs = self.pythons.iter().filter(|path| is_program(path));
        runs.find_map(|path| {
            let interpreter = self.tools.interpreter(path, true).ok()?;
            satisfies(&interpreter, version).then(|| (path.clone(), interpreter))
        })
    }

    fn sought(&self) -> Result<Sought, Failure> {
        match (&self.recipe.python.interpreter, self.recipe.project()) {
            (Some(path), _) if path.starts_with('/') => {
                let path = PathBuf::from(path);
                if is_program(&path) { Ok(Sought::Path(path)) } else { Err(Failure::NoInterpreter { path }) }
            }
            (Some(version), _) => Ok(Sought::Version(version.clone())),
            (None, Some(folder)) => Ok(Sought::Project(self.workspace.join(folder))),
            (None, None) => {
                let found = ["python3", "python"].into_iter().find_map(|name| self.tools.in_path(name));
                found.map(Sought::Path).ok_or_else(|| Failure::NoPython { path: self.tools.path() })
            }
        }
    }

    /// A complete environment, kept from now on; `None` = it is not complete.
    fn held(&self, key: &Key) -> Result<Option<(Built, Held)>, Failure> {
        if notes::complete(self.layout, key).is_none() {
            return Ok(None);
        }
        let path = self.layout.lock(key.as_str());
        let held = self.wait(&path, false, Wait::Lock)?;
        held.touch();
        // It may have gone in between.
        Ok(notes::complete(self.layout, key).map(|built| (built, held)))
    }

    /// The environment, built by this process if nobody else does.
    fn made(&self, key: &Key, interpreter: &Interpreter) -> Result<(Built, Held), Failure> {
        if let Some(found) = self.held(key)? {
            return Ok(found);
        }
        // Not the lock of who uses it: that one is had alone only when all tasks in it have ended.
        let _builds = self.wait(&self.layout.build_lock(key.as_str()), true, Wait::Build)?;
        let lock = self.layout.lock(key.as_str());
        loop {
            // Once more: who was waited for has built it. Before others may build, it is kept.
            if let Some(found) = self.held(key)? {
                return Ok(found);
            }
            let without_python = self.layout.marker(key).exists();
            let alone = self.wait(&lock, true, if without_python { Wait::Users } else { Wait::Lock })?;
            // A builder of an earlier version has only this lock.
            if notes::complete(self.layout, key).is_none() {
                if let Some(refused) = Refused::of(self.layout, key) {
                    refused.said.lines().for_each(say);
                    return Err(refused.failure());
                }
                let _limit = self.limit();
                self.build(key, interpreter)
                    .inspect_err(|failure| Refused::note(self.layout, key, failure))?;
            }
            // Who removes environments may be faster now: then it is built once more.
            drop(alone);
        }
    }

    fn wait(&self, lock: &Path, alone: bool, what: Wait) -> Result<Held, Failure> {
        wait_for(lock, alone, || self.waits.say(what)).map_err(Failure::file("lock", lock))
    }

    /// Ends this process when what follows takes too long.
    fn limit(&self) -> Option<TimeLimit> {
        let timeout = self.timeout;
        let begun = TimeLimit::begin(timeout, move || {
            let seconds = timeout.millis() as f64 / 1000.0;
            say(&format!("{CLOSING}{TOO_LONG}{seconds} s (the worker's `environment_timeout_s`)"));
            // This thread cannot interrupt what the other waits for; the process is of this build alone.
            std::process::exit(1);
        });
        begun.map_err(|error| say(&format!("gpulayer: this build has no time limit: {error}"))).ok()
    }

    /// Only with the lock held alone. What an earlier build left unfinished goes first.
    fn build(&self, key: &Key, interpreter: &Interpreter) -> Result<(), Failure> {
        let environment = self.layout.environment(key);
        remove_tree(&environment).map_err(|error| Failure::File {
            operation: "remove",
            path: error.path,
            source: error.source,
        })?;
        let built = if self.recipe.has_packages() {
            self.install(key, &environment, interpreter)?
        } else {
            self.wrap(&environment, &interpreter.executable)?
        };
        let marker = self.layout.marker(key);
        notes::write(&marker, &Complete { at: environment, built }, true)
            .map_err(Failure::file("write", &marker))
    }

    fn install(&self, key: &Key, environment: &Path, interpreter: &Interpreter) -> Result<Built, Failure> {
        let uv = self.tools.uv()?;
        let version = interpreter.version.split_whitespace().next().unwrap_or_default();
        let executable = interpreter.executable.display();
        say(&format!("gpulayer: building the Python environment {key} (Python {version}, {executable})"));
        let cache = self.layout.lock(UV_CACHE);
        let of_cache = wait_for(&cache, false, || {}).map_err(Failure::file("lock", &cache))?;
        of_cache.touch();
        let steps = steps(self.recipe, &self.contents, &interpreter.executable, environment, self.workspace);
        for step in &steps {
            self.tools.run(&uv, step)?;
        }
        let mut libraries = Vec::new();
        for packages in packages_of(environment) {
            if !interpreter.packages_of_environment.is_empty() {
                let path = packages.join(BEHIND);
                let lines = interpreter.packages_of_environment.iter();
                let lines: String = lines.map(|folder| add_folder(folder)).collect();
                fs::write(&path, lines).map_err(Failure::file("write", &path))?;
            }
            let nvidia = folders_in(&packages.join("nvidia"));
            libraries.extend(nvidia.into_iter().map(|folder| folder.join("lib")));
        }
        libraries.retain(|folder| folder.is_dir());
        libraries.sort();
        Ok(Built { programs: vec![environment.join("bin")], root: Some(environment.to_owned()), libraries })
    }

    /// An interpreter that is called otherwise, under the names by which programs call one.
    fn wrap(&self, environment: &Path, interpreter: &Path) -> Result<Built, Failure> {
        let programs = environment.join("bin");
        self.make_folder(&programs)?;
        let quoted = interpreter.display().to_string().replace('\'', "'\\''");
        for name in ["python", "python3"] {
            // Not a link: by its own path an interpreter finds its packages.
            let path = programs.join(name);
            let write = || {
                fs::write(&path, format!("#!/bin/sh\nexec '{quoted}' \"$@\"\n"))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            };
            write().map_err(Failure::file("write", &path))?;
        }
        let own = interpreter.parent().map(Path::to_owned);
        Ok(Built { programs: [programs].into_iter().chain(own).collect(), root: None, libraries: Vec::new() })
    }

    fn make_folder(&self, path: &Path) -> Result<(), Failure> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(Failure::file("make", path))
    }
}

/// Who is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// A task that builds it.
    Build,
    /// The tasks in it, which a build would take it away from.
    Users,
    /// Whoever it is: the worker that sees whether it can be removed, or a builder of an earlier version.
    Lock,
}

/// What this process has said of its waiting: each thing once.
#[derive(Debug, Default)]
struct Waits(RefCell<Vec<Wait>>);

impl Waits {
    fn say(&self, what: Wait) {
        if self.0.borrow().contains(&what) {
            return;
        }
        self.0.borrow_mut().push(what);
        say(match what {
            Wait::Build => "gpulayer: waiting for this Python environment, which another task builds",
            Wait::Users => {
                "gpulayer: this Python environment has lost its Python and is built anew when the tasks that use it have ended"
            }
            Wait::Lock => "gpulayer: waiting for this Python environment, which another process has locked",
        });
    }
}

/// An interpreter whose folder serves as it is: `python` and `python3` there are this one.
fn as_it_is(interpreter: &Path) -> Option<Built> {
    let folder = interpreter.parent()?;
    let own = fs::canonicalize(interpreter).ok()?;
    let same = |name: &str| fs::canonicalize(folder.join(name)).is_ok_and(|path| path == own);
    let serves = ["python", "python3"].into_iter().all(same);
    let above = folder.parent().filter(|above| above.join("pyvenv.cfg").is_file());
    serves.then(|| Built {
        programs: vec![folder.to_owned()],
        root: above.map(Path::to_owned),
        libraries: Vec::new(),
    })
}

/// A line by which Python adds a folder with packages, and what they add themselves.
fn add_folder(folder: &Path) -> String {
    let quoted = folder.display().to_string().replace('\\', "\\\\").replace('\'', "\\'");
    format!("import site; site.addsitedir('{quoted}')\n")
}

/// `lib/python3.11/site-packages` of a virtual environment.
fn packages_of(environment: &Path) -> Vec<PathBuf> {
    let versions = folders_in(&environment.join("lib"));
    let packages = versions.into_iter().map(|version| version.join("site-packages"));
    packages.filter(|folder| folder.is_dir()).collect()
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
