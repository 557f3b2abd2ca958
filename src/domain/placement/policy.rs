//! What an owner decided about who gets the machines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contract::quantity::Seconds;

/// How the machines are shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// By name; a project that is not here has the defaults.
    pub projects: BTreeMap<String, ProjectPolicy>,
    /// After this time what a project used counts half.
    pub half_life_s: Seconds,
    /// How many jobs that find no place may have workers reserved at a time.
    pub reservations: u32,
    /// How long staging is taken to last when the end of a job is foreseen.
    pub staging_s: Seconds,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            projects: BTreeMap::new(),
            half_life_s: Seconds::new(86_400),
            reservations: 8,
            staging_s: Seconds::new(60),
        }
    }
}

/// What one project may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProjectPolicy {
    /// With 2 it is due twice what one with 1 is.
    pub share: u32,
    /// Cores of its running tasks at most, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_millis: Option<u64>,
    /// GPUs of its running tasks at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gpus: Option<u64>,
    /// Jobs of it that have not ended at most; every child of an array is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued: Option<u64>,
    /// Whether its tasks may be stopped for jobs of a higher priority; they are queued again then.
    pub preemptible: bool,
}

impl Default for ProjectPolicy {
    fn default() -> Self {
        Self { share: 1, max_cpu_millis: None, max_gpus: None, max_queued: None, preemptible: false }
    }
}

impl Policy {
    /// The share of a project.
    pub fn share(&self, project: &str) -> u32 {
        self.projects.get(project).map_or(1, |policy| policy.share)
    }

    /// Whether a project's tasks may be stopped for others.
    pub fn is_preemptible(&self, project: &str) -> bool {
        self.projects.get(project).is_some_and(|policy| policy.preemptible)
    }
}
