//! Checkpoints: what an attempt keeps, the next one begins with.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::event::EventType;
use gpulayer::contract::ids::JobId;
use gpulayer::contract::job::{Job, JobState, Page, Sequence};
use serde_json::{Value, json};

use crate::house::{House, eventually, shell};

/// A job with two attempts, whatever ends the first.
fn twice(text: &str) -> Value {
    let mut spec = shell(text);
    spec["retry"] = json!({"max_attempts": 2, "retry_on": ["any"]});
    spec
}

async fn kept(house: &House, job: &Job) -> usize {
    let path = format!("/v1/jobs/{}/events", job.id);
    let events: Sequence<gpulayer::contract::event::Event> = house.client().get(&path).await.unwrap();
    events.items.iter().filter(|event| event.kind == EventType::TaskCheckpoint).count()
}

#[actix_rt::test]
async fn an_attempt_begins_with_what_the_one_before_it_left() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let text = r#"cd "$TMPDIR"; mkdir -p "$GPULAYER_CHECKPOINT_DIR/deep"; cd "$GPULAYER_CHECKPOINT_DIR"
        cat deep/step 2>/dev/null
        echo "attempt $GPULAYER_ATTEMPT" > deep/step
        [ "$GPULAYER_ATTEMPT" = 2 ]"#;
    let job = house.end(house.submit(&twice(text)).await.id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2), "{job:?}");
    assert_eq!(house.log(job.id).await, ["attempt 1"]);
    assert_eq!(kept(&house, &job).await, 1, "a success leaves none");
    assert!(job.undeclared.is_empty() && job.outputs.is_empty());
}

#[actix_rt::test]
async fn of_a_program_that_counts_only_whole_checkpoints_are_kept_also_when_it_is_killed() {
    let house = House::new();
    let daemon = house.daemon().await;
    let go = house.path().join("go");
    let text = format!(
        r#"mkdir -p "$GPULAYER_CHECKPOINT_DIR"; cat "$GPULAYER_CHECKPOINT_DIR/step" 2>/dev/null && exit 0
        echo 1 > "$GPULAYER_CHECKPOINT_DIR/step"; echo '{{"checkpoint": 1}}' > "$GPULAYER_PROGRESS_FILE"
        while [ ! -e {} ]; do sleep 0.05; done
        echo half > "$GPULAYER_CHECKPOINT_DIR/step"; kill -9 $$"#,
        go.display()
    );
    let job = house.submit(&twice(&text)).await;
    eventually("the checkpoint", async || (kept(&house, &job).await == 1).then_some(())).await;
    daemon.kill();
    let _daemon = house.daemon().await;
    std::fs::write(go, "").unwrap();
    let ended = house.end(job.id).await;
    assert_eq!((ended.state, ended.attempt), (JobState::Succeeded, 2), "{ended:?}");
    assert_eq!(house.log(job.id).await, ["1"]);
    assert_eq!(kept(&house, &job).await, 1);
}

#[actix_rt::test]
async fn a_job_that_was_never_retried_keeps_its_end() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let text =
        r#"mkdir "$GPULAYER_CHECKPOINT_DIR"; ln -s /etc/passwd "$GPULAYER_CHECKPOINT_DIR/link"; exit 3"#;
    let job = house.end(house.submit(&shell(text)).await.id).await;
    assert_eq!(job.end.as_ref().unwrap().reason, EndReason::ExitNonzero);
    assert_eq!(kept(&house, &job).await, 0, "what leads out of it does not travel");
    let told = "not in the checkpoint: `checkpoint/link`: the link leads out of it, to `/etc/passwd`";
    assert!(job.warnings.iter().any(|warning| warning.detail == told), "{:?}", job.warnings);
}

