"""Folders of this machine, sent as bundles. What travels, and how a tree becomes bytes (`.gitignore` and all), is
decided in one place, the `gpulayer` program: it is asked to store the folder, with the same server, token and key."""

from __future__ import annotations

import json
import logging
import os
import stat
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from . import programs, routes
from .advice import in_words
from .errors import ConfigurationError, DaemonError
from .own_daemon import find_binary
from .session import Session

_LOG = logging.getLogger("gpulayer")

#: Carries what was left out of a source, so that an end that misses such a file says so.
LEFT_OUT_HEADER = "X-GpuLayer-Left-Out"
#: By whom something was left out that no file of the user's names.
_BY_ITSELF = "the bundle"
#: Stands for each byte of a name that is no UTF-8.
_NO_CHARACTER = "\ufffd"
#: The owner's bits: as the bundle's maker reads them, also for root.
_MAY_LIST = stat.S_IRUSR | stat.S_IXUSR
#: So many are named.
_NAMED = 4
#: So many the bundle's maker names.
_MOST_LEFT_OUT = 64

#: What this process sent, by address.
_sent: dict[str, str] = {}


def sent_as(address: str) -> Optional[str]:
    """The folder of this machine that this process sent as this bundle."""
    return _sent.get(address)


@dataclass(frozen=True)
class Bundle:
    """A folder that is at the server: its address, and what stayed here, as `{by, path}`."""

    address: str
    left_out: tuple[Mapping[str, Any], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """What a submission says of it when it is the source."""
        return {LEFT_OUT_HEADER: json.dumps(self.left_out)} if self.left_out else {}


async def send(session: Session, folder: str) -> Bundle:
    """Brings a folder to the server. A tree that has not changed is not read again."""
    # Whatever is the matter with the server is told as by any other call.
    await session.call(routes.WHOAMI)
    try:
        program = session.daemon.program if session.daemon else find_binary()
    except DaemonError:
        raise ConfigurationError(
            f"{folder} is a folder, and the program `gpulayer`, which makes bundles of folders, is neither beside "
            "this Python nor in PATH: install it"
        ) from None
    server = "local" if session.daemon else str(session.target.endpoint)
    command = [program, "artifact", "put", "--json", "--server", server, folder]
    status, out, said = await _run(command, _env(session))
    if status != 0:
        # The server may have gone in the middle; it is there again after this.
        await session.call(routes.WHOAMI)
        status, out, said = await _run(command, _env(session))
    if status != 0:
        raise ConfigurationError(f"cannot send the folder {folder}: {said or f'status {status}'}")
    _LOG.info("%s: %s", folder, said)
    answer = json.loads(out)
    _sent[answer["artifact"]] = folder
    return Bundle(answer["artifact"], tuple(answer.get("left_out", ())))


def lacking(folder: str, bundle: Bundle) -> Optional[str]:
    """What of a folder could not travel, in words; not what is not meant to. Nobody tells later of an input's."""
    troubles = ((str(left["path"]), _trouble(folder, left)) for left in bundle.left_out)
    told = [f"{path} ({why})" for path, why in troubles if why is not None]
    if not told:
        return None
    count = f"{'at least ' if len(bundle.left_out) >= _MOST_LEFT_OUT else ''}{len(told) - _NAMED}"
    more = f" and {count} more" if len(told) > _NAMED else ""
    return f"{folder} travels without {', '.join(told[:_NAMED])}{more}"


def _trouble(folder: str, left: Mapping[str, Any]) -> Optional[str]:
    """Why it could not travel. The bundle's maker does not say that of single files; caches and environments, which are
    folders, are not meant to."""
    if left["by"] != _BY_ITSELF:
        return None
    path = str(left["path"])
    place = os.path.join(folder, path.rstrip("/"))
    if _NO_CHARACTER in os.path.basename(place):
        return "the name is not UTF-8"
    if os.path.islink(place):
        return "the link leads out of the tree, or in a circle"
    try:
        mode = os.lstat(place).st_mode
    except OSError:
        return "it is not there any more"
    if path.endswith("/") and mode & _MAY_LIST == _MAY_LIST:
        return None
    return "not readable" if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else "neither a file nor a folder"


def _env(session: Session) -> dict[str, str]:
    target = session.target
    given: dict[str, Optional[str]] = {
        "GPULAYER_TOKEN": target.token,
        "GPULAYER_PIN": ",".join(target.pins),
        "GPULAYER_CA_FILE": target.ca_file,
    }
    if session.daemon is not None:
        given["GPULAYER_HOME"] = str(session.daemon.home)
    env = {name: value for name, value in os.environ.items() if name not in given}
    return {**env, **{name: value for name, value in given.items() if value}}


async def _run(command: list[str], env: Mapping[str, str]) -> tuple[int, bytes, str]:
    """Status, output and what it said. Who stops waiting ends it."""
    try:
        status, out, err = await programs.asked(command, env)
    except OSError as fault:
        raise ConfigurationError(f"cannot start {command[0]}: {fault}") from fault
    text = in_words(err.decode("utf-8", "replace").strip())
    return status, out, text[len("gpulayer: ") :] if text.startswith("gpulayer: ") else text
