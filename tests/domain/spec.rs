//! What a spec may not be, and where each fault is; what is only warned about; what is made of a good one.

use gpulayer::contract::problem::Fault;
use gpulayer::contract::quantity::{Cpus, Seconds};
use gpulayer::contract::spec::{JobSpec, StopSignal};
use gpulayer::domain::spec::{ReadOptions, ReadSpec, artifacts, read};
use proptest::prelude::*;
use serde_json::{Value, json};

const DIGEST: &str = "artifact://sha256/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const JOB: &str = "job_00000000000000000000000001";

/// A good spec with these fields on top.
fn with(fields: Value) -> Value {
    let mut spec = json!({"workload": {"command": {"argv": ["true"]}}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    spec
}

fn command(command: Value) -> Value {
    json!({"workload": {"command": command}})
}

fn faults(spec: &Value) -> Vec<Fault> {
    read(spec, "", ReadOptions::default()).expect_err(&format!("accepted: {spec}"))
}

fn good(spec: &Value) -> ReadSpec {
    read(spec, "", ReadOptions::default()).unwrap_or_else(|faults| panic!("{spec}: {faults:#?}"))
}

fn spec(fields: Value) -> JobSpec {
    good(&with(fields)).spec
}

/// Each spec has exactly these faults of these codes, and every detail says something.
fn refuses(code: &str, table: &[(&[&str], Value)]) {
    for (pointers, spec) in table {
        let faults = faults(spec);
        let found: Vec<&str> =
            faults.iter().filter(|fault| fault.code == code).map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(&found, pointers, "{spec}: {faults:#?}");
        assert!(faults.iter().all(|fault| fault.detail.len() > 10), "{faults:#?}");
    }
}

#[test]
fn what_runs() {
    let missing: &[(&[&str], Value)] = &[
        (&["/workload"], json!({})),
        (&["/workload"], json!({"workload": null})),
        (
            &["/workload/function/payload", "/workload/function/serializer"],
            json!({"workload": {"function": {"entrypoint": "a:b"}}}),
        ),
    ];
    refuses("missing", missing);
    let invalid: &[(&[&str], Value)] = &[
        (&[""], json!([])),
        (&[""], json!("true")),
        (&["/workload"], json!({"workload": {}})),
        (&["/workload"], json!({"workload": ["true"]})),
        (
            &["/workload"],
            json!({"workload": {"command": {"argv": ["true"]}, "function": {"payload": DIGEST, "serializer": "json"}}}),
        ),
        (&["/workload/command"], command(json!({}))),
        (&["/workload/command"], command(json!({"argv": ["true"], "shell": "true"}))),
        (&["/workload/command"], command(json!("true"))),
        (&["/workload/command/argv"], command(json!({"argv": []}))),
        (&["/workload/command/argv"], command(json!({"argv": "true"}))),
        (&["/workload/command/argv"], command(json!({"argv": vec!["x"; 10_001]}))),
        (&["/workload/command/argv/0"], command(json!({"argv": [1]}))),
        (&["/workload/command/argv/0"], command(json!({"argv": [""]}))),
        (&["/workload/command/argv/1"], command(json!({"argv": ["echo", "a\0b"]}))),
        (
            &["/workload/command/argv/1", "/workload/command/argv/3"],
            command(json!({"argv": ["a", null, "b", {}]})),
        ),
        (&["/workload/command/argv/1"], command(json!({"argv": ["a", "x".repeat(128 * 1024)]}))),
        (&["/workload"], command(json!({"argv": vec!["x".repeat(100_000); 11]}))),
        (&["/workload/command/shell"], command(json!({"shell": " "}))),
        (&["/workload/command/shell"], command(json!({"shell": "a\0"}))),
        (&["/workload/command/shell"], command(json!({"shell": 1}))),
        (&["/workload/command/cwd"], command(json!({"argv": ["true"], "cwd": "../.."}))),
        (&["/workload/command/cwd"], command(json!({"argv": ["true"], "cwd": "/tmp"}))),
        (&["/workload/command/cwd"], command(json!({"argv": ["true"], "cwd": ""}))),
        (
            &["/workload/function/entrypoint"],
            json!({"workload": {"function": {"payload": "{}", "serializer": "json", "entrypoint": "f"}}}),
        ),
        (
            &["/workload/function/payload"],
            json!({"workload": {"function": {"payload": "artifact://sha256/0", "serializer": "json", "entrypoint": "a:b"}}}),
        ),
    ];
    refuses("invalid", invalid);
}

#[test]
fn who_it_is() {
    let invalid: &[(&[&str], Value)] = &[
        (&["/api_version"], with(json!({"api_version": "gpulayer.dev/v9"}))),
        (&["/name"], with(json!({"name": ""}))),
        (&["/name"], with(json!({"name": "a\nb"}))),
        (&["/name"], with(json!({"name": "x".repeat(256)}))),
        (&["/labels/k"], with(json!({"labels": {"k": "v".repeat(256)}}))),
        (&["/labels/k"], with(json!({"labels": {"k": 1}}))),
        (&["/labels/"], with(json!({"labels": {"": "v"}}))),
        (&["/labels/a~1b~0"], with(json!({"labels": {"a/b~": "\0"}}))),
        (&["/project"], with(json!({"project": "Vision"}))),
        (&["/project"], with(json!({"project": ""}))),
        (&["/project"], with(json!({"project": "-a"}))),
        (&["/project"], with(json!({"project": "a".repeat(64)}))),
        (&["/priority"], with(json!({"priority": 101}))),
        (&["/priority"], with(json!({"priority": -101}))),
        (&["/priority"], with(json!({"priority": 1.5}))),
        (&["/priority"], with(json!({"priority": "1"}))),
    ];
    refuses("invalid", invalid);
    let key = "k".repeat(64);
    assert_eq!(faults(&with(json!({"labels": {&key: "v"}})))[0].pointer, format!("/labels/{key}"));
}

#[test]
fn what_goes_in_and_out() {
    let input = |fields: Value| with(json!({"inputs": [fields]}));
    let output = |fields: Value| with(json!({"outputs": [fields]}));
    let at = |path: &str| json!({"artifact": DIGEST, "path": path});
    let invalid: &[(&[&str], Value)] = &[
        (&["/source"], with(json!({"source": "artifact://sha256/XYZ"}))),
        (&["/source"], with(json!({"source": DIGEST.to_uppercase()}))),
        (&["/inputs"], with(json!({"inputs": {}}))),
        (&["/inputs/0"], with(json!({"inputs": ["data"]}))),
        (&["/inputs/0"], input(json!({"path": "a"}))),
        (
            &["/inputs/0"],
            input(json!({"path": "a", "artifact": DIGEST, "from": {"job": JOB, "output": "m"}})),
        ),
        (&["/inputs/0/artifact"], input(json!({"artifact": "artifact://sha256/xyz", "path": "a"}))),
        (&["/inputs/0/path"], input(at("x/../../y"))),
        (&["/inputs/0/path"], input(at("/data"))),
        (&["/inputs/0/path"], input(at("a\0b"))),
        (&["/inputs/0/path"], input(at("."))),
        (&["/inputs/0/path"], input(at(&"x".repeat(256)))),
        (&["/inputs/0/path"], input(at(&"x/".repeat(4_000)))),
        (&["/inputs/0/mode"], input(json!({"artifact": DIGEST, "path": "a", "mode": "rx"}))),
        (&["/inputs/0/unpack"], input(json!({"artifact": DIGEST, "path": "a", "unpack": "yes"}))),
        (&["/inputs/1/path"], with(json!({"inputs": [at("a/b"), at("./a//b/")]}))),
        (&["/inputs/1/path"], with(json!({"inputs": [at("a/b"), at("a")]}))),
        (&["/inputs/1/path"], with(json!({"inputs": [at("a"), at("a/b/c")]}))),
        (&["/inputs/0/from/job"], input(json!({"path": "a", "from": {"job": "#0", "output": "m"}}))),
        (&["/outputs/0/path"], output(json!({"path": "../secrets"}))),
        (&["/outputs/0/path"], output(json!({"path": "/etc/passwd"}))),
        (&["/outputs/0/path"], output(json!({"path": ""}))),
        (&["/outputs/0/path"], output(json!({"path": "a[b"}))),
        (&["/outputs/0/path"], output(json!({"path": "*/../.."}))),
        (&["/outputs/0/name"], output(json!({"path": "a", "name": ""}))),
        (
            &["/outputs/1/name"],
            with(json!({"outputs": [{"path": "a", "name": "m"}, {"path": "b", "name": "m"}]})),
        ),
        (&["/outputs/1/name"], with(json!({"outputs": [{"path": "a"}, {"path": "b", "name": "a"}]}))),
        (&["/outputs/1/path"], with(json!({"outputs": [{"path": "a"}, {"path": "./a"}]}))),
    ];
    refuses("invalid", invalid);
    refuses("missing", &[(&["/inputs/0/path"], input(json!({"artifact": DIGEST})))]);
    refuses("missing", &[(&["/outputs/0/path"], output(json!({"name": "a"})))]);

    let side_by_side = spec(json!({"inputs": [at("a/b"), at("a/c"), at("ab"), at("x/../y/")]}));
    assert_eq!(side_by_side.inputs[3].path, "y");
}

#[test]
fn what_it_needs() {
    let resources = |fields: Value| with(json!({"resources": fields}));
    let gpus = |fields: Value| with(json!({"resources": {"gpus": fields}}));
    let invalid: &[(&[&str], Value)] = &[
        (&["/resources"], with(json!({"resources": 4}))),
        (&["/resources/cpus"], resources(json!({"cpus": 0}))),
        (&["/resources/cpus"], resources(json!({"cpus": -1}))),
        (&["/resources/cpus"], resources(json!({"cpus": 0.0001}))),
        (&["/resources/cpus"], resources(json!({"cpus": 1.2345}))),
        (&["/resources/cpus"], resources(json!({"cpus": "2"}))),
        (&["/resources/cpus"], resources(json!({"cpus": 1e300}))),
        (&["/resources/memory_bytes"], resources(json!({"memory_bytes": 0}))),
        (&["/resources/memory_bytes"], resources(json!({"memory_bytes": 1.5}))),
        (&["/resources/memory_bytes"], resources(json!({"memory_bytes": 16}))),
        (&["/resources/memory_bytes"], resources(json!({"memory_bytes": "16GiB"}))),
        (&["/resources/disk_bytes"], resources(json!({"disk_bytes": -1}))),
        (&["/resources/gpus/count"], gpus(json!({"count": -1}))),
        (&["/resources/gpus/count"], gpus(json!({"count": 0.5}))),
        (&["/resources/gpus/count"], gpus(json!({"count": "some"}))),
        (&["/resources/gpus/vendor"], gpus(json!({"count": 1, "vendor": "acme"}))),
        (&["/resources/gpus/models/1"], gpus(json!({"count": 1, "models": ["H100", 5]}))),
        (&["/resources/gpus/models/0"], gpus(json!({"count": 1, "models": ["-"]}))),
        (&["/resources/gpus/models/0"], gpus(json!({"count": 1, "models": ["H\u{202e}001"]}))),
        (&["/resources/gpus/models/0"], gpus(json!({"count": 1, "models": ["H100\u{1b}[2J"]}))),
        (&["/resources/gpus/count"], gpus(json!({"count": 1.5}))),
        (&["/resources/gpus/count"], gpus(json!({"count": 1025.0}))),
        (&["/resources/gpus/memory_bytes"], gpus(json!({"count": 1, "memory_bytes": 80}))),
        (&["/resources/gpus/memory_kind"], gpus(json!({"count": 1, "memory_kind": "shared"}))),
        (
            &["/resources/gpus/count", "/resources/gpus/vendor", "/resources/gpus/min_compute_capability"],
            gpus(json!({"count": 2.5, "vendor": "NVIDIA", "min_compute_capability": "sm_90"})),
        ),
        (
            &["/profile"],
            with(json!({"profile": "mlx", "resources": {"gpus": {"count": 1, "vendor": "nvidia"}}})),
        ),
        (&["/resources/gpus/min_compute_capability"], gpus(json!({"min_compute_capability": 8.0}))),
        (&["/resources/frameworks/torch"], resources(json!({"frameworks": {"torch": ">>2"}}))),
        (&["/resources/frameworks/a b"], resources(json!({"frameworks": {"a b": ">=2"}}))),
        (&["/resources/os"], resources(json!({"os": "windows"}))),
        (&["/resources/arch"], resources(json!({"arch": "arm64"}))),
        (&["/resources/labels/zone"], resources(json!({"labels": {"zone": true}}))),
        (&["/resources/worker"], resources(json!({"worker": ""}))),
        (&["/target"], with(json!({"target": "moon"}))),
        (&["/profile"], with(json!({"profile": "pytroch"}))),
    ];
    refuses("invalid", invalid);
}

#[test]
fn gpus_without_a_count_and_frameworks_that_nobody_looks_for_are_noticed() {
    let spec = |resources: Value| good(&with(json!({"resources": resources})));
    let at =
        |read: &ReadSpec| read.warnings.iter().map(|warning| warning.pointer.clone()).collect::<Vec<_>>();
    let two = |count: Value| spec(json!({"gpus": {"count": count}})).spec.resources.gpus;
    assert_eq!(two(json!(2.0)), two(json!(2)), "one number, however it is written");
    let uncounted = spec(json!({"gpus": {"models": ["H100"]}}));
    assert_eq!((at(&uncounted), uncounted.spec.resources.gpus), (vec!["/resources/gpus".to_owned()], None));
    assert!(at(&spec(json!({"gpus": {"models": ["H100"], "count": 0}}))).is_empty());
    assert!(at(&spec(json!({"frameworks": {"torch": ""}}))).is_empty(), "any version");
    assert_eq!(at(&spec(json!({"frameworks": {"pytorch": ">=2"}}))), ["/resources/frameworks/pytorch"]);
    let all = spec(json!({
        "gpus": {"count": "all", "vendor": "nvidia", "memory_bytes": 85_899_345_920_u64, "memory_kind": "dedicated",
                 "models": ["H100", "a100-80gb"], "min_compute_capability": "9.0"},
        "frameworks": {"torch": ">=2.3"},
    }));
    assert!(all.warnings.is_empty(), "{:?}", all.warnings);
    assert_eq!(all.spec.resources.gpus.unwrap().models, ["H100", "a100-80gb"]);
    // Without GPUs the empty value says what is so anyway.
    good(&with(json!({"env": {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}})));
}

#[test]
fn what_it_finds_around_it() {
    let env = |name: &str, value: &str| with(json!({"env": {name: value}}));
    let invalid: &[(&[&str], Value)] = &[
        (&["/env/A=B"], env("A=B", "x")),
        (&["/env/"], env("", "x")),
        (&["/env/A\0"], env("A\0", "x")),
        (&["/env/A"], env("A", "x\0")),
        (&["/env/A"], with(json!({"env": {"A": 1}}))),
        (&["/env/A"], env("A", &"x".repeat(128 * 1024))),
        (
            &["/env"],
            with(
                json!({"env": (0..11).map(|n| (format!("A{n}"), json!("x".repeat(100_000)))).collect::<serde_json::Map<_, _>>()}),
            ),
        ),
        (&["/env/GPULAYER_JOB_ID"], env("GPULAYER_JOB_ID", "x")),
        (&["/env/CUDA_VISIBLE_DEVICES"], env("CUDA_VISIBLE_DEVICES", "0,1")),
        (&["/env/HIP_VISIBLE_DEVICES"], env("HIP_VISIBLE_DEVICES", "0")),
        (
            &["/env/CUDA_VISIBLE_DEVICES"],
            with(json!({"env": {"CUDA_VISIBLE_DEVICES": ""}, "resources": {"gpus": {"count": 1}}})),
        ),
        (
            &["/env/ROCR_VISIBLE_DEVICES"],
            with(json!({"env": {"ROCR_VISIBLE_DEVICES": ""}, "profile": "pytorch-rocm"})),
        ),
        (&["/secrets/0/name"], with(json!({"env": {"K": "v"}, "secrets": [{"name": "K", "ref": "env:K"}]}))),
        (&["/secrets/0/name"], with(json!({"secrets": [{"name": "A=B", "ref": "env:K"}]}))),
        (
            &["/secrets/1/name"],
            with(json!({"secrets": [{"name": "K", "ref": "env:K"}, {"name": "K", "ref": "name:K"}]})),
        ),
        (&["/secrets/0/ref"], with(json!({"secrets": [{"name": "K", "ref": "vault"}]}))),
        (&["/secrets/0/ref"], with(json!({"secrets": [{"name": "K", "ref": "file:"}]}))),
        (&["/secrets/0/ref"], with(json!({"secrets": [{"name": "K", "ref": "file:relative"}]}))),
        (&["/secrets/0/name"], with(json!({"secrets": [{"name": "GPULAYER_X", "ref": "name:K"}]}))),
        (&["/secrets/0/name"], with(json!({"secrets": [{"name": "PATH", "ref": "name:K"}]}))),
        (&["/secrets/0/name"], with(json!({"secrets": [{"name": "1K", "ref": "name:K"}]}))),
    ];
    refuses("invalid", invalid);
    assert_eq!(spec(json!({"env": {"CUDA_VISIBLE_DEVICES": ""}})).env.len(), 1);
}

#[test]
fn a_python_environment_is_named_in_one_way_and_by_what_outlives_the_job() {
    let python = |python: Value| with(json!({"python": python}));
    let many = vec!["x".repeat(1000); 70];
    let invalid: &[(&[&str], Value)] = &[
        (&["/python"], python(json!({"requirements": ["a"], "uv": "."}))),
        (&["/python"], python(json!({"requirements": ["a"], "lockfile": "uv.lock"}))),
        (&["/python/interpreter"], python(json!({"interpreter": "venv/bin/python"}))),
        (&["/python/interpreter"], python(json!({"interpreter": "--help"}))),
        (&["/python/requirements/1"], python(json!({"requirements": ["a", "-e ."]}))),
        (&["/python/requirements/0"], python(json!({"requirements": ["--editable=./a"]}))),
        (&["/python/requirements/0"], python(json!({"requirements": ["a\nb"]}))),
        (&["/python/requirements"], python(json!({"requirements": many}))),
        (&["/python/lockfile"], python(json!({"lockfile": "poetry.lock"}))),
        (&["/python/lockfile"], python(json!({"lockfile": "../uv.lock"}))),
        (&["/python/uv"], python(json!({"uv": "/home/ann/train"}))),
    ];
    refuses("invalid", invalid);
    let read = |given: Value| *spec(json!({"python": given})).python.unwrap();
    assert_eq!(read(json!({"uv": "./"})).uv.as_deref(), Some("."), "the source's own root");
    assert_eq!(read(json!({"uv": "train/"})).uv.as_deref(), Some("train"));
    for (name, value) in [
        ("interpreter", json!("3.11")),
        ("interpreter", json!("/opt/python/bin/python3")),
        ("interpreter", json!("pypy@3.10")),
        ("requirements", json!(["torch==2.4", "--index-url https://pypi.example/simple", "./vendored"])),
        ("lockfile", json!("locks/pylock.gpu.toml")),
    ] {
        good(&python(json!({name: value})));
    }
}

#[test]
fn how_long_and_how_often() {
    let invalid: &[(&[&str], Value)] = &[
        (&["/timeout_s"], with(json!({"timeout_s": 0}))),
        (&["/timeout_s"], with(json!({"timeout_s": 0.0001}))),
        (&["/timeout_s"], with(json!({"timeout_s": "10m"}))),
        (&["/timeout_s"], with(json!({"timeout_s": 1e12}))),
        (&["/queue_timeout_s"], with(json!({"queue_timeout_s": -1}))),
        (&["/grace_s"], with(json!({"grace_s": -0.5}))),
        (&["/unreachable_timeout_s"], with(json!({"unreachable_timeout_s": true}))),
        (&["/workspace_ttl_s"], with(json!({"workspace_ttl_s": []}))),
        (&["/stop_signal"], with(json!({"stop_signal": "SIGSTOP"}))),
        (&["/stop_signal"], with(json!({"stop_signal": 15}))),
        (&["/on_unreachable"], with(json!({"on_unreachable": "ignore"}))),
        (&["/retry/max_attempts"], with(json!({"retry": {"max_attempts": 101}}))),
        (
            &["/retry/max_attempts", "/retry/retry_on/0"],
            with(json!({"retry": {"max_attempts": 0, "retry_on": ["full_moon"]}})),
        ),
        (&["/retry/retry_on"], with(json!({"retry": {"retry_on": "any"}}))),
        (&["/retry/backoff_s"], with(json!({"retry": {"backoff_s": "1s"}}))),
        (&["/retry/avoid_worker"], with(json!({"retry": {"avoid_worker": 1}}))),
        (
            &["/retry/memory_growth/factor"],
            with(json!({"retry": {"memory_growth": {"factor": 1, "max_bytes": 5}}})),
        ),
        (
            &["/retry/memory_growth"],
            with(json!({"retry": {"memory_growth": {"factor": 1.5, "max_bytes": 1000}}})),
        ),
        (
            &["/retry/memory_growth/max_bytes"],
            with(json!({
                "resources": {"memory_bytes": 10_000_000},
                "retry": {"memory_growth": {"factor": 1.5, "max_bytes": 1000}},
            })),
        ),
    ];
    refuses("invalid", invalid);

    let job = spec(json!({
        "timeout_s": 1.5,
        "grace_s": 0,
        "stop_signal": "sigusr1",
        "retry": {"max_attempts": 3, "retry_on": ["any", "infrastructure", "oom_killed"]},
        "resources": {"cpus": 0.1, "memory_bytes": 8e9},
    }));
    assert_eq!(job.timeout_s, Some(Seconds::from_millis(1500)));
    assert_eq!(job.grace_s, Seconds::default());
    assert_eq!(job.stop_signal, StopSignal::Usr1);
    assert_eq!(job.resources.cpus, Cpus::from_millis(100));
    assert_eq!(job.resources.memory_bytes, Some(8_000_000_000));
}

#[test]
fn what_it_belongs_to() {
    let invalid: &[(&[&str], Value)] = &[
        (&["/distributed/nodes"], with(json!({"distributed": {"nodes": 0}}))),
        (
            &["/distributed/processes_per_node"],
            with(json!({"distributed": {"nodes": 2, "processes_per_node": "cpu"}})),
        ),
        (&["/distributed/launcher"], with(json!({"distributed": {"nodes": 2, "launcher": "mpi"}}))),
        (&["/depends_on/0/job"], with(json!({"depends_on": [{"job": "job_doesnotexist"}]}))),
        (&["/depends_on/0/job"], with(json!({"depends_on": [{"job": "#0"}]}))),
        (&["/depends_on/0/when"], with(json!({"depends_on": [{"job": JOB, "when": "started"}]}))),
        (&["/array"], with(json!({"array": {"count": 3, "items": [1, 2, 3]}}))),
        (&["/array"], with(json!({"array": {}}))),
        (&["/array/count"], with(json!({"array": {"count": 10_000_000}}))),
        (&["/array/count"], with(json!({"array": {"count": 0}}))),
        (&["/array/items"], with(json!({"array": {"items": []}}))),
        (&["/array/max_running"], with(json!({"array": {"count": 1, "max_running": 0}}))),
    ];
    refuses("invalid", invalid);
    refuses("missing", &[(&["/distributed/nodes"], with(json!({"distributed": {}})))]);

    let third = with(json!({"depends_on": [{"job": "#2"}, {"job": "#3"}, {"job": "#x"}]}));
    let faults = read(&third, "/jobs/3", ReadOptions::default()).unwrap_err();
    let invalid: Vec<&str> =
        faults.iter().filter(|fault| fault.code == "invalid").map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(invalid, ["/jobs/3/depends_on/1/job", "/jobs/3/depends_on/2/job"]);
}

#[test]
fn a_profile_with_gpus_asks_for_one_of_that_kind() {
    let asked =
        spec(json!({"profile": "pytorch-cuda", "resources": {"gpus": {"memory_bytes": 40u64 << 30}}}));
    let gpus = asked.resources.gpus.unwrap();
    assert_eq!(
        (gpus.count, gpus.memory_bytes),
        (gpulayer::contract::spec::GpuCount::Count(1), Some(40 << 30))
    );
    let other = with(json!({"profile": "pytorch-cuda", "resources": {"gpus": {"vendor": "amd"}}}));
    assert_eq!(faults(&other).len(), 1, "{:?}", faults(&other));
    let none = spec(json!({"profile": "pytorch-cuda", "resources": {"gpus": {"count": 0}}}));
    assert_eq!(none.resources.gpus, None);
}

#[test]
fn an_item_of_an_array_fits_into_a_variable_and_a_wrong_launcher_is_one_fault() {
    let most = "a".repeat(127 << 10);
    spec(json!({"array": {"items": [most]}}));
    let long = with(json!({"array": {"items": ["b", "a".repeat((127 << 10) + 1)]}}));
    refuses("invalid", &[(&["/array/items/1"], long)]);
    let nul = with(json!({"array": {"items": ["b", "a\0b", {"inside": "a\0b"}]}}));
    refuses("invalid", &[(&["/array/items/1"], nul)]);
    let mpi = faults(&with(json!({"distributed": {"nodes": 2, "launcher": "mpi"}})));
    assert_eq!(mpi.len(), 1, "{mpi:?}");
}

#[test]
fn what_is_not_built_yet_is_refused_and_never_ignored() {
    let table: &[(&[&str], Value)] = &[
        (
            &["/distributed"],
            json!({
                "workload": {"function": {"payload": "{}", "serializer": "json", "entrypoint": "a:b"}},
                "distributed": {"nodes": 2, "launcher": "env"},
            }),
        ),
        (&["/distributed/launcher"], with(json!({"distributed": {"nodes": 2}}))),
        (&["/distributed/launcher"], with(json!({"distributed": {"nodes": 2, "launcher": "torchrun"}}))),
        (&["/distributed/launcher"], with(json!({"distributed": {"nodes": 2, "launcher": "direct"}}))),
        (&["/target"], with(json!({"target": "cloud"}))),
        (&["/inputs/0/url"], with(json!({"inputs": [{"url": "https://example.org/a", "path": "a"}]}))),
        (&["/resources/gpus/share"], with(json!({"resources": {"gpus": {"share": 0.5}}}))),
        (&["/resources/disk_bytes"], with(json!({"resources": {"disk_bytes": 1}}))),
        (
            &["/container", "/run_as", "/mounts", "/notify", "/hold"],
            with(
                json!({"container": "x", "run_as": "bob", "mounts": [{}], "notify": {"url": "x"}, "hold": true}),
            ),
        ),
    ];
    refuses("not_supported", table);

    // Asking for nothing is not asking.
    good(&with(json!({
        "distributed": null, "target": "any", "resources": {"gpus": {"count": 0}, "frameworks": {}},
        "profile": "cpu", "secrets": [], "python": null, "retry": {"memory_growth": null}, "depends_on": [],
        "array": null, "container": null, "mounts": [], "hold": false,
    })));
}

#[test]
fn every_fault_is_told_at_once() {
    let spec = with(json!({
        "priority": 101, "timeout_s": -1, "resources": {"gpus": {"count": -1}}, "env": {"A=B": "x"},
        "secrets": [{"name": "K", "ref": "vault"}],
    }));
    let faults = faults(&spec);
    for pointer in ["/priority", "/timeout_s", "/resources/gpus/count", "/env/A=B", "/secrets/0/ref"] {
        assert!(faults.iter().any(|fault| fault.pointer == pointer), "{pointer}: {faults:#?}");
    }
}

#[test]
fn unknown_fields_warn_or_in_strict_mode_refuse() {
    let spec = json!({
        "prioritty": 5,
        "workload": {"command": {"argv": ["true"], "cdw": "a"}},
        "resources": {"gpus": {"cuont": 1}},
        "outputs": [{"path": "a", "x/y": 1}],
    });
    let pointers = ["/prioritty", "/workload/command/cdw", "/outputs/0/x~1y", "/resources/gpus/cuont"];
    let read_leniently = good(&spec);
    assert_eq!(read_leniently.warnings.iter().map(|warning| &warning.pointer).collect::<Vec<_>>(), pointers);
    assert!(read_leniently.warnings[0].detail.contains("did you mean `priority`?"));
    assert!(read_leniently.warnings[2].detail.contains("`optional`"));

    let strict = ReadOptions { strict: true, ..ReadOptions::default() };
    let faults = read(&spec, "", strict).unwrap_err();
    assert_eq!(faults.iter().map(|fault| &fault.pointer).collect::<Vec<_>>(), pointers);
    assert!(faults.iter().all(|fault| fault.code == "unknown_field"));
}

#[test]
fn what_looks_like_a_credential_is_warned_about() {
    let read = good(&with(json!({"env": {
        "HF_TOKEN": "hf_abc", "DB_PASSWORD": "x", "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "100",
        "HARMLESS": "hf_0123456789abcdef", "EMPTY_SECRET": "",
    }})));
    let pointers: Vec<&str> = read.warnings.iter().map(|warning| warning.pointer.as_str()).collect();
    assert_eq!(pointers, ["/env/DB_PASSWORD", "/env/HARMLESS", "/env/HF_TOKEN"]);
}

#[test]
fn a_secret_given_in_the_place_of_its_reference_is_not_repeated() {
    let found = faults(&with(json!({"secrets": [{"name": "K", "ref": "hf_0123456789abcdef"}]})));
    assert_eq!(found[0].pointer, "/secrets/0/ref");
    assert!(!found[0].detail.contains("hf_"), "{found:?}");
    let read = good(&with(json!({"secrets": [{"name": "K", "ref": "name:HF_TOKEN"}]})));
    assert_eq!((read.spec.secrets.len(), read.warnings.len()), (1, 0));
}

#[test]
fn a_credential_among_the_arguments_is_warned_about() {
    let read = good(&json!({"workload": {"command": {"argv": [
        "psql", "postgres://me:hunter2@db/x", "--key=ghp_0123456789abcdef", "https://example.org/a@b",
    ]}}}));
    let pointers: Vec<&str> = read.warnings.iter().map(|warning| warning.pointer.as_str()).collect();
    assert_eq!(pointers, ["/workload/command/argv/1", "/workload/command/argv/2"]);
    assert!(read.warnings.iter().all(|warning| !warning.detail.contains("hunter2")));
}

#[test]
fn an_absolute_cwd_is_for_the_own_daemon() {
    let own = ReadOptions { allow_absolute_cwd: true, ..ReadOptions::default() };
    let spec = command(json!({"argv": ["true"], "cwd": "/home/me/project"}));
    assert!(read(&spec, "", own).is_ok());
    let nul = command(json!({"argv": ["true"], "cwd": "/home\0"}));
    assert_eq!(read(&nul, "", own).unwrap_err()[0].pointer, "/workload/command/cwd");
}

#[test]
fn the_artifacts_of_a_spec_are_named_once() {
    let other = DIGEST.replace('a', "b").replace("brtifbct://shb256", "artifact://sha256");
    let job = spec(json!({
        "source": other,
        "inputs": [{"artifact": DIGEST, "path": "x"}, {"artifact": DIGEST, "path": "y"}],
    }));
    let named: Vec<String> = artifacts(&job).iter().map(ToString::to_string).collect();
    assert_eq!(named, [DIGEST, other.as_str()]);
}

#[test]
fn a_flood_of_faults_is_cut() {
    let env: serde_json::Map<String, Value> =
        (0..3_000).map(|number| (format!("A{number}"), json!(number))).collect();
    let found = faults(&with(json!({"env": env})));
    assert_eq!(found.len(), 1_001);
    assert!(found[1_000].detail.contains("more faults"));

    let odd: serde_json::Map<String, Value> =
        (0..1_000).map(|number| (format!("odd{number}"), json!(number))).collect();
    let strict = ReadOptions { strict: true, ..ReadOptions::default() };
    let found = read(&with(Value::Object(odd.clone())), "", strict).unwrap_err();
    assert_eq!((found.len(), found[100].pointer.as_str()), (101, ""));
    assert_eq!(good(&with(Value::Object(odd))).warnings.len(), 100);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["all", "#0", DIGEST, JOB, "../x", "*", "SIGTERM", ">=2"])
            .prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "workload",
        "command",
        "function",
        "argv",
        "shell",
        "cwd",
        "payload",
        "inputs",
        "outputs",
        "path",
        "from",
        "job",
        "resources",
        "gpus",
        "count",
        "cpus",
        "env",
        "secrets",
        "name",
        "ref",
        "retry",
        "retry_on",
        "array",
        "items",
        "depends_on",
        "distributed",
        "nodes",
        "python",
        "labels",
        "frameworks",
        "timeout_s",
        "stop_signal",
        "odd",
    ]);
    leaf.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_answered_with_faults_that_point_below_the_prefix(value in any_json(), strict: bool) {
        let options = ReadOptions { strict, allow_absolute_cwd: false };
        if let Err(faults) = read(&value, "/jobs/1", options) {
            prop_assert!(!faults.is_empty());
            for fault in faults {
                prop_assert!(fault.pointer.starts_with("/jobs/1"));
                let below = fault.pointer.trim_start_matches("/jobs/1");
                let parent = below.rsplit_once('/').map_or("", |(parent, _)| parent);
                prop_assert!(value.pointer(parent).is_some(), "{} is nowhere near {value}", fault.pointer);
            }
        }
    }
}
