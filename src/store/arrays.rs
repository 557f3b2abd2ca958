//! What is written of arrays: a parent with all its children at once, its counts, and the whole family's end.

use diesel::prelude::*;
use diesel::{delete, replace_into, update};

use super::forms::{JobForm, JobStandingForm, signed};
use super::schema::{
    arrays, artifact_refs, events, job_progress, job_results, job_standings, jobs, late_results,
    task_standings, tasks, yielded_values,
};
use crate::contract::event::EventType;
use crate::contract::ids::JobId;
use crate::contract::job::JobState;
use crate::domain::change::{ArrayRecord, JobStanding};

/// A child that waits, right after its first event.
const FRESH_CHILD: JobStanding = JobStanding {
    state: JobState::Queued,
    attempt: 1,
    preemptions: 0,
    epoch: 0,
    event_seq: 1,
    worker: None,
    phase: None,
    scheduled_at: None,
    started_at: None,
    ended_at: None,
    unreachable_since: None,
    cancel_requested_at: None,
    not_before: None,
    avoid: None,
    went_for: None,
    memory_bytes: None,
    checkpoint: None,
    yielded: 0,
    end: None,
};

/// Writes the children of an array; the parent's own row is written like any job's. Their specs are written once.
pub fn insert(connection: &mut SqliteConnection, array: &ArrayRecord) -> QueryResult<()> {
    let parent = array.record.id;
    replace_into(arrays::table)
        .values((
            arrays::job_id.eq(parent.to_bytes()),
            arrays::first_child.eq(array.first_child.to_bytes()),
            arrays::children.eq(array.indices.len() as i64),
            arrays::child_spec.eq(&*array.child_spec),
        ))
        .execute(connection)?;
    for (place, index) in array.indices.iter().enumerate() {
        let id = JobId::from_u128(array.first_child.as_u128() + place as u128);
        replace_into(jobs::table).values(JobForm::child(&array.record, id, *index)).execute(connection)?;
        replace_into(job_standings::table)
            .values(JobStandingForm::new(id, &FRESH_CHILD))
            .execute(connection)?;
        replace_into(events::table)
            .values((
                events::position.eq(signed(array.first_position + place as u64)),
                events::job_id.eq(Some(id.to_bytes())),
                events::seq.eq(1_i64),
                events::time.eq(array.record.submitted_at.micros()),
                events::kind.eq(EventType::JobQueued.word()),
                events::task_id.eq(None::<[u8; 16]>),
                events::data.eq(r#"{"cause":"submitted"}"#),
            ))
            .execute(connection)?;
    }
    Ok(())
}

/// Outputs of other jobs became inputs of the children.
pub fn filled(connection: &mut SqliteConnection, id: JobId, child_spec: &str) -> QueryResult<()> {
    update(arrays::table.find(id.to_bytes()))
        .set(arrays::child_spec.eq(child_spec))
        .execute(connection)
        .map(drop)
}

/// The first and the last child of an array; `None` = it is none.
pub fn range(connection: &mut SqliteConnection, parent: JobId) -> QueryResult<Option<([u8; 16], [u8; 16])>> {
    let row: Option<(Vec<u8>, i64)> = arrays::table
        .find(parent.to_bytes())
        .select((arrays::first_child, arrays::children))
        .first(connection)
        .optional()?;
    Ok(row.and_then(|(first, children)| {
        let first = JobId::from_bytes(&first)?;
        let last = JobId::from_u128(first.as_u128() + u128::from(children.unsigned_abs()).checked_sub(1)?);
        Some((first.to_bytes(), last.to_bytes()))
    }))
}

/// Ranges of children that a list steps over, at most: each is one more comparison for every row.
const RANGES: i64 = 32;

/// The first and the last child of the newest arrays that have not ended.
pub fn live_ranges(connection: &mut SqliteConnection) -> QueryResult<Vec<([u8; 16], [u8; 16])>> {
    let parents: Vec<Vec<u8>> = arrays::table
        .inner_join(job_standings::table.on(job_standings::job_id.eq(arrays::job_id)))
        .filter(job_standings::ended_at.is_null())
        .order(arrays::job_id.desc())
        .limit(RANGES)
        .select(arrays::job_id)
        .load(connection)?;
    let ranges =
        parents.iter().filter_map(|parent| range(connection, JobId::from_bytes(parent)?).transpose());
    ranges.collect()
}

/// Removes the children of an array and what is written of it; the parent's own rows go like any job's.
pub fn purge(connection: &mut SqliteConnection, parent: JobId) -> QueryResult<()> {
    let Some((first, last)) = range(connection, parent)? else { return Ok(()) };
    // Ids in the range that belong to others are as good as impossible, and asked for all the same.
    let children = || {
        jobs::table
            .filter(jobs::id.between(first, last))
            .filter(jobs::parent.eq(parent.to_bytes()))
            .select(jobs::id)
    };
    let of_children = tasks::table.filter(tasks::job_id.eq_any(children())).select(tasks::id);
    delete(task_standings::table.filter(task_standings::task_id.eq_any(of_children))).execute(connection)?;
    delete(tasks::table.filter(tasks::job_id.eq_any(children()))).execute(connection)?;
    delete(events::table.filter(events::job_id.eq_any(children().select(jobs::id.nullable()))))
        .execute(connection)?;
    delete(artifact_refs::table.filter(artifact_refs::job_id.eq_any(children()))).execute(connection)?;
    delete(job_results::table.filter(job_results::job_id.eq_any(children()))).execute(connection)?;
    delete(late_results::table.filter(late_results::job_id.eq_any(children()))).execute(connection)?;
    delete(yielded_values::table.filter(yielded_values::job_id.eq_any(children()))).execute(connection)?;
    delete(job_standings::table.filter(job_standings::job_id.eq_any(children()))).execute(connection)?;
    delete(jobs::table.filter(jobs::id.between(first, last)).filter(jobs::parent.eq(parent.to_bytes())))
        .execute(connection)?;
    delete(job_progress::table.find(parent.to_bytes())).execute(connection)?;
    delete(arrays::table.find(parent.to_bytes())).execute(connection).map(drop)
}
