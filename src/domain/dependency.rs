//! What a job waits for before it may be placed: which ends of which other jobs, whether an end is the one it waits
//! for, and what of the other job's outputs becomes its inputs (CONTRACT, Dependencies).

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::spec::is_glob;
use crate::contract::artifact::OutputFile;
use crate::contract::end::{End, EndReason};
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::contract::spec::{DependencyEnd, Input, InputOrigin, JobSpec, Output};

/// Characters of an id's end that name a job in a sentence.
const SHOWN_TAIL: usize = 6;
/// Inputs that a spec may have once outputs were filled in.
const MOST_INPUTS: usize = 1_000;

/// One job that another waits for. Kept in the row of the one that waits, until it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Which.
    pub job: JobId,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which end counts.
    pub when: DependencyEnd,
    /// Whether outputs of it become inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outputs: bool,
}

/// How a dependency is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It ended.
    Ended {
        /// In this state.
        state: JobState,
        /// For this reason.
        reason: EndReason,
    },
    /// It was removed, and nobody can tell how it had ended.
    Gone,
}

/// What a job is called in a sentence: `job …a7kq2b`.
pub fn named(job: JobId) -> String {
    let id = job.to_string();
    format!("job …{}", &id[id.len() - SHOWN_TAIL..])
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&named(self.job))?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        Ok(())
    }
}

/// The sentence for `queue_reason`; `None` when nothing is waited for.
pub fn queue_reason(waits: &[Wait]) -> Option<String> {
    let first = waits.first()?;
    let wanted = match first.when {
        DependencyEnd::Succeeded => "succeed",
        DependencyEnd::Ended => "end",
    };
    let others = match waits.len() - 1 {
        0 => String::new(),
        1 => ", and for 1 other".to_owned(),
        more => format!(", and for {more} others"),
    };
    Some(format!("waits for {first} to {wanted}{others}"))
}

/// What a spec waits for, each job once: `depends_on`, and the jobs of `inputs[].from`, which have to succeed unless
/// `depends_on` asks for less. References that are no ids are left out: the edge has put ids in their place.
pub fn waits(spec: &JobSpec, mut name_of: impl FnMut(JobId) -> Option<String>) -> Vec<Wait> {
    let mut places: HashMap<JobId, usize> = HashMap::new();
    let mut waits: Vec<Wait> = Vec::new();
    let mut wait_for = |job: JobId| {
        *places.entry(job).or_insert_with(|| {
            waits.push(Wait { job, name: name_of(job), when: DependencyEnd::Ended, outputs: false });
            waits.len() - 1
        })
    };
    let asked: Vec<(usize, DependencyEnd)> = spec
        .depends_on
        .iter()
        .filter_map(|asked| Some((wait_for(asked.job.parse().ok()?), asked.when)))
        .collect();
    let named = asked.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
    let from: Vec<usize> = spec
        .inputs
        .iter()
        .filter_map(|input| match &input.origin {
            InputOrigin::From(from) => Some(wait_for(from.job.parse().ok()?)),
            InputOrigin::Artifact(_) => None,
        })
        .collect();
    for (place, when) in asked {
        if when == DependencyEnd::Succeeded {
            waits[place].when = when;
        }
    }
    for place in from {
        waits[place].outputs = true;
        if place >= named {
            waits[place].when = DependencyEnd::Succeeded;
        }
    }
    waits
}

/// Whether this end is the one that was waited for; else how the job that waits ends.
pub fn judge(wait: &Wait, over: Over) -> Result<(), Box<End>> {
    let (how, evidence) = match over {
        Over::Ended { state: JobState::Succeeded, .. } => return Ok(()),
        Over::Ended { .. } if wait.when == DependencyEnd::Ended => return Ok(()),
        Over::Ended { state, reason } => {
            let (state, reason) = (state.word(), reason.word());
            match state == reason {
                true => (format!("it ended {state}"), format!("{}: {state}", wait.job)),
                false => (format!("it ended {state} ({reason})"), format!("{}: {state}, {reason}", wait.job)),
            }
        }
        Over::Gone => ("it was removed".to_owned(), format!("{}: removed", wait.job)),
    };
    let wanted = match wait.when {
        DependencyEnd::Succeeded => "succeed",
        DependencyEnd::Ended => "end",
    };
    let mut end = End::of(EndReason::DependencyFailed, format!("waited for {wait} to {wanted}, but {how}"));
    end.evidence = vec![evidence];
    Err(Box::new(end))
}

