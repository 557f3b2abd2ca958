//! Python environments, built by a real `uv` from wheels that these tests make: no network is needed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpulayer::contract::end::EndReason;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Sequence};
use serde_json::{Value, json};

use crate::far_worker::FarWorker;
use crate::house::{House, binary, eventually};
use crate::processes::marked;
use crate::volume::Volume;

const BUILDING: &str = "gpulayer: building the Python environment ";
const WAITING: &str = "gpulayer: waiting for this Python environment, which another task builds";
const IN_USE: &str = "gpulayer: this Python environment has lost its Python and is built anew when the tasks that use it have ended";
/// Makes a wheel: its name, its version, the folder, and how many MiB of zeros are in it.
const WHEEL: &str = r#"
import sys, zipfile
name, version, folder, mib = sys.argv[1:]
about = f"{name}-{version}.dist-info"
files = {
    f"{name}/__init__.py": f"import sys\nVERSION = {version!r}\ndef shown(): return [VERSION, sys.prefix]\n",
    f"{name}/weights": "0" * (int(mib) << 20),
    f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in files)
with zipfile.ZipFile(f"{folder}/{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
"#;
const SHOWS: &str = "import os, sys, tiny; print(tiny.VERSION, sys.prefix, os.environ['VIRTUAL_ENV'])";

/// A house with a package index, whose workers have a `uv` that stands still before it installs until it may go on.
struct Rig {
    house: House,
    python: String,
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The machine's `uv`; `None` = told to do without.
fn uv() -> Option<PathBuf> {
    if std::env::var_os("GPULAYER_TESTS_WITHOUT_UV").is_some_and(|value| value == "1") {
        eprintln!("NOT TESTED: told to do without uv");
        return None;
    }
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|folder| folder.join("uv")).find(|file| file.is_file());
    Some(found.expect(
        "this test needs uv in PATH (`pip install uv`); GPULAYER_TESTS_WITHOUT_UV=1 leaves such tests out",
    ))
}

impl Rig {
    fn new() -> Option<Self> {
        let uv = uv()?;
        let house = House::new();
        // Not a script that decides by the folder it runs in which interpreter it is.
        let python = output("python3", &["-c", "import sys; print(sys.executable)"]);
        let rig = Self { house, python };
        std::fs::create_dir_all(rig.house.home()).unwrap();
        std::fs::create_dir(rig.wheels()).unwrap();
        let here = rig.house.path().display().to_string();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = pip ] && while [ -e {here}/closed ]; do sleep 0.02; done\nexec {} \"$@\"\n",
            uv.display()
        );
        std::fs::write(rig.house.path().join("uv"), script).unwrap();
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(rig.house.path().join("uv"), runs).unwrap();
        rig.configure(&rig.house.path().join("uv"));
        rig.wheel("tiny", 0);
        Some(rig)
    }

    /// With a limit on builds, in seconds.
    fn limit(&self, seconds: f64) {
        let file = self.house.home().join("config.toml");
        let table = std::fs::read_to_string(&file).unwrap() + &format!("environment_timeout_s = {seconds}\n");
        std::fs::write(file, table).unwrap();
    }

    fn configure(&self, uv: &Path) {
        std::fs::write(self.house.home().join("config.toml"), format!("uv = {:?}\n", uv.to_str().unwrap()))
            .unwrap();
    }

    fn wheels(&self) -> PathBuf {
        self.house.path().join("wheels")
    }

    fn wheel(&self, name: &str, mib: u32) {
        let wheels = self.wheels();
        output("python3", &["-c", WHEEL, name, "1.0", wheels.to_str().unwrap(), &mib.to_string()]);
    }

    /// From now on nothing is installed.
    fn close(&self) {
        std::fs::write(self.house.path().join("closed"), "").unwrap();
    }

    fn open(&self) {
        std::fs::remove_file(self.house.path().join("closed")).unwrap();
    }

    fn requiring(&self, package: &str) -> Value {
        json!([package, "--no-index", format!("--find-links {}", self.wheels().display())])
    }

    fn job(&self, code: &str, python: Value) -> Value {
        let mut python = python;
        if python.get("interpreter").is_none() {
            python["interpreter"] = json!(self.python);
        }
        json!({
            "workload": {"command": {"argv": ["python", "-c", code]}}, "python": python,
            "env": {"UV_OFFLINE": "1"}, "resources": {"cpus": 0.1},
        })
    }

    fn tiny(&self) -> Value {
        self.job(SHOWS, json!({"requirements": self.requiring("tiny==1.0")}))
    }

    /// In the same environment, until [`Rig::let_go`].
    fn holding_tiny(&self) -> Value {
        let code = format!(
            "import os, time, tiny\nprint('up', flush=True)\nwhile not os.path.exists({:?}): time.sleep(0.02)",
            self.house.path().join("go")
        );
        self.job(&code, json!({"requirements": self.requiring("tiny==1.0")}))
    }

    fn let_go(&self) {
        std::fs::write(self.house.path().join("go"), "").unwrap();
    }

    /// The environments that are complete.
    fn complete(&self) -> Vec<PathBuf> {
        let users = std::fs::read_dir(self.house.state().join("worker/environments")).unwrap().flatten();
        let all = users.flat_map(|user| std::fs::read_dir(user.path()).unwrap().flatten());
        all.map(|entry| entry.path()).filter(|path| path.join("gpulayer-complete.json").exists()).collect()
    }

    async fn begins(&self, id: JobId, line: &str) {
        eventually(&format!("`{line}` in the log"), async || {
            self.house.log(id).await.iter().any(|text| text.starts_with(line)).then_some(())
        })
        .await;
    }

    async fn phases(&self, id: JobId) -> Vec<String> {
        let events: Sequence<Value> =
            self.house.client().get(&format!("/v1/jobs/{id}/events?limit=500")).await.unwrap();
        let phases = events.items.iter().filter_map(|event| event["data"]["phase"].as_str());
        phases.map(str::to_owned).collect()
    }

    async fn builds(&self, ids: &[JobId]) -> usize {
        let mut builds = 0;
        for id in ids {
            builds += self.house.log(*id).await.iter().filter(|line| line.starts_with(BUILDING)).count();
        }
        builds
    }
}

