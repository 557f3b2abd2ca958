//! Where a worker finds the secrets that jobs ask for: its own `[secrets]` table in `config.toml`, and, where it
//! allows that, the variables and files a job names. Read at every launch, so that a changed value counts at once
//! and none is kept. What goes wrong is told by names, never by values or by lines of a file that may hold them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::Value;

use crate::contract::spec::Secret;
use crate::domain::secrets::{MAX_VALUE_BYTES, SecretRef, SecretValue, UnfitValue};
use crate::short_file;

/// The key of the table in `config.toml`.
pub(super) const TABLE: &str = "secrets";
/// What an entry of the table may be, for people.
pub(super) const ENTRY: &str = "a value in quotes, { file = \"/PATH\" } or { env = \"NAME\" }";

/// A worker's secrets.
#[derive(Debug, Clone, Default)]
pub struct SecretSource {
    /// `config.toml`; `None` = this worker has none.
    file: Option<PathBuf>,
    allow_spec_refs: bool,
}

/// What a job asked for and did not get: all of it at once.
#[derive(Debug)]
pub struct SecretsError {
    /// Each with its name in the spec and its reference.
    pub faults: Vec<(Secret, SecretFault)>,
}

/// Why a secret is not there.
#[derive(Debug, thiserror::Error)]
pub enum SecretFault {
    /// The table does not have it.
    #[error("no `{key}` in the [secrets] table of {}; add it there", file.display())]
    NotNamed {
        /// What was looked for.
        key: String,
        /// Where.
        file: PathBuf,
    },
    /// This worker has no configuration.
    #[error("the worker has no config.toml; neither HOME nor GPULAYER_HOME is set for it")]
    NoTable,
    /// Others may read or write the values.
    #[error("{} holds secrets and is not private (mode {mode:03o}); run chmod 600 on it, and change what may have been read", file.display())]
    NotPrivate {
        /// Which file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is somebody else's.
    #[error("{} holds secrets and belongs to user id {owner}; it has to be the worker's own", file.display())]
    NotOwn {
        /// Which file.
        file: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// The file has no form that could be read.
    #[error("{} is not valid TOML", file.display())]
    NotToml {
        /// Which file.
        file: PathBuf,
    },
    /// The table's entry is something else.
    #[error("`{key}` in the [secrets] table of {} is neither {ENTRY}", file.display())]
    BadEntry {
        /// Which.
        key: String,
        /// Where.
        file: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A variable is not set.
    #[error(
        "the worker's own environment has no variable `{variable}`: it is the one the daemon was started with, so `gpulayer down` and this command again take yours, or give a file as `file:/PATH`"
    )]
    NoVariable {
        /// Which.
        variable: String,
    },
    /// `env:` and `file:` have to be allowed.
    #[error(
        "this worker takes `name:` references alone; add the secret to its [secrets] table, or set allow_spec_secret_refs = true in its config.toml"
    )]
    NotAllowed,
    /// No reference that this build knows.
    #[error("the reference cannot be understood")]
    NoReference,
    /// The value is no use.
    #[error("the value {0}")]
    Unfit(UnfitValue),
}

