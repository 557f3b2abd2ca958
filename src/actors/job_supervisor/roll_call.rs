//! Tasks that a worker holds without the server's knowledge, and tasks that it should hold and does not.

use actix::{Context, Handler};
use tracing::{error, warn};

use super::{JobSupervisor, given_up};
use crate::actors::messages::job_supervisor::TasksUnaccounted;
use crate::contract::ids::{TaskId, WorkerId};
use crate::contract::protocol::Held;
use crate::domain::job::LiveJob;
use crate::domain::roll_call::may_stay;

impl JobSupervisor {
    /// Whether a task that its worker's session does not expect may go on. In doubt it may.
    fn stranger_may_stay(&self, worker_id: WorkerId, held: &Held) -> bool {
        if self.tasks.contains_key(&held.task_id) {
            // It lives here, and its session is about to hear so, or its end is about to be on disk.
            return true;
        }
        let stored = self.reads.task_record(held.task_id).and_then(|record| {
            let ended = self.reads.task_finish(held.task_id)?.map(|known| known.standing.state);
            Ok(record.map(|record| (record, ended)))
        });
        match stored {
            Ok(stored) => may_stay(worker_id, held, stored.as_ref().map(|(record, ended)| (record, *ended))),
            Err(error) => {
                error!(task_id = %held.task_id, %error, "a task cannot be read from the store");
                true
            }
        }
    }

    /// The job of a task that started on this worker and has not ended.
    fn runs_there(&self, worker_id: WorkerId, task_id: TaskId) -> bool {
        let job = self.tasks.get(&task_id).and_then(|job_id| self.jobs.get(job_id));
        let tasks = job.map_or(&[][..], LiveJob::tasks);
        tasks.iter().any(|task| {
            task.run().is_some() && task.placed.task_id == task_id && task.placed.worker == worker_id
        })
    }
}

impl Handler<TasksUnaccounted> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, unaccounted: TasksUnaccounted, ctx: &mut Context<Self>) {
        let worker_id = unaccounted.worker_id;
        for held in &unaccounted.tasks.strangers {
            if !self.stranger_may_stay(worker_id, held) {
                warn!(%worker_id, task_id = %held.task_id, "a worker runs a task that is not known here; it is told to kill it");
                self.tell_stop(worker_id, given_up(held.task_id));
            }
        }
        for task_id in unaccounted.tasks.missing {
            if self.runs_there(worker_id, task_id)
                && let Some(job_id) = self.tasks.get(&task_id).copied()
            {
                warn!(%worker_id, %task_id, "a started task is not on its worker any more");
                self.step(ctx, job_id, |job, ledger| job.missing_on(ledger, worker_id));
            }
        }
        self.answer_drained();
        self.speak();
    }
}