fn succeeded(job: &Job) {
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.end);
}

#[actix_rt::test]
async fn a_job_has_the_packages_it_names_and_the_next_one_has_them_at_once() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let mut slow = rig.tiny();
    // It does not run while the environment is built.
    slow["timeout_s"] = json!(5);
    let first = rig.house.submit(&slow).await.id;
    succeeded(&rig.house.end(first).await);
    let log = rig.house.log(first).await;
    assert!(log[0].starts_with(BUILDING), "{log:?}");
    let shown: Vec<&str> = log.last().unwrap().split(' ').collect();
    let cache = rig.house.state().join("worker/environments");
    assert!(
        shown[0] == "1.0" && shown[1] == shown[2] && shown[1].starts_with(cache.to_str().unwrap()),
        "{log:?}"
    );
    assert_eq!(rig.phases(first).await, ["environment", "executing"]);

    // Other code, same packages. And nobody else may look into the cache.
    let mut again = rig.tiny();
    again["env"]["GREETING"] = json!("hello");
    let second = rig.house.submit(&again).await.id;
    succeeded(&rig.house.end(second).await);
    assert_eq!(rig.house.log(second).await, [log.last().unwrap().clone()]);
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mode = std::fs::metadata(cache.join(uid)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);

    // Another set of packages is another environment.
    rig.wheel("other", 0);
    let code = "import other; import importlib.util as u; print(u.find_spec('tiny'))";
    let third = rig.house.submit(&rig.job(code, json!({"requirements": rig.requiring("other")}))).await.id;
    succeeded(&rig.house.end(third).await);
    assert_eq!(rig.house.log(third).await.last().unwrap(), "None");
}

#[actix_rt::test]
async fn what_is_built_for_one_task_alone_is_not_remembered_for_others() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let answers = || {
        let users = std::fs::read_dir(rig.house.state().join("worker/environments")).unwrap().flatten();
        users.flat_map(|user| std::fs::read_dir(user.path().join("answers")).into_iter().flatten()).count()
    };
    let mut alone = rig.tiny();
    alone["workload"]["command"]["cwd"] = json!(rig.house.path());
    let id = rig.house.submit(&alone).await.id;
    succeeded(&rig.house.end(id).await);
    assert_eq!((rig.builds(&[id]).await, answers()), (1, 0));
    succeeded(&rig.house.end(rig.house.submit(&rig.tiny()).await.id).await);
    assert_eq!(answers(), 1);
}

