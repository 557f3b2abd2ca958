//! What the generators of function jobs yielded.

use diesel::prelude::*;
use diesel::sqlite::Sqlite;
use diesel::{delete, replace_into};

use super::error::StoreError;
use super::forms::signed;
use super::reads::Reads;
use super::rows::hash;
use super::schema::yielded_values;
use crate::contract::artifact::Digest;
use crate::contract::ids::JobId;
use crate::contract::yielded::{Yielded, YieldedValue};

/// A page ends behind the value that fills it: what follows is the next page.
const PAGE_BYTES: usize = 256 * 1024;

#[derive(Insertable)]
#[diesel(table_name = yielded_values, treat_none_as_default_value = false)]
struct Form<'a> {
    job_id: [u8; 16],
    n: i64,
    size_bytes: i64,
    artifact: Option<[u8; 32]>,
    text: Option<&'a str>,
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = yielded_values, check_for_backend(Sqlite))]
struct Row {
    n: i64,
    size_bytes: i64,
    artifact: Option<Vec<u8>>,
    text: Option<String>,
}

impl Row {
    fn read(self) -> Result<YieldedValue, StoreError> {
        let artifact = self.artifact.map(|bytes| hash(&bytes, "yielded_values.artifact")).transpose()?;
        let value = Yielded {
            text: self.text,
            artifact: artifact.map(Digest::from_bytes),
            size_bytes: self.size_bytes as u64,
        };
        Ok(YieldedValue { n: self.n as u64, value })
    }
}

/// Writes values down, numbered from `first_n` on.
pub fn write(
    connection: &mut SqliteConnection,
    id: JobId,
    first_n: u64,
    values: &[Yielded],
) -> QueryResult<()> {
    for (n, value) in (first_n..).zip(values) {
        let form = Form {
            job_id: id.to_bytes(),
            n: signed(n),
            size_bytes: signed(value.size_bytes),
            artifact: value.artifact.map(|digest| *digest.bytes()),
            text: value.text.as_deref(),
        };
        replace_into(yielded_values::table).values(form).execute(connection)?;
    }
    Ok(())
}

/// Removes those of one job.
pub fn purge(connection: &mut SqliteConnection, id: JobId) -> QueryResult<()> {
    delete(yielded_values::table.filter(yielded_values::job_id.eq(id.to_bytes())))
        .execute(connection)
        .map(drop)
}

impl Reads {
    /// A job's yielded values numbered above `after`, in order: at most `limit`, and about 256 KiB of them.
    pub fn yielded(&self, job: JobId, after: u64, limit: usize) -> Result<Vec<YieldedValue>, StoreError> {
        let rows: Vec<Row> = self.pool.query("a job's yielded values", |connection| {
            let found = yielded_values::table
                .filter(yielded_values::job_id.eq(job.to_bytes()))
                .filter(yielded_values::n.gt(signed(after)))
                .order(yielded_values::n)
                .limit(limit as i64)
                .select(Row::as_select())
                .load_iter(connection)?;
            let mut rows = Vec::new();
            let mut bytes = 0;
            for row in found {
                let row: Row = row?;
                bytes += row.text.as_ref().map_or(0, String::len);
                rows.push(row);
                if bytes >= PAGE_BYTES {
                    break;
                }
            }
            Ok(rows)
        })?;
        rows.into_iter().map(Row::read).collect()
    }
}
