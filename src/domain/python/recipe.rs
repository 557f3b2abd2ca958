//! What a Python environment is made of, and the key it goes by: the same for everything that gives the same
//! environment, another one for everything else.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Interpreter, OF_UV};
use crate::contract::spec::{InputOrigin, JobSpec, Python};

/// Raised when environments of an earlier build of GPUlayer are not to be used any more.
const FORMAT: &str = "gpulayer-environment-1";

/// What a job asks for, with all that says how it is to be understood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// As asked.
    pub python: Python,
    /// The job's own `UV_*` variables.
    pub variables: BTreeMap<String, String>,
    /// What the job brought into its workspace, by digest: counts where packages come from there.
    pub brought: Vec<String>,
    /// Set where the job runs in a folder of somebody's own, whose files have no digest: what comes from there is built
    /// for this task alone.
    pub alone: Option<String>,
}

impl Recipe {
    /// That of a job; `None` = it asks for nothing. `alone` names its task, for a job that runs in no workspace.
    pub fn of(spec: &JobSpec, alone: Option<String>) -> Option<Self> {
        let python = spec.python.as_deref().filter(|python| **python != Python::default())?;
        let inputs = spec.inputs.iter().filter_map(|input| match input.origin {
            InputOrigin::Artifact(digest) => Some(format!("{} {digest}", input.path)),
            InputOrigin::From(_) => None,
        });
        let variables = spec.env.iter().filter(|(name, _)| name.starts_with(OF_UV));
        Some(Self {
            python: python.clone(),
            variables: variables.map(|(name, value)| (name.clone(), value.clone())).collect(),
            brought: spec.source.iter().map(ToString::to_string).chain(inputs).collect(),
            alone,
        })
    }

    /// Whether packages are named: else it is only about an interpreter.
    pub fn has_packages(&self) -> bool {
        let Python { requirements, lockfile, uv, .. } = &self.python;
        !requirements.is_empty() || lockfile.is_some() || uv.is_some()
    }

    /// The folder of its uv project, below the workspace.
    pub fn project(&self) -> Option<&str> {
        match (&self.python.uv, &self.python.lockfile) {
            (Some(folder), _) => Some(folder),
            (None, Some(path)) if lock_kind(path) == Some(LockKind::Uv) => {
                Some(path.rsplit_once('/').map_or(".", |(folder, _)| folder))
            }
            _ => None,
        }
    }

    /// The files of the workspace that say which packages, and whether each has to be there.
    pub fn files(&self) -> Vec<(String, bool)> {
        match (self.project(), &self.python.lockfile) {
            (Some(folder), _) => {
                let within =
                    |name: &str| if folder == "." { name.to_owned() } else { format!("{folder}/{name}") };
                vec![
                    (within("uv.lock"), true),
                    (within("pyproject.toml"), true),
                    (within("uv.toml"), false),
                    (within(".python-version"), false),
                ]
            }
            (None, Some(path)) => vec![(path.clone(), true)],
            (None, None) => Vec::new(),
        }
    }

    /// The key under which it is remembered which interpreter this meant, and which environment: `found` is the program
    /// that the interpreter is looked for by.
    pub fn question(&self, contents: &Contents, found: &str) -> Key {
        let mut hash = self.hash(contents, "question");
        add(&mut hash, found.as_bytes());
        Key::of(hash)
    }

    /// The key of the environment itself.
    pub fn key(&self, contents: &Contents, interpreter: &Interpreter) -> Key {
        let mut hash = self.hash(contents, "environment");
        let Interpreter { executable, version, abi, platform, packages_of_environment } = interpreter;
        add(&mut hash, executable.as_os_str().as_encoded_bytes());
        for text in [version, abi, platform] {
            add(&mut hash, text.as_bytes());
        }
        for folder in packages_of_environment {
            add(&mut hash, folder.as_os_str().as_encoded_bytes());
        }
        Key::of(hash)
    }