#[actix_rt::test]
async fn a_function_runs_in_its_environment() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let mut spec = rig.tiny();
    spec["workload"] =
        json!({"function": {"serializer": "json", "entrypoint": "tiny:shown", "payload": "{}"}});
    let job = rig.house.end(rig.house.submit(&spec).await.id).await;
    succeeded(&job);
    let returned: Value = serde_json::from_str(job.result.unwrap().inline.unwrap().get()).unwrap();
    let cache = rig.house.state().join("worker/environments");
    assert_eq!(returned[0], "1.0");
    assert!(returned[1].as_str().unwrap().starts_with(cache.to_str().unwrap()), "{returned}");
    spec["python"]["requirements"] = rig.requiring("nosuch");
    let job = rig.house.end(rig.house.submit(&spec).await.id).await;
    assert_eq!((job.end.unwrap().reason, job.result.is_none()), (EndReason::EnvironmentFailed, true));
}

#[actix_rt::test]
async fn one_builds_while_the_others_wait_and_when_it_is_cancelled_another_does() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    rig.close();
    let first = rig.house.submit(&rig.tiny()).await.id;
    rig.begins(first, BUILDING).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        let id = rig.house.submit(&rig.holding_tiny()).await.id;
        rig.begins(id, WAITING).await;
        others.push(id);
    }
    assert_eq!(rig.builds(&others).await, 0);
    let _: Value = rig.house.client().post(&format!("/v1/jobs/{first}/cancel"), &json!({})).await.unwrap();
    let cancelled = rig.house.end(first).await;
    assert_eq!(cancelled.state, JobState::Cancelled);
    eventually("another one to build", async || (rig.builds(&others).await == 1).then_some(())).await;
    rig.open();
    // None of them waits for the end of another.
    for id in &others {
        rig.begins(*id, "up").await;
    }
    rig.let_go();
    for id in &others {
        succeeded(&rig.house.end(*id).await);
    }
    assert_eq!(rig.builds(&others).await, 1);
}

#[actix_rt::test]
async fn one_that_lost_its_python_is_built_anew_when_nobody_uses_it_any_more() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let uses = rig.house.submit(&rig.holding_tiny()).await.id;
    rig.begins(uses, "up").await;
    let environments = rig.complete();
    let [environment] = &environments[..] else { panic!("{environments:?}") };
    std::fs::remove_file(environment.join("bin/python")).unwrap();
    let builds = rig.house.submit(&rig.holding_tiny()).await.id;
    rig.begins(builds, IN_USE).await;
    let follows = rig.house.submit(&rig.holding_tiny()).await.id;
    rig.begins(follows, WAITING).await;
    assert_eq!(rig.builds(&[builds, follows]).await, 0);
    rig.let_go();
    for id in [uses, builds, follows] {
        succeeded(&rig.house.end(id).await);
    }
    assert_eq!(rig.builds(&[builds, follows]).await, 1);
    assert_eq!(rig.complete(), environments);
}

