//! Who waits for whom: the scheduler is told of a job when what it waits for is over on disk, ten thousand that wait
//! for one are judged in one commit, and random graphs come out as their ends say.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gpulayer::actors::messages::front_desk::{CancelJob, Keyed, NewJob, SubmitJobs};
use gpulayer::contract::end::EndReason;
use gpulayer::contract::event::EventType;
use gpulayer::contract::job::JobState;
use gpulayer::contract::protocol::Report;
use gpulayer::contract::spec::{DependencyEnd, JobSpec};
use gpulayer::domain::dependency::Wait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;

use crate::persist_before_speak::{Scene, finish, job_id, new_job, scene};
use crate::recorder::settle;

fn after(number: u128, on: &[(u128, DependencyEnd)]) -> NewJob {
    let waits =
        on.iter().map(|(on, when)| Wait { job: job_id(*on), name: None, when: *when, outputs: false });
    NewJob { waits: waits.collect(), ..new_job(number, JobSpec::command(["true"])) }
}

async fn submit(scene: &Scene, jobs: Vec<NewJob>) {
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(SubmitJobs { jobs, pass: None, key: None, reply });
    assert_eq!(answer.await.unwrap().unwrap(), Keyed::Done(()));
}

async fn cancel(scene: &Scene, number: u128) {
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(CancelJob { job_id: job_id(number), now: true, by: None, key: None, reply });
    answer.await.unwrap();
}

/// Runs a job that the scheduler was told of to this end.
async fn ends(scene: &mut Scene, number: u128, reason: EndReason) {
    scene.place(number);
    let offer = scene.offers.next().await;
    scene.report(&offer, Report::Start).await.unwrap().unwrap();
    let mut report = finish(reason, false);
    if let Report::Finish(finish) = &mut report {
        finish.end.exit_code = Some(i32::from(reason != EndReason::Completed));
    }
    scene.report(&offer, report).await.unwrap().unwrap();
}

