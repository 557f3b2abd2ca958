//! Which tasks one process of a reusable function may serve, one after another (CONTRACT, Functions).

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use sha2::{Digest, Sha256};

use super::environment::is_of_one_task;
use crate::contract::spec::JobSpec;
use crate::domain::secrets::SecretValue;

/// Raised when processes that an older worker started are not to serve the tasks of this one.
const FORMAT: &str = "gpulayer-reuse-1";

/// The key of the tasks that this one may share a process with; `None` = it may with none. Equal keys mean one project,
/// one source, the same inputs, Python environment, limits, variables and secrets, these by their values: code that was
/// edited never meets an old process. `env` is the task's whole environment, of which what is about one task alone does
/// not count.
pub fn reuse_key(
    spec: &JobSpec,
    env: &[(OsString, OsString)],
    secrets: &[(String, SecretValue)],
) -> Option<String> {
    if !spec.workload.function()?.reuse || spec.resources.gpus.is_some() || spec.distributed.is_some() {
        return None;
    }
    let mut digest = Sha256::new();
    let mut add = |piece: &[u8]| {
        // With its length: two pieces are not another two that read the same.
        digest.update((piece.len() as u64).to_le_bytes());
        digest.update(piece);
    };
    add(FORMAT.as_bytes());
    let limits = (spec.resources.cpus, spec.resources.memory_bytes);
    let asked = (&spec.project, &spec.source, &spec.inputs, &spec.python, limits);
    add(&serde_json::to_vec(&asked).ok()?);
    let shared = env.iter().filter(|(name, _)| !name.to_str().is_some_and(is_of_one_task));
    for (name, value) in shared {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    add(b"secrets");
    for (name, value) in secrets {
        add(name.as_bytes());
        add(value.expose());
    }
    Some(hex::encode(digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::quantity::Cpus;
    use crate::contract::spec::{
        Function, GpuCount, GpuRequest, Input, InputMode, InputOrigin, Python, Serializer, Workload,
    };

    fn spec() -> JobSpec {
        JobSpec::new(Workload::Function(Box::new(Function {
            payload: "{}".into(),
            serializer: Serializer::Json,
            entrypoint: Some("a:b".into()),
            values: Vec::new(),
            reuse: true,
        })))
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn secret(value: &str) -> Vec<(String, SecretValue)> {
        vec![("TOKEN".to_owned(), SecretValue::new(value.as_bytes().to_vec()))]
    }

    #[test]
    fn what_is_of_one_task_alone_does_not_count_and_everything_else_does() {
        let first = env(&[("PATH", "/bin"), ("GPULAYER_TASK_ID", "task_1"), ("TMPDIR", "/t/1")]);
        let second = env(&[("PATH", "/bin"), ("GPULAYER_TASK_ID", "task_2"), ("TMPDIR", "/t/2")]);
        let key = reuse_key(&spec(), &first, &secret("a")).unwrap();
        assert_eq!(reuse_key(&spec(), &second, &secret("a")).unwrap(), key);

        let mut call = spec();
        call.name = Some("other".into());
        if let Workload::Function(function) = &mut call.workload {
            function.payload = "{\"args\": [1]}".into();
        }
        assert_eq!(reuse_key(&call, &first, &secret("a")).unwrap(), key, "another call");

        type Change = fn(&mut JobSpec);
        let changes: [Change; 6] = [
            |spec| spec.project = "other".into(),
            |spec| spec.source = Some(crate::contract::artifact::Digest::from_bytes([1; 32])),
            |spec| {
                spec.python = Some(Box::new(Python { interpreter: Some("3.9".into()), ..Python::default() }))
            },
            |spec| spec.resources.memory_bytes = Some(1 << 30),
            |spec| spec.resources.cpus = Cpus::from_millis(2000),
            |spec| {
                spec.inputs.push(Input {
                    origin: InputOrigin::Artifact(crate::contract::artifact::Digest::from_bytes([2; 32])),
                    path: "data".into(),
                    unpack: false,
                    mode: InputMode::Ro,
                });
            },
        ];
        let mut keys: Vec<String> = changes
            .into_iter()
            .map(|change| {
                let mut spec = spec();
                change(&mut spec);
                reuse_key(&spec, &first, &secret("a")).unwrap()
            })
            .collect();
        let mut edited = spec();
        edited.source = Some(crate::contract::artifact::Digest::from_bytes([3; 32]));
        keys.push(reuse_key(&edited, &first, &secret("a")).unwrap());
        keys.push(reuse_key(&spec(), &env(&[("PATH", "/usr/bin")]), &secret("a")).unwrap());
        keys.push(reuse_key(&spec(), &first, &secret("b")).unwrap());
        keys.push(reuse_key(&spec(), &first, &[]).unwrap());
        let open = env(&[("PATH", "/bin"), ("TOKEN", "a")]);
        keys.push(reuse_key(&spec(), &open, &[]).unwrap());
        keys.push(key);
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn nobody_shares_unless_asked_or_with_gpus() {
        let mut once = spec();
        if let Workload::Function(function) = &mut once.workload {
            function.reuse = false;
        }
        assert_eq!(reuse_key(&once, &[], &[]), None);
        assert_eq!(reuse_key(&JobSpec::command(["true"]), &[], &[]), None);
        let mut with_gpus = spec();
        with_gpus.resources.gpus = Some(Box::new(GpuRequest::of(GpuCount::Count(1))));
        assert_eq!(reuse_key(&with_gpus, &[], &[]), None);
    }
}
