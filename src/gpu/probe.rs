//! The probe: this binary under another name, and the two sides of its conversation.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::nvidia::{Driver, Found, Glance, SYSTEM_LIBRARY, open, words};
use super::{GpuError, GpuOptions, Nvml};
use crate::process::asked::{Answerer, AskError, Asked, begin_as};
use crate::process::look_at_stuck;

/// The name under which the binary is a probe.
pub const PROBE_NAME: &str = "gpulayer-probe";
/// The same in lists of processes.
const PROCESS_NAME: &CStr = c"gpulayer-probe";
/// Of the worker's environment it has this: where libraries are found, and how the driver is told to behave.
const PASSED_ON: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "NVIDIA_DRIVER_CAPABILITIES"];
const WHAT: &str = "the NVIDIA driver";

/// After that long a device that hung is tried again.
const HUNG_FOR: Duration = Duration::from_secs(60);

/// A question, as one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Question {
    about: About,
    /// Devices to leave alone, by the driver's numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skip: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum About {
    Inventory,
    Glance,
}

/// A line of the answer to it. The last is no `At`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// Turns to this device now.
    At(u32),
    Inventory(Found),
    Glance(Vec<Glance>),
    Failed(String),
}

/// Is this process to be a probe? Then does that and never returns. Must be among the first things in `main`, before
/// any thread exists.
pub fn run_if_probe() {
    let mut arguments = std::env::args_os();
    let name = arguments.next().map(PathBuf::from);
    if name.as_deref().and_then(Path::file_name).is_none_or(|name| name != PROBE_NAME) {
        return;
    }
    begin_as(PROCESS_NAME);
    let library = arguments.next().unwrap_or_else(|| SYSTEM_LIBRARY.into());
    let status = i32::from(serve(&library).is_err());
    // Not back into the binary's own `main`.
    std::process::exit(status);
}

/// Answers until its standard input ends.
fn serve(library: &OsString) -> io::Result<()> {
    let mut questions = io::stdin().lock().lines();
    let Some(first) = questions.next().transpose()? else { return Ok(()) };
    let nvml = match open(library) {
        Ok(nvml) => nvml,
        // The next try is another probe's.
        Err(error) => return answer(&Answer::Failed(words(&error))),
    };
    let mut driver = None;
    for question in std::iter::once(Ok(first)).chain(questions) {
        let Question { about, skip } = serde_json::from_str(&question?)?;
        let driver = driver.get_or_insert_with(|| Driver::new(&nvml, &skip, at));
        let told = match about {
            About::Inventory => driver.inventory(&skip).map(Answer::Inventory),
            About::Glance => driver.glance(&skip).map(Answer::Glance),
        };
        answer(&told.unwrap_or_else(|error| Answer::Failed(words(&error))))?;
    }
    Ok(())
}

fn at(number: u32) {
    // Whoever does not listen any more does not need it.
    let _ = answer(&Answer::At(number));
}

fn answer(answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}

/// The worker's end of it: a probe that is started when there is something to ask, and again after it failed.
#[derive(Debug)]
pub(super) struct Probe {
    asked: Asked,
    running: Option<Answerer>,
    /// The last one, which was killed: a driver may keep it for long.
    killed: Option<u32>,
    /// Devices that are left alone for a while, by the driver's numbers.
    hung: BTreeMap<u32, Hung>,
    /// All that was ever seen.
    known: Vec<Glance>,
}

#[derive(Debug)]
struct Hung {
    at: Instant,
    why: String,
}

impl Probe {
    /// Starts nothing yet.
    pub(super) fn new(options: &GpuOptions) -> Self {
        let library = match &options.nvml {
            Nvml::Library(path) => path.into(),
            Nvml::System | Nvml::Off => SYSTEM_LIBRARY.into(),
        };
        let environment =
            std::env::vars_os().filter(|(name, _)| PASSED_ON.iter().any(|passed| name == passed));
        let asked = Asked {
            program: options.binary.clone().unwrap_or_else(|| "/proc/self/exe".into()),
            name: Some(PROBE_NAME),
            arguments: vec![library],
            environment: environment.collect(),
            run_as: None,
        };
        Self { asked, running: None, killed: None, hung: BTreeMap::new(), known: Vec::new() }
    }

