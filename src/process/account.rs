//! Users of this machine as the system's own tables know them, for tasks that run as another user than the worker.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::RunAs;

/// An account has fewer groups than this, or is refused.
const MOST_GROUPS: usize = 65_536;
/// The texts of one account need less than this.
const MOST_TEXT_BYTES: usize = 1 << 20;

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// As it logs in.
    pub name: String,
    /// Its ids, supplementary groups included.
    pub ids: RunAs,
    /// Its home folder; need not exist.
    pub home: PathBuf,
    /// Its shell.
    pub shell: PathBuf,
}

/// Why a user cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// No such user.
    #[error("there is no user `{name}` on this machine")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// The system's tables cannot be read.
    #[error("cannot look up user `{name}`")]
    LookUp {
        /// As asked for.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Account {
    /// The user of this name, by whatever the system asks (files, LDAP, …). May block.
    pub fn named(name: &str) -> Result<Self, AccountError> {
        let failed = |source| AccountError::LookUp { name: name.to_owned(), source };
        let unknown = || AccountError::Unknown { name: name.to_owned() };
        let asked = CString::new(name).map_err(|_| unknown())?;
        let found = look_up(&asked).map_err(failed)?.ok_or_else(unknown)?;
        let groups = groups_of(&asked, found.gid).map_err(failed)?;
        let ids = RunAs { uid: found.uid, gid: found.gid, groups };
        Ok(Self { name: name.to_owned(), ids, home: found.home, shell: found.shell })
    }

    /// The variables that name a user to its programs.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        [
            ("HOME", self.home.clone().into()),
            ("USER", self.name.clone().into()),
            ("LOGNAME", self.name.clone().into()),
            ("SHELL", self.shell.clone().into()),
        ]
    }
}

struct Found {
    uid: u32,
    gid: u32,
    home: PathBuf,
    shell: PathBuf,
}

fn look_up(name: &CStr) -> io::Result<Option<Found>> {
    let mut text = vec![0; 4096];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, `text` for as many bytes as it is told.
        let code = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                text.as_mut_ptr().cast(),
                text.len(),
                &raw mut found,
            )
        };
        match code {
            libc::ERANGE if text.len() < MOST_TEXT_BYTES => text.resize(text.len() * 4, 0),
            libc::EINTR => {}
            // Some sources of users say that there is none by an error.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: it was found, so the entry is filled in, and its texts are in `text`.
                return Ok(Some(unsafe { owned(&entry.assume_init()) }));
            }
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// # Safety
/// The entry's home and shell are null or point to texts that end in a zero byte.
unsafe fn owned(entry: &libc::passwd) -> Found {
    let path = |text: *const libc::c_char| {
        if text.is_null() {
            return PathBuf::new();
        }
        // SAFETY: as this function's caller says.
        let text = unsafe { CStr::from_ptr(text) };
        PathBuf::from(OsString::from_vec(text.to_bytes().to_vec()))
    };
    Found { uid: entry.pw_uid, gid: entry.pw_gid, home: path(entry.pw_dir), shell: path(entry.pw_shell) }
}

/// All groups of a user, its own one among them.
fn groups_of(name: &CStr, gid: u32) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len()).unwrap_or(i32::MAX);
        // SAFETY: `groups` holds as many numbers as `count` says; the call writes no more and tells how many there are.
        let code = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let there_are = usize::try_from(count).unwrap_or(0);
        if code >= 0 {
            groups.truncate(there_are);
            return Ok(groups);
        }
        if groups.len() >= MOST_GROUPS {
            return Err(io::Error::other("it is in too many groups"));
        }
        groups.resize(there_are.max(groups.len() * 2).min(MOST_GROUPS), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_with_their_groups() {
        let root = Account::named("root").unwrap();
        assert_eq!((root.ids.uid, root.ids.gid), (0, 0));
        assert!(root.ids.groups.contains(&0));
        assert_eq!(root.variables()[1], ("USER", "root".into()));
        for unknown in ["nobody-is-called-that", "", "a\0b"] {
            let error = Account::named(unknown).unwrap_err();
            assert!(matches!(error, AccountError::Unknown { .. }), "{error}");
        }
    }
}
