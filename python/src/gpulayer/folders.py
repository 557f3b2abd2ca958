"""Folders of this machine, sent as bundles. What travels, and how a tree becomes bytes (`.gitignore` and all), is
decided in one place, the `gpulayer` program: it is asked to store the folder, with the same server, token and key."""

from __future__ import annotations

import json
import logging
import os
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
