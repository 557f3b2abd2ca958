//! Python environments of tasks, kept on their worker: `environments/<uid>/` in its folder holds those of one user. A
//! task's shim runs the builder before the task's program, with that user's rights; this file is what the worker does
//! about them, which is to order one, to count them, and to remove what nobody uses.

mod builder;
mod failure;
mod layout;
mod leftovers;
mod locks;
mod notes;
mod refused;
mod time_limit;
mod tools;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::artifacts::remove_tree;
use crate::contract::quantity::Timestamp;
use crate::domain::disk::{Disposable, Entry};
use crate::domain::python::{Building, OF_UV, Recipe};
use crate::process::RunAs;
use crate::process::prelude::{Prelude, own_binary};

use builder::Order;
pub use builder::{BUILDER_NAME, run_if_builder};
use layout::{Layout, is_removable, names};
use locks::Held;

/// Other users may pass through, and not list.
const PASSABLE: u32 = 0o711;
/// Of the worker's own environment a build has this as well: how the network and package indexes are reached.
const REACHING: [&str; 10] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The environments of one worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Environments {
    folder: PathBuf,
}

/// Something that can be removed: an environment, or what `uv` keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Removable {
    user: String,
    name: String,
}

impl Environments {
    /// Those in this folder, which need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a shim has to run before a task's program. `environment` is the task's own, `host` the worker's.
    pub fn prelude(
        &self,
        recipe: Recipe,
        workspace: &Path,
        user: Option<&RunAs>,
        building: &Building,
        environment: &[(OsString, OsString)],
        host: &[(OsString, OsString)],
    ) -> io::Result<Prelude> {
        let order = Order {
            recipe,
            workspace: workspace.into(),
            folder: self.of_user(user)?.into(),
            uv: building.uv.clone().map(Into::into),
            timeout: building.timeout,
            pythons: building.pythons.iter().map(Into::into).collect(),
        };
        let reaches = |name: &OsString| {
            name.to_str().is_some_and(|name| REACHING.contains(&name) || name.starts_with(OF_UV))
        };
        let given = |name: &OsString| environment.iter().any(|(own, _)| own == name);
        let reaching = host.iter().filter(|(name, _)| reaches(name) && !given(name));
        Ok(Prelude {
            program: own_binary().to_owned(),
            argv: vec![BUILDER_NAME.into()],
            env: environment.iter().chain(reaching).cloned().collect(),
            input: serde_json::to_string(&order)?,
        })
    }

    /// The folder of a user's own, which that user alone can enter.
    fn of_user(&self, user: Option<&RunAs>) -> io::Result<PathBuf> {
        let make = |path: &Path, mode: u32| match DirBuilder::new().mode(0o700).create(path) {
            Err(there) if there.kind() == ErrorKind::AlreadyExists => Ok(false),
            made => {
                made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode))).map(|()| true)
            }
        };
        make(&self.folder, PASSABLE)?;
        let uid = user.map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
        let folder = self.folder.join(uid.to_string());
        if make(&folder, 0o700)?
            && let Some(user) = user
        {
            std::os::unix::fs::lchown(&folder, Some(user.uid), Some(user.gid))?;
        }
        Ok(folder)
    }

    /// What could be removed to make room, with what that gives back: what shares its bytes with something else (`uv`
    /// links files into environments) gives them back only with the last of them. Blocks: it walks through all that
    /// nobody uses, and has the lock of each alone for a moment, in which a task may find it taken.
    pub fn entries(&self) -> Vec<Entry<Removable>> {
        let mut entries = Vec::new();
        for user in names(&self.folder) {
            let layout = Layout(self.folder.join(&user));
            for name in layout.names().into_iter().filter(|name| is_removable(name)) {
                let lock = layout.lock(&name);
                let last_used = fs::symlink_metadata(&lock).map_or(0, |there| there.mtime());
                let in_use = !matches!(if_free(&layout, &name), Ok(Some(_)));
                entries.push(Entry {
                    key: Removable { user: user.clone(), name: name.clone() },
                    kind: Disposable::Cached {
                        last_used: Timestamp::from_micros(last_used.saturating_mul(1_000_000)),
                    },
                    // One that stays gives nothing back, and is not walked through.
                    size_bytes: if in_use { 0 } else { own_bytes(&layout.path().join(&name)) },
                    in_use,
                });
            }
        }
        entries
    }

    /// Removes one, unless somebody has begun to use it; whether it is gone.
    pub fn remove(&self, what: &Removable) -> io::Result<bool> {
        let layout = Layout(self.folder.join(&what.user));
        let Some(alone) = if_free(&layout, &what.name)? else { return Ok(false) };
        let going = layout.going(&what.name);
        remove_tree(&going).map_err(io::Error::other)?;
        match fs::rename(layout.path().join(&what.name), &going) {
            Err(gone) if gone.kind() == ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let _ = alone.remove(&layout.lock(&what.name));
        let build_lock = layout.build_lock(&what.name);
        // Somebody who has it is about to build it anew.
        if let Ok(Some(free)) = locks::if_there_and_free(&build_lock) {
            let _ = free.remove(&build_lock);
        }
        remove_tree(&going).map(|()| true).map_err(io::Error::other)
    }

    /// Removes what an earlier start of the worker was removing, and what killed builds and removed environments have
    /// left behind. Blocks.
    pub fn tidy(&self) {
        for user in names(&self.folder) {
            for fault in leftovers::clear(&Layout(self.folder.join(&user))) {
                tracing::warn!(
                    error = &fault as &dyn std::error::Error,
                    user,
                    "something of Python environments cannot be removed"
                );
            }
        }
    }
}

