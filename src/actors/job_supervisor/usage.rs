//! Who had how much of late, over a restart: what the scheduler noted, and what tasks held since.

use std::sync::Arc;

use actix::{Context, Handler};

use super::JobSupervisor;
use crate::actors::messages::job_supervisor::UsageTaken;
use crate::contract::quantity::{Seconds, Timestamp};
use crate::domain::change::Change;
use crate::domain::placement::usage::{NotedUsage, matters_since, rebuilt};
use crate::store::{Reads, StoreError};

/// What every project has had by now, as far as the store knows.
pub fn restored_usage(reads: &Reads, half_life: Seconds, now: Timestamp) -> Result<NotedUsage, StoreError> {
    let noted = reads.noted_usage()?;
    let since = matters_since(half_life, noted.as_ref().map(|noted| noted.at), now);
    let held = reads.held_since(since)?;
    Ok(rebuilt(half_life, noted.as_ref(), &held, now))
}

impl Handler<UsageTaken> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, taken: UsageTaken, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        ledger.change(Change::UsageNoted(Arc::new(taken.usage)));
        self.commit(ctx, ledger, &[]);
    }
}
