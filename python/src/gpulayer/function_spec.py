"""Functions by name: what is to run stands in a module on the worker or in the job's source, its arguments are JSON."""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from .errors import ConfigurationError
from .spec import Spec, command


def function(
    entrypoint: str, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}, reuse: bool = False, **words: Any
) -> Spec:
    """A function as a job, by its name `module:function`. Arguments and what it returns are JSON; `result()` of the job
    is the value. `reuse`: its process may serve further calls of its kind. `words` are those of `command`; `source` names the folder that the module is in, and items of an `array`
    are further arguments: an object `{"args": […], "kwargs": {…}}` several, anything else one."""
    module, colon, path = entrypoint.partition(":")
    if not (colon and all(part.isidentifier() for part in [*module.split("."), *path.split(".")])):
        raise ConfigurationError(f"{entrypoint!r} names no function; write module:function")
    for word in ("argv", "shell", "cwd"):
        if word in words:
            raise ConfigurationError(f"`{word}` is a word of commands, and this is a function")
    try:
        payload = json.dumps({"args": list(args), "kwargs": dict(kwargs)}, allow_nan=False)
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(
            f"the arguments of {entrypoint} cannot be written as JSON: {fault}. gl.remote(function) sends any object"
        ) from fault
    call: dict[str, Any] = {"entrypoint": entrypoint, "serializer": "json", "payload": payload}
    if reuse:
        call["reuse"] = True
    return command(["-"], **{"name": path, **words}) | {"workload": {"function": call}}