#[actix_rt::test]
async fn the_newest_is_the_newest_in_the_next_attempt_too() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let text = r#"mkdir -p "$GPULAYER_CHECKPOINT_DIR"; cd "$GPULAYER_CHECKPOINT_DIR"
        if [ "$GPULAYER_ATTEMPT" = 1 ]; then
            mkdir empty step_9 step_10 step_11; ln -s step_11 last; mkfifo pipe
            touch -d @1700000009.1 step_9; touch -d @1700000009.2 step_10; touch -d @1700000009.3 step_11
            exit 1
        fi
        ls -td step_*; readlink last; [ -d empty ]"#;
    let job = house.end(house.submit(&twice(text)).await.id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2), "{job:?}");
    assert_eq!(house.log(job.id).await, ["step_11", "step_10", "step_9", "step_11"]);
    let path = format!("/v1/jobs/{}/events", job.id);
    let events: Sequence<gpulayer::contract::event::Event> = house.client().get(&path).await.unwrap();
    let told = events.items.iter().find(|event| event.kind == EventType::TaskCheckpoint).unwrap();
    assert_eq!(told.data["left_out"], json!(["`checkpoint/pipe`: it is a fifo"]));
}

async fn retried(house: &House, of: JobId, asked: Value) -> JobId {
    let again: Job = house.client().post(&format!("/v1/jobs/{of}/retry"), &asked).await.unwrap();
    again.id
}

#[actix_rt::test]
async fn a_job_that_repeats_another_begins_with_what_that_one_left() {
    let house = House::new();
    let daemon = house.daemon().await;
    let done = house.path().join("done");
    let text = format!(
        r#"mkdir -p "$GPULAYER_CHECKPOINT_DIR"; cd "$GPULAYER_CHECKPOINT_DIR"; cat steps 2>/dev/null
        echo step >> steps; [ -e {} ]"#,
        done.display()
    );
    let first = house.end(house.submit(&shell(&text)).await.id).await.id;
    assert_eq!(house.log(first).await, [""; 0]);
    let second = retried(&house, first, json!({})).await;
    // What it begins with is its own, also when the other is gone.
    house.client().delete(&format!("/v1/jobs/{first}")).await.unwrap();
    assert_eq!(house.end(second).await.retry_of, Some(first));
    assert_eq!(house.log(second).await, ["step"]);
    let third = retried(&house, second, json!({})).await;
    house.end(third).await;
    // A restart forgets none of it.
    daemon.kill();
    let _daemon = house.daemon().await;
    std::fs::write(&done, "").unwrap();
    let fourth = house.end(retried(&house, third, json!({})).await).await;
    assert_eq!(fourth.state, JobState::Succeeded, "{fourth:?}");
    assert_eq!(house.log(fourth.id).await, ["step"; 3]);
    // What has succeeded left none.
    let anew = house.end(retried(&house, fourth.id, json!({})).await).await;
    assert_eq!((anew.state, house.log(anew.id).await.len()), (JobState::Succeeded, 0), "{anew:?}");
}

#[actix_rt::test]
async fn each_child_of_an_array_that_is_repeated_begins_with_its_own() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let text = r#"mkdir -p "$GPULAYER_CHECKPOINT_DIR"; cd "$GPULAYER_CHECKPOINT_DIR"; cat steps 2>/dev/null
        echo "index $GPULAYER_ARRAY_INDEX" >> steps; [ "$GPULAYER_ARRAY_INDEX" = 5 ]"#;
    let mut spec = shell(text);
    spec["array"] = json!({"start": 4, "count": 3});
    spec["resources"] = json!({"cpus": 0.1});
    let first = house.end(house.submit(&spec).await.id).await;
    assert_eq!(first.state, JobState::Failed);
    let again = house.end(retried(&house, first.id, json!({"failed": true})).await).await.id;
    let children = children(&house, again).await;
    assert_eq!(children.iter().map(|child| child.array_index).collect::<Vec<_>>(), [Some(4), Some(6)]);
    for child in &children {
        assert_eq!(house.log(child.id).await, [format!("index {}", child.array_index.unwrap())]);
    }
    // A child's retry is an array of one.
    let one = house.end(retried(&house, children[1].id, json!({})).await).await.id;
    let only = &self::children(&house, one).await[0];
    assert_eq!(house.log(only.id).await, ["index 6"; 2]);
}

async fn children(house: &House, parent: JobId) -> Vec<Job> {
    let page: Page<Job> = house.client().get(&format!("/v1/jobs?parent={parent}")).await.unwrap();
    let mut children = page.items;
    children.sort_by_key(|child| child.array_index);
    children
}
