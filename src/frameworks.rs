//! The Python interpreters of a worker, and what their frameworks can really compute on. Every look is a child of its
//! own: an import that hangs or crashes is a fault of that framework. Importing one takes seconds of CPU, so what was
//! found is kept, and found again only when the interpreter's packages or the machine's GPUs have changed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::gpu::{Framework, Gpu, Interpreter};
use crate::process::RunAs;
use crate::process::asked::{AskError, Asked, Printed, printed_by};

const PROBE: &str = include_str!("frameworks/probe.py");
const MARK: &str = "gpulayer ";
/// An interpreter starts in some tens of milliseconds.
const LIST_WITHIN: Duration = Duration::from_secs(20);
/// A first import from a cold network file system takes its time.
const IMPORT_WITHIN: Duration = Duration::from_secs(90);
const REMEMBERED: &str = "interpreters.json";
/// Of the worker's environment an interpreter has this.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];
/// A probe takes no GPU memory, and speaks only when it is asked.
const QUIET: [(&str, &str); 3] = [
    ("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
    ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ("TF_CPP_MIN_LOG_LEVEL", "3"),
];

/// What is to be looked at.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Interpreters, by their paths.
    pub pythons: Vec<String>,
    /// The machine's GPUs: others let a framework use something else.
    pub gpus: Vec<Gpu>,
    /// Whom they run as; `None` = this process' user. Tasks may write to their packages, so they run as tasks do.
    pub run_as: Option<RunAs>,
    /// Where the last result is kept; `None` = nowhere.
    pub folder: Option<PathBuf>,
}

/// What an interpreter tells of itself without importing anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Listed {
    version: String,
    /// Where each framework lies, and when that was last changed.
    found: BTreeMap<String, Vec<(String, f64)>>,
}

/// What a framework tells when it is imported.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Imported {
    Works { version: String, backends: Vec<String> },
    Fails { fault: String },
}

/// An interpreter as it was found, and what it depended on.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Remembered {
    listed: Listed,
    gpus: Vec<String>,
    interpreter: Interpreter,
}

/// The `python3` of this process' `PATH`, for whoever offers what its own user would start.
pub fn on_path() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.is_file())?;
    found.to_str().map(str::to_owned)
}

/// Looks at all of them, in their order. Blocks for seconds.
pub fn look(look: &Look) -> Vec<Interpreter> {
    let file = look.folder.as_ref().map(|folder| folder.join(REMEMBERED));
    let before = file.as_deref().map(recall).unwrap_or_default();
    let gpus: Vec<String> =
        look.gpus.iter().map(|gpu| format!("{} {}", gpu.uuid, gpu.driver.as_deref().unwrap_or(""))).collect();
    let mut found = Vec::new();
    let mut keep = Vec::new();
    for path in &look.pythons {
        let listed = match ask::<Listed>(look, path, "list", LIST_WITHIN) {
            Ok(listed) => listed,
            Err(fault) => {
                let nothing = BTreeMap::new();
                found.push(Interpreter {
                    path: path.clone(),
                    version: None,
                    frameworks: nothing,
                    fault: Some(fault),
                });
                continue;
            }
        };
        let same = |known: &&Remembered| {
            known.interpreter.path == *path && known.listed == listed && known.gpus == gpus
        };
        let interpreter = match before.iter().find(same) {
            Some(known) => known.interpreter.clone(),
            None => import_all(look, path, &listed),
        };
        // What failed may have failed for a passing reason.
        if interpreter.frameworks.values().all(|framework| framework.fault.is_none()) {
            keep.push(Remembered { listed, gpus: gpus.clone(), interpreter: interpreter.clone() });
        }
        found.push(interpreter);
    }
    if let Some(Err(error)) = file.map(|file| remember(&file, &keep)) {
        tracing::debug!(%error, "what the interpreters can import is not remembered");
    }
    found
}

