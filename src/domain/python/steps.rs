//! The calls of `uv` that make an environment.

use std::ffi::OsString;
use std::path::Path;

use super::recipe::{Contents, Recipe};

/// One call of `uv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What people know it as: `uv pip install`.
    pub shown: &'static str,
    /// Behind the program's name.
    pub arguments: Vec<OsString>,
    /// What it reads; empty = nothing.
    pub input: String,
    /// Variables it has beside the others.
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether it runs in the workspace, whose files it names and whose settings it follows.
    pub in_workspace: bool,
}

impl Step {
    fn new(shown: &'static str, words: &[&str]) -> Self {
        Self {
            shown,
            arguments: words.iter().map(OsString::from).collect(),
            input: String::new(),
            variables: Vec::new(),
            in_workspace: false,
        }
    }

    fn with(mut self, words: &[&str], path: &Path) -> Self {
        self.arguments.extend(words.iter().map(OsString::from));
        self.arguments.push(path.into());
        self
    }
}

/// The calls, in their order. The packages of the interpreter itself stay visible behind those of the job: a worker's
/// own PyTorch serves jobs that do not name one.
pub fn steps(
    recipe: &Recipe,
    contents: &Contents,
    interpreter: &Path,
    environment: &Path,
    workspace: &Path,
) -> Vec<Step> {
    let empty = Step::new("uv venv", &["venv", "--quiet", "--no-project", "--system-site-packages"])
        .with(&["--python"], interpreter)
        .with(&[], environment);
    let python = environment.join("bin/python");
    let mut install = match (recipe.project(), &recipe.python.lockfile) {
        (Some(folder), _) => {
            // The project's own code is used from the workspace, where each job has its own.
            Step::new("uv sync", &["sync", "--frozen", "--no-install-workspace", "--no-editable"])
                .with(&["--python"], &python)
                .with(&["--project"], &workspace.join(folder))
        }
        (None, Some(lock)) => {
            let step = Step::new("uv pip sync", &["pip", "sync"]);
            step.with(&["--python"], &python).with(&[], &workspace.join(lock))
        }
        (None, None) => {
            let step = Step::new("uv pip install", &["pip", "install", "-r", "-"]);
            step.with(&["--python"], &python)
        }
    };
    install.in_workspace = recipe.project().is_some() || recipe.is_local(contents);
    if recipe.project().is_some() {
        install.variables = vec![("UV_PROJECT_ENVIRONMENT", environment.into())];
    }
    install.input = recipe.python.requirements.iter().map(|line| format!("{line}\n")).collect();
    vec![empty, install]
}

/// The call that prints where an interpreter is: of this version, or the one that a project asks for.
pub fn find_interpreter(version: Option<&str>, project: Option<&Path>) -> Step {
    let step = Step::new("uv python find", &["python", "find"]);
    match (version, project) {
        (Some(version), _) => step.with(&["--no-project"], Path::new(version)),
        (None, Some(folder)) => step.with(&["--project"], folder),
        (None, None) => step,
    }
}

/// The call that downloads one.
pub fn install_interpreter(version: &str) -> Step {
    Step::new("uv python install", &["python", "install", version])
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::contract::spec::{JobSpec, Python};

    fn made(python: Python) -> Vec<Step> {
        let recipe =
            Recipe::of(&JobSpec { python: Some(Box::new(python)), ..JobSpec::command(["true"]) }, None)
                .unwrap();
        let at = Path::new;
        steps(&recipe, &Contents::default(), at("/usr/bin/python3"), at("/e/k"), at("/w"))
    }

    fn line(step: &Step) -> String {
        step.arguments.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn an_empty_environment_comes_first_and_sees_the_interpreters_packages() {
        let steps = made(Python { requirements: vec!["numpy".to_owned()], ..Python::default() });
        assert_eq!(
            line(&steps[0]),
            "venv --quiet --no-project --system-site-packages --python /usr/bin/python3 /e/k"
        );
        assert!(!steps[0].in_workspace);
    }

    #[test]
    fn each_way_has_its_call() {
        let of = |python: Python| made(python).pop().unwrap();
        let lines = of(Python { requirements: vec!["b".to_owned(), "a==1".to_owned()], ..Python::default() });
        assert_eq!(line(&lines), "pip install -r - --python /e/k/bin/python");
        assert_eq!((lines.input.as_str(), lines.in_workspace), ("b\na==1\n", false));
        let local = of(Python { requirements: vec!["./a".to_owned()], ..Python::default() });
        assert!(local.in_workspace);

        let lock = |name: &str| Python { lockfile: Some(name.to_owned()), ..Python::default() };
        assert_eq!(line(&of(lock("l/req.txt"))), "pip sync --python /e/k/bin/python /w/l/req.txt");
        for python in [lock("p/uv.lock"), Python { uv: Some("p".to_owned()), ..Python::default() }] {
            let project = of(python);
            assert_eq!(
                line(&project),
                "sync --frozen --no-install-workspace --no-editable --python /e/k/bin/python --project /w/p"
            );
            assert_eq!(project.variables, [("UV_PROJECT_ENVIRONMENT", OsString::from("/e/k"))]);
        }
    }

    #[test]
    fn an_interpreter_is_found_by_version_or_by_project() {
        assert_eq!(line(&find_interpreter(Some("3.11"), None)), "python find --no-project 3.11");
        assert_eq!(line(&find_interpreter(None, Some(Path::new("/w/p")))), "python find --project /w/p");
        assert_eq!(line(&install_interpreter("3.11")), "python install 3.11");
    }
}
