//! Function jobs with the real runner and the interpreter of this machine.

use std::process::Command;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::function::FunctionResult;
use gpulayer::contract::job::{Job, JobState, Page};
use gpulayer::contract::spec::Serializer;
use serde_json::{Value, json};

use crate::house::{House, shell};

/// A job that calls a function by its name.
fn call(entrypoint: &str, arguments: &Value) -> Value {
    let payload = arguments.to_string();
    json!({"workload": {"function": {"payload": payload, "serializer": "json", "entrypoint": entrypoint}}})
}

async fn ended(house: &House, spec: &Value) -> Job {
    house.end(house.submit(spec).await.id).await
}

fn result(job: &Job) -> &FunctionResult {
    job.result.as_ref().unwrap_or_else(|| panic!("no result: {job:?}"))
}

/// `null` is read as nothing.
fn inline(job: &Job) -> Value {
    let found = result(job);
    assert!(found.artifact.is_none(), "{found:?}");
    found.inline.as_ref().map_or(Value::Null, |inline| serde_json::from_str(inline.get()).unwrap())
}

/// What Python prints of this expression.
fn python(expression: &str) -> String {
    let text = format!("import base64, hashlib, pickle; print({expression}, end='')");
    let ran = Command::new("python3").args(["-c", &text]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// `gpulayer artifact put` of these bytes: the address.
fn put(house: &House, bytes: &[u8]) -> String {
    let path = house.path().join("argument");
    std::fs::write(&path, bytes).unwrap();
    let put = house.run(&["artifact", "put", path.to_str().unwrap()]);
    assert!(put.status.success(), "{put:?}");
    String::from_utf8(put.stdout).unwrap().trim().to_owned()
}

#[actix_rt::test]
async fn a_function_returns_a_value_and_a_long_one_as_an_artifact() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let short = ended(&house, &call("math:hypot", &json!({"args": [3, 4]}))).await;
    assert_eq!((short.state, inline(&short)), (JobState::Succeeded, json!(5.0)));
    let huge = ended(&house, &call("builtins:pow", &json!({"kwargs": {"base": 7, "exp": 100}}))).await;
    assert_eq!(result(&huge).inline.as_ref().unwrap().get(), python("7 ** 100"), "every digit");
    let long = ended(&house, &call("operator:mul", &json!({"args": ["x", 100_000]}))).await;
    let found = result(&long);
    assert_eq!((long.state, found.inline.is_none(), found.size_bytes), (JobState::Succeeded, true, 100_002));
    let to = house.path().join("result");
    let address = found.artifact.unwrap().to_string();
    let got = house.run(&["artifact", "get", &address, "-o", to.to_str().unwrap()]);
    assert!(got.status.success(), "{got:?}");
    let text: String = serde_json::from_slice(&std::fs::read(to).unwrap()).unwrap();
    assert_eq!(text, "x".repeat(100_000));
    let shown = house.run(&["show", "@last"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("function     operator:mul") && shown.contains("result       100.0 kB of JSON"),
        "{shown}"
    );
}

#[actix_rt::test]
async fn an_exception_an_exit_and_a_lost_module_are_told_apart() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let raised = ended(&house, &call("json:loads", &json!({"args": ["{"]}))).await;
    let reason = |job: &Job| job.end.as_ref().unwrap().reason;
    assert_eq!(
        (raised.state, reason(&raised), result(&raised).raised),
        (JobState::Failed, EndReason::ExitNonzero, true)
    );
    let told = inline(&raised);
    assert_eq!(
        (&told["type"], &told["module"], &told["stage"]),
        (&json!("JSONDecodeError"), &json!("json.decoder"), &json!("call"))
    );
    let lines = house.log(raised.id).await;
    assert!(lines.iter().any(|line| line.contains("json.decoder.JSONDecodeError")), "{lines:?}");

    let left = ended(&house, &call("os:_exit", &json!({"args": [0]}))).await;
    assert_eq!(
        (left.state, reason(&left), left.result.is_none()),
        (JobState::Failed, EndReason::MissingOutput, true)
    );
    let exit = ended(&house, &call("sys:exit", &json!({"args": [0]}))).await;
    assert_eq!((exit.state, &inline(&exit)["type"]), (JobState::Failed, &json!("SystemExit")));
    let lost = ended(&house, &call("no_such_module:f", &json!({}))).await;
    assert_eq!((&inline(&lost)["stage"], inline(&lost)["advice"].is_string()), (&json!("load"), true));
    let nan = ended(&house, &call("builtins:float", &json!({"args": ["nan"]}))).await;
    assert_eq!(
        (nan.state, &inline(&nan)["stage"]),
        (JobState::Failed, &json!("return")),
        "JSON has no such number"
    );
}

#[actix_rt::test]
async fn a_lost_module_is_told_as_such_and_tried_again_where_that_was_asked() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let text = b"def f(notes):\n    try:\n        import no_such_module\n    except ImportError as fault:\n        fault.__notes__ = notes\n        raise\n";
    let module = put(&house, text);
    for (entrypoint, arguments) in [
        ("no_such_module:f", json!({})),
        ("own:f", json!({"args": [["a note", "and a long one ".repeat(1000)]]})),
    ] {
        let mut spec = call(entrypoint, &arguments);
        spec["inputs"] = json!([{"artifact": module, "path": "own.py"}]);
        spec["retry"] = json!({"max_attempts": 2, "retry_on": ["import_error"], "avoid_worker": false});
        let job = ended(&house, &spec).await;
        let end = job.end.as_ref().unwrap();
        assert_eq!((job.attempt, end.reason), (2, EndReason::ImportError), "{end:?}");
        assert_eq!(end.detail.as_deref(), Some("Python module `no_such_module` is not there"));
        assert!(end.advice.as_ref().is_some_and(|advice| advice.contains("requirements")), "{end:?}");
    }
    let unsent = ended(&house, &call("threading:Lock", &json!({}))).await;
    let end = unsent.end.as_ref().unwrap();
    assert_eq!(end.reason, EndReason::ExitNonzero);
    assert!(end.detail.as_ref().is_some_and(|detail| detail.contains("TypeError: ")), "{end:?}");
}

