//! The systemd unit of a worker. Its text is that of `deploy/systemd`, with this machine's paths in it; never a token.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::JoinError;
use super::settled::Settled;
use crate::config::{ConfigError, Places};

const SYSTEM: &str = include_str!("../../../deploy/systemd/gpulayer-worker.service");
const USER: &str = include_str!("../../../deploy/systemd/gpulayer-worker-user.service");
const NAME: &str = "gpulayer-worker.service";

/// One unit, not yet written.
#[derive(Debug)]
pub(super) struct Unit {
    path: PathBuf,
    text: String,
    of_system: bool,
}

impl Unit {
    /// For this worker: the system's when it runs as root, else the user's own.
    pub(super) fn of(settled: &Settled, places: &Places) -> Result<Self, JoinError> {
        let program = std::env::current_exe().map_err(|source| JoinError::File {
            operation: "find",
            path: "/proc/self/exe".into(),
            source,
        })?;
        let of_system = rustix::process::geteuid().is_root();
        let folder = if of_system {
            PathBuf::from("/etc/systemd/system")
        } else {
            let named = std::env::var_os("XDG_CONFIG_HOME").filter(|path| Path::new(path).is_absolute());
            let config = named
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
            let config = config.ok_or(ConfigError::NoHome)?;
            config.join("systemd/user")
        };
        let template = if of_system { SYSTEM } else { USER };
        let text = text(template, &program, settled.folder(), places);
        Ok(Self { path: folder.join(NAME), text, of_system })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the place is free, or this worker's: looked at before the machine joins.
    pub(super) fn check_place(&self) -> Result<(), JoinError> {
        let folder = |text: &str| exec_start(text).map(str::to_owned);
        match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(JoinError::File { operation: "read", path: self.path.clone(), source }),
            Ok(there) if folder(&there) == folder(&self.text) => Ok(()),
            Ok(_) => Err(JoinError::UnitThere { path: self.path.clone() }),
        }
    }

    pub(super) fn write(&self) -> Result<(), JoinError> {
        let made = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&self.path, &self.text)).map_err(|source| JoinError::File {
            operation: "write",
            path: self.path.clone(),
            source,
        })
    }

    /// What to type next.
    pub(super) fn next_commands(&self) -> String {
        let path = self.path.display();
        if self.of_system {
            format!(
                "written:   {path}\n\
                 start it:  systemctl daemon-reload && systemctl enable --now gpulayer-worker\n\
                 watch it:  journalctl -fu gpulayer-worker"
            )
        } else {
            format!(
                "written:          {path}\n\
                 start it:         systemctl --user daemon-reload && systemctl --user enable --now gpulayer-worker\n\
                 also logged out:  loginctl enable-linger\n\
                 watch it:         journalctl --user -fu gpulayer-worker"
            )
        }
    }
}

fn exec_start(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("ExecStart="))
}

fn text(template: &str, program: &Path, folder: &Path, places: &Places) -> String {
    let body = template.split_once("\n[Unit]\n").map_or(template, |(_, body)| body);
    let mut text = "# Written by `gpulayer join --systemd`.\n\n[Unit]\n".to_owned();
    for line in body.lines() {
        if line.starts_with("Environment=GPULAYER_HOME=") {
            text += &format!("Environment={}\n", word("GPULAYER_HOME=", &places.home));
            if places.state != places.home.join("state") {
                text += &format!("Environment={}\n", word("GPULAYER_STATE=", &places.state));
            }
        } else if line.starts_with("ExecStart=") {
            let (program, folder) = (word("", program), word("", folder));
            text += &format!("ExecStart={program} worker start --folder {folder}\n");
        } else {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// One word as systemd reads it back.
fn word(before: &str, path: &Path) -> String {
    let text = format!("{before}{}", path.display()).replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if text.chars().all(plain) {
        return text;
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &str) -> String {
        let places = Places { home: "/home/a b/.gpulayer".into(), state: "/var/tmp/50%".into() };
        text(template, Path::new("/opt/gpu layer/gpulayer"), Path::new("/srv/worker"), &places)
    }

    #[test]
    fn a_unit_has_this_machines_paths_and_what_keeps_running_tasks_safe() {
        for template in [SYSTEM, USER] {
            let text = of(template);
            for line in [
                "ExecStart=\"/opt/gpu layer/gpulayer\" worker start --folder /srv/worker",
                "Environment=\"GPULAYER_HOME=/home/a b/.gpulayer\"",
                "Environment=GPULAYER_STATE=/var/tmp/50%%",
                "KillMode=process",
                "Restart=always",
                "Delegate=yes",
            ] {
                assert_eq!(text.lines().filter(|there| *there == line).count(), 1, "{line} in {text}");
            }
            assert!(!text.contains("token") && !text.contains("SERVER"), "{text}");
        }
    }
}
