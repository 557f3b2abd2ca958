//! What a build runs: `uv`, and interpreters. Each has the build's own streams, and an environment that names no other
//! virtual environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::layout::Layout;
use crate::domain::python::{Interpreter, Step, find_interpreter, install_interpreter};
use crate::process::foreground::Foreground;
use crate::process::is_program;

const PROBE: &str = include_str!("probe.py");
/// By these a tool would find another environment than the one it is told of.
const MISLEADING: [&str; 7] = [
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_PROJECT_ENVIRONMENT",
    "UV_SYSTEM_PYTHON",
    "UV_BREAK_SYSTEM_PACKAGES",
];

/// The tools of one build.
pub(super) struct Tools<'a> {
    layout: &'a Layout,
    workspace: &'a Path,
    uv: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
}

impl<'a> Tools<'a> {
    /// With the environment of this process. `uv` is the one that was configured.
    pub(super) fn new(layout: &'a Layout, workspace: &'a Path, uv: Option<PathBuf>) -> Self {
        let own: [(&str, OsString); 4] = [
            ("UV_CACHE_DIR", layout.uv_cache().into()),
            ("UV_PYTHON_INSTALL_DIR", layout.pythons().into()),
            // Nothing outside of the cache is touched.
            ("UV_PYTHON_INSTALL_BIN", "0".into()),
            ("UV_NO_PROGRESS", "1".into()),
        ];
        let kept = std::env::vars_os().filter(|(name, _)| {
            !MISLEADING.iter().any(|other| name == other) && !own.iter().any(|(set, _)| name == set)
        });
        let mut environment: Vec<_> = kept.collect();
        environment.extend(own.map(|(name, value)| (OsString::from(name), value)));
        Self { layout, workspace, uv, environment }
    }

    /// A program of the task's `PATH`.
    pub(super) fn in_path(&self, name: &str) -> Option<PathBuf> {
        let (_, path) = self.environment.iter().find(|(name, _)| name == "PATH")?;
        std::env::split_paths(path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(name))
            .find(|path| is_program(path))
    }

    pub(super) fn path(&self) -> String {
        let path = self.environment.iter().find(|(name, _)| name == "PATH");
        path.map_or(String::new(), |(_, value)| value.to_string_lossy().into_owned())
    }

    /// `uv`: the configured one, one of `PATH`, one beside this program (`pip install gpulayer uv`), or where its own
    /// installer puts it.
    pub(super) fn uv(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.uv {
            let searched =
                || Failure::NoUv { searched: format!("the setting `uv` names {}", path.display()) };
            return is_program(path).then(|| path.clone()).ok_or_else(searched);
        }
        let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("uv")));
        let home = self.environment.iter().find(|(name, _)| name == "HOME");
        let installed = home.map(|(_, home)| Path::new(home).join(".local/bin/uv"));
        let found =
            self.in_path("uv").into_iter().chain(beside).chain(installed).find(|path| is_program(path));
        found.ok_or_else(|| Failure::NoUv {
            searched: format!("looked in PATH ({}), beside `gpulayer`, and in ~/.local/bin", self.path()),
        })
    }

    /// Carries a step out.
    pub(super) fn run(&self, uv: &Path, step: &Step) -> Result<(), Failure> {
        let environment = self.with(step);
        let ended = self.call(uv, step, &environment).run();
        ended
            .map_err(|source| Failure::Start { path: uv.to_owned(), source })?
            .map_err(|ended| Failure::step(step.shown, ended))
    }

    /// Where an interpreter is, which is downloaded when it is not there.
    pub(super) fn find(&self, version: Option<&str>, project: Option<&Path>) -> Result<PathBuf, Failure> {
        let uv = self.uv()?;
        let step = find_interpreter(version, project);
        let environment = self.with(&step);
        let look = |mute: bool| {
            let call = Foreground { mute, ..self.call(&uv, &step, &environment) };
            call.printed().map_err(|source| Failure::Start { path: uv.clone(), source })
        };
        // One that is not there is no error as long as it can be downloaded.
        let mut found = look(version.is_some())?;
        if let (Err(_), Some(version)) = (&found, version) {
            self.run(&uv, &install_interpreter(version))?;
            found = look(false)?;
        }
        let printed = found.map_err(|ended| Failure::step(step.shown, ended))?;
        let line = String::from_utf8_lossy(&printed);
        Ok(PathBuf::from(line.trim()))
    }

    /// What an interpreter says of itself. `mute`: what it complains of is nobody's business.
    pub(super) fn interpreter(&self, path: &Path, mute: bool) -> Result<Interpreter, Failure> {
        let bad = |why: String| Failure::BadInterpreter { path: path.to_owned(), why };
        // Without the job's variables and packages.
        let arguments: Vec<OsString> = ["-I", "-c", PROBE].map(OsString::from).to_vec();
        let asked = Foreground {
            program: path,
            arguments: &arguments,
            environment: &self.environment,
            folder: self.layout.path().to_owned(),
            input: "",
            mute,
        };
        let printed = asked.printed().map_err(|error| bad(error.to_string()))?;
        let printed = printed.map_err(|ended| bad(format!("it {}", ended.how)))?;
        serde_json::from_slice(&printed).map_err(|error| bad(error.to_string()))
    }

    fn call<'b>(
        &'b self,
        uv: &'b Path,
        step: &'b Step,
        environment: &'b [(OsString, OsString)],
    ) -> Foreground<'b> {
        let folder = if step.in_workspace { self.workspace } else { self.layout.path() };
        Foreground {
            program: uv,
            arguments: &step.arguments,
            environment,
            folder: folder.to_owned(),
            input: &step.input,
            mute: false,
        }
    }

    fn with(&self, step: &Step) -> Vec<(OsString, OsString)> {
        let own = step.variables.iter().map(|(name, value)| (OsStr::new(name).to_owned(), value.clone()));
        self.environment.iter().cloned().chain(own).collect()
    }
}