impl fmt::Display for SecretsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (secret, fault)) in self.faults.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}secret {} ({}): {fault}", secret.name, secret.reference)?;
            // Each has a cause of its own, so that none can be the source of them all.
            if let SecretFault::Unreadable { source, .. } = fault {
                write!(f, ": {source}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for SecretsError {}

impl SecretSource {
    /// The table in this `config.toml`, and the variables and files that jobs name if that is allowed.
    pub fn new(file: PathBuf, allow_spec_refs: bool) -> Self {
        Self { file: Some(file), allow_spec_refs }
    }

    /// Whether there can be a table at all.
    pub fn has_table(&self) -> bool {
        self.file.is_some()
    }

    /// Whether jobs may name variables and files of this worker.
    pub fn allows_spec_refs(&self) -> bool {
        self.allow_spec_refs
    }

    /// What the table has, in order; nothing when it cannot be read.
    pub fn names(&self) -> Vec<String> {
        let table = self.file.as_deref().map(read_table);
        let table = table.and_then(Result::ok).unwrap_or_default();
        table.keys().cloned().collect()
    }

    /// When the table was last written, to see that it has changed.
    pub fn written_at(&self) -> Option<(i64, i64)> {
        let found = std::fs::metadata(self.file.as_deref()?).ok()?;
        Some((found.mtime(), found.mtime_nsec()))
    }

    /// Finds all of them, each with the name of its variable. Reads files: not for a thread that others wait for.
    pub fn resolve(&self, secrets: &[Secret]) -> Result<Vec<(String, SecretValue)>, SecretsError> {
        self.resolve_in(secrets, &|name| std::env::var_os(name))
    }

    fn resolve_in(
        &self,
        secrets: &[Secret],
        env: Env<'_>,
    ) -> Result<Vec<(String, SecretValue)>, SecretsError> {
        let (mut found, mut faults) = (Vec::new(), Vec::new());
        for secret in secrets {
            match self.value_of(&secret.reference, env) {
                Ok(value) => found.push((secret.name.clone(), value)),
                Err(fault) => faults.push((secret.clone(), fault)),
            }
        }
        if faults.is_empty() { Ok(found) } else { Err(SecretsError { faults }) }
    }

    fn value_of(&self, reference: &str, env: Env<'_>) -> Result<SecretValue, SecretFault> {
        let reference = SecretRef::parse(reference).ok_or(SecretFault::NoReference)?;
        if reference.reaches_into_worker() && !self.allow_spec_refs {
            return Err(SecretFault::NotAllowed);
        }
        let value = match reference {
            SecretRef::Name(key) => named(self.file.as_deref().ok_or(SecretFault::NoTable)?, key, env),
            SecretRef::Variable(name) => variable(name, env),
            SecretRef::File(path) => in_file(Path::new(path)),
        }?;
        value.check().map_err(SecretFault::Unfit)?;
        Ok(value)
    }
}

type Env<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;

fn named(file: &Path, key: &str, env: Env<'_>) -> Result<SecretValue, SecretFault> {
    let table = read_table(file)?;
    let bad = || SecretFault::BadEntry { key: key.to_owned(), file: file.to_owned() };
    match table.get(key) {
        None => Err(SecretFault::NotNamed { key: key.to_owned(), file: file.to_owned() }),
        Some(Value::String(value)) => {
            refuse_unless_private(file)?;
            Ok(SecretValue::new(value.as_str()))
        }
        Some(entry) => match elsewhere(entry).ok_or_else(bad)? {
            Elsewhere::File(path) => in_file(path),
            Elsewhere::Variable(name) => variable(name, env),
        },
    }
}

enum Elsewhere<'a> {
    File(&'a Path),
    Variable(&'a str),
}

fn elsewhere(entry: &Value) -> Option<Elsewhere<'_>> {
    let table = entry.as_table().filter(|table| table.len() == 1)?;
    let (key, value) = table.iter().next()?;
    match (key.as_str(), value.as_str()?) {
        ("file", path) if path.starts_with('/') => Some(Elsewhere::File(Path::new(path))),
        ("env", name) if !name.is_empty() && !name.contains(['=', '\0']) => Some(Elsewhere::Variable(name)),
        _ => None,
    }
}

/// Whether an entry of the table can be used, as far as its form tells.
pub(super) fn is_entry(entry: &Value) -> bool {
    entry.is_str() || elsewhere(entry).is_some()
}

fn variable(name: &str, env: Env<'_>) -> Result<SecretValue, SecretFault> {
    let value = env(name).ok_or_else(|| SecretFault::NoVariable { variable: name.to_owned() })?;
    Ok(SecretValue::new(value.into_encoded_bytes()))
}

/// The line ends behind the value are not part of it. One byte more than is allowed is read, so that too much shows.
fn in_file(path: &Path) -> Result<SecretValue, SecretFault> {
    let failed = |source| SecretFault::Unreadable { file: path.to_owned(), source };
    // A pipe or a device might never answer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let mut bytes = Vec::with_capacity(MAX_VALUE_BYTES + 3);
    File::open(path)
        .and_then(|file| file.take(MAX_VALUE_BYTES as u64 + 3).read_to_end(&mut bytes))
        .map_err(failed)?;
    let mut value = SecretValue::new(bytes);
    value.trim_line_end();
    Ok(value)
}

fn read_table(file: &Path) -> Result<toml::Table, SecretFault> {
    let text = match short_file::read_text(file, short_file::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(toml::Table::new()),
        Err(source) => return Err(SecretFault::Unreadable { file: file.to_owned(), source }),
    };
    // The error itself would show the line it stumbled over.
    let mut whole: toml::Table = text.parse().map_err(|_| SecretFault::NotToml { file: file.to_owned() })?;
    match whole.remove(TABLE) {
        Some(Value::Table(table)) => Ok(table),
        Some(_) => Err(SecretFault::NotToml { file: file.to_owned() }),
        None => Ok(toml::Table::new()),
    }
}

fn refuse_unless_private(file: &Path) -> Result<(), SecretFault> {
    let found = std::fs::metadata(file)
        .map_err(|source| SecretFault::Unreadable { file: file.to_owned(), source })?;
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Err(SecretFault::NotOwn { file: file.to_owned(), owner });
    }
    if mode & 0o077 != 0 {
        return Err(SecretFault::NotPrivate { file: file.to_owned(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Worker {
        folder: tempfile::TempDir,
    }

    impl Worker {
        fn with(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("config.toml"), text).unwrap();
            let worker = Self { folder };
            worker.chmod(0o600);
            worker
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("config.toml")
        }

        fn chmod(&self, mode: u32) {
            std::fs::set_permissions(self.file(), std::fs::Permissions::from_mode(mode)).unwrap();
        }

        fn ask(&self, allow: bool, reference: &str) -> Result<Vec<u8>, String> {
            let source = SecretSource::new(self.file(), allow);
            let secret = Secret { name: "KEY".to_owned(), reference: reference.to_owned() };
            let env = |name: &str| (name == "SET").then(|| "value of SET".into());
            match source.resolve_in(&[secret], &env) {
                Ok(found) => Ok(found[0].1.expose().to_vec()),
                Err(error) => Err(error.to_string()),
            }
        }
    }

    #[test]
    fn the_table_holds_values_and_places() {
        let worker = Worker::with("");
        let file = worker.folder.path().join("key");
        std::fs::write(&file, "value in file\r\n").unwrap();
        let text = format!(
            "port = 1\n[secrets]\nA = \"value itself\"\nB = {{ env = \"SET\" }}\nC = {{ file = \"{}\" }}\n",
            file.display()
        );
        std::fs::write(worker.file(), text).unwrap();
        assert_eq!(worker.ask(false, "name:A").unwrap(), b"value itself");
        assert_eq!(worker.ask(false, "name:B").unwrap(), b"value of SET");
        assert_eq!(worker.ask(false, "name:C").unwrap(), b"value in file");
        assert_eq!(SecretSource::new(worker.file(), false).names(), ["A", "B", "C"]);
        assert_eq!(SecretSource::default().names(), [""; 0]);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_if_it_holds_values() {
        let worker = Worker::with("[secrets]\nA = \"value itself\"\nB = { env = \"SET\" }\n");
        worker.chmod(0o644);
        let refused = worker.ask(false, "name:A").unwrap_err();
        assert!(refused.contains("mode 644") && refused.contains("chmod 600"), "{refused}");
        assert!(worker.ask(false, "name:B").is_ok());
    }

    #[test]
    fn variables_and_files_of_the_worker_are_read_only_where_it_allows_that() {
        let worker = Worker::with("");
        let path = worker.folder.path().join("key");
        std::fs::write(&path, "value in file\n").unwrap();
        let file = format!("file:{}", path.display());
        for reference in ["env:SET", &file] {
            let refused = worker.ask(false, reference).unwrap_err();
            assert!(refused.contains("allow_spec_secret_refs"), "{refused}");
        }
        assert_eq!(worker.ask(true, "env:SET").unwrap(), b"value of SET");
        assert_eq!(worker.ask(true, &file).unwrap(), b"value in file");
        let folder = format!("file:{}", worker.folder.path().display());
        assert!(worker.ask(true, &folder).unwrap_err().contains("not a regular file"));
    }

    #[test]
    fn every_fault_is_told_at_once_and_no_value_with_it() {
        let worker = Worker::with("[secrets]\nSHORT = \"hunter2\"\nODD = 12345678\n");
        let source = SecretSource::new(worker.file(), true);
        let secrets = ["name:NONE", "name:SHORT", "name:ODD", "env:NONE", "file:/no/such"]
            .map(|reference| Secret { name: "KEY".to_owned(), reference: reference.to_owned() });
        let told = source.resolve_in(&secrets, &|_| None).unwrap_err().to_string();
        assert_eq!(told.matches("secret KEY (").count(), 5, "{told}");
        assert!(!told.contains("hunter2") && !told.contains("12345678"), "{told}");
    }

    #[test]
    fn a_broken_file_is_not_quoted() {
        let worker = Worker::with("[secrets]\nA = hf_without_quotes\n");
        let told = worker.ask(false, "name:A").unwrap_err();
        assert!(told.contains("not valid TOML") && !told.contains("hf_without"), "{told}");
    }
}