async fn ended(scene: &Scene, number: u128) -> (JobState, EndReason) {
    let started = Instant::now();
    loop {
        let job = scene.store.reader().job(job_id(number)).unwrap().unwrap();
        if let Some(end) = job.end {
            return (job.state, end.reason);
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{job:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[actix::test]
async fn the_scheduler_is_told_once_what_is_waited_for_is_over_on_disk() {
    let mut scene = scene();
    scene.permit_all();
    submit(&scene, vec![after(1, &[]), after(2, &[(1, DependencyEnd::Succeeded)])]).await;
    assert_eq!(scene.queued.next().await.job.job_id, job_id(1));
    settle().await;
    assert!(scene.queued.so_far().is_empty());
    let waiting = scene.store.reader().job(job_id(2)).unwrap().unwrap();
    let tail = &job_id(1).to_string()[24..];
    assert_eq!(waiting.queue_reason, Some(format!("waits for job …{tail} to succeed")));
    ends(&mut scene, 1, EndReason::Completed).await;
    assert_eq!(scene.queued.next().await.job.job_id, job_id(2));
    // Over already when it is submitted, and never there.
    submit(&scene, vec![after(3, &[(1, DependencyEnd::Succeeded)])]).await;
    assert_eq!(scene.queued.next().await.job.job_id, job_id(3));
    submit(&scene, vec![after(4, &[(99, DependencyEnd::Ended)])]).await;
    assert_eq!(ended(&scene, 4).await, (JobState::Failed, EndReason::DependencyFailed));
}

#[actix::test]
async fn ten_thousand_that_wait_for_one_and_a_long_chain_are_over_at_once() {
    let mut scene = scene();
    scene.permit_all();
    let mut jobs = vec![after(1, &[])];
    jobs.extend((2..10_000).map(|number| after(number, &[(1, DependencyEnd::Succeeded)])));
    submit(&scene, jobs).await;
    let chain = (10_001..12_000).map(|number| after(number, &[(number - 1, DependencyEnd::Succeeded)]));
    submit(
        &scene,
        std::iter::once(after(10_000, &[(9_999, DependencyEnd::Succeeded)])).chain(chain).collect(),
    )
    .await;
    let started = Instant::now();
    cancel(&scene, 1).await;
    assert_eq!(ended(&scene, 9_999).await, (JobState::Failed, EndReason::DependencyFailed));
    assert_eq!(ended(&scene, 11_999).await, (JobState::Failed, EndReason::DependencyFailed));
    println!("12,000 dependants ended within {:?}", started.elapsed());
    let told: Vec<_> = scene.queued.so_far().into_iter().map(|queued| queued.job.job_id).collect();
    assert_eq!(told, [job_id(1)]);
    let events = scene.store.reader().events(job_id(11_999), 0, 10).unwrap();
    let first = scene.store.reader().events(job_id(2), 0, 10).unwrap();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[1].position - first[1].position < 12_000, "one commit for all");
}

fn position(scene: &Scene, number: u128, kind: EventType) -> Option<u64> {
    let events = scene.store.reader().events(job_id(number), 0, 100).unwrap();
    events.iter().find(|event| event.kind == kind).map(|event| event.position)
}

/// What a graph of dependencies must come to, by the ends of those that run.
fn expected(
    graph: &[Vec<(u128, DependencyEnd)>],
    runs: &HashMap<u128, EndReason>,
) -> Vec<(JobState, EndReason)> {
    let mut ends: Vec<(JobState, EndReason)> = Vec::new();
    for (place, on) in graph.iter().enumerate() {
        let met = on.iter().all(|(on, when)| {
            *when == DependencyEnd::Ended || ends[*on as usize - 1].0 == JobState::Succeeded
        });
        let reason = if met { runs[&(place as u128 + 1)] } else { EndReason::DependencyFailed };
        ends.push((reason.job_state(), reason));
    }
    ends
}

#[actix::test]
async fn random_graphs_come_out_as_their_ends_say_and_nothing_starts_too_early() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(2..12_u128);
        let graph: Vec<Vec<(u128, DependencyEnd)>> = (1..=count)
            .map(|number| {
                let mut on: Vec<u128> = (1..number).filter(|_| random.random_bool(0.3)).collect();
                on.truncate(4);
                let ends = [DependencyEnd::Succeeded, DependencyEnd::Ended];
                on.into_iter().map(|on| (on, ends[random.random_range(0..2)])).collect()
            })
            .collect();
        let runs: HashMap<u128, EndReason> = (1..=count)
            .map(|number| {
                let reasons = [EndReason::Completed, EndReason::ExitNonzero, EndReason::Cancelled];
                (number, reasons[random.random_range(0..3)])
            })
            .collect();
        let mut scene = scene();
        scene.permit_all();
        submit(&scene, (1..=count).map(|number| after(number, &graph[number as usize - 1])).collect()).await;
        let wanted = expected(&graph, &runs);
        let running = wanted.iter().filter(|(_, reason)| *reason != EndReason::DependencyFailed).count();
        for _ in 0..running {
            let told = scene.queued.next().await.job.job_id;
            let number = (1..=count).find(|number| job_id(*number) == told).unwrap();
            match runs[&number] {
                EndReason::Cancelled => cancel(&scene, number).await,
                reason => ends(&mut scene, number, reason).await,
            }
        }
        for number in 1..=count {
            assert_eq!(ended(&scene, number).await, wanted[number as usize - 1], "seed {seed}, job {number}");
            for (on, _) in &graph[number as usize - 1] {
                let placed = position(&scene, number, EventType::JobScheduled);
                let over = position(&scene, *on, EventType::JobEnded);
                assert!(placed.is_none_or(|placed| Some(placed) > over), "seed {seed}: {number} before {on}");
            }
        }
        settle().await;
        assert!(scene.queued.so_far().is_empty(), "seed {seed}: nothing runs twice");
    }
}
