//! Reads of `logs.db`: a bounded run of lines after a number.

use std::path::PathBuf;

use diesel::prelude::*;

use super::schema::chunks;
use super::{LogPage, LogQuery, chunk};
use crate::contract::ids::{JobId, TaskId};
use crate::contract::log::LogLine;
use crate::store::error::StoreError;
use crate::store::forms::signed;
use crate::store::pool::Pool;

/// Chunks fetched with one query.
const CHUNKS_AT_ONCE: i64 = 4;
/// Chunks one call looks at: some 10 MB of lines at most, however few of them match.
const CHUNKS_LOOKED_AT: i64 = 32;
/// Text one call answers with before it stops.
const TEXT_BYTES: usize = 2 << 20;

const DAMAGED: StoreError = StoreError::Corrupt { what: "chunks.payload" };

#[derive(Queryable, Selectable)]
#[diesel(table_name = chunks)]
struct ChunkRow {
    first_seq: i64,
    last_seq: i64,
    task_id: Vec<u8>,
    payload: Vec<u8>,
}

/// Its own connections to the log database.
pub struct LogReads {
    pool: Pool,
}

impl LogReads {
    pub fn new(path: PathBuf) -> Self {
        Self { pool: Pool::new(path) }
    }

    pub fn last_seq(&self, job_id: JobId) -> Result<u64, StoreError> {
        let last: Option<i64> = self.pool.query("the end of a log", |connection| {
            chunks::table
                .filter(chunks::job_id.eq(job_id.to_bytes()))
                .order(chunks::first_seq.desc())
                .select(chunks::last_seq)
                .first(connection)
                .optional()
        })?;
        Ok(last.unwrap_or(0) as u64)
    }

    pub fn next_job(&self, after: Option<JobId>) -> Result<Option<JobId>, StoreError> {
        let after = after.map(JobId::to_bytes).unwrap_or_default();
        let found: Option<Vec<u8>> = self.pool.query("jobs with a log", |connection| {
            chunks::table
                .filter(chunks::job_id.gt(after))
                .order(chunks::job_id)
                .select(chunks::job_id)
                .first(connection)
                .optional()
        })?;
        let read =
            |bytes: Vec<u8>| JobId::from_bytes(&bytes).ok_or(StoreError::Corrupt { what: "chunks.job_id" });
        found.map(read).transpose()
    }

    pub fn read(&self, query: &LogQuery) -> Result<LogPage, StoreError> {
        let mut page = LogPage { items: Vec::new(), next_after: query.after };
        let mut text_bytes = 0;
        let mut looked_at = 0;
        while looked_at < CHUNKS_LOOKED_AT {
            let rows = self.next_chunks(query.job_id, page.next_after)?;
            if rows.is_empty() {
                break;
            }
            looked_at += rows.len() as i64;
            for row in rows {
                text_bytes += collect(row, query, &mut page)?;
                if page.items.len() >= query.limit || text_bytes >= TEXT_BYTES {
                    return Ok(page);
                }
            }
        }
        Ok(page)
    }

    /// The chunk that holds the line after `after`, and some that follow it.
    fn next_chunks(&self, job_id: JobId, after: u64) -> Result<Vec<ChunkRow>, StoreError> {
        let after = signed(after);
        self.pool.query("log lines", |connection| {
            let of_job = || chunks::table.filter(chunks::job_id.eq(job_id.to_bytes()));
            // The index knows where chunks begin: seek to the one that may reach past `after`.
            let from: Option<i64> = of_job()
                .filter(chunks::first_seq.le(after.saturating_add(1)))
                .order(chunks::first_seq.desc())
                .select(chunks::first_seq)
                .first(connection)
                .optional()?;
            of_job()
                .filter(chunks::first_seq.ge(from.unwrap_or(0)))
                .filter(chunks::last_seq.gt(after))
                .order(chunks::first_seq)
                .limit(CHUNKS_AT_ONCE)
                .select(ChunkRow::as_select())
                .load(connection)
        })
    }
}

/// Adds a chunk's lines to the page until it is full. Answers the bytes of text added.
fn collect(row: ChunkRow, query: &LogQuery, page: &mut LogPage) -> Result<usize, StoreError> {
    let task_id = TaskId::from_bytes(&row.task_id).ok_or(StoreError::Corrupt { what: "chunks.task_id" })?;
    let last_seq = row.last_seq as u64;
    if query.task_id.is_some_and(|wanted| wanted != task_id) {
        page.next_after = last_seq;
        return Ok(0);
    }
    let raw = chunk::unpack(&row.payload).map_err(|_| DAMAGED)?;
    let mut text_bytes = 0;
    for (seq, record) in (row.first_seq as u64..=last_seq).zip(chunk::records(&raw)) {
        if page.items.len() >= query.limit {
            return Ok(text_bytes);
        }
        let record = record.map_err(|_| DAMAGED)?;
        if seq <= page.next_after {
            continue;
        }
        page.next_after = seq;
        if query.stream.is_none_or(|wanted| wanted == record.stream) {
            text_bytes += record.text.len();
            page.items.push(LogLine {
                seq,
                time: record.time,
                task_id,
                rank: 0,
                stream: record.stream,
                text: record.text,
            });
        }
    }
    Ok(text_bytes)
}
