//! How a program finds its Python environment: by its variables alone, as after `source bin/activate`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An environment that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Folders with its programs, `python` and `python3` among them; the first goes first.
    pub programs: Vec<PathBuf>,
    /// Its own folder, when it is a virtual environment.
    pub root: Option<PathBuf>,
    /// Folders with shared libraries that its packages brought (`…/site-packages/nvidia/*/lib`).
    pub libraries: Vec<PathBuf>,
}

/// How a program's variables change for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Variables with their values.
    pub set: Vec<(OsString, OsString)>,
    /// Variables that it is to do without.
    pub unset: Vec<OsString>,
}

/// The change. `given` is what the task has; a job's own value stays, behind what the environment needs, save those by
/// which another environment would be found: `VIRTUAL_ENV` is this one's, and `PYTHONHOME` goes. `code` is a folder of
/// the workspace whose modules are to be found.
pub fn surroundings(built: &Built, given: &dyn Fn(&str) -> Option<OsString>, code: Option<&Path>) -> Change {
    let mut change =
        Change { set: Vec::new(), unset: vec!["PYTHONHOME".into(), "__PYVENV_LAUNCHER__".into()] };
    let mut lead = |name: &str, folders: &[PathBuf], otherwise: &str| {
        if !folders.is_empty() {
            let behind = given(name).filter(|value| !value.is_empty());
            let behind = behind.unwrap_or_else(|| otherwise.into());
            change.set.push((name.into(), joined(folders, &behind)));
        }
    };
    lead("PATH", &built.programs, "/usr/local/bin:/usr/bin:/bin");
    lead("LD_LIBRARY_PATH", &built.libraries, "");
    lead("PYTHONPATH", &code.map(Path::to_owned).into_iter().collect::<Vec<_>>(), "");
    match &built.root {
        Some(root) => change.set.push(("VIRTUAL_ENV".into(), root.into())),
        None => change.unset.push("VIRTUAL_ENV".into()),
    }
    change
}

/// Folders with colons between. One of them with a colon in it could not be told from two.
fn joined(folders: &[PathBuf], behind: &OsStr) -> OsString {
    let mut joined = OsString::new();
    let parts = folders.iter().map(|folder| folder.as_os_str()).chain([behind]);
    for part in parts.filter(|part| !part.is_empty()) {
        if !joined.is_empty() {
            joined.push(":");
        }
        joined.push(part);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(change: &'a Change, name: &str) -> Option<&'a str> {
        change.set.iter().find(|(set, _)| set == name).and_then(|(_, value)| value.to_str())
    }

    #[test]
    fn the_environment_leads_and_the_jobs_own_stays_behind() {
        let built = Built {
            programs: vec!["/e/bin".into()],
            root: Some("/e".into()),
            libraries: vec!["/e/nvidia/cublas/lib".into(), "/e/nvidia/cudnn/lib".into()],
        };
        let given = |name: &str| match name {
            "PATH" => Some("/conda/bin:/bin".into()),
            "LD_LIBRARY_PATH" => Some("/opt/cuda/lib64".into()),
            "VIRTUAL_ENV" => Some("/conda".into()),
            _ => None,
        };
        let change = surroundings(&built, &given, Some(Path::new("/w/p/src")));
        assert_eq!(value(&change, "PATH"), Some("/e/bin:/conda/bin:/bin"));
        let libraries = "/e/nvidia/cublas/lib:/e/nvidia/cudnn/lib:/opt/cuda/lib64";
        assert_eq!(value(&change, "LD_LIBRARY_PATH"), Some(libraries));
        assert_eq!(value(&change, "VIRTUAL_ENV"), Some("/e"));
        assert_eq!(value(&change, "PYTHONPATH"), Some("/w/p/src"));
        assert!(change.unset.contains(&"PYTHONHOME".into()));
    }

    #[test]
    fn an_interpreter_alone_changes_where_programs_are_found() {
        let built = Built { programs: vec!["/opt/py/bin".into()], ..Built::default() };
        let change = surroundings(&built, &|_| None, None);
        assert_eq!(value(&change, "PATH"), Some("/opt/py/bin:/usr/local/bin:/usr/bin:/bin"));
        assert_eq!(change.set.len(), 1);
        assert!(change.unset.contains(&"VIRTUAL_ENV".into()));
    }
}
