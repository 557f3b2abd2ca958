//! How a task is taken on: the worker has room, its GPUs are given to it, its folder is made. Otherwise it is declined
//! with the reason, and goes back to the queue without using an attempt.

use actix::{AsyncContext, Context, Handler, Message};

use super::folder::TaskFolder;
use super::running::said;
use super::{Task, TaskRunner};
use crate::contract::protocol::{Assignment, Report, ReportItem};
use crate::domain::task_run::TaskRun;
use crate::gpu::GrantError;

/// A task was given its GPUs, or not.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Granted {
    assignment: Assignment,
    outcome: Result<(), GrantError>,
}

impl Handler<Granted> for TaskRunner {
    type Result = ();

    fn handle(&mut self, message: Granted, ctx: &mut Self::Context) {
        let Granted { assignment, outcome } = message;
        if !self.granting.remove(&assignment.task_id) {
            // The session was revoked meanwhile.
            self.take_gpus_back(&assignment);
            return;
        }
        match outcome {
            Ok(()) => self.take_on(assignment, ctx),
            Err(error) => self.decline(&assignment, said(&error), ctx),
        }
    }
}

impl TaskRunner {
    /// Takes the first steps with an assignment; one that is known already is passed over.
    pub(super) fn accept(&mut self, assignment: Assignment, ctx: &mut Context<Self>) {
        let Assignment { task_id, epoch, .. } = assignment;
        if self.tasks.contains_key(&task_id) || self.granting.contains(&task_id) {
            return;
        }
        if let Some(detail) = self.around.options.room.unhealthy() {
            // Offered before the server knew. Not started, so it goes back to the queue.
            self.decline(&assignment, detail, ctx);
            return;
        }
        // Listed from now on, or the next answer brings it again.
        self.around.held.insert(task_id, epoch, None, &assignment.spec.resources);
        if assignment.gpus.is_empty() {
            self.take_on(assignment, ctx);
            return;
        }
        self.granting.insert(task_id);
        let (gpus, runner) = (self.around.options.gpus.clone(), ctx.address());
        actix::spawn(async move {
            let outcome = gpus.grant(task_id, &assignment.gpus).await;
            runner.do_send(Granted { assignment, outcome });
        });
    }

    fn take_on(&mut self, assignment: Assignment, ctx: &mut Context<Self>) {
        let task_id = assignment.task_id;
        let around = &self.around;
        let boot_id = &around.options.boot_id;
        match TaskFolder::create(&around.tasks_folder, boot_id, &assignment, &mut self.spares) {
            Ok(folder) => {
                let mut effects = Vec::new();
                let mut run = TaskRun::new(&assignment.spec, &mut effects);
                if assignment.checkpoint.is_some() {
                    run.begins_with_a_checkpoint();
                }
                self.note_what_is_not_held(&assignment, &mut run);
                self.tasks.insert(task_id, Task::new(assignment, folder, run));
                self.carry_out(task_id, effects, ctx);
            }
            Err(error) => {
                let detail = format!("cannot make a folder for the task: {error}");
                tracing::warn!(%task_id, "{detail}");
                self.decline(&assignment, detail, ctx);
            }
        }
    }

    fn decline(&mut self, assignment: &Assignment, detail: String, ctx: &mut Context<Self>) {
        let Assignment { task_id, epoch, .. } = *assignment;
        self.around.held.remove(task_id);
        self.take_gpus_back(assignment);
        self.report(ReportItem { task_id, epoch, report: Report::Decline { detail } }, ctx);
    }

    /// In its own time; a task that has given them back already changes nothing.
    pub(super) fn take_gpus_back(&self, assignment: &Assignment) {
        if assignment.gpus.is_empty() {
            return;
        }
        let (gpus, task_id) = (self.around.options.gpus.clone(), assignment.task_id);
        actix::spawn(async move {
            gpus.take_back(task_id).await;
        });
    }
}
