//! The canonical text of a spec gives the same spec back.

use gpulayer::contract::artifact::Digest;
use gpulayer::contract::quantity::{Cpus, Seconds};
use gpulayer::contract::spec::{
    Command, Input, InputMode, InputOrigin, JobSpec, OnUnreachable, Output, Resources, Retry, Run,
    StopSignal, Target, Workload,
};
use gpulayer::domain::spec::{ReadOptions, read, to_json};
use proptest::prelude::*;

/// What a job may be called: no word that commands read as another job.
const NAME: &str = "[a-zA-Z0-9._ -]{1,12}";
const TEXT: &str = "[ -~äß→]{1,12}";
const WORD: &str = "[a-z][a-z0-9_-]{0,8}";

fn seconds(least: u64) -> impl Strategy<Value = Seconds> {
    (least..1_000_000_000).prop_map(Seconds::from_millis)
}

fn command() -> impl Strategy<Value = Command> {
    let run = prop_oneof![
        prop::collection::vec(TEXT, 1..4).prop_map(Run::Argv),
        TEXT.prop_filter("blank", |text| !text.trim().is_empty()).prop_map(Run::Shell),
    ];
    (run, prop::option::of("[a-z]{1,4}(/[a-z]{1,4}){0,2}")).prop_map(|(run, cwd)| Command { run, cwd })
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = (any::<[u8; 32]>(), any::<bool>(), any::<bool>());
    prop::collection::vec(input, 0..4).prop_map(|inputs| {
        let numbered = inputs.into_iter().enumerate();
        numbered
            .map(|(index, (digest, unpack, writable))| Input {
                origin: InputOrigin::Artifact(Digest::from_bytes(digest)),
                path: format!("in/{index}"),
                unpack,
                mode: if writable { InputMode::Rw } else { InputMode::Ro },
            })
            .collect()
    })
}

fn outputs() -> impl Strategy<Value = Vec<Output>> {
    let output = (any::<bool>(), any::<bool>());
    prop::collection::vec(output, 0..4).prop_map(|outputs| {
        let numbered = outputs.into_iter().enumerate();
        numbered
            .map(|(index, (named, optional))| Output {
                path: format!("out/{index}/*.json"),
                name: named.then(|| format!("output {index}")),
                optional,
            })
            .collect()
    })
}

prop_compose! {
    fn resources()(
        cpus in 1u32..64_000,
        memory_bytes in prop::option::of(8u64 << 20..1 << 53),
        os in prop::option::of(prop::sample::select(vec!["linux", "macos"])),
        arch in prop::option::of(prop::sample::select(vec!["x86_64", "aarch64"])),
        labels in prop::collection::btree_map(WORD, TEXT, 0..3),
        worker in prop::option::of(WORD),
    ) -> Resources {
        Resources {
            cpus: Cpus::from_millis(cpus),
            memory_bytes,
            os: os.map(str::to_owned),
            arch: arch.map(str::to_owned),
            labels,
            worker,
            ..Resources::default()
        }
    }
}

prop_compose! {
    fn retry()(
        max_attempts in 1u32..=100,
        retry_on in prop::collection::vec(prop::sample::select(vec!["any", "user", "worker_lost", "oom_killed"]), 0..3),
        backoff_s in seconds(0),
        avoid_worker: bool,
    ) -> Retry {
        let retry_on = retry_on.into_iter().map(str::to_owned).collect();
        Retry { max_attempts, retry_on, backoff_s, avoid_worker, memory_growth: None }
    }
}

prop_compose! {
    fn limits()(
        timeout_s in prop::option::of(seconds(1)),
        queue_timeout_s in prop::option::of(seconds(1)),
        grace_s in seconds(0),
        unreachable_timeout_s in seconds(0),
        workspace_ttl_s in seconds(0),
        stop_signal in prop::sample::select(vec![StopSignal::Term, StopSignal::Int, StopSignal::Usr2, StopSignal::Kill]),
        on_unreachable in prop::option::of(prop::sample::select(vec![OnUnreachable::Replace, OnUnreachable::Wait])),
    ) -> JobSpec {
        JobSpec {
            timeout_s, queue_timeout_s, grace_s, unreachable_timeout_s, workspace_ttl_s, stop_signal, on_unreachable,
            ..JobSpec::command(["true"])
        }
    }
}

prop_compose! {
    fn specs()(
        limits in limits(),
        command in command(),
        (inputs, outputs) in (inputs(), outputs()),
        (resources, retry) in (resources(), retry()),
        name in prop::option::of(NAME),
        project in WORD,
        priority in -100i32..=100,
        target in prop::sample::select(vec![Target::Any, Target::Local, Target::Remote]),
        source in prop::option::of(any::<[u8; 32]>().prop_map(Digest::from_bytes)),
        labels in prop::collection::btree_map(TEXT, TEXT, 0..3),
        env in prop::collection::btree_map("[A-Z_]{1,9}", "[^\\x00]{0,12}", 0..4),
    ) -> JobSpec {
        JobSpec {
            workload: Workload::Command(command),
            inputs, outputs, resources, retry, name, project, priority, target, source, labels, env,
            ..limits
        }
    }
}

proptest! {
    #[test]
    fn reading_the_canonical_text_gives_the_same_spec(spec in specs()) {
        let text = to_json(&spec);
        let value = serde_json::from_str(&text).unwrap();
        let strict = ReadOptions { strict: true, allow_absolute_cwd: false };
        let again = read(&value, "", strict).unwrap_or_else(|faults| panic!("{text}: {faults:#?}"));
        prop_assert_eq!(&again.spec, &spec);
        // The worker reads the same text without the validator.
        prop_assert_eq!(&serde_json::from_str::<JobSpec>(&text).unwrap(), &spec);
    }
}

#[test]
fn defaults_are_left_out() {
    assert_eq!(to_json(&JobSpec::command(["true"])), r#"{"workload":{"command":{"argv":["true"]}}}"#);
}