/// What an ended job declared and brought back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Produced {
    /// Its spec's outputs.
    pub declared: Vec<Output>,
    /// Its collected files.
    pub files: Vec<OutputFile>,
}

/// The spec with the inputs that come from `wait.job` filled in: an output that is a file lies at the input's path, the
/// files of a folder or a glob lie below it. Else how the job ends.
pub fn fill(spec: &JobSpec, wait: &Wait, produced: &Produced) -> Result<JobSpec, Box<End>> {
    let mut filled = spec.clone();
    filled.inputs.clear();
    for input in &spec.inputs {
        match &input.origin {
            InputOrigin::From(from) if from.job.parse() == Ok(wait.job) => {
                let found = files_of(input, &from.output, produced);
                if found.is_empty() {
                    return Err(unavailable(wait, &from.output, "it brought no such file back"));
                }
                filled.inputs.extend(found);
            }
            _ => filled.inputs.push(input.clone()),
        }
        if filled.inputs.len() > MOST_INPUTS {
            let why = format!("a job takes at most {MOST_INPUTS} files; let it pack them into one");
            let InputOrigin::From(from) = &input.origin else { continue };
            return Err(unavailable(wait, &from.output, &why));
        }
    }
    Ok(filled)
}

fn files_of(input: &Input, output: &str, produced: &Produced) -> Vec<Input> {
    let declared = produced
        .declared
        .iter()
        .find(|declared| declared.name.as_deref().unwrap_or(&declared.path) == output);
    let at = declared.map(|declared| declared.path.as_str()).unwrap_or_default();
    let fixed = fixed_part(at);
    let files = produced.files.iter().filter(|file| file.name == output);
    files
        .filter_map(|file| {
            let path = if file.path == at {
                input.path.clone()
            } else {
                let below = file.path.strip_prefix(&fixed).unwrap_or(&file.path);
                format!("{}/{}", input.path, below.trim_start_matches('/'))
            };
            Some(Input { origin: InputOrigin::Artifact(file.artifact?), path, ..input.clone() })
        })
        .collect()
}

/// What of a path or glob stands fast: its parts before the first with a wildcard.
fn fixed_part(path: &str) -> String {
    let fast: Vec<&str> = path.split('/').take_while(|part| !is_glob(part)).collect();
    fast.join("/")
}

