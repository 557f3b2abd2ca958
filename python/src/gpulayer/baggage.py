"""What goes along with a job from this machine: input files and folders, and its source. Each is stored under its
digest, and only what the server lacks is sent."""

from __future__ import annotations

import os
from typing import Any, Optional

from . import artifacts, folders
from .errors import ConfigurationError
from .notices import Place
from .session import Session
from .spec import Spec, in_numbers
from .word_types import is_path


async def brought(
    session: Session, spec: Spec, place: Optional[Place] = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a spec with what goes along at the server, and the headers that say more about it. `place`: who is
    told of what cannot go along."""
    fields, headers = in_numbers(spec.fields), {}
    if spec.files:
        sent = [{**await stored(session, file, place), "path": path} for path, file in spec.files.items()]
        fields["inputs"] = [*fields.get("inputs", ()), *sent]
    if spec.source is not None:
        bundle = await folders.send(session, spec.source)
        fields["source"] = bundle.address
        headers = bundle.headers
    return fields, headers


async def stored(session: Session, path: str, place: Optional[Place] = None) -> dict[str, Any]:
    """A file or a folder as an input that takes it, without its place."""
    if not is_path(path):
        raise ConfigurationError(f"{path!r} is no path that a file could have")
    if os.path.isdir(path):
        bundle = await folders.send(session, path)
        lacking = folders.lacking(path, bundle)
        if lacking is not None and place is not None:
            place.say(lacking)
        return {"artifact": bundle.address, "unpack": True}
    if os.path.exists(path) and not os.path.isfile(path):
        # A pipe or a device may never end.
        raise ConfigurationError(f"{path} is neither a file nor a folder")
    return {"artifact": await artifacts.send(session, path)}
