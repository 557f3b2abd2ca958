//! What the owner decided about each project: the `[projects.NAME]` tables of the server's `config.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Value;

use super::ConfigError;
use crate::domain::placement::ProjectPolicy;
use crate::domain::spec::nearest;

/// The name of the table.
pub(super) const TABLE: &str = "projects";
const KEYS: [&str; 5] = ["share", "max_cpus", "max_gpus", "max_queued", "preemptible"];
/// The largest share: enough to tell projects apart, and sums of them stay small.
const MAX_SHARE: i64 = 1_000_000;

/// Reads the table of a file.
pub(super) fn read(path: &Path, file: &toml::Table) -> Result<BTreeMap<String, ProjectPolicy>, ConfigError> {
    let bad = |key: String, expected| ConfigError::BadProject { path: path.to_owned(), key, expected };
    let table = match file.get(TABLE) {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(table)) => table,
        Some(_) => return Err(bad(TABLE.to_owned(), "a table with one table for each project")),
    };
    let mut projects = BTreeMap::new();
    for (name, entry) in table {
        let at = |key: &str| format!("{TABLE}.{name}.{key}");
        let Value::Table(entry) = entry else {
            return Err(bad(format!("{TABLE}.{name}"), "a table"));
        };
        let mut policy = ProjectPolicy::default();
        for (key, value) in entry {
            match key.as_str() {
                "share" => {
                    let share = value.as_integer().filter(|share| (1..=MAX_SHARE).contains(share));
                    let share = share.and_then(|share| u32::try_from(share).ok());
                    policy.share = share.ok_or_else(|| bad(at(key), "a whole number from 1 to 1000000"))?;
                }
                "max_cpus" => {
                    let cpus = value.as_float().or_else(|| value.as_integer().map(|cpus| cpus as f64));
                    let millis = cpus
                        .map(|cpus| (cpus * 1000.0).round())
                        .filter(|millis| (0.0..=4e12).contains(millis));
                    let millis = millis.ok_or_else(|| bad(at(key), "a number of CPUs"))?;
                    policy.max_cpu_millis = Some(millis as u64);
                }
                "max_gpus" => {
                    let most = value.as_integer().and_then(|most| u64::try_from(most).ok());
                    policy.max_gpus = Some(most.ok_or_else(|| bad(at(key), "a number of GPUs"))?);
                }
                "max_queued" => {
                    let most = value.as_integer().and_then(|most| u64::try_from(most).ok());
                    policy.max_queued = Some(most.ok_or_else(|| bad(at(key), "a number of jobs"))?);
                }
                "preemptible" => {
                    policy.preemptible = value.as_bool().ok_or_else(|| bad(at(key), "`true` or `false`"))?;
                }
                unknown => {
                    let near = nearest(unknown, KEYS);
                    let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                    return Err(ConfigError::UnknownKey { path: path.to_owned(), key: at(unknown), hint });
                }
            }
        }
        projects.insert(name.clone(), policy);
    }
    Ok(projects)
}

/// The part of `docs/CONFIG.md`.
pub(super) const PAGE: &str = r#"
## Projects

Jobs belong to a project (`default`, or what `--project` says). A server's `config.toml` says what each may have; it is
read when the server starts. A project that is not named there has a share of 1 and no limits.

```toml
[projects.vision]
share = 3            # is due three times what a project with 1 is
max_cpus = 64        # of its running tasks together
max_gpus = 8         # of its running tasks together
max_queued = 1000    # of its jobs that have not ended, every child of an array for one: more are refused
preemptible = true   # its tasks may be stopped for jobs of a higher priority, and are queued again then
```
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<String, ProjectPolicy>, String> {
        read(Path::new("config.toml"), &text.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let all = parsed("[projects.vision]\nshare = 3\nmax_cpus = 1.5\npreemptible = true\n[projects.a]\n")
            .unwrap();
        let vision = ProjectPolicy {
            share: 3,
            max_cpu_millis: Some(1500),
            preemptible: true,
            ..ProjectPolicy::default()
        };
        assert_eq!((&all["vision"], &all["a"]), (&vision, &ProjectPolicy::default()));
        assert!(parsed("").unwrap().is_empty());
    }

    #[test]
    fn faults_name_the_project_the_key_and_what_is_allowed() {
        for (text, words) in [
            ("projects = 1", "`projects` is not a table"),
            ("[projects]\nvision = 1", "`projects.vision` is not a table"),
            ("[projects.v]\nshare = 0", "`projects.v.share` is not a whole number from 1"),
            ("[projects.v]\nmax_gpus = -1", "`projects.v.max_gpus` is not a number of GPUs"),
            ("[projects.v]\nmax_queued = -1", "`projects.v.max_queued` is not a number of jobs"),
            ("[projects.v]\npreemptible = 1", "`projects.v.preemptible` is not `true` or `false`"),
            ("[projects.v]\nshares = 1", "no setting `projects.v.shares`; did you mean `share`?"),
        ] {
            let said = parsed(text).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
