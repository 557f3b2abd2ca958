//! How many jobs a project may have that have not ended (`max_queued`). Every child of an array is one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::placement::Policy;

/// A project would have more jobs than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "project `{project}` may have {most} jobs that have not ended (`max_queued`); it has {present}, and {asked} more would be too many"
)]
pub struct ProjectFull {
    /// Which.
    pub project: String,
    /// At most.
    pub most: u64,
    /// So many it has.
    pub present: u64,
    /// So many were to come.
    pub asked: u64,
}

impl ProjectFull {
    /// Whether they would be too many also if nothing else were there: no waiting makes room for them.
    pub const fn never_fits(&self) -> bool {
        self.asked > self.most
    }
}

/// The limits of all projects, and how many jobs each has.
#[derive(Debug, Default)]
pub struct QueueLimits {
    most: BTreeMap<String, u64>,
    present: BTreeMap<Arc<str>, u64>,
}

impl QueueLimits {
    /// As an owner set them; nobody has any job.
    pub fn of(policy: &Policy) -> Self {
        let limited = |(name, project): (&String, &super::placement::ProjectPolicy)| {
            project.max_queued.map(|most| (name.clone(), most))
        };
        Self { most: policy.projects.iter().filter_map(limited).collect(), present: BTreeMap::new() }
    }

    /// Whether so many jobs more of each project may come: all of them, or none.
    pub fn judge(&self, asked: &BTreeMap<&str, u64>) -> Result<(), ProjectFull> {
        for (project, asked) in asked {
            let Some(most) = self.most.get(*project) else { continue };
            let present = self.present.get(*project).copied().unwrap_or(0);
            if present.saturating_add(*asked) > *most {
                let project = (*project).to_owned();
                return Err(ProjectFull { project, most: *most, present, asked: *asked });
            }
        }
        Ok(())
    }

    /// Jobs came. Only those of limited projects are counted.
    pub fn came(&mut self, project: &Arc<str>, jobs: u64) {
        if self.most.contains_key(&**project) {
            *self.present.entry(project.clone()).or_default() += jobs;
        }
    }

    /// A job has ended.
    pub fn ended(&mut self, project: &str) {
        if let Some(present) = self.present.get_mut(project) {
            *present = present.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::placement::ProjectPolicy;

    #[test]
    fn all_of_a_submission_or_nothing_and_what_ends_makes_room() {
        let policy = ProjectPolicy { max_queued: Some(3), ..ProjectPolicy::default() };
        let projects = BTreeMap::from([("small".to_owned(), policy)]);
        let mut limits = QueueLimits::of(&Policy { projects, ..Policy::default() });
        let (small, other): (Arc<str>, Arc<str>) = ("small".into(), "other".into());
        let asked = |small, other| BTreeMap::from([("small", small), ("other", other)]);
        assert_eq!(limits.judge(&asked(3, 1_000_000)), Ok(()));
        limits.came(&small, 2);
        limits.came(&other, 1_000_000);
        let full = limits.judge(&asked(2, 0)).unwrap_err();
        assert_eq!((full.most, full.present, full.asked), (3, 2, 2));
        assert!(!full.never_fits(), "there is room once the others have ended");
        assert!(limits.judge(&asked(4, 0)).unwrap_err().never_fits());
        assert_eq!(limits.judge(&asked(1, 1)), Ok(()));
        limits.ended("small");
        limits.ended("other");
        assert_eq!(limits.judge(&asked(2, 0)), Ok(()));
        assert_eq!(limits.judge(&asked(u64::MAX, 0)).unwrap_err().present, 1);
    }
}
