//! What a shim has of its own, and lends each of its tasks.

use std::rc::Rc;

use super::cgroup::{Group, Plan, group_name};
use super::identity::Identity;
use super::oom_score::OomScore;

/// One shim's belongings.
pub(super) struct Home {
    pub(super) identity: Identity,
    /// A task that has another program to start has it too.
    pub(super) oom_score: Rc<OomScore>,
    /// `None`: the worker has none to offer, or a task is in it at the moment.
    pub(super) group: Option<Group>,
}

impl Home {
    /// Without a group.
    pub(super) fn new(identity: Identity) -> Self {
        Self { identity, oom_score: Rc::new(OomScore::protect()), group: None }
    }

    /// Makes its group and moves in.
    pub(super) fn settle(&mut self, plan: Plan) {
        let name = group_name(self.identity.pid, self.identity.start_ticks);
        self.group = Group::make(plan, name);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.leave();
        }
    }
}
