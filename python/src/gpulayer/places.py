"""Where things live: `GPULAYER_HOME` (configuration, credentials) and `GPULAYER_STATE` (the daemon's socket among
others), by the rules of the command line (docs/CONFIG.md)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from .errors import ConfigurationError

#: Room in `sockaddr_un` without the closing zero.
_SOCKET_PATH_BYTES = 107
_LONGEST_SOCKET = "worker/shims/4194304.sock"
#: File systems shared between machines, as the kernel names them; any kind of FUSE counts too.
_NETWORK = frozenset("nfs nfs4 cifs smb3 smbfs lustre gpfs ceph afs coda beegfs 9p ocfs2 gfs2 pvfs2 vboxsf".split())


@dataclass(frozen=True)
class Places:
    """The two folders everything lives in, absolute. Nothing is made here."""

    home: Path
    state: Path

    @property
    def socket(self) -> Path:
        """The daemon's Unix socket."""
        return self.state / "gpulayer.sock"

    @property
    def connections(self) -> Path:
        """Saved servers."""
        return self.home / "connections.toml"

    @property
    def config(self) -> Path:
        """Settings."""
        return self.home / "config.toml"

    @property
    def stopped(self) -> Path:
        """Where the newest `gpulayer down` is noted."""
        return self.state / "down"


def resolve(env: Mapping[str, str]) -> Places:
    """Decides both from the environment."""
    named = env.get("GPULAYER_HOME")
    if not named:
        user = env.get("HOME")
        if not user:
            raise ConfigurationError("neither GPULAYER_HOME nor HOME is set: set one of them")
        named = os.path.join(user, ".gpulayer")
    home = Path(os.path.abspath(named))
    if env.get("GPULAYER_STATE"):
        return Places(home, Path(os.path.abspath(env["GPULAYER_STATE"])))
    state = home / "state"
    longest = len(os.fsencode(state)) + 1 + len(_LONGEST_SOCKET)
    if longest <= _SOCKET_PATH_BYTES and not _on_network_file_system(state):
        return Places(home, state)
    name = hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:16]
    return Places(home, Path(f"/var/tmp/gpulayer-{os.getuid()}") / name)


def _on_network_file_system(path: Path) -> bool:
    kind = _file_system(path)
    return kind is not None and (kind in _NETWORK or kind.partition(".")[0] in ("fuse", "fuseblk"))


def _file_system(path: Path) -> Optional[str]:
    """The kind of the file system under the nearest folder that exists; `None` where nobody can tell."""
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    if there is None:
        return None
    device = os.stat(there).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    for line in mounts.splitlines():
        words = line.split(" ")
        if words[2:3] == [number] and "-" in words:
            return words[words.index("-") + 1]
    return None
