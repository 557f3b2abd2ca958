//! Credentials, and the record of who used which power and who sent what. What is decided here holds for the edge from
//! the moment it is on disk: it shares the table of known credentials.

use std::sync::Arc;

use actix::{Context, Handler};
use serde_json::json;

use super::{JobSupervisor, Speech, answer};
use crate::actors::messages::front_desk::{
    Act, Keyed, MakeToken, RecordAct, RecordUpload, RevokeToken, SpendToken,
};
use crate::actors::messages::send;
use crate::credentials::known::Credentials;
use crate::domain::change::{Change, TokenRecord, UsedKey};
use crate::domain::ledger::Ledger;

impl JobSupervisor {
    /// Writes down which tokens were used of late.
    pub(super) fn note_token_use(&mut self) {
        let changed = self.tokens.note_use(self.credentials.used());
        self.journal
            .append(changed.into_iter().map(|token| Change::TokenRecorded(Box::new(token))).collect());
    }

    /// Writes a token as it was decided; what lets that hold is done when it is on disk. Here and not at the edge:
    /// whoever asked may have gone, and a revocation holds all the same.
    fn once_written(
        &mut self,
        ctx: &mut Context<Self>,
        mut ledger: Ledger,
        token: TokenRecord,
        key: Option<Box<UsedKey>>,
        let_hold: impl FnOnce(&Credentials) + 'static,
    ) {
        ledger.change(Change::TokenRecorded(Box::new(token)));
        ledger.changes.extend(self.take_key(key).flatten());
        let seq = self.commit(ctx, ledger, &[]);
        let credentials = Arc::clone(&self.credentials);
        self.speeches.push(seq, Speech::Answer(Box::new(move || let_hold(&credentials))));
    }
}

impl Handler<MakeToken> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: MakeToken, ctx: &mut Context<Self>) {
        let MakeToken { record, by, key, reply } = call;
        if key.as_ref().is_some_and(|key| self.keys.is_taken(key)) {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        }
        let mut ledger = self.ledger();
        let made = match self.tokens.create(*record, ledger.now) {
            Ok(made) => made.clone(),
            Err(refusal) => {
                self.say_at_newest(answer(reply, Err(refusal)));
                return;
            }
        };
        if let Some(author) = by {
            let with = json!({
                "kind": made.kind, "role": made.role, "projects": made.projects,
                "max_priority": made.max_priority, "user": made.user, "expires_at": made.expires_at,
            });
            ledger.audit(&author, Act::TokenCreate, &made.name, with);
        }
        let written = made.clone();
        self.once_written(ctx, ledger, written, key, move |credentials| {
            credentials.admit(&made);
            send(reply, Ok(Keyed::Done(())));
        });
    }
}

impl Handler<RevokeToken> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: RevokeToken, ctx: &mut Context<Self>) {
        let RevokeToken { name, afar, by, key, reply } = call;
        if key.as_ref().is_some_and(|key| self.keys.is_taken(key)) {
            self.say_at_newest(answer(reply, Ok(Keyed::Repeat)));
            return;
        }
        let mut ledger = self.ledger();
        let revoked = match self.tokens.revoke(&name, afar, ledger.now) {
            Ok(revoked) => revoked.clone(),
            Err(refusal) => {
                self.say_at_newest(answer(reply, Err(refusal)));
                return;
            }
        };
        if let Some(author) = by {
            let with = json!({ "kind": revoked.kind, "role": revoked.role });
            ledger.audit(&author, Act::TokenRevoke, &revoked.name, with);
        }
        let hash = revoked.hash;
        self.once_written(ctx, ledger, revoked, key, move |credentials| {
            credentials.revoke(&hash);
            send(reply, Ok(Keyed::Done(())));
        });
    }
}

impl Handler<SpendToken> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: SpendToken, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        let spent = match self.tokens.spend(&call.hash, &call.registration, ledger.now) {
            Ok(spent) => spent.cloned(),
            Err(refusal) => {
                self.say_at_newest(answer(call.reply, Err(refusal)));
                return;
            }
        };
        ledger.changes.extend(spent.map(|token| Change::TokenRecorded(Box::new(token))));
        self.commit(ctx, ledger, &[]);
        self.say_at_newest(answer(call.reply, Ok(())));
    }
}

impl Handler<RecordUpload> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: RecordUpload, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        let now = ledger.now;
        let sent = call.uploaders.into_iter();
        ledger.changes.extend(sent.map(|uploader| Change::ArtifactSent(call.digest, uploader, now)));
        self.commit(ctx, ledger, &[]);
        self.say_at_newest(answer(call.reply, ()));
    }
}

impl Handler<RecordAct> for JobSupervisor {
    type Result = ();

    fn handle(&mut self, call: RecordAct, ctx: &mut Context<Self>) {
        let mut ledger = self.ledger();
        ledger.audit(&call.by, call.act, &call.target, call.with);
        self.commit(ctx, ledger, &[]);
        self.say_at_newest(answer(call.reply, ()));
    }
}
