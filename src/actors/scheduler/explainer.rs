//! Answers to long questions, on a thread of their own and from a copy of what the scheduler knows: playing a queue
//! forward takes its time, and no job waits for that.

use std::sync::Arc;

use super::questions::{Credential, NotTaken, Questions, Waiter};
use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::{Explain, Question, Unexplained};
use crate::actors::messages::send;
use crate::contract::explain::Explanation;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::placement::{Budget, Placer, QueuedJob};

/// A copy serves for so long: under a flood of questions the scheduler makes a few a second.
const COPY_SERVES: Seconds = Seconds::from_millis(250);

/// The scheduler's end.
pub(super) struct Explainer {
    questions: Arc<Questions<Asked>>,
    /// Whether the thread is there that answers.
    answers: bool,
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
    reply: Reply<Result<Option<Explanation>, Unexplained>>,
}

impl Waiter for Asked {
    fn has_left(&self) -> bool {
        self.reply.is_closed()
    }
}

impl Drop for Explainer {
    fn drop(&mut self) {
        self.questions.close();
    }
}

impl Explainer {
    /// With its thread, which ends with it.
    pub(super) fn start() -> Self {
        let questions = Arc::new(Questions::new());
        let asked = questions.clone();
        let thread = std::thread::Builder::new().name("explainer".to_owned());
        // Without the thread nothing is explained, and everything else works.
        let started = thread.spawn(move || answer(&asked));
        Self { questions, answers: started.is_ok(), copy: None }
    }

    /// Passes a question on. `inputs` counts what the placer was told so far. Without room it is refused.
    pub(super) fn ask(&mut self, placer: &Placer, inputs: u64, now: Timestamp, explain: Explain) {
        let Explain { question, reply } = explain;
        if !self.answers {
            return send(reply, Err(Unexplained::TooMany));
        }
        let what_if_by = asks_what_if(&question);
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
        let asked = Asked { placer, question, now, reply };
        if let Err((Asked { reply, .. }, not_taken)) = self.questions.add(asked, what_if_by) {
            let why = match not_taken {
                NotTaken::TooManyOfOne => Unexplained::TooManyOfOne,
                NotTaken::TooMany => Unexplained::TooMany,
            };
            send(reply, Err(why));
        }
    }
}

/// Whose what-if it is, when it is one.
const fn asks_what_if(question: &Question) -> Option<Credential> {
    match question {
        Question::Job { .. } => None,
        Question::Wish { by, .. } => *by,
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
    budget: &mut Budget,
) -> Explanation {
    if let Some(limit) = placer.shorter_limit(job, grace_s, now, budget) {
        explanation.suggestions.insert(0, limit);
    }
    explanation
}

fn answer(questions: &Questions<Asked>) {
    while let Some(Asked { placer, question, now, reply }) = questions.next() {
        // Nobody waits any more.
        if reply.is_closed() {
            continue;
        }
        let mut budget = Budget::default();
        let answer = match question {
            Question::Job { job_id, grace_s } => Ok(placer.queue().job(job_id).and_then(|job| {
                let explanation = placer.explain_job(job_id, now, &mut budget)?;
                Some(with_limit(explanation, &placer, &job, grace_s, now, &mut budget))
            })),
            Question::Wish { job, grace_s, like, more, without, by: _ } => {
                let supposed = match (&like, without) {
                    (None, None) => None,
                    _ => Some(placer.supposing(like.as_deref(), more, without)),
                };
                match supposed {
                    Some(None) => Err(Unexplained::NoSuchWorker(like.unwrap_or_default())),
                    supposed => {
                        let placer = supposed.flatten().map_or(placer, Arc::new);
                        let explanation = placer.explain_wish(&job, now, &mut budget);
                        Ok(Some(with_limit(explanation, &placer, &job, grace_s, now, &mut budget)))
                    }
                }
            }
        };
        send(reply, answer);
    }
}