    /// What there is. A device that hangs is a fault, and left out from then on. Blocks, for that long at most, once
    /// more for each device that hangs.
    pub(super) fn inventory(&mut self, within: Duration) -> Result<Found, GpuError> {
        match self.ask_around(About::Inventory, within)? {
            Answer::Inventory(mut found) => {
                let hung = self.hung.iter().map(|(number, hung)| format!("GPU {number}: {}", hung.why));
                found.faults.extend(hung);
                Ok(found)
            }
            other => Err(self.refused(other)),
        }
    }

    /// How it does; the same holds.
    pub(super) fn glance(&mut self, within: Duration) -> Result<Vec<Glance>, GpuError> {
        match self.ask_around(About::Glance, within)? {
            Answer::Glance(seen) => {
                for glance in &seen {
                    self.known.retain(|known| known.uuid != glance.uuid);
                }
                self.known.extend(seen.iter().cloned());
                let hung = self.known.iter().filter_map(|known| {
                    let why = self.hung.get(&known.number)?.why.clone();
                    Some(Glance { fault: Some(why), ..known.clone() })
                });
                Ok(hung.chain(seen).collect())
            }
            other => Err(self.refused(other)),
        }
    }

    /// Asks about all devices that do not hang.
    fn ask_around(&mut self, about: About, within: Duration) -> Result<Answer, GpuError> {
        self.hung.retain(|_, hung| hung.at.elapsed() < HUNG_FOR);
        loop {
            match self.ask(about, within) {
                Err(GpuError::Hung { number, source, .. }) => {
                    let why = format!("it does not answer: {source}");
                    self.hung.insert(number, Hung { at: Instant::now(), why });
                }
                answered => return answered,
            }
        }
    }

    fn ask(&mut self, about: About, within: Duration) -> Result<Answer, GpuError> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let garbled = |source| GpuError::Garbled { what: WHAT, source };
        let question = Question { about, skip: self.hung.keys().copied().collect() };
        running.ask(&serde_json::to_string(&question).map_err(garbled)?);
        // After a failure it is not kept, which ends it.
        self.killed = Some(running.pid());
        let (deadline, mut at) = (Instant::now() + within, None);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match (running.hear(left), at) {
                (Ok(line), _) => match serde_json::from_str(&line).map_err(garbled)? {
                    Answer::At(number) => at = Some(number),
                    answer => {
                        self.killed = None;
                        self.running = Some(running);
                        return Ok(answer);
                    }
                },
                (Err(AskError::Silent { .. }), Some(number)) if !self.hung.contains_key(&number) => {
                    return Err(GpuError::Hung { what: WHAT, number, source: AskError::Silent { within } });
                }
                (Err(AskError::Silent { .. }), _) => {
                    return Err(GpuError::Asked { what: WHAT, source: AskError::Silent { within } });
                }
                (Err(source), _) => return Err(GpuError::Asked { what: WHAT, source }),
            }
        }
    }

    /// One at a time: a driver that hangs must not fill the machine with probes that cannot be killed.
    fn start(&mut self) -> Result<Answerer, GpuError> {
        let stuck = |pid: &u32| {
            let process = look_at_stuck(*pid)?;
            (process.command == PROBE_NAME && process.state != "Z").then_some(process)
        };
        if let Some(process) = self.killed.as_ref().and_then(stuck) {
            return Err(GpuError::Stuck { process });
        }
        self.killed = None;
        Answerer::start(&self.asked).map_err(|source| GpuError::Asked { what: WHAT, source })
    }

    /// A driver that failed as a whole (reloaded, updated) is begun with anew.
    fn refused(&mut self, answer: Answer) -> GpuError {
        self.running = None;
        let why = match answer {
            Answer::Failed(why) => why,
            Answer::At(_) | Answer::Inventory(_) | Answer::Glance(_) => {
                "it answered another question".to_owned()
            }
        };
        GpuError::Refused { what: WHAT, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversation_is_of_lines() {
        let question = Question { about: About::Glance, skip: Vec::new() };
        assert_eq!(serde_json::to_string(&question).unwrap(), r#"{"about":"glance"}"#);
        let answer = Answer::Failed("the NVIDIA driver is not loaded".into());
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"failed":"the NVIDIA driver is not loaded"}"#
        );
    }
}