#[actix_rt::test]
async fn the_modules_of_the_workspace_are_found_and_each_child_has_its_call() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let module = put(&house, b"def f(*args, **kwargs):\n    print('called')\n    return [args, kwargs]\n");
    let mut spec = call("own.module:f", &json!({"args": [1]}));
    spec["inputs"] = json!([{"artifact": module, "path": "own/module.py"}]);
    spec["array"] = json!({"items": [2, {"args": [3], "kwargs": {"k": 4}}, {"payload": "{\"args\": [5]}"}, {"other": 6}]});
    let parent = ended(&house, &spec).await;
    assert_eq!(parent.state, JobState::Succeeded);
    let page: Page<Job> =
        house.client().get(&format!("/v1/jobs?parent={}&limit=500", parent.id)).await.unwrap();
    let mut children = page.items;
    children.sort_by_key(|job| job.array_index);
    let returned: Vec<Value> = children.iter().map(inline).collect();
    assert_eq!(
        returned,
        [json!([[1, 2], {}]), json!([[1, 3], {"k": 4}]), json!([[5], {}]), json!([[1, {"other": 6}], {}])]
    );
    assert!(children.iter().all(|child| child.outputs.is_empty() && child.undeclared.is_empty()));
}

#[actix_rt::test]
async fn a_large_argument_is_read_from_one_file_by_every_call() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let value = put(&house, &pickled(3 << 20));
    let hex = value.rsplit('/').next().unwrap().to_owned();
    let head = "'format': 1, 'python': [3, 9, 0], 'cloudpickle': None, 'function': None, 'many': True";
    let calls = format!("[{{'args': [{{'value': '{hex}'}}], 'kwargs': {{}}}}] * 3");
    let payload =
        python(&format!("base64.b64encode(pickle.dumps({{{head}, 'calls': {calls}}}, 4)).decode()"));
    let function = json!({"payload": payload, "serializer": "cloudpickle", "entrypoint": "builtins:len", "values": [value]});
    let job = ended(&house, &json!({"workload": {"function": function}})).await;
    assert_eq!(
        (job.state, result(&job).serializer),
        (JobState::Succeeded, Serializer::Cloudpickle),
        "{job:?}"
    );
    let given = inline(&job);
    let each = format!(
        "(lambda pickled: b'v' + len(pickled).to_bytes(8, 'little') + pickled)(pickle.dumps({}, 5))",
        3 << 20
    );
    let outcomes = python(&format!("base64.b64encode(b'gpulayer outcomes 1\\n' + 3 * {each}).decode()"));
    assert_eq!(given, outcomes);
    // Nothing of it is left on the worker, and the server's own bytes are whole.
    let tasks = house.state().join("worker/tasks");
    let left: Vec<_> = std::fs::read_dir(tasks).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // Its program may write there all the same: nobody else's call has that.
    let spoil = "import os, pathlib; [at] = pathlib.Path(os.environ['GPULAYER_FUNCTION'], 'values').iterdir(); \
                 at.chmod(0o600); file = open(at, 'r+b'); file.write(b'spoilt'); file.close()";
    let payload = python(&format!(
        "base64.b64encode(pickle.dumps({{{head}, 'calls': [{{'args': [pickle.dumps(\"{spoil}\")], 'kwargs': {{}}}}]}}, 4)).decode()"
    ));
    let spoiling = json!({"payload": payload, "serializer": "cloudpickle", "entrypoint": "builtins:exec", "values": [value]});
    let spoilt = ended(&house, &json!({"workload": {"function": spoiling}})).await;
    assert_eq!(spoilt.state, JobState::Succeeded, "{spoilt:?}");
    let none = python(
        "base64.b64encode(b'gpulayer outcomes 1\\n' + (lambda pickled: b'v' + len(pickled).to_bytes(8, 'little') + pickled)(pickle.dumps(None, 5))).decode()",
    );
    assert_eq!(inline(&spoilt), none, "it has written");
    let again = ended(&house, &json!({"workload": {"function": function}})).await;
    assert_eq!(inline(&again), outcomes);
    let back = house.path().join("back");
    let get = house.run(&["artifact", "get", &value, "-o", back.to_str().unwrap()]);
    assert!(get.status.success(), "{get:?}");
    assert_eq!(std::fs::read(back).unwrap(), pickled(3 << 20), "the server's own bytes");
}

/// The pickle of that many bytes.
fn pickled(length: u32) -> Vec<u8> {
    [b"\x80\x04B", &length.to_le_bytes()[..], &vec![7; length as usize], b"."].concat()
}

#[actix_rt::test]
async fn a_call_goes_on_over_a_killed_daemon() {
    let house = House::new();
    let daemon = house.daemon().await;
    let job = house.submit(&call("time:sleep", &json!({"args": [3]}))).await;
    crate::house::eventually("the call to run", async || {
        let job: Job = house.client().get(&format!("/v1/jobs/{}", job.id)).await.unwrap();
        (job.state == JobState::Running).then_some(())
    })
    .await;
    daemon.kill();
    let _daemon = house.daemon().await;
    let job = house.end(job.id).await;
    assert_eq!((job.state, job.attempt, inline(&job)), (JobState::Succeeded, 1, Value::Null));
    let plain = ended(&house, &shell("true")).await;
    assert!(plain.result.is_none());
}
