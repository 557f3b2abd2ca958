//! A program that witnesses what happens to it: each run takes one of its machine's two slots (files that a process
//! holds locked while it lives), tells its begin and its end, and waits for a word in between.

use std::fs::File;
use std::path::{Path, PathBuf};

use gpulayer::contract::ids::JobId;
use serde_json::{Value, json};

/// What all of one test's runs tell.
pub struct Witness {
    folder: PathBuf,
}

impl Witness {
    pub fn new(folder: &Path) -> Self {
        let folder = folder.join("witness");
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// A job whose runs wait for [`Witness::let_go`]; it leaves `out.txt` with its task's id.
    pub fn job(&self) -> Value {
        let folder = self.folder.display();
        let script = format!(
            r#"cd {folder}
            exec 8>>slot-$(hostname)-1 9>>slot-$(hostname)-2
            flock -n 8 && exec 9>&- || {{ exec 8>&-; flock -n 9; }} || echo "double $GPULAYER_TASK_ID" >> tales
            echo "begin $GPULAYER_JOB_ID $GPULAYER_TASK_ID $(hostname)" >> tales
            until [ -e go ]; do sleep 0.05; done
            echo "end $GPULAYER_JOB_ID $GPULAYER_TASK_ID $(hostname)" >> tales
            echo $GPULAYER_TASK_ID > "$GPULAYER_WORKSPACE/out.txt""#
        );
        json!({
            "workload": {"command": {"shell": script}},
            "resources": {"cpus": 1},
            "outputs": [{"path": "out.txt"}],
        })
    }

    /// The same on one worker, once, come what may.
    pub fn waiting_job(&self, worker: &str) -> Value {
        let mut job = self.job();
        job["resources"]["worker"] = json!(worker);
        job
    }

    /// The same anywhere, as often as it takes.
    pub fn replaced_job(&self) -> Value {
        let mut job = self.job();
        job["retry"] = json!({"max_attempts": 5});
        job
    }

    pub fn let_go(&self) {
        std::fs::write(self.folder.join("go"), "").unwrap();
    }

    pub fn tales(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("tales")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often a job began.
    pub fn begins(&self, job: JobId) -> usize {
        self.tales().iter().filter(|tale| tale.starts_with(&format!("begin {job} "))).count()
    }

    /// How many runs live on a machine.
    pub fn runs_on(&self, machine: &str) -> usize {
        let held = |slot: &u8| {
            let path = self.folder.join(format!("slot-{machine}-{slot}"));
            File::open(path).is_ok_and(|file| file.try_lock().is_err())
        };
        [1, 2].iter().filter(|slot| held(slot)).count()
    }

    /// No run found both slots taken.
    pub fn assert_no_slot_was_granted_twice(&self) {
        let tales = self.tales();
        assert!(!tales.iter().any(|tale| tale.starts_with("double ")), "{tales:#?}");
    }
}
