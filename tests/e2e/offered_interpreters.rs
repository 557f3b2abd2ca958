//! Interpreters that a worker offers: who asks for their version gets them, and `uv` is not asked where one is.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::job::{Job, JobState};
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, argv};

const SHOWS: &str = "import sys; print(sys.prefix)";

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A `uv` without a network that writes down what it is asked, finds no interpreter, and makes environments.
fn uv(house: &House, python: &str) -> PathBuf {
    let path = house.path().join("uv");
    let calls = house.path().join("calls");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\ncase \"$1\" in\npython) echo 'error: no network' >&2; exit 2 ;;\n\
         venv) for last; do :; done; exec {python} -m venv --without-pip \"$last\" ;;\nesac\n",
        calls.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn asking_for(python: &Value) -> Value {
    let mut spec = argv(&["python3", "-c", SHOWS]);
    spec["python"] = python.clone();
    spec
}

async fn ended(house: &House, spec: &Value) -> (Job, String) {
    let job = house.end(house.submit(spec).await.id).await;
    let last = house.log(job.id).await.pop().unwrap_or_default();
    (job, last)
}

#[actix_rt::test]
async fn who_asks_for_a_version_gets_the_workers_own_interpreter_and_no_download() {
    let house = House::new();
    // Not a script that decides by the folder it runs in which interpreter it is.
    let python = output("python3", &["-c", "import sys; print(sys.executable)"]);
    let version = output(&python, &["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
    let offered = house.path().join("offered");
    output(&python, &["-m", "venv", "--without-pip", offered.to_str().unwrap()]);
    let interpreter = offered.join("bin/python3");
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mut command = FarWorker::command(&house, &format!("http://127.0.0.1:{}", house.port()));
    // What is broken is passed over.
    command.args(["--python", "/bin/false", "--python"]).arg(&interpreter);
    let _worker = FarWorker::start_as(&house, command.env("GPULAYER_UV", uv(&house, &python)));
    let calls = || std::fs::read_to_string(house.path().join("calls")).unwrap_or_default();
    let own = offered.display().to_string();

    for request in [version.clone(), format!("python{version}"), format!(">={version}")] {
        let (job, said) = ended(&house, &asking_for(&json!({"interpreter": request}))).await;
        assert_eq!((job.state, &said), (JobState::Succeeded, &own), "{request}: {:?}", job.end);
    }
    assert_eq!(calls(), "", "nobody else was asked");

    let lines = json!({"interpreter": version, "requirements": ["tiny==1.0"]});
    for builds in [1, 1] {
        let (job, said) = ended(&house, &asking_for(&lines)).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.end);
        assert!(said.contains("/environments/"), "{said}");
        let made =
            format!("venv --quiet --no-project --system-site-packages --python {}", interpreter.display());
        assert_eq!(calls().matches(&made).count(), builds, "{}", calls());
        assert!(!calls().contains("python find") && !calls().contains("python install"), "{}", calls());
    }

    // Nor does it stand in for another one, or for the `python3` of who asks for none.
    let (job, _) = ended(&house, &asking_for(&json!({"interpreter": "3.99"}))).await;
    assert_eq!(job.end.unwrap().reason, EndReason::EnvironmentFailed);
    assert!(calls().contains("python find --no-project 3.99"), "{}", calls());
    let (job, said) = ended(&house, &argv(&["python3", "-c", SHOWS])).await;
    assert_eq!(job.state, JobState::Succeeded);
    assert_ne!(said, own);
}