#[actix_rt::test]
async fn a_build_that_takes_too_long_is_ended_and_the_next_task_begins_anew() {
    let Some(rig) = Rig::new() else { return };
    // Enough for a build that is not held up, also beside others.
    rig.limit(6.0);
    let _daemon = rig.house.daemon().await;
    rig.close();
    let first = rig.house.submit(&rig.tiny()).await.id;
    rig.begins(first, BUILDING).await;
    // It waits for longer than a build may take, and has all of that time for its own.
    let second = rig.house.submit(&rig.tiny()).await.id;
    rig.begins(second, WAITING).await;
    let job = rig.house.end(first).await;
    let end = job.end.unwrap();
    assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::EnvironmentFailed));
    let (detail, advice) = (end.detail.unwrap(), end.advice.unwrap());
    let says = "the build was not done after 6 s (the worker's `environment_timeout_s`): ";
    assert!(detail.starts_with(says) && advice.contains("environment_timeout_s"), "{detail} / {advice}");
    rig.begins(second, BUILDING).await;
    rig.open();
    succeeded(&rig.house.end(second).await);
    assert_eq!(rig.house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn what_uv_refuses_is_refused_once_for_all_that_wait() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let refused = rig.job("1", json!({"requirements": rig.requiring("nosuch==3")}));
    rig.close();
    let first = rig.house.submit(&refused).await.id;
    rig.begins(first, BUILDING).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        let id = rig.house.submit(&refused).await.id;
        rig.begins(id, WAITING).await;
        others.push(id);
    }
    rig.open();
    let why = rig.house.end(first).await.end.unwrap().detail.unwrap();
    let (_, because) = why.split_once(": ").unwrap();
    for id in &others {
        let end = rig.house.end(*id).await.end.unwrap();
        assert_eq!(end.reason, EndReason::EnvironmentFailed);
        let detail = end.detail.unwrap();
        assert!(detail.contains("for another task") && detail.ends_with(because), "{detail} / {why}");
        assert!(end.advice.unwrap().contains("no set of versions fits"));
    }
    assert_eq!(rig.builds(&others).await, 0);

    // What was in the way of one may be gone for the next.
    let away = "/nonexistent/never/away-1.0-py3-none-any.whl";
    let unreachable = rig.job("1", json!({"requirements": [format!("away @ file://{away}")]}));
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(rig.house.submit(&unreachable).await.id);
        let end = rig.house.end(*ids.last().unwrap()).await.end.unwrap();
        assert_eq!(end.reason, EndReason::EnvironmentFailed, "{end:?}");
    }
    assert_eq!(rig.builds(&ids).await, 2);
}

#[actix_rt::test]
async fn a_refusal_is_said_where_the_worker_has_variables_that_are_no_text() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mut command = FarWorker::command(&rig.house, &format!("http://127.0.0.1:{}", rig.house.port()));
    command.env("GPULAYER_UV", rig.house.path().join("uv"));
    command.env("UV_CUSTOM_ODD", OsStr::from_bytes(b"caf\xe9 of the worker"));
    let _worker = FarWorker::start_as(&rig.house, &mut command);
    let refused = rig.job("1", json!({"requirements": rig.requiring("nosuch==3")}));
    for again in ["", " for another task"] {
        let end = rig.house.end(rig.house.submit(&refused).await.id).await.end.unwrap();
        let (detail, advice) = (end.detail.unwrap(), end.advice.unwrap_or_default());
        assert!(detail.contains(&format!("exited with status 1{again}")), "{detail}");
        assert!(advice.contains("no set of versions fits"), "{detail} / {advice}");
    }
}

#[actix_rt::test]
async fn a_build_outlives_its_worker() {
    let Some(rig) = Rig::new() else { return };
    let daemon = rig.house.daemon().await;
    rig.close();
    let id = rig.house.submit(&rig.tiny()).await.id;
    rig.begins(id, BUILDING).await;
    daemon.kill();
    let daemon = rig.house.daemon().await;
    let job: Job = rig.house.client().get(&format!("/v1/jobs/{id}")).await.unwrap();
    assert!(!job.state.ended(), "{job:?}");
    rig.open();
    let job = rig.house.end(id).await;
    succeeded(&job);
    assert_eq!((job.attempt, rig.builds(&[id]).await), (1, 1));
    assert_eq!(rig.phases(id).await, ["environment", "executing"]);

    // One that was cut short is no environment.
    let mut other = rig.tiny();
    other["python"]["requirements"] = rig.requiring("tiny");
    rig.close();
    let killed = rig.house.submit(&other).await.id;
    rig.begins(killed, BUILDING).await;
    let state = rig.house.state();
    let builders = marked("gpulayer-environment").into_iter().filter(|pid| {
        let read = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default())
                .into_owned()
        };
        read("cmdline").starts_with("gpulayer-environment")
            && read("environ").contains(state.to_str().unwrap())
    });
    for pid in builders.collect::<Vec<_>>() {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let job = rig.house.end(killed).await;
    let end = job.end.unwrap();
    assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::EnvironmentFailed));
    assert_eq!(end.detail.as_deref(), Some("its build was ended by SIGKILL"));
    rig.open();
    let next = rig.house.submit(&other).await.id;
    succeeded(&rig.house.end(next).await);
    assert_eq!(rig.builds(&[next]).await, 1);
    daemon.kill();
    assert_eq!(rig.house.leftovers(), [""; 0]);
}