fn recall(file: &Path) -> Vec<Remembered> {
    std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn remember(file: &Path, keep: &[Remembered]) -> std::io::Result<()> {
    let unfinished = file.with_extension("unfinished");
    std::fs::write(&unfinished, serde_json::to_vec(keep)?)?;
    std::fs::rename(unfinished, file)
}

fn import_all(look: &Look, path: &str, listed: &Listed) -> Interpreter {
    let import = |name: &String| {
        let framework = match ask::<Imported>(look, path, name, IMPORT_WITHIN) {
            Ok(Imported::Works { version, backends }) => Framework { version, backends, fault: None },
            Ok(Imported::Fails { fault }) | Err(fault) => {
                Framework { version: String::new(), backends: Vec::new(), fault: Some(fault) }
            }
        };
        (name.clone(), framework)
    };
    let frameworks = listed.found.keys().map(import).collect();
    Interpreter { path: path.to_owned(), version: Some(listed.version.clone()), frameworks, fault: None }
}

/// Runs the probe and reads its answer; `Err` = why there is none, in words.
fn ask<A: for<'de> Deserialize<'de>>(
    look: &Look,
    path: &str,
    what: &str,
    within: Duration,
) -> Result<A, String> {
    let own = std::env::vars_os().filter(|(name, _)| PASSED_ON.iter().any(|passed| name == passed));
    let quiet = QUIET.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let asked = Asked {
        program: path.into(),
        name: None,
        arguments: ["-c", PROBE, what].map(OsString::from).into(),
        environment: own.chain(quiet).collect(),
        run_as: look.run_as.clone(),
    };
    let Printed { output, said, .. } = printed_by(&asked, within).map_err(|error| in_words(&error))?;
    let output = String::from_utf8_lossy(&output);
    let answer = output.lines().rev().find_map(|line| line.strip_prefix(MARK));
    answer.and_then(|answer| serde_json::from_str(answer).ok()).ok_or_else(|| match said.as_str() {
        "" => "it says nothing".to_owned(),
        said => said.to_owned(),
    })
}

fn in_words(error: &AskError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// An interpreter that says what is in files beside it, and counts how often it imports.
    fn interpreter(folder: &Path, torch: &str) -> String {
        let path = folder.join("python3");
        let here = folder.display();
        let list = r#"gpulayer {"version": "3.12.4", "found": {"torch": [["/x/torch", 1.5]]}}"#;
        let script = format!(
            "#!/bin/sh\ncase \"$3\" in\nlist) echo noise; echo '{list}' ;;\n*) echo >> {here}/imports; {torch} ;;\nesac\n"
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    fn imports(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("imports")).map_or(0, |text| text.lines().count())
    }

    #[test]
    fn what_was_found_is_found_again_without_an_import_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let torch = r#"echo 'gpulayer {"version": "2.6.0.dev1+cu124", "backends": ["cuda", "cpu"]}'"#;
        let python = interpreter(folder.path(), torch);
        let mut wanted =
            Look { pythons: vec![python], folder: Some(folder.path().to_owned()), ..Look::default() };
        let first = look(&wanted);
        let framework = &first[0].frameworks["torch"];
        assert_eq!((framework.version.as_str(), framework.fault.as_ref()), ("2.6.0.dev1+cu124", None));
        assert_eq!(framework.backends, ["cuda", "cpu"]);
        assert_eq!(first[0].version.as_deref(), Some("3.12.4"));
        assert_eq!((look(&wanted), imports(folder.path())), (first, 1));
        let gpu = r#"[{"uuid": "GPU-1", "vendor": "nvidia", "index": 0, "model": "A", "memory_bytes": 1}]"#;
        wanted.gpus = serde_json::from_str(gpu).unwrap();
        look(&wanted);
        assert_eq!(imports(folder.path()), 2);
    }

    #[test]
    fn a_framework_that_fails_is_a_fault_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let python = interpreter(folder.path(), "kill -SEGV $$");
        let wanted =
            Look { pythons: vec![python], folder: Some(folder.path().to_owned()), ..Look::default() };
        for tries in 1..=2 {
            let found = look(&wanted);
            let fault = found[0].frameworks["torch"].fault.clone();
            assert_eq!((fault.as_deref(), imports(folder.path())), (Some("it was killed by SIGSEGV"), tries));
        }
    }

    #[test]
    fn an_interpreter_that_is_none_has_a_fault() {
        let wanted = Look { pythons: vec!["/nowhere/python3".into()], ..Look::default() };
        let found = look(&wanted);
        assert!(found[0].fault.as_ref().unwrap().starts_with("/nowhere/python3 cannot be started"));
        let wanted = Look { pythons: vec!["/bin/true".into()], ..Look::default() };
        assert_eq!(look(&wanted)[0].fault.as_deref(), Some("it says nothing"));
    }

    #[test]
    fn a_real_interpreter_answers() {
        // Not every machine has one.
        let Some(python) = on_path() else { return };
        let found = look(&Look { pythons: vec![python], ..Look::default() });
        assert_eq!(found[0].fault, None);
        assert!(found[0].version.as_ref().unwrap().starts_with("3."), "{found:?}");
    }
}
