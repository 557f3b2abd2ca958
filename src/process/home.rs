//! What a shim has of its own, and lends each of its tasks.

use std::rc::Rc;

use super::cgroup::{Group, Plan, group_name};
use super::identity::Identity;
use super::oom_score::OomScore;
use super::resident::{Resident, WorkspaceLink};

/// One shim's belongings.
pub(super) struct Home {
    pub(super) identity: Identity,
    /// A task that has another program to start has it too.
    pub(super) oom_score: Rc<OomScore>,
    /// `None`: the worker has none to offer, or a task is in it at the moment.
    pub(super) group: Option<Group>,
    /// What stayed of its last task; `None` while a task has it.
    pub(super) resident: Option<Resident>,
    /// Made with the first program that may stay.
    pub(super) workspace: Option<WorkspaceLink>,
}

impl Home {
    /// Without a group.
    pub(super) fn new(identity: Identity) -> Self {
        let oom_score = Rc::new(OomScore::protect());
        Self { identity, oom_score, group: None, resident: None, workspace: None }
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