    /// Tells environments apart that have packages, without a look at the workspace; 0 = it has none.
    pub fn mark(&self) -> u32 {
        if !self.has_packages() {
            return 0;
        }
        let mut hash = self.hash(&Contents::default(), "mark");
        if !self.files().is_empty() {
            // What those files hold is not known here: they come with these.
            self.brought.iter().for_each(|digest| add(&mut hash, digest.as_bytes()));
        }
        let [a, b, c, d, ..] = <[u8; 32]>::from(hash.finalize());
        u32::from_be_bytes([a, b, c, d]).max(1)
    }

    fn hash(&self, contents: &Contents, what: &str) -> Sha256 {
        let mut hash = Sha256::new();
        add(&mut hash, FORMAT.as_bytes());
        add(&mut hash, what.as_bytes());
        // Where it lies in the workspace is no part of what comes out, nor is how the interpreter was named.
        let kind = match (self.project(), &self.python.lockfile) {
            (Some(_), _) => "project",
            (None, Some(path)) if lock_kind(path) == Some(LockKind::Pylock) => "pylock",
            (None, Some(_)) => "requirements lock",
            (None, None) if self.has_packages() => "requirements",
            (None, None) => "interpreter",
        };
        add(&mut hash, kind.as_bytes());
        for line in &self.python.requirements {
            add(&mut hash, line.as_bytes());
        }
        for (name, bytes) in &contents.0 {
            add(&mut hash, name.rsplit('/').next().unwrap_or(name).as_bytes());
            add(&mut hash, bytes);
        }
        for (name, value) in &self.variables {
            add(&mut hash, name.as_bytes());
            add(&mut hash, value.as_bytes());
        }
        if self.is_local(contents) {
            for digest in &self.brought {
                add(&mut hash, digest.as_bytes());
            }
            add(&mut hash, self.alone.as_deref().unwrap_or_default().as_bytes());
        }
        hash
    }

    /// Whether nothing but its one task ever asks for this.
    pub fn is_of_one_task(&self, contents: &Contents) -> bool {
        self.alone.is_some() && self.is_local(contents)
    }

    /// Whether packages, or files that name some, come from the workspace.
    pub fn is_local(&self, contents: &Contents) -> bool {
        let texts = || contents.0.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes));
        if self.project().is_some() {
            return texts().any(|text| text.lines().any(names_a_folder));
        }
        match self.python.lockfile.as_deref().and_then(lock_kind) {
            Some(LockKind::Pylock) => texts().any(|text| text.lines().any(names_a_path)),
            Some(_) => texts().any(|text| text.lines().any(is_local_requirement)),
            None => self.python.requirements.iter().any(|line| is_local_requirement(line)),
        }
    }
}

/// Each part behind its length, so that no two recipes read alike.
fn add(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_le_bytes());
    hash.update(part);
}

/// What the named files hold, in the order of [`Recipe::files`]; those that are not there are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents(pub Vec<(String, Vec<u8>)>);

/// What an environment goes by: the name of its folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// Half of a SHA-256: the path of an environment stands in the first line of its programs, which is short.
    const DIGITS: usize = 32;

    fn of(hash: Sha256) -> Self {
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(digits[..Self::DIGITS].to_owned())
    }

    /// As the name of a folder.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == Self::DIGITS && text.bytes().all(digit) { Ok(Self(text)) } else { Err("no key") }
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a lock file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// `uv.lock`, beside its `pyproject.toml`.
    Uv,
    /// `pylock.toml` or `pylock.NAME.toml` (PEP 751).
    Pylock,
    /// Lines with exact versions, as `uv pip compile` and `pip freeze` write them: `*.txt`.
    Requirements,
}

/// What the file at this path is; `None` = nothing that `uv` installs from.
pub fn lock_kind(path: &str) -> Option<LockKind> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let named_pylock = name.strip_prefix("pylock.").is_some_and(|rest| rest.ends_with(".toml"));
    match name {
        "uv.lock" => Some(LockKind::Uv),
        "pylock.toml" => Some(LockKind::Pylock),
        _ if named_pylock => Some(LockKind::Pylock),
        _ if name.ends_with(".txt") => Some(LockKind::Requirements),
        _ => None,
    }
}

