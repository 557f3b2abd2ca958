//! A worker at work, seen from a terminal or a service manager's log: one line for each thing a person wants to know,
//! and what signals do.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::error::JoinError;
use super::settled::Settled;
use super::told::{Hint, News, Told};
use crate::cli::screen::say;
use crate::cli::shown::{harmless, quoted};
use crate::client::http_channel::HttpChannel;
use crate::config::Readiness;
use crate::worker::{Farewell, Worker, WorkerEnd, has_session};

/// Lines about tasks come no faster than this, however many tasks there are.
const BETWEEN_TASK_LINES: Duration = Duration::from_secs(5);

/// What a start is for.
pub(super) enum Purpose {
    /// To work until it is told to stop.
    Work {
        /// Whether an interrupt ends its membership; else it only stops, and the next start takes it up again.
        interrupt_leaves: bool,
    },
    /// To work until it is told to stop, and somebody waits for the word that it has joined.
    WorkInBackground(Readiness),
    /// To have a session: another start goes on with it.
    OnlyJoin,
}

/// Runs a worker until it has served its purpose, or is told to stop; the line that says that it joined.
pub(super) fn run(settled: Settled, purpose: Purpose) -> Result<String, JoinError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(runtime_fault)?;
    let signals = runtime.block_on(async { Signals::caught() }).map_err(runtime_fault)?;
    let server = settled.endpoint.to_string();
    let failed = |source| JoinError::Server { server: server.clone(), source };
    let token = settled.token.as_deref().unwrap_or_default();
    let channel = HttpChannel::new(settled.endpoint.clone(), settled.trust.clone(), token).map_err(failed)?;
    let (tell, news) = mpsc::unbounded_channel();
    let (leave, leaving) = watch::channel(false);
    let folder = settled.folder().to_owned();
    let mut scene = Scene {
        folder: quoted(&folder.display().to_string()),
        name: settled.options.name.clone(),
        rejoins: settled.options.rejoins,
        server: server.clone(),
        joined: String::new(),
        leave,
        counts: (0, 0),
        told: (0, 0),
        next_line_at: Instant::now(),
        interrupted: false,
    };
    let worker = Worker::start(settled.options, Arc::new(Told::new(Arc::new(channel), tell, leaving)))?;
    let farewell = runtime.block_on(async {
        tokio::select! {
            farewell = scene.watch(news, signals, purpose) => farewell,
            () = worker.ended() => Farewell::Silent,
        }
    });
    match worker.stop(farewell)? {
        WorkerEnd::Left => say(&format!("left {server}")),
        WorkerEnd::NotTold => say(&scene.not_told_line()),
        WorkerEnd::Stopped if scene.interrupted && matches!(has_session(&folder), Ok(true)) => {
            say(&scene.stopped_line());
        }
        WorkerEnd::Stopped => {}
        WorkerEnd::SessionOver(end) => return Err(JoinError::Over { server, end }),
    }
    Ok(scene.joined)
}

fn runtime_fault(source: std::io::Error) -> JoinError {
    JoinError::Runtime { source }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn caught() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }
}

/// What is known, and what was said of it.
struct Scene {
    server: String,
    name: String,
    /// The worker's folder, as it is typed.
    folder: String,
    /// Whether it joins anew where it is not known.
    rejoins: bool,
    joined: String,
    leave: watch::Sender<bool>,
    /// Tasks that run, and that have ended.
    counts: (usize, u64),
    told: (usize, u64),
    next_line_at: Instant,
    interrupted: bool,
}

impl Scene {
    /// Until it is time to stop the worker.
    async fn watch(
        &mut self,
        mut news: mpsc::UnboundedReceiver<News>,
        mut signals: Signals,
        purpose: Purpose,
    ) -> Farewell {
        let only_join = matches!(purpose, Purpose::OnlyJoin);
        let stays = matches!(purpose, Purpose::Work { interrupt_leaves: false });
        let mut readiness = match purpose {
            Purpose::WorkInBackground(readiness) => Some(readiness),
            Purpose::Work { .. } | Purpose::OnlyJoin => None,
        };
        loop {
            let untold = self.counts != self.told;
            tokio::select! {
                Some(news) = news.recv() => {
                    let has_joined = matches!(news, News::Joined { .. });
                    self.hear(news, only_join);
                    if has_joined && only_join {
                        return Farewell::Silent;
                    }
                    if has_joined
                        && let Some(readiness) = readiness.take()
                        && let Err(error) = readiness.announce(None)
                    {
                        say(&format!("whoever started this worker could not be told: {error}"));
                    }
                    if self.interrupted && self.counts.0 == 0 {
                        return Farewell::IfIdle;
                    }
                }
                () = tokio::time::sleep_until(self.next_line_at), if untold => self.tell_counts(),
                // A person who interrupts a worker means it.
                _ = signals.interrupt.recv() => {
                    let again = std::mem::replace(&mut self.interrupted, true);
                    if again || stays || self.joined.is_empty() {
                        return Farewell::Silent;
                    }
                    if self.counts.0 == 0 {
                        return Farewell::IfIdle;
                    }
                    let _ = self.leave.send(true);
                    say(&self.interrupted_line());
                }
                // A service manager restarts its workers, and they come back.
                _ = signals.terminate.recv() => {
                    self.interrupted = false;
                    return Farewell::Silent;
                }
            }
        }
    }