#[actix_rt::test]
async fn what_cannot_be_built_says_why_and_the_program_never_ran() {
    let Some(rig) = Rig::new() else { return };
    let daemon = rig.house.daemon().await;
    for (python, says, advises) in [
        (json!({"requirements": rig.requiring("nosuch==3")}), "nosuch", "no set of versions fits"),
        (
            json!({"requirements": ["tiny"], "interpreter": "/nonexistent/python3"}),
            "there is no Python interpreter at /nonexistent/python3",
            "3.11",
        ),
        (json!({"lockfile": "locks/pylock.toml"}), "`locks/pylock.toml` cannot be read", "in the source"),
        (
            json!({"requirements": ["tiny"], "interpreter": "/bin/true"}),
            "no usable Python interpreter",
            "logs",
        ),
    ] {
        let id = rig.house.submit(&rig.job("open('ran', 'w')", python.clone())).await.id;
        let job = rig.house.end(id).await;
        let end = job.end.unwrap();
        let (detail, advice) = (end.detail.unwrap(), end.advice.unwrap());
        assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::EnvironmentFailed), "{detail}");
        assert!(detail.contains(says) && advice.contains(advises), "{python}: {detail} / {advice}");
        assert_eq!((end.exit_code, end.duration_s), (None, None));
        assert!(!rig.phases(id).await.contains(&"executing".to_owned()));
    }
    assert_eq!(daemon.terminate().code(), Some(0));

    rig.configure(Path::new("/nonexistent/uv"));
    let _daemon = rig.house.daemon().await;
    let job = rig.house.end(rig.house.submit(&rig.tiny()).await.id).await;
    let end = job.end.unwrap();
    assert_eq!(end.reason, EndReason::EnvironmentFailed);
    assert!(end.detail.unwrap().contains("`uv` was not found (the setting `uv` names /nonexistent/uv)"));
    assert!(end.advice.unwrap().contains("pip install uv"));
}

#[actix_rt::test]
async fn an_interpreter_alone_goes_by_the_usual_names_and_needs_no_uv() {
    let Some(rig) = Rig::new() else { return };
    rig.configure(Path::new("/nonexistent/uv"));
    let _daemon = rig.house.daemon().await;
    let odd = rig.house.path().join("it's odd/snake");
    std::fs::create_dir(odd.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&rig.python, &odd).unwrap();
    for name in ["python", "python3"] {
        let mut spec = rig.job("", json!({"interpreter": odd.to_str().unwrap()}));
        spec["workload"] = json!({"command": {"argv": [name, "-c", "import sys; print(sys.executable, sys.argv[1])", "a b"]}});
        let id = rig.house.submit(&spec).await.id;
        succeeded(&rig.house.end(id).await);
        assert_eq!(rig.house.log(id).await, [format!("{} a b", odd.display())]);
    }
    // A virtual environment as its own.
    let venv = rig.house.path().join("venv");
    output("python3", &["-m", "venv", "--without-pip", venv.to_str().unwrap()]);
    let code = "import os, sys; print(sys.prefix == os.environ['VIRTUAL_ENV'], sys.prefix)";
    let interpreter = venv.join("bin/python");
    let id = rig.house.submit(&rig.job(code, json!({"interpreter": interpreter.to_str().unwrap()}))).await.id;
    succeeded(&rig.house.end(id).await);
    assert_eq!(rig.house.log(id).await, [format!("True {}", venv.display())]);
}