/// Whether a line of requirements names something of the workspace: a path, or another file of lines. When in doubt it
/// does: that only costs a build.
fn is_local_requirement(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or(line).trim();
    if line.starts_with('#') {
        return false;
    }
    if let Some(option) = line.strip_prefix('-') {
        // Of options only those that name files or folders: `-r`, `-c`, `-f`, `-e` and their long forms.
        let named = ["r", "c", "f", "e", "-requirement", "-constraint", "-find-links", "-editable"];
        return named.iter().any(|name| option.starts_with(name)) && !option.contains("://");
    }
    let place = line.split_once(" @ ").map_or(line, |(_, place)| place.trim());
    let is_path = place.starts_with(['.', '/', '~']) || place.starts_with("file:");
    let plain = place.split([';', ' ', '[']).next().unwrap_or(place);
    let is_archive = [".whl", ".tar.gz", ".zip"].iter().any(|end| plain.ends_with(end));
    is_path || (!place.contains("://") && (is_archive || plain.contains('/')))
}

/// Whether a line of `uv.lock` or `pyproject.toml` names a folder beside the project's own.
fn names_a_folder(line: &str) -> bool {
    let value_of = |name: &str| {
        let at = line.find(&format!("{name} = \""))?;
        line[at..].split('"').nth(1)
    };
    let elsewhere = |value: &str| value != ".";
    ["directory", "editable", "virtual"].into_iter().filter_map(value_of).any(elsewhere)
        || ["registry", "find-links"].into_iter().filter_map(value_of).any(|value| !value.contains("://"))
        || names_a_path(line)
}

