//! What a client may do: one function says whether it may do an act to a job, one whether it may submit. Everything
//! else that a client may or may not is a matter of its role alone, and stands in the table of routes.

use std::sync::Arc;

use crate::contract::token::Role;
use crate::domain::change::TokenRecord;

/// The word for all projects.
pub const ALL_PROJECTS: &str = "*";

/// What a client may do, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The credential's name, or the local user's.
    pub name: Arc<str>,
    /// `submitted_by` of its jobs.
    pub user: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// Where.
    pub projects: Projects,
    /// The highest priority it may submit with.
    pub max_priority: Option<i32>,
}

/// Projects that a client is confined to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projects {
    /// It is not.
    All,
    /// To these.
    Named(Arc<[String]>),
}

impl Projects {
    /// Whether this project is among them.
    pub fn include(&self, project: &str) -> bool {
        match self {
            Projects::All => true,
            Projects::Named(names) => names.iter().any(|name| name == project),
        }
    }

    /// Their names; `None` = all.
    pub fn names(&self) -> Option<&[String]> {
        match self {
            Projects::All => None,
            Projects::Named(names) => Some(names),
        }
    }
}

/// What may be done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAct {
    /// Read it and all that belongs to it.
    See,
    /// Stop it.
    Stop,
    /// Submit it again.
    Retry,
    /// Remove it.
    Remove,
}

/// What decides over a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedJob {
    /// Its project.
    pub project: String,
    /// Who submitted it.
    pub submitted_by: String,
}

/// Why a client may not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// To this client it does not exist.
    Hidden,
    /// The role only reads.
    ReadOnly,
    /// It is somebody else's job.
    NotTheirs {
        /// Whose.
        submitted_by: String,
    },
}

impl Grant {
    /// Everything, as the local user is given it.
    pub fn admin(name: &str) -> Self {
        let name: Arc<str> = Arc::from(name);
        Self { user: name.clone(), name, role: Role::Admin, projects: Projects::All, max_priority: None }
    }

    /// What a stored client token grants; `None` for the kinds that are no clients.
    pub fn of(token: &TokenRecord) -> Option<Self> {
        let role = token.role?;
        let all = role == Role::Admin || token.projects.iter().any(|name| name == ALL_PROJECTS);
        let name: Arc<str> = Arc::from(token.name.as_str());
        Some(Self {
            user: token.user.as_deref().map_or_else(|| name.clone(), Arc::from),
            name,
            role,
            projects: if all { Projects::All } else { Projects::Named(token.projects.clone().into()) },
            max_priority: token.max_priority,
        })
    }

    /// Whether it may do this to that job. Admins may do all; submitters see their projects and act on their own jobs
    /// there; viewers see theirs.
    pub fn judge(&self, act: JobAct, job: &OwnedJob) -> Result<(), Denied> {
        if self.role == Role::Admin {
            return Ok(());
        }
        if !self.projects.include(&job.project) {
            return Err(Denied::Hidden);
        }
        match (act, self.role) {
            (JobAct::See, _) => Ok(()),
            (JobAct::Stop | JobAct::Retry | JobAct::Remove, Role::Viewer) => Err(Denied::ReadOnly),
            (JobAct::Stop | JobAct::Retry | JobAct::Remove, Role::Submitter | Role::Admin) => {
                if *job.submitted_by == *self.user {
                    Ok(())
                } else {
                    Err(Denied::NotTheirs { submitted_by: job.submitted_by.clone() })
                }
            }
        }
    }

    /// Whether it may submit into this project.
    pub fn may_submit_into(&self, project: &str) -> bool {
        match self.role {
            Role::Admin => true,
            Role::Submitter => self.projects.include(project),
            Role::Viewer => false,
        }
    }

    /// The priority it may submit with at most, if this one is above it.
    pub fn priority_over(&self, priority: i32) -> Option<i32> {
        self.max_priority.filter(|most| priority > *most)
    }

    /// Whether it is shown the values of a job's `env`.
    pub fn sees_env(&self) -> bool {
        self.role != Role::Viewer
    }

    /// Whether it sees the jobs of this project.
    pub fn sees_project(&self, project: &str) -> bool {
        self.role == Role::Admin || self.projects.include(project)
    }

    /// Whether nothing is hidden from it: it need not be asked about single jobs and artifacts.
    pub fn sees_all(&self) -> bool {
        self.projects == Projects::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(role: Role, projects: &[&str]) -> Grant {
        let names: Vec<String> = projects.iter().map(|&name| name.to_owned()).collect();
        let projects = if role == Role::Admin { Projects::All } else { Projects::Named(names.into()) };
        Grant { role, projects, ..Grant::admin("alice") }
    }

    fn job(project: &str, submitted_by: &str) -> OwnedJob {
        OwnedJob { project: project.to_owned(), submitted_by: submitted_by.to_owned() }
    }

    #[test]
    fn each_role_may_do_what_the_contract_says() {
        let hidden = Err(Denied::Hidden);
        let theirs = Err(Denied::NotTheirs { submitted_by: "bob".into() });
        let acts = [JobAct::See, JobAct::Stop, JobAct::Retry, JobAct::Remove];
        for act in acts {
            for seen in [job("a", "alice"), job("a", "bob"), job("z", "alice"), job("z", "bob")] {
                let judged = |role| grant(role, &["a", "b"]).judge(act, &seen);
                let (foreign, own) = (seen.project == "z", seen.submitted_by == "alice");
                assert_eq!(judged(Role::Admin), Ok(()), "{act:?} {seen:?}");
                let submitter = match (foreign, act, own) {
                    (true, _, _) => hidden.clone(),
                    (false, JobAct::See, _) | (false, _, true) => Ok(()),
                    (false, _, false) => theirs.clone(),
                };
                assert_eq!(judged(Role::Submitter), submitter, "{act:?} {seen:?}");
                let viewer = match (foreign, act) {
                    (true, _) => hidden.clone(),
                    (false, JobAct::See) => Ok(()),
                    (false, _) => Err(Denied::ReadOnly),
                };
                assert_eq!(judged(Role::Viewer), viewer, "{act:?} {seen:?}");
            }
        }
    }

    #[test]
    fn submissions_go_into_own_projects_and_not_above_the_cap() {
        let capped = Grant { max_priority: Some(10), ..grant(Role::Submitter, &["a"]) };
        assert!(capped.may_submit_into("a") && !capped.may_submit_into("b"));
        assert_eq!(capped.priority_over(10), None);
        assert_eq!(capped.priority_over(11), Some(10));
        assert!(grant(Role::Admin, &[]).may_submit_into("anything"));
        assert!(!grant(Role::Viewer, &["a"]).may_submit_into("a"));
    }

    #[test]
    fn a_second_token_of_a_person_owns_what_the_first_submitted() {
        let record = |name: &str, user: Option<&str>| TokenRecord {
            role: Some(Role::Submitter),
            projects: vec!["a".into()],
            user: user.map(str::to_owned),
            ..TokenRecord::unconfined(
                [0; 32],
                crate::contract::token::TokenKind::Client,
                name,
                crate::contract::quantity::Timestamp::default(),
            )
        };
        let second = Grant::of(&record("alice-2", Some("alice"))).unwrap();
        assert_eq!(second.judge(JobAct::Stop, &job("a", "alice")), Ok(()));
        assert_eq!((&*second.name, &*second.user), ("alice-2", "alice"));
        assert_eq!(&*Grant::of(&record("alice", None)).unwrap().user, "alice");
        let all = TokenRecord { projects: vec!["*".into()], ..record("x", None) };
        assert!(Grant::of(&all).unwrap().sees_all());
    }
}
