//! Audit: what somebody did with a power over the server, or over what is not theirs, as an event of the feed.

use serde_json::{Value, json};

use crate::contract::event::{Event, EventType};
use crate::contract::token::Role;
use crate::domain::change::Change;
use crate::domain::ledger::Ledger;

/// Who did it, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// The credential's name, or the local user's.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The address it came from, or `unix_socket`.
    pub from: String,
}

/// What was done. The words are those of `data.act`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A credential was made.
    TokenCreate,
    /// A credential was revoked.
    TokenRevoke,
    /// A worker is being emptied.
    WorkerDrain,
    /// A worker takes tasks again.
    WorkerResume,
    /// A worker's session was ended and its tasks killed.
    WorkerRevoke,
    /// A task was taken from a worker.
    TaskEvict,
    /// A job that is not the author's was told to stop.
    JobCancel,
    /// An ended job was removed.
    JobPurge,
    /// The server was told to stop.
    ServerStop,
}

impl Act {
    /// The word of `data.act`.
    pub const fn word(self) -> &'static str {
        match self {
            Act::TokenCreate => "token_create",
            Act::TokenRevoke => "token_revoke",
            Act::WorkerDrain => "worker_drain",
            Act::WorkerResume => "worker_resume",
            Act::WorkerRevoke => "worker_revoke",
            Act::TaskEvict => "task_evict",
            Act::JobCancel => "job_cancel",
            Act::JobPurge => "job_purge",
            Act::ServerStop => "server_stop",
        }
    }
}

impl Ledger {
    /// Writes down that `author` did this to `target`. `with` holds what else is worth knowing.
    pub fn audit(&mut self, author: &Author, act: Act, target: &str, with: Value) {
        self.position += 1;
        let mut data = json!({
            "act": act.word(),
            "target": target,
            "by": { "name": author.name, "role": author.role.word() },
            "from": author.from,
        });
        if let (Value::Object(data), Value::Object(with)) = (&mut data, with) {
            data.extend(with);
        }
        self.changes.push(Change::EventAppended(Box::new(Event {
            seq: 0,
            position: self.position,
            time: self.now,
            kind: EventType::Audit,
            job_id: None,
            task_id: None,
            data,
        })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::quantity::Timestamp;

    #[test]
    fn an_audit_event_says_who_what_on_what_and_from_where() {
        let mut ledger = Ledger::new(Timestamp::from_micros(9), 41);
        let author = Author { name: "ops".into(), role: Role::Admin, from: "10.0.0.7".into() };
        ledger.audit(&author, Act::TokenCreate, "ci", json!({ "role": "viewer" }));
        let [Change::EventAppended(event)] = &ledger.changes[..] else { panic!("{ledger:?}") };
        assert_eq!((event.position, event.seq, event.job_id, event.kind), (42, 0, None, EventType::Audit));
        assert_eq!(
            event.data,
            json!({ "act": "token_create", "target": "ci", "by": { "name": "ops", "role": "admin" },
                "from": "10.0.0.7", "role": "viewer" })
        );
    }
}
