//! What a worker says twice, or too late: recorded once, and never taken for the job's.

use std::sync::Arc;

use gpulayer::actors::messages::front_desk::PurgeJob;
use gpulayer::actors::messages::job_supervisor::LeaseExpired;
use gpulayer::contract::artifact::{Digest, OutputFile};
use gpulayer::contract::end::{End, EndReason};
use gpulayer::contract::error_code::ErrorCode;
use gpulayer::contract::event::EventType;
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::{Finish, Report, ReportResult};
use gpulayer::contract::spec::{JobSpec, OnUnreachable};
use gpulayer::contract::worker::{Phase, TaskState};
use tokio::sync::oneshot;

use crate::persist_before_speak::{Scene, job_id, scene};

fn happened(scene: &Scene, kind: EventType) -> usize {
    let events = scene.store.reader().events(job_id(1), 0, 100).unwrap();
    events.iter().filter(|event| event.kind == kind).count()
}

#[actix::test]
async fn a_phase_that_an_adopted_task_reports_again_is_one_event() {
    let mut scene = scene();
    scene.permit_all();
    scene.submit(1, None).await.unwrap().unwrap();
    scene.place(1);
    let offer = scene.offers.next().await;
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    for phase in [Phase::Staging, Phase::Executing, Phase::Executing, Phase::Staging, Phase::Finishing] {
        let results = scene.report(&offer, Report::Phase { phase }).await.unwrap().unwrap().results;
        assert_eq!(results, [ReportResult::Ok { job_state: JobState::Running }]);
    }
    assert_eq!(happened(&scene, EventType::TaskPhase), 3);
}

#[actix::test]
async fn outputs_of_a_lost_task_are_kept_with_it_and_not_published() {
    let mut scene = scene();
    scene.permit_all();
    let mut spec = JobSpec::command(["true"]);
    spec.on_unreachable = Some(OnUnreachable::Replace);
    scene.submit_spec(1, spec, None).await.unwrap().unwrap();
    scene.place(1);
    let offer = scene.offers.next().await;
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    let (task_id, epoch) = (offer.assignment.task_id, offer.assignment.epoch);
    scene.supervisor.do_send(LeaseExpired { task_id, epoch });
    assert!(scene.stops.next().await.lost);

    let digest = Digest::from_bytes([7; 32]);
    let file = |path: &str| OutputFile {
        name: path.into(),
        path: path.into(),
        artifact: Some(digest),
        link_target: None,
        size_bytes: 1,
        mode: 0o644,
    };
    let finish = Arc::new(Finish {
        end: End { exit_code: Some(0), ..End::of(EndReason::Completed, None) },
        after_stop: false,
        outputs: vec![file("model"), file("../escaped")],
        undeclared: vec![],
        log_artifact: None,
        result: None,
        warnings: vec![],
    });
    for _ in 0..2 {
        let report = Report::Finish(Box::new((*finish).clone()));
        let results = scene.report(&offer, report).await.unwrap().unwrap().results;
        assert_eq!(results, [ReportResult::Refused { code: ErrorCode::TaskEnded }]);
    }
    assert_eq!(happened(&scene, EventType::StaleFinish), 1, "the repeat is no news");
    let reads = scene.store.reader();
    let job = reads.job(job_id(1)).unwrap().unwrap();
    assert_eq!((job.state, job.outputs), (JobState::Failed, vec![]), "nothing is published");
    let tasks = reads.tasks(job_id(1)).unwrap();
    assert_eq!((tasks[0].state, &tasks[0].late_outputs), (TaskState::Lost, &vec![file("model")]));
    assert!(reads.artifact_referenced(&digest, None).unwrap(), "the bytes are kept with the job");

    let (reply, purged) = oneshot::channel();
    scene.supervisor.do_send(PurgeJob { job_id: job_id(1), parent: None, by: None, key: None, reply });
    purged.await.unwrap().unwrap();
    assert!(!reads.artifact_referenced(&digest, None).unwrap(), "and go with it");
}
