//! Credentials and revoked workers: nothing holds before it is on disk, and from there on it holds for all.

use gpulayer::actors::messages::front_desk::{
    Author, Keyed, MakeToken, RevokeToken, RevokeWorker, SubmitJobs, SubmitRefusal, TokenRefusal,
    UnknownWorker,
};
use gpulayer::actors::messages::job_supervisor::TaskGone;
use gpulayer::clock;
use gpulayer::contract::end::EndReason;
use gpulayer::contract::event::EventType;
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::Report;
use gpulayer::contract::spec::JobSpec;
use gpulayer::contract::token::{Role, TokenKind};
use gpulayer::contract::worker::TaskState;
use gpulayer::credentials::hash;
use gpulayer::credentials::known::Standing;
use gpulayer::domain::change::{TokenRecord, UsedKey};
use gpulayer::store::FeedScope;
use tokio::sync::oneshot;

use crate::persist_before_speak::{Scene, WORKER, job_id, new_job, scene};
use crate::recorder::settle;

type Told = oneshot::Receiver<Result<Keyed<()>, TokenRefusal>>;

fn author() -> Option<Box<Author>> {
    Some(Box::new(Author { name: "ops".into(), role: Role::Admin, from: "10.0.0.7".into() }))
}

fn key(byte: u8) -> Option<Box<UsedKey>> {
    let (scope, body) = ([byte; 32], [0; 32]);
    Some(Box::new(UsedKey { scope, body, status: 201, answer: "[]".into(), used_at: clock::now() }))
}

fn make(scene: &Scene, secret: &str, name: &str, key: Option<Box<UsedKey>>) -> Told {
    let (reply, answer) = oneshot::channel();
    let record = Box::new(TokenRecord::unconfined(hash(secret), TokenKind::Client, name, clock::now()));
    scene.supervisor.do_send(MakeToken { record, by: author(), key, reply });
    answer
}

fn revoke(scene: &Scene, name: &str, afar: bool) -> Told {
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(RevokeToken { name: name.into(), afar, by: author(), key: None, reply });
    answer
}

/// The acts on record.
fn acts(scene: &Scene) -> Vec<(String, String)> {
    let (events, _) = scene.store.reader().feed(0, 100, &FeedScope::All).unwrap();
    let audits = events.iter().filter(|event| event.kind == EventType::Audit);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    audits.map(|event| (text(&event.data["act"]), text(&event.data["target"]))).collect()
}

#[actix::test]
async fn a_token_opens_nothing_before_it_is_on_disk_and_nothing_after_its_revocation_is() {
    let scene = scene();
    let mut made = make(&scene, "glc_x", "x", None);
    settle().await;
    assert!(made.try_recv().is_err() && scene.credentials.find("glc_x").is_none());
    scene.permit();
    assert_eq!(made.await.unwrap(), Ok(Keyed::Done(())));
    let pass = scene.credentials.find("glc_x").unwrap();
    assert_eq!(acts(&scene), [("token_create".to_owned(), "x".to_owned())], "in the same commit");

    assert_eq!(revoke(&scene, "x", true).await.unwrap(), Err(TokenRefusal::LastAdmin));
    let mut revoked = revoke(&scene, "x", false);
    settle().await;
    assert!(revoked.try_recv().is_err());
    assert_eq!(pass.standing(clock::now()), Standing::Valid);
    scene.permit();
    assert_eq!(revoked.await.unwrap(), Ok(Keyed::Done(())));
    assert_eq!(pass.standing(clock::now()), Standing::Revoked);
    assert_eq!(acts(&scene)[1].0, "token_revoke");

    let (reply, submitted) = oneshot::channel();
    let jobs = vec![new_job(1, JobSpec::command(["true"]))];
    scene.supervisor.do_send(SubmitJobs { jobs, pass: Some(pass), key: None, reply });
    assert_eq!(submitted.await.unwrap(), Err(SubmitRefusal::Revoked), "it was on its way");
}

#[actix::test]
async fn a_refusal_leaves_the_key_free_and_a_repeat_is_known() {
    let mut scene = scene();
    scene.permit_all();
    assert_eq!(make(&scene, "glc_1", "x", key(1)).await.unwrap(), Ok(Keyed::Done(())));
    assert_eq!(make(&scene, "glc_2", "x", key(1)).await.unwrap(), Ok(Keyed::Repeat));
    assert_eq!(make(&scene, "glc_3", "x", key(2)).await.unwrap(), Err(TokenRefusal::NameTaken));
    assert_eq!(revoke(&scene, "x", false).await.unwrap(), Ok(Keyed::Done(())));
    assert_eq!(revoke(&scene, "x", false).await.unwrap(), Err(TokenRefusal::Unknown));
    assert_eq!(make(&scene, "glc_3", "x", key(2)).await.unwrap(), Ok(Keyed::Done(())));
    assert!(scene.credentials.find("glc_2").is_none());
}

#[actix::test]
async fn a_revoked_worker_ends_its_started_tasks_and_gives_the_others_back() {
    let mut scene = scene();
    scene.permit_all();
    for number in [1, 2] {
        scene.submit(number, None).await.unwrap().unwrap();
        scene.queued.next().await;
        scene.place(number);
    }
    let (runs, waits) = (scene.offers.next().await, scene.offers.next().await);
    scene.report(&runs, Report::Start).await.unwrap().unwrap();
    let ask = || {
        let (reply, answer) = oneshot::channel();
        scene.supervisor.do_send(RevokeWorker { worker_id: WORKER, by: author(), key: None, reply });
        answer
    };
    let answer = ask();
    let session = scene.revoked.next().await;
    assert_eq!(session.lost, [runs.assignment.task_id]);
    session.reply.send(Ok(Keyed::Done(()))).unwrap();
    assert_eq!(answer.await.unwrap(), Ok(Keyed::Done(())));
    assert_eq!(scene.queued.next().await.job.job_id, waits.assignment.job_id, "it goes elsewhere");
    scene.freed.next().await;

    let reads = scene.store.reader();
    let ended = async {
        loop {
            let job = reads.job(job_id(1)).unwrap().unwrap();
            if job.state.ended() {
                return job;
            }
            tokio::task::yield_now().await;
        }
    };
    let job = tokio::time::timeout(std::time::Duration::from_secs(20), ended).await.unwrap();
    assert_eq!((job.state, job.end.unwrap().reason), (JobState::Failed, EndReason::Revoked));
    assert_eq!(reads.tasks(job_id(1)).unwrap()[0].state, TaskState::Failed);
    settle().await;
    assert!(scene.freed.so_far().is_empty(), "what it held stays taken");
    let task_id = runs.assignment.task_id;
    scene.supervisor.do_send(TaskGone { worker_id: WORKER, task_id });
    scene.freed.next().await;
    assert_eq!(ask().await.unwrap(), Err(UnknownWorker));
    assert_eq!(acts(&scene), [("worker_revoke".to_owned(), WORKER.to_string())]);
}
