//! How jobs stood when they left the queue: a text that many share, and who has it.

use diesel::dsl::exists;
use diesel::prelude::*;
use diesel::{delete, insert_or_ignore_into, replace_into, select};
use sha2::{Digest as _, Sha256};

use super::arrays;
use super::error::StoreError;
use super::reads::Reads;
use super::schema::{explanations, job_explanations, jobs};
use crate::contract::ids::JobId;

/// Writes what a job has; one that was removed meanwhile has nothing.
pub fn write(connection: &mut SqliteConnection, id: JobId, text: &str) -> QueryResult<()> {
    let there: bool =
        select(exists(jobs::table.filter(jobs::id.eq(id.to_bytes())))).get_result(connection)?;
    if !there {
        return Ok(());
    }
    let digest = Sha256::digest(text).to_vec();
    insert_or_ignore_into(explanations::table)
        .values((explanations::digest.eq(&digest), explanations::explanation.eq(text)))
        .execute(connection)?;
    replace_into(job_explanations::table)
        .values((job_explanations::job_id.eq(id.to_bytes()), job_explanations::digest.eq(&digest)))
        .execute(connection)
        .map(drop)
}

/// Removes what these jobs have, with the texts that nobody has then. To be called while an array is still there.
pub fn purge(connection: &mut SqliteConnection, id: JobId) -> QueryResult<()> {
    let own = id.to_bytes();
    let (first, last) = arrays::range(connection, id)?.unwrap_or((own, own));
    let theirs = job_explanations::job_id.eq(own).or(job_explanations::job_id.between(first, last));
    let digests: Vec<Vec<u8>> = job_explanations::table
        .filter(theirs)
        .select(job_explanations::digest)
        .distinct()
        .load(connection)?;
    if digests.is_empty() {
        return Ok(());
    }
    delete(job_explanations::table.filter(theirs)).execute(connection)?;
    for digest in digests {
        let needed: bool =
            select(exists(job_explanations::table.filter(job_explanations::digest.eq(&digest))))
                .get_result(connection)?;
        if !needed {
            delete(explanations::table.find(&digest)).execute(connection)?;
        }
    }
    Ok(())
}

impl Reads {
    /// How a job stood when it left the queue, as JSON. A child without a word of its own has its array's, an array the
    /// first of its children's.
    pub fn explanation(&self, id: JobId) -> Result<Option<String>, StoreError> {
        self.pool.query("an explanation", |connection| {
            let of = |connection: &mut SqliteConnection, first: [u8; 16], last: [u8; 16]| {
                job_explanations::table
                    .inner_join(explanations::table)
                    .filter(job_explanations::job_id.between(first, last))
                    .order(job_explanations::job_id)
                    .select(explanations::explanation)
                    .first::<String>(connection)
                    .optional()
            };
            let own = id.to_bytes();
            if let Some(text) = of(connection, own, own)? {
                return Ok(Some(text));
            }
            let parent: Option<Option<Vec<u8>>> =
                jobs::table.find(own).select(jobs::parent).first(connection).optional()?;
            if let Some(parent) = parent.flatten().and_then(|parent| JobId::from_bytes(&parent)) {
                return of(connection, parent.to_bytes(), parent.to_bytes());
            }
            match arrays::range(connection, id)? {
                Some((first, last)) => of(connection, first, last),
                None => Ok(None),
            }
        })
    }
}
