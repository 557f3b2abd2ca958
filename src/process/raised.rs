//! What a function raised, without the secrets of its task: they are taken out before the shim says that the task has
//! ended, since nobody else knows them then. What a function returned is its own affair.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::outcomes::{self, OUTCOMES_FILE};
use super::plain_file::open_plain_with;
use super::remark::remark;
use super::{FUNCTION_VARIABLE, RAISED_FILE, RETURNED_FILE};
use crate::domain::redaction::Redactor;

/// Of one that is longer nothing is told: as much of it as whoever explains an end reads.
pub const MOST_RAISED_BYTES: u64 = 8 << 20;
/// The field with the exception itself.
const PICKLE: &str = "pickle";

/// Takes them out of the files, if there are any; one that cannot be cleaned goes. Only when nobody of the task is left.
pub(super) fn hide_secrets(env: &[(OsString, OsString)], redactor: &Redactor) {
    let Some((_, folder)) = env.iter().find(|(name, _)| name == FUNCTION_VARIABLE) else { return };
    for name in [RAISED_FILE, RETURNED_FILE, OUTCOMES_FILE] {
        let path = Path::new(folder).join(name);
        let rewritten = open(&path).and_then(|mut file| match name {
            RAISED_FILE => rewrite(&mut file, redactor),
            _ => outcomes::rewrite(&mut file, &path, |raised| cleaned(raised, redactor)),
        });
        match rewritten {
            Ok(()) => {}
            Err(absent) if absent.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                remark(format_args!("{} is removed, as its secrets cannot be: {error}", path.display()));
                if let Err(error) = std::fs::remove_file(&path) {
                    remark(format_args!("{} cannot be removed: {error}", path.display()));
                }
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = open_plain_with(OpenOptions::new().read(true).write(true), path)?;
    // Under another name it would be somebody else's file that is written to.
    if file.metadata()?.nlink() != 1 {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file of its own"));
    }
    Ok(file)
}

fn rewrite(file: &mut File, redactor: &Redactor) -> io::Result<()> {
    if file.metadata()?.len() > MOST_RAISED_BYTES {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    Read::by_ref(file).take(MOST_RAISED_BYTES).read_to_end(&mut bytes)?;
    let Some(clean) = cleaned(&bytes, redactor)? else { return Ok(()) };
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&clean)
}

/// `None` = there is nothing in it.
fn cleaned(bytes: &[u8], redactor: &Redactor) -> io::Result<Option<Vec<u8>>> {
    let Ok(mut told) = serde_json::from_slice::<Value>(bytes) else {
        return Ok(redactor.cleaned(bytes));
    };
    let mut changed = false;
    if let Some(pickle) = told.get_mut(PICKLE) {
        let text = pickle.as_str().map(|text| STANDARD.decode(text));
        // Its lengths are written in it: what is taken out of the middle would leave no pickle.
        if text.is_some_and(|bytes| bytes.map_or(true, |bytes| redactor.cleaned(&bytes).is_some())) {
            *pickle = Value::Null;
            changed = true;
        }
    }
    changed |= hide(&mut told, redactor);
    if changed { Ok(Some(serde_json::to_vec(&told)?)) } else { Ok(None) }
}

/// Whether there was anything to hide.
fn hide(value: &mut Value, redactor: &Redactor) -> bool {
    match value {
        Value::String(text) => {
            let clean = redactor.redact(text);
            let changed = clean != *text;
            *text = clean;
            changed
        }
        Value::Array(items) => hide_each(items, redactor),
        Value::Object(fields) => hide_each(fields.values_mut(), redactor),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn hide_each<'a>(values: impl IntoIterator<Item = &'a mut Value>, redactor: &Redactor) -> bool {
    let mut changed = false;
    for value in values {
        // Each, whatever came of those before it.
        changed |= hide(value, redactor);
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::secrets::SecretValue;

    const SECRET: &str = "s3cr3t \"Value\"";

    fn redactor() -> Redactor {
        Redactor::new(&[("KEY", &SecretValue::new(SECRET))]).unwrap()
    }

    fn raised(message: &str, pickled: &str) -> Value {
        json!({"type": "ValueError", "message": message, "traceback": format!("ValueError: {message}\n"),
            "pickle": STANDARD.encode(format!("\u{0}{pickled}\u{0}")), "python": [3, 11, 7], "advice": null})
    }

    fn file_with(bytes: &[u8]) -> (tempfile::TempDir, Vec<(OsString, OsString)>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(RAISED_FILE), bytes).unwrap();
        let env = vec![(OsString::from(FUNCTION_VARIABLE), folder.path().into())];
        (folder, env)
    }

    #[test]
    fn of_several_calls_only_what_was_raised_is_cleaned() {
        let (folder, env) = file_with(b"{}");
        for name in [RETURNED_FILE, OUTCOMES_FILE] {
            let path = folder.path().join(name);
            let written = |message: &str| {
                let raised = serde_json::to_vec(&raised(message, "harmless")).unwrap();
                outcomes::file_of(&[(b'v', SECRET.as_bytes()), (b'r', &raised), (b'v', b"more")])
            };
            std::fs::write(&path, written(&format!("no login with {SECRET}"))).unwrap();
            hide_secrets(&env, &redactor());
            let found: Vec<_> = outcomes::read(&path);
            assert_eq!((&found[0], &found[2]), (&(b'v', SECRET.into()), &(b'v', b"more".to_vec())));
            let told: Value = serde_json::from_slice(&found[1].1).unwrap();
            assert_eq!((found.len(), &told["message"]), (3, &json!("no login with [secret KEY]")));
        }
        // Of one call.
        let path = folder.path().join(RETURNED_FILE);
        std::fs::write(&path, SECRET).unwrap();
        hide_secrets(&env, &redactor());
        assert_eq!(std::fs::read(&path).unwrap(), SECRET.as_bytes());
    }

    fn after(bytes: &[u8]) -> Vec<u8> {
        let (folder, env) = file_with(bytes);
        hide_secrets(&env, &redactor());
        std::fs::read(folder.path().join(RAISED_FILE)).unwrap()
    }

    #[test]
    fn texts_have_a_mark_and_a_pickle_with_one_is_left_out() {
        let text = serde_json::to_vec(&raised(&format!("no login with {SECRET}"), SECRET)).unwrap();
        let told: Value = serde_json::from_slice(&after(&text)).unwrap();
        assert_eq!(told["message"], "no login with [secret KEY]");
        assert_eq!(told["traceback"], "ValueError: no login with [secret KEY]\n");
        assert_eq!((&told["pickle"], &told["python"]), (&Value::Null, &json!([3, 11, 7])));
        // Nothing else is lost with the one of the other.
        let harmless = raised("no login", "harmless");
        let text = serde_json::to_vec_pretty(&harmless).unwrap();
        assert_eq!(after(&text), text, "byte for byte");
        let pickle = raised("no login", SECRET);
        let told: Value = serde_json::from_slice(&after(&serde_json::to_vec(&pickle).unwrap())).unwrap();
        assert_eq!((&told["pickle"], &told["message"]), (&Value::Null, &json!("no login")));
    }

    #[test]
    fn what_is_no_json_is_cleaned_as_bytes() {
        assert_eq!(after(format!("{{\"message\": {SECRET}").as_bytes()), b"{\"message\": [secret KEY]");
    }

    #[test]
    fn one_that_is_longer_than_anybody_reads_goes() {
        let (folder, env) = file_with(format!("[{}0]", "0,".repeat(4 << 20)).as_bytes());
        hide_secrets(&env, &redactor());
        assert!(!folder.path().join(RAISED_FILE).exists());
    }

    #[test]
    fn what_is_no_file_of_its_own_goes_and_is_not_written_to() {
        let text = serde_json::to_vec(&raised(SECRET, SECRET)).unwrap();
        for link in [
            |from: &Path, to: &Path| std::fs::hard_link(from, to),
            |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to),
        ] {
            let (folder, env) = file_with(&text);
            let elsewhere = folder.path().join("elsewhere");
            std::fs::rename(folder.path().join(RAISED_FILE), &elsewhere).unwrap();
            link(&elsewhere, &folder.path().join(RAISED_FILE)).unwrap();
            hide_secrets(&env, &redactor());
            assert!(std::fs::symlink_metadata(folder.path().join(RAISED_FILE)).is_err());
            assert_eq!(std::fs::read(&elsewhere).unwrap(), text);
        }
    }
}
