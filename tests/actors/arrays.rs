//! Many children of one array: submitted, cancelled and removed without anybody having to wait for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulayer::actors::messages::front_desk::{
    CancelJob, CountJobs, Held, Keyed, NewJob, PurgeJob, SubmitJobs, WhyHeld,
};
use gpulayer::clock;
use gpulayer::contract::array::{Array, ArrayProgress};
use gpulayer::contract::job::JobState;
use gpulayer::contract::spec::JobSpec;
use gpulayer::domain::array::{Layout, NewArray};
use gpulayer::store::JobFilter;
use tokio::sync::oneshot;

use crate::persist_before_speak::{Scene, job_id, new_job, scene};

/// The default keeps a debug build quick; `GPULAYER_ARRAY_CHILDREN=100000` is the real size.
fn size() -> u64 {
    std::env::var("GPULAYER_ARRAY_CHILDREN").ok().and_then(|count| count.parse().ok()).unwrap_or(10_000)
}

fn array(number: u128, count: u64, max_running: Option<u64>) -> NewJob {
    let array = Array { start: 0, count: Some(count), items: None, indices: None, max_running };
    let spec = JobSpec { array: Some(Box::new(array.clone())), ..JobSpec::command(["true"]) };
    let child = JobSpec { array: None, ..spec.clone() };
    let new = NewArray {
        first_child: clock::first_of(count as usize),
        text: serde_json::to_string(&child).unwrap().into(),
        spec: Arc::new(child),
        layout: Arc::new(Layout::of(&array)),
    };
    NewJob { array: Some(new), ..new_job(number, spec) }
}

/// How long the supervisor lets a question wait that needs no disk.
async fn asked(scene: &Scene) -> Duration {
    let started = Instant::now();
    let (reply, answer) = oneshot::channel();
    scene.supervisor.do_send(CountJobs { reply });
    answer.await.unwrap();
    started.elapsed()
}

#[actix::test]
async fn the_children_of_a_large_array_hold_nobody_up() {
    let children_in_all = size();
    let mut scene = scene();
    scene.permit_all();
    let started = Instant::now();
    let (reply, submitted) = oneshot::channel();
    let new = array(1, children_in_all, Some(16));
    scene.supervisor.do_send(SubmitJobs { jobs: vec![new], pass: None, key: None, reply });
    println!("taken in within {:?}", asked(&scene).await);
    assert_eq!(submitted.await.unwrap().unwrap(), Keyed::Done(()));
    println!("on disk after {:?}", started.elapsed());
    let told = scene.queued.so_far();
    assert_eq!(told.len(), 16, "no more than may run at once");

    let reads = scene.store.reader();
    let started = Instant::now();
    let page = reads.jobs(&JobFilter::default(), None, 50).unwrap();
    assert_eq!(page.items.len(), 1, "lists show the parent");
    let listed = started.elapsed();
    let live = JobFilter { states: vec![JobState::Queued, JobState::Running], ..JobFilter::default() };
    assert_eq!(reads.jobs(&live, None, 50).unwrap().items.len(), 1);
    println!("listed in {listed:?}, the live ones in {:?}", started.elapsed() - listed);
    let progress: ArrayProgress = serde_json::from_value(page.items[0].progress.clone().unwrap()).unwrap();
    assert_eq!(progress, ArrayProgress::queued(children_in_all as usize));
    let children = JobFilter { parent: Some(job_id(1)), ..JobFilter::default() };
    let last = reads.jobs(&children, None, 1).unwrap().items.remove(0);
    assert_eq!((last.parent, last.array_index), (Some(job_id(1)), Some(children_in_all - 1)));
    let (reply, why) = oneshot::channel();
    scene.supervisor.do_send(WhyHeld { job_id: last.id, reply });
    let why = why.await.unwrap();
    assert_eq!(why, Some(Held::Reason("waits its turn: at most 16 of its array run at once".into())));

    let started = Instant::now();
    let (reply, cancelled) = oneshot::channel();
    scene.supervisor.do_send(CancelJob { job_id: job_id(1), now: false, by: None, key: None, reply });
    cancelled.await.unwrap();
    let mut longest = Duration::ZERO;
    let ended = loop {
        longest = longest.max(asked(&scene).await);
        let parent = reads.job(job_id(1)).unwrap().unwrap();
        if parent.state.ended() {
            break parent;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    println!("cancelled after {:?}; the longest that a question waited: {longest:?}", started.elapsed());
    assert_eq!(ended.state, JobState::Cancelled);
    assert_eq!(ended.progress.unwrap()["cancelled"], children_in_all);

    let started = Instant::now();
    let (reply, purged) = oneshot::channel();
    scene.supervisor.do_send(PurgeJob { job_id: job_id(1), parent: None, by: None, key: None, reply });
    purged.await.unwrap().unwrap();
    println!("removed in {:?}", started.elapsed());
    assert!(reads.job(last.id).unwrap().is_none());
}
