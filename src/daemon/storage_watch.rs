//! Looks at the free disk now and then, and tells the front desk when submissions must be refused or may go on.

use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use tracing::{info, warn};

use crate::actors::messages::front_desk::StorageLevel;
use crate::store::space::Ballast;

/// A disk fills in seconds, not milliseconds; the ballast covers what is written in between.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Starts looking, until the system ends. The first look is before this returns.
pub(super) fn start(ballast: Arc<Ballast>, min_free_bytes: u64, desk: Recipient<StorageLevel>) {
    let mut full = false;
    let mut look = move || match ballast.look(min_free_bytes) {
        Ok(level) => {
            if level.full != full {
                full = level.full;
                if full {
                    warn!(
                        free_bytes = level.free_bytes,
                        min_free_bytes, "storage full: submissions are refused"
                    );
                } else {
                    info!(free_bytes = level.free_bytes, "storage has room again");
                }
                desk.do_send(StorageLevel { full });
            }
        }
        Err(error) => warn!(error = &error as &dyn std::error::Error, "the free disk cannot be seen"),
    };
    look();
    actix_rt::spawn(async move {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        loop {
            interval.tick().await;
            look();
        }
    });
}
