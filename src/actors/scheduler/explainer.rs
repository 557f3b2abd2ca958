//! Answers to long questions, on a thread of their own and from a copy of what the scheduler knows: playing a queue
//! forward takes its time, and no job waits for that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::{Explain, NoSuchWorker, Question};
use crate::actors::messages::send;
use crate::contract::explain::Explanation;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::placement::{Placer, QueuedJob};

/// Questions that wait at most; who asks beyond them is told that the server is busy.
const MOST_WAITING: usize = 64;
/// A copy serves for so long: under a flood of questions the scheduler makes a few a second.
const COPY_SERVES: Seconds = Seconds::from_millis(250);

/// The scheduler's end.
pub(super) struct Explainer {
    asked: Option<SyncSender<Asked>>,
    copy: Option<Copy>,
}

struct Copy {
    of: Arc<Placer>,
    made_at: Timestamp,
    inputs: u64,
}

struct Asked {
    placer: Arc<Placer>,
    question: Question,
    now: Timestamp,
    reply: Reply<Result<Option<Explanation>, NoSuchWorker>>,
}

impl Explainer {
    /// With its thread, which ends with it.
    pub(super) fn start() -> Self {
        let (asked, questions) = sync_channel(MOST_WAITING);
        let thread = std::thread::Builder::new().name("explainer".to_owned());
        // Without the thread nothing is explained, and everything else works.
        let started = thread.spawn(move || answer(&questions));
        Self { asked: started.is_ok().then_some(asked), copy: None }
    }

    /// Passes a question on. `inputs` counts what the placer was told so far. Without room the reply is dropped.
    pub(super) fn ask(&mut self, placer: &Placer, inputs: u64, now: Timestamp, explain: Explain) {
        let Some(asked) = &self.asked else { return };
        let Explain { question, reply } = explain;
        let placer = match &self.copy {
            Some(copy) if copy.inputs == inputs || (copy.is_fresh(now) && copy.knows(placer, &question)) => {
                copy.of.clone()
            }
            _ => {
                let of = Arc::new(placer.clone());
                self.copy = Some(Copy { of: of.clone(), made_at: now, inputs });
                of
            }
        };
        match asked.try_send(Asked { placer, question, now, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                tracing::debug!("a question is not answered: too many wait");
            }
        }
    }
}

impl Copy {
    fn is_fresh(&self, now: Timestamp) -> bool {
        now >= self.made_at && now < self.made_at.plus(COPY_SERVES)
    }

    /// Whether the job that is asked about stands in it as it does now.
    fn knows(&self, placer: &Placer, question: &Question) -> bool {
        match question {
            Question::Job { job_id, .. } => {
                placer.queue().contains(*job_id) == self.of.queue().contains(*job_id)
            }
            Question::Wish { .. } => true,
        }
    }
}

/// With the time limit that would help, before the changes of what it asks for.
fn with_limit(
    mut explanation: Explanation,
    placer: &Placer,
    job: &QueuedJob,
    grace_s: Seconds,
    now: Timestamp,
) -> Explanation {
    if let Some(limit) = placer.shorter_limit(job, grace_s, now) {
        explanation.suggestions.insert(0, limit);
    }
    explanation
}

fn answer(questions: &Receiver<Asked>) {
    while let Ok(Asked { placer, question, now, reply }) = questions.recv() {
        // Nobody waits any more.
        if reply.is_closed() {
            continue;
        }
        let answer = match question {
            Question::Job { job_id, grace_s } => Ok(placer.queue().job(job_id).and_then(|job| {
                let explanation = placer.explain_job(job_id, now)?;
                Some(with_limit(explanation, &placer, &job, grace_s, now))
            })),
            Question::Wish { job, grace_s, like, more, without } => {
                let supposed = match (&like, without) {
                    (None, None) => None,
                    _ => Some(placer.supposing(like.as_deref(), more, without)),
                };
                match supposed {
                    Some(None) => Err(NoSuchWorker(like.unwrap_or_default())),
                    supposed => {
                        let placer = supposed.flatten().map_or(placer, Arc::new);
                        let explanation = placer.explain_wish(&job, now);
                        Ok(Some(with_limit(explanation, &placer, &job, grace_s, now)))
                    }
                }
            }
        };
        send(reply, answer);
    }
}