fn unavailable(wait: &Wait, output: &str, why: &str) -> Box<End> {
    let detail = format!("input from output `{output}` of {wait}: {why}");
    let mut end = End::of(EndReason::InputUnavailable, detail);
    end.evidence = vec![format!("{}: output `{output}`", wait.job)];
    Box::new(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::artifact::Digest;
    use crate::contract::spec::{Dependency, InputFrom, InputMode};

    fn id(number: u128) -> JobId {
        JobId::from_u128(number)
    }

    fn wait(when: DependencyEnd) -> Wait {
        Wait { job: id(7), name: Some("train".into()), when, outputs: false }
    }

    fn input(job: u128, output: &str, path: &str) -> Input {
        let origin = InputOrigin::From(InputFrom { job: id(job).to_string(), output: output.into() });
        Input { origin, path: path.into(), unpack: false, mode: InputMode::Ro }
    }

    #[test]
    fn each_job_is_waited_for_once_and_inputs_want_success_unless_less_is_asked_for() {
        let mut spec = JobSpec::command(["true"]);
        let asked = |job, when| Dependency { job: id(job).to_string(), when };
        spec.depends_on = vec![
            asked(1, DependencyEnd::Ended),
            asked(2, DependencyEnd::Ended),
            asked(2, DependencyEnd::Succeeded),
        ];
        spec.inputs = vec![input(1, "a", "a"), input(3, "b", "b"), input(3, "c", "c")];
        let waits = waits(&spec, |_| None);
        let seen: Vec<_> = waits.iter().map(|wait| (wait.job, wait.when, wait.outputs)).collect();
        assert_eq!(
            seen,
            [
                (id(1), DependencyEnd::Ended, true),
                (id(2), DependencyEnd::Succeeded, false),
                (id(3), DependencyEnd::Succeeded, true)
            ]
        );
    }

    #[test]
    fn the_reason_names_what_is_waited_for() {
        let tail = &id(7).to_string()[24..];
        let one = wait(DependencyEnd::Succeeded);
        let said = format!("waits for job …{tail} (train) to succeed");
        assert_eq!(queue_reason(std::slice::from_ref(&one)).as_deref(), Some(said.as_str()));
        let two = queue_reason(&[one.clone(), one]).unwrap();
        assert_eq!(two, format!("{said}, and for 1 other"));
        assert_eq!(queue_reason(&[]), None);
    }

    #[test]
    fn an_end_is_judged_by_what_was_asked() {
        let ended = |reason: EndReason| Over::Ended { state: reason.job_state(), reason };
        for (when, over, met) in [
            (DependencyEnd::Succeeded, ended(EndReason::Completed), true),
            (DependencyEnd::Succeeded, ended(EndReason::ExitNonzero), false),
            (DependencyEnd::Succeeded, ended(EndReason::Cancelled), false),
            (DependencyEnd::Ended, ended(EndReason::QueueTimedOut), true),
            (DependencyEnd::Ended, ended(EndReason::DependencyFailed), true),
            (DependencyEnd::Ended, Over::Gone, false),
        ] {
            let judged = judge(&wait(when), over);
            assert_eq!(judged.is_ok(), met, "{when:?} {over:?}");
            if let Err(end) = judged {
                assert_eq!(end.reason, EndReason::DependencyFailed);
                assert!(end.evidence[0].starts_with(&id(7).to_string()), "{end:?}");
            }
        }
    }

    #[test]
    fn outputs_become_inputs_where_the_input_says() {
        let output = |path: &str, name: Option<&str>| Output {
            path: path.into(),
            name: name.map(Into::into),
            optional: false,
        };
        let file = |name: &str, path: &str, byte: u8| OutputFile {
            name: name.into(),
            path: path.into(),
            artifact: Some(Digest::from_bytes([byte; 32])),
            link_target: None,
            size_bytes: 1,
            mode: 0o644,
        };
        let produced = Produced {
            declared: vec![
                output("out/model.pt", Some("model")),
                output("ck/*/w.pt", None),
                output("logs", None),
            ],
            files: vec![
                file("model", "out/model.pt", 1),
                file("ck/*/w.pt", "ck/1/w.pt", 2),
                file("ck/*/w.pt", "ck/2/w.pt", 3),
                file("logs", "logs/a/b", 4),
            ],
        };
        let mut spec = JobSpec::command(["true"]);
        spec.inputs = vec![
            input(7, "model", "in.pt"),
            input(7, "ck/*/w.pt", "ck"),
            input(7, "logs", "old"),
            input(8, "other", "x"),
        ];
        let filled = fill(&spec, &wait(DependencyEnd::Succeeded), &produced).unwrap();
        let paths: Vec<&str> = filled.inputs.iter().map(|input| input.path.as_str()).collect();
        assert_eq!(paths, ["in.pt", "ck/1/w.pt", "ck/2/w.pt", "old/a/b", "x"]);
        assert!(matches!(filled.inputs[4].origin, InputOrigin::From(_)), "the other job's turn comes later");
        assert!(filled.inputs[..4].iter().all(|input| matches!(input.origin, InputOrigin::Artifact(_))));
        let missing = fill(&spec, &wait(DependencyEnd::Succeeded), &Produced::default()).unwrap_err();
        assert_eq!(missing.reason, EndReason::InputUnavailable);
        assert!(missing.detail.unwrap().contains("`model`"));
    }
}