#[actix_rt::test]
async fn a_jobs_packages_come_before_those_of_the_interpreter_named() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let venv = rig.house.path().join("venv");
    output("python3", &["-m", "venv", "--without-pip", venv.to_str().unwrap()]);
    let packages = output(
        venv.join("bin/python").to_str().unwrap(),
        &["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
    );
    for (name, text) in [("tiny.py", "VERSION = 'of the worker'"), ("torch_of_the_worker.py", "")] {
        std::fs::write(Path::new(&packages).join(name), text).unwrap();
    }
    let interpreter = venv.join("bin/python");
    let code = "import tiny, torch_of_the_worker; print(tiny.VERSION)";
    let python = json!({"interpreter": interpreter.to_str().unwrap(), "requirements": rig.requiring("tiny")});
    let id = rig.house.submit(&rig.job(code, python)).await.id;
    succeeded(&rig.house.end(id).await);
    assert_eq!(rig.house.log(id).await.last().unwrap(), "1.0");
}

#[actix_rt::test]
async fn the_command_line_brings_requirements_a_project_and_a_lock_file() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.house.daemon().await;
    let project = rig.house.path().join("project");
    std::fs::create_dir_all(project.join("src/mine")).unwrap();
    std::fs::write(project.join("src/mine/__init__.py"), "WHOSE = 'mine'\n").unwrap();
    let wheels = rig.wheels().display().to_string();
    let toml = format!(
        "[project]\nname = \"mine\"\nversion = \"1\"\nrequires-python = \">=3.9\"\ndependencies = [\"tiny\"]\n\
         [tool.uv]\nno-index = true\nfind-links = [\"{wheels}\"]\n\
         [build-system]\nrequires = [\"nothing-that-is-there\"]\nbuild-backend = \"nothing\"\n"
    );
    std::fs::write(project.join("pyproject.toml"), toml).unwrap();
    let uv = |args: &[&str]| {
        let ran = Command::new(uv().unwrap())
            .args(args)
            .current_dir(&project)
            .env("UV_OFFLINE", "1")
            .env("UV_CACHE_DIR", rig.house.path().join("own-cache"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
    };
    // The project itself cannot be built here, and need not be.
    std::fs::write(
        project.join("requirements.txt"),
        format!("-r more.txt\n--no-index\n--find-links {wheels}\n"),
    )
    .unwrap();
    std::fs::write(project.join("more.txt"), "# What it takes\ntiny==1.0\n").unwrap();
    std::fs::write(project.join("lock.txt"), format!("--no-index\n--find-links {wheels}\ntiny==1.0\n"))
        .unwrap();
    let no_build = std::fs::read_to_string(project.join("pyproject.toml")).unwrap();
    std::fs::write(project.join("pyproject.toml"), no_build.split("[build-system]").next().unwrap()).unwrap();
    uv(&["lock", "--python", &rig.python]);
    std::fs::write(project.join("pyproject.toml"), no_build).unwrap();
    std::fs::write(
        project.join("job.json"),
        json!({"python": {"lockfile": "lock.txt", "interpreter": rig.python}}).to_string(),
    )
    .unwrap();

    let run = |flags: &[&str], code: &str| {
        let mut args = vec!["run", "--env", "UV_OFFLINE=1"];
        args.extend(flags);
        args.extend(["--", "python", "-c", code]);
        let ran = rig.house.command(&args).current_dir(&project).output().unwrap();
        assert!(ran.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    };
    let tiny = "import tiny; print(tiny.VERSION)";
    let both = "import tiny, mine; print(tiny.VERSION, mine.WHOSE)";
    let python = ["--python", rig.python.as_str()];
    assert_eq!(run(&[&python[..], &["--requirements", "requirements.txt"]].concat(), tiny), "1.0");
    assert_eq!(run(&["--spec", "job.json"], tiny), "1.0");
    assert_eq!(run(&[&python[..], &["--uv"]].concat(), both), "1.0 mine");
    // Sent along, as to a worker elsewhere.
    assert_eq!(run(&[&python[..], &["--uv", "--source", "."]].concat(), both), "1.0 mine");
    std::fs::write(project.join("src/mine/__init__.py"), "WHOSE = 'changed'\n").unwrap();
    assert_eq!(run(&[&python[..], &["--uv", "--source", "."]].concat(), both), "1.0 changed");
}

#[actix_rt::test]
async fn a_full_disk_is_said_and_environments_that_nobody_uses_make_room() {
    let Some(rig) = Rig::new() else { return };
    let house = &rig.house;
    let Some(volume) = Volume::tmpfs(&house.path().join("far"), 64) else { return };
    let _daemon = house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let url = format!("http://127.0.0.1:{}", house.port());
    let mut command = FarWorker::command(house, &url);
    command.args(["--min-free", "8MiB", "--evict-below", "16MiB"]);
    command.env("GPULAYER_UV", house.path().join("uv"));
    let _worker = FarWorker::start_as(house, &mut command);
    rig.wheel("large", 200);
    let job =
        house.end(house.submit(&rig.job("", json!({"requirements": rig.requiring("large")}))).await.id).await;
    let end = job.end.unwrap();
    let detail = end.detail.unwrap();
    assert_eq!((job.state, end.reason), (JobState::Failed, EndReason::DiskFull), "{detail}");
    assert!(detail.contains("while the Python environment was built"), "{detail}");
    let environments = volume.path().join("environments");
    let complete = || {
        let users = std::fs::read_dir(&environments).into_iter().flatten().flatten();
        let all = users.flat_map(|user| std::fs::read_dir(user.path()).into_iter().flatten().flatten());
        all.filter(|entry| entry.path().join("gpulayer-complete.json").exists()).count()
    };
    // What was left of it goes by itself, and the worker takes tasks again.
    rig.wheel("held", 0);
    let holds =
        "import held, os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)";
    let used = house.submit(&rig.job(holds, json!({"requirements": rig.requiring("held")}))).await.id;
    rig.begins(used, "up").await;
    let idle = house.submit(&rig.tiny()).await.id;
    succeeded(&house.end(idle).await);
    assert_eq!(complete(), 2);
    volume.fill(12 << 20);
    eventually("the idle one to go", async || (complete() == 1).then_some(())).await;
    volume.free();
    for task in std::fs::read_dir(volume.path().join("tasks")).unwrap().flatten() {
        let _ = std::fs::write(task.path().join("workspace/go"), "");
    }
    succeeded(&house.end(used).await);
    let again = house.submit(&rig.tiny()).await.id;
    succeeded(&house.end(again).await);
    assert_eq!(rig.builds(&[again]).await, 1, "it was built anew");
}

#[actix_rt::test]
async fn tasks_of_another_user_have_environments_of_that_users_own() {
    let Some(mut rig) = Rig::new() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: only root can run tasks as another user");
        return;
    }
    // Those of the tests may lie in root's home.
    let (python, uv_copy) = (Path::new("/usr/bin/python3"), rig.house.path().join("uv-copy"));
    if !python.exists() {
        eprintln!("NOT TESTED: no Python that every user can reach");
        return;
    }
    rig.python = python.display().to_string();
    std::fs::copy(uv().unwrap(), &uv_copy).unwrap();
    for path in [rig.house.path(), &rig.wheels(), &uv_copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let _daemon = rig.house.daemon_with(&["--no-worker", "--port", "0"]).await;
    let mut command = Command::new(binary("gpulayer-worker"));
    command.args(["--url", &format!("http://127.0.0.1:{}", rig.house.port()), "--name", "far"]);
    command.args(["--task-user", "nobody", "--join-token-file"]).arg(rig.house.home().join("join-token"));
    command.arg("--folder").arg(FarWorker::folder(&rig.house)).env("GPULAYER_UV", &uv_copy);
    let _worker = FarWorker::start_as(&rig.house, &mut command);
    let code = "import os, sys, tiny; print(os.getuid(), os.stat(sys.prefix).st_uid, sys.prefix)";
    let spec = rig.job(code, json!({"requirements": rig.requiring("tiny")}));
    for builds in [1, 0] {
        let id = rig.house.submit(&spec).await.id;
        succeeded(&rig.house.end(id).await);
        assert_eq!(rig.builds(&[id]).await, builds);
        let log = rig.house.log(id).await;
        let folder = FarWorker::folder(&rig.house).join("environments");
        let shown: Vec<&str> = log.last().unwrap().split(' ').collect();
        assert!(shown[0] == shown[1] && shown[0] != "0", "{log:?}");
        assert!(shown[2].starts_with(folder.join(shown[0]).to_str().unwrap()), "{log:?}");
    }
}
