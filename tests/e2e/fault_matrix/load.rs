//! The mixed load: what is submitted, and what must have become of it.

use std::path::Path;

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Exits at once with this status.
    Short { code: i32 },
    /// Prints numbered lines, a few at a time.
    Counter { lines: u32 },
    /// Prints numbered lines as fast as it can.
    Flood { lines: u32 },
    /// Works for a while in silence and leaves two outputs.
    Writer { millis: u32 },
    /// Leaves children in sessions of their own, and a daemon; all would go on for ever.
    Forker { millis: u32 },
    /// Deaf to the polite signal; is cancelled as soon as it is accepted.
    Deaf,
    /// Runs into its timeout.
    Overtime,
    /// As a counter, and asks to be tried again when its shim is killed.
    Retrier { lines: u32 },
}

impl Kind {
    /// Any of them; `flood_lines` at most from a flood.
    pub fn random(rng: &mut StdRng, flood_lines: u32) -> Self {
        match rng.random_range(0..10) {
            0 | 1 => Kind::Short { code: rng.random_range(0..4) },
            2 | 3 => Kind::Counter { lines: rng.random_range(1..300) },
            4 => Kind::Flood { lines: rng.random_range(1_000..flood_lines) },
            5 => Kind::Writer { millis: rng.random_range(0..2_000) },
            6 => Kind::Forker { millis: rng.random_range(0..1_000) },
            7 => Kind::Deaf,
            8 => Kind::Overtime,
            _ => Kind::Retrier { lines: rng.random_range(50..300) },
        }
    }

    /// Attempts it allows, all of them for a killed shim.
    pub fn max_attempts(self) -> u32 {
        if matches!(self, Kind::Retrier { .. }) { 100 } else { 1 }
    }

    /// The lines of one undisturbed attempt; `None` where they do not matter.
    pub fn lines(self) -> Option<Vec<String>> {
        let numbered = |prefix: &str, lines: u32| (1..=lines).map(|n| format!("{prefix}{n}")).collect();
        match self {
            Kind::Counter { lines } | Kind::Retrier { lines } => Some(numbered("line ", lines)),
            Kind::Flood { lines } => {
                let mut all: Vec<String> = numbered("", lines);
                all.push("LAST".to_owned());
                Some(all)
            }
            Kind::Forker { .. } => Some(vec!["forked".to_owned()]),
            Kind::Short { .. } | Kind::Writer { .. } | Kind::Overtime => Some(Vec::new()),
            Kind::Deaf => None,
        }
    }

    /// The shell text. `mark` stands on the command line of everything it starts; `in_groups`: the worker has control
    /// groups for its tasks.
    pub fn script(self, mark: &str, in_groups: bool) -> String {
        let unmarked = if in_groups { "env -i " } else { "" };
        match self {
            Kind::Short { code } => format!("exit {code}"),
            Kind::Counter { lines } | Kind::Retrier { lines } => format!(
                "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line $i; \
                 [ $((i % 10)) -ne 0 ] || sleep 0.02; done"
            ),
            Kind::Flood { lines } => format!("seq 1 {lines}; echo LAST"),
            Kind::Writer { millis } => format!(
                "sleep {}; mkdir made; seq 1 1000 > made/numbers; echo by {mark} > name.txt",
                seconds(millis)
            ),
            // In a control group even one that has dropped its environment and lost its parents is found.
            Kind::Forker { millis } => format!(
                "trap '' TERM HUP; ghost='sleep 1000; : {mark}'; \
                 setsid sh -c \"$ghost\" & sh -c \"$ghost\" & ( (setsid sh -c \"$ghost\" &) & ); \
                 ( ({unmarked}setsid sh -c \"$ghost\" &) & ); \
                 sleep {}; echo forked",
                seconds(millis)
            ),
            Kind::Deaf => "trap '' TERM; echo up; while :; do sleep 0.1; done".to_owned(),
            Kind::Overtime => "sleep 1000".to_owned(),
        }
    }

    /// The whole spec of a job of this name.
    pub fn spec(self, name: &str, mark: &str, in_groups: bool) -> Value {
        let mut spec = json!({
            "name": name,
            "workload": {"command": {"argv": ["sh", "-c", self.script(mark, in_groups)]}},
            "resources": {"cpus": 0.2},
            "grace_s": 0.2,
        });
        match self {
            Kind::Writer { .. } => spec["outputs"] = json!([{"path": "made"}, {"path": "name.txt"}]),
            Kind::Overtime => spec["timeout_s"] = json!(0.4),
            Kind::Retrier { .. } => {
                spec["retry"] = json!({"max_attempts": self.max_attempts(), "retry_on": ["internal"]});
                // A worker that comes back late is waited for: only a killed shim costs an attempt here.
                spec["on_unreachable"] = json!("wait");
            }
            _ => {}
        }
        spec
    }

    /// The files a writer must have left, with their bytes.
    pub fn outputs(self, mark: &str) -> Vec<(&'static str, Vec<u8>)> {
        if !matches!(self, Kind::Writer { .. }) {
            return Vec::new();
        }
        let numbers: String = (1..=1000).map(|n| format!("{n}\n")).collect();
        vec![("made/numbers", numbers.into_bytes()), ("name.txt", format!("by {mark}\n").into_bytes())]
    }
}

fn seconds(millis: u32) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

/// What stands on the command line of every process of a house's jobs.
pub fn mark(house: &Path, name: &str) -> String {
    format!("{}#{name}", house.display())
}