/// Its lock, when nobody has it.
fn if_free(layout: &Layout, name: &str) -> io::Result<Option<Held>> {
    let folder = fs::metadata(layout.path())?;
    locks::if_free(&layout.lock(name), (folder.uid(), folder.gid()))
}

/// What its removal gives back, in bytes. Its user may have put a link in its place, which is not followed.
fn own_bytes(folder: &Path) -> u64 {
    if !fs::symlink_metadata(folder).is_ok_and(|there| there.is_dir()) {
        return 0;
    }
    let mut total = 0u64;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(there) = entry.metadata() else { continue };
            if there.is_dir() {
                folders.push(entry.path());
            } else if there.nlink() == 1 {
                total = total.saturating_add(there.blocks().saturating_mul(512));
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::layout::GOING;
    use super::*;

    fn with_two() -> (tempfile::TempDir, Environments, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let environments = Environments::new(folder.path().join("environments"));
        let own = environments.of_user(None).unwrap();
        for name in ["0".repeat(32), "1".repeat(32)] {
            fs::create_dir_all(own.join(&name).join("lib")).unwrap();
            fs::write(own.join(&name).join("lib/package"), vec![1; 64 << 10]).unwrap();
        }
        fs::create_dir(own.join("pythons")).unwrap();
        (folder, environments, own)
    }

    #[test]
    fn one_in_use_stays_and_the_others_can_go() {
        let (_folder, environments, own) = with_two();
        let used = locks::wait_for(&own.join(format!("{}.lock", "0".repeat(32))), false, || {}).unwrap();
        let mut entries = environments.entries();
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        let seen: Vec<_> = entries.iter().map(|entry| (entry.in_use, entry.size_bytes >= 64 << 10)).collect();
        assert_eq!(seen, [(true, false), (false, true)]);
        for entry in &entries {
            environments.remove(&entry.key).unwrap();
        }
        assert!(own.join("0".repeat(32)).exists(), "somebody uses it");
        assert!(!own.join("1".repeat(32)).exists());
        drop(used);
        environments.remove(&entries[0].key).unwrap();
        assert!(!own.join("0".repeat(32)).exists());
        assert!(own.join("pythons").exists());
        // A build that failed had left its locks.
        let layout = Layout(own);
        for lock in [layout.lock(&"0".repeat(32)), layout.build_lock(&"0".repeat(32))] {
            fs::write(lock, "").unwrap();
        }
        assert!(environments.remove(&entries[0].key).unwrap());
        assert_eq!(layout.names(), ["pythons"]);
    }

    #[test]
    fn a_link_in_place_of_an_environment_is_not_followed() {
        let (folder, environments, own) = with_two();
        let elsewhere = folder.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("precious"), "x").unwrap();
        fs::remove_dir_all(own.join("0".repeat(32))).unwrap();
        std::os::unix::fs::symlink(&elsewhere, own.join("0".repeat(32))).unwrap();
        for entry in environments.entries() {
            environments.remove(&entry.key).unwrap();
        }
        environments.tidy();
        assert!(elsewhere.join("precious").exists());
        assert!(fs::symlink_metadata(own.join("0".repeat(32))).is_err());
    }

    #[test]
    fn what_was_on_its_way_out_goes_at_the_next_start() {
        let (_folder, environments, own) = with_two();
        fs::rename(own.join("0".repeat(32)), own.join(format!("{}{GOING}", "0".repeat(32)))).unwrap();
        environments.tidy();
        assert_eq!(environments.entries().len(), 1);
        assert!(!own.join(format!("{}{GOING}", "0".repeat(32))).exists());
    }

    #[test]
    fn a_build_reaches_what_the_worker_reaches_and_a_jobs_own_variables_win() {
        let folder = tempfile::tempdir().unwrap();
        let environments = Environments::new(folder.path().join("environments"));
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let own = [pair("PATH", "/bin"), pair("UV_INDEX_URL", "https://mine")];
        let host = [
            pair("UV_INDEX_URL", "https://workers"),
            pair("https_proxy", "http://proxy"),
            pair("AWS_SECRET_ACCESS_KEY", "no"),
        ];
        let spec = crate::contract::spec::JobSpec {
            python: Some(Box::new(crate::contract::spec::Python {
                interpreter: Some("3.11".to_owned()),
                ..Default::default()
            })),
            ..crate::contract::spec::JobSpec::command(["true"])
        };
        let recipe = Recipe::of(&spec, None).unwrap();
        let prelude = environments
            .prelude(recipe.clone(), Path::new("/w"), None, &Building::default(), &own, &host)
            .unwrap();
        assert_eq!(prelude.env, [own[0].clone(), own[1].clone(), host[1].clone()]);
        let order: Order = serde_json::from_str(&prelude.input).unwrap();
        assert_eq!((order.recipe, order.workspace.as_os_str()), (recipe, "/w".as_ref()));
    }
}
