//! The front desk as the edge sees it: one recipient per message. A message goes out, its answer comes back
//! over a oneshot; a dropped answer means that the daemon is on its way out.

use actix::Recipient;
use tokio::sync::oneshot;

use super::refusal::Refusal;
use crate::actors::messages::Reply;
use crate::actors::messages::front_desk::{
    Acquire, CancelJob, ChangeDrain, CountJobs, DeregisterWorker, EvictTask, Explain, ExplainQueue,
    Heartbeat, ListWorkers, LookAhead, MakeToken, PurgeJob, RecordAct, RecordUpload, RegisterWorker,
    ReportTasks, ResumeWorker, RevokeToken, RevokeWorker, SpendToken, SubmitJobs, WatchJob, WhoHolds,
    WhyHeld,
};

macro_rules! desk {
    ($($field:ident: $message:ident),* $(,)?) => {
        /// Where the edge sends what comes in; the daemon fills it with the front desk's address.
        #[derive(Clone)]
        pub struct Desk {
            $(#[doc = concat!("Takes [`", stringify!($message), "`].")] pub $field: Recipient<$message>,)*
        }
    };
}

desk! {
    submit_jobs: SubmitJobs,
    cancel_job: CancelJob,
    purge_job: PurgeJob,
    watch_job: WatchJob,
    explain_queue: ExplainQueue,
    explain: Explain,
    look_ahead: LookAhead,
    count_jobs: CountJobs,
    who_holds: WhoHolds,
    why_held: WhyHeld,
    change_drain: ChangeDrain,
    evict_task: EvictTask,
    revoke_worker: RevokeWorker,
    make_token: MakeToken,
    revoke_token: RevokeToken,
    spend_token: SpendToken,
    record_act: RecordAct,
    record_upload: RecordUpload,
    register_worker: RegisterWorker,
    resume_worker: ResumeWorker,
    heartbeat: Heartbeat,
    acquire: Acquire,
    report_tasks: ReportTasks,
    deregister_worker: DeregisterWorker,
    list_workers: ListWorkers,
}

/// Lets `send` put the question with where its answer goes, and waits for it.
pub async fn ask<T>(send: impl FnOnce(Reply<T>)) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    send(reply);
    answer.await.map_err(|_| Refusal::stopping())
}