    fn hear(&mut self, news: News, only_join: bool) {
        match news {
            News::Joined { worker_id, again } => {
                let word = if again { " again" } else { "" };
                let name = harmless(&self.name, false);
                self.joined = format!("joined {}{word} as {name} ({worker_id})", self.server);
                if !only_join {
                    say(&self.joined);
                }
            }
            News::Awaited => say(&format!(
                "{} heard of this worker a moment ago, from another boot or another folder: it waits until it is sure that \
                 the other one is gone, up to a minute. If this folder is a copy of one that is in use, join with another \
                 --folder",
                self.server
            )),
            News::Forgotten { running } if self.rejoins => {
                let killed = match running {
                    0 => String::new(),
                    running => format!("; {} of the session before it are killed", tasks(running)),
                };
                say(&format!("{} does not know this worker any more: it joins anew{killed}", self.server));
            }
            News::Forgotten { .. } => {}
            News::Lost { why, hint } => {
                say(&format!("no contact with {}: {why}; trying again, what runs goes on", self.server));
                if let Some(hint) = hint {
                    say(&format!("  hint: {}", self.hint_line(hint)));
                }
            }
            News::Found => say(&format!("in contact with {} again", self.server)),
            News::Tasks { running, ended } => self.counts = (running, ended),
        }
    }

    fn tell_counts(&mut self) {
        let (running, ended) = self.counts;
        self.told = self.counts;
        self.next_line_at = Instant::now() + BETWEEN_TASK_LINES;
        say(&match running {
            0 => format!("idle; {} ended so far", tasks(usize::try_from(ended).unwrap_or(usize::MAX))),
            running => format!("{} now, {ended} ended so far", tasks(running)),
        });
    }

    /// The command that takes the worker up again.
    fn again(&self) -> String {
        format!("gpulayer worker start --folder {}", self.folder)
    }

    fn interrupted_line(&self) -> String {
        format!(
            "takes no new tasks, and leaves when {} ended. Ctrl-C again leaves at once: what runs goes on without a worker, and\n  \
             {}\ntakes it up again. What stops it: gpulayer worker evict TASK, gpulayer cancel JOB",
            match self.counts.0 {
                1 => "its task has".to_owned(),
                running => format!("its {running} tasks have"),
            },
            self.again(),
        )
    }

    fn stopped_line(&self) -> String {
        let again = self.again();
        match self.counts.0 {
            0 => {
                format!("stopped; this machine stays a worker of {}: {again} takes it up again", self.server)
            }
            running => {
                let go = if running == 1 { "goes" } else { "go" };
                format!("left for now; {} {go} on: {again} takes them up again", tasks(running))
            }
        }
    }

    fn not_told_line(&self) -> String {
        format!(
            "stopped, but {} does not answer and was not told that {} leaves: it is listed there as offline until \
             `gpulayer worker revoke {}`; {} takes it up again",
            self.server,
            self.name,
            quoted(&self.name),
            self.again()
        )
    }

    fn hint_line(&self, hint: Hint) -> String {
        let folder = &self.folder;
        match hint {
            Hint::NewKey(seen) => format!(
                "somebody may be in between. If `gpulayer up` on the server's machine prints that key, give it to this \
                 worker: gpulayer worker stop --folder {folder}; {} --pin {seen}",
                self.again()
            ),
            Hint::Unknown => format!(
                "when the server has its database back, this worker goes on. If that is gone for good: gpulayer worker stop \
                 --folder {folder}, and join again with the server's new join token, which kills what still runs here"
            ),
        }
    }
}

fn tasks(count: usize) -> String {
    match count {
        1 => "1 task".to_owned(),
        count => format!("{count} tasks"),
    }
}