/// Whether a line names an archive by its path.
fn names_a_path(line: &str) -> bool {
    line.contains("path = \"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::artifact::Digest;

    fn interpreter() -> Interpreter {
        Interpreter {
            executable: "/usr/bin/python3.11".into(),
            version: "3.11.2 (main) [GCC 12]".to_owned(),
            abi: "cpython-311-x86_64-linux-gnu".to_owned(),
            platform: "linux-x86_64".to_owned(),
            packages_of_environment: Vec::new(),
        }
    }

    fn spec(python: Python) -> JobSpec {
        JobSpec {
            python: Some(Box::new(python)),
            source: Some(Digest::from_bytes([7; 32])),
            ..JobSpec::command(["true"])
        }
    }

    fn requirements(lines: &[&str]) -> Recipe {
        let requirements = lines.iter().map(|line| (*line).to_owned()).collect();
        Recipe::of(&spec(Python { requirements, ..Python::default() }), None).unwrap()
    }

    fn key(recipe: &Recipe) -> Key {
        recipe.key(&Contents::default(), &interpreter())
    }

    #[test]
    fn a_key_is_the_same_for_the_same_and_differs_for_everything_that_counts() {
        let recipe = requirements(&["torch==2.4", "numpy"]);
        let mut elsewhere = recipe.clone();
        elsewhere.brought = vec!["another source".to_owned()];
        elsewhere.python.interpreter = Some("3.11".to_owned());
        assert_eq!(key(&recipe), key(&elsewhere), "code and the interpreter's name change nothing");

        let mut keys = vec![key(&recipe), key(&requirements(&["torch==2.4numpy"]))];
        keys.push(key(&requirements(&["numpy", "torch==2.4"])));
        let mut index = recipe.clone();
        index.variables.insert("UV_INDEX_URL".to_owned(), "https://pypi.example".to_owned());
        keys.push(key(&index));
        let changes: [fn(&mut Interpreter); 5] = [
            |it| it.executable = "/opt/python".into(),
            |it| it.version.push('1'),
            |it| it.abi.push('d'),
            |it| it.platform = "linux-aarch64".to_owned(),
            |it| it.packages_of_environment = vec!["/venv/lib".into()],
        ];
        for change in changes {
            let mut other = interpreter();
            change(&mut other);
            keys.push(recipe.key(&Contents::default(), &other));
        }
        keys.push(recipe.question(&Contents::default(), "/usr/bin/python3.11"));
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(Key::try_from(keys[0].to_string()).is_ok());
        assert!(Key::try_from("../../etc".to_owned()).is_err());
    }

    #[test]
    fn what_comes_from_the_workspace_counts_with_it() {
        let recipe = requirements(&["./vendored/fast"]);
        let mut changed = recipe.clone();
        changed.brought = vec!["another source".to_owned()];
        assert_ne!(key(&recipe), key(&changed));
        let mut alone = recipe.clone();
        alone.alone = Some("task_1".to_owned());
        assert_ne!(key(&recipe), key(&alone));
        assert!(alone.is_of_one_task(&Contents::default()) && !recipe.is_of_one_task(&Contents::default()));
        for local in [
            "-r more.txt",
            "--constraint=c.txt",
            "--find-links ./wheels",
            "fast @ file:///w/fast",
            "fast @ ./fast",
            "fast-1.0-py3-none-any.whl",
            "/opt/wheels/fast.whl ; python_version > '3'",
            "vendored/fast",
        ] {
            assert!(requirements(&[local]).is_local(&Contents::default()), "{local}");
        }
        for remote in [
            "torch==2.4",
            "torch[extra]>=2 ; sys_platform == 'linux' # ./not a path",
            "--index-url https://pypi.example/simple",
            "--extra-index-url https://download.pytorch.org/whl/cu124",
            "--find-links https://example.org/wheels",
            "fast @ https://example.org/fast-1.0-py3-none-any.whl",
            "fast @ git+https://example.org/fast.git@main",
            "--hash=sha256:00",
            "--pre",
            "# -r more.txt",
        ] {
            assert!(!requirements(&[remote]).is_local(&Contents::default()), "{remote}");
        }
    }

    #[test]
    fn a_project_is_its_lock_and_what_lies_beside_it() {
        let recipe = |python| Recipe::of(&spec(python), None).unwrap();
        let by_folder = recipe(Python { uv: Some("train".to_owned()), ..Python::default() });
        let by_lock = recipe(Python { lockfile: Some("train/uv.lock".to_owned()), ..Python::default() });
        assert_eq!(by_folder.files(), by_lock.files());
        assert_eq!(by_folder.files()[0], ("train/uv.lock".to_owned(), true));
        let at_root = recipe(Python { lockfile: Some("uv.lock".to_owned()), ..Python::default() });
        assert_eq!((at_root.project(), at_root.files()[1].0.as_str()), (Some("."), "pyproject.toml"));

        let contents = |lock: &str| Contents(vec![("uv.lock".to_owned(), lock.as_bytes().to_vec())]);
        let own = "source = { editable = \".\" }\nsource = { registry = \"https://pypi.org/simple\" }";
        assert!(!at_root.is_local(&contents(own)));
        for other in [
            "source = { directory = \"../lib\" }",
            "source = { editable = \"packages/a\" }",
            "source = { registry = \"../wheels\" }",
            "    { path = \"a-1.0-py3-none-any.whl\" },",
        ] {
            assert!(at_root.is_local(&contents(other)), "{other}");
        }
        assert_ne!(at_root.key(&contents(own), &interpreter()), at_root.key(&contents(""), &interpreter()));
    }

    #[test]
    fn a_job_that_asks_for_nothing_has_no_recipe() {
        assert_eq!(Recipe::of(&JobSpec::command(["true"]), None), None);
        assert_eq!(Recipe::of(&spec(Python::default()), None), None);
        let version = Python { interpreter: Some("3.11".to_owned()), ..Python::default() };
        assert!(!Recipe::of(&spec(version), None).unwrap().has_packages());
    }

    #[test]
    fn lock_files_are_known_by_their_names() {
        for (path, kind) in [
            ("a/uv.lock", Some(LockKind::Uv)),
            ("pylock.toml", Some(LockKind::Pylock)),
            ("locks/pylock.gpu.toml", Some(LockKind::Pylock)),
            ("requirements.lock.txt", Some(LockKind::Requirements)),
            ("poetry.lock", None),
            ("environment.yml", None),
            ("pyproject.toml", None),
        ] {
            assert_eq!(lock_kind(path), kind, "{path}");
        }
    }
}
