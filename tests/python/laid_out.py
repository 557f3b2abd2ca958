"""A function's task as a worker lays it out, without a worker: what the package sends, run by the runner."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import cloudpickle
import gpulayer as gl
from gpulayer import function_call
from gpulayer.calls import FORMAT, Call, Packing
from gpulayer.results import several


@dataclass
class Ran:
    """What a runner left behind."""

    status: int
    out: str
    err: str
    returned: Optional[bytes]
    raised: Optional[dict[str, Any]]
    folder: Path

    @property
    def value(self) -> Any:
        assert self.returned is not None and self.status == 0, self.err
        return pickle.loads(self.returned)

    @property
    def outcomes(self) -> list[Any]:
        """Of several calls: the pickle of a value, or what is told of an exception."""
        found = self.returned if self.returned is not None else (self.folder / "outcomes").read_bytes()
        each = several(BytesIO(found))
        return [data if kind == b"v" else json.loads(data) for kind, data in each]


def run(
    folder: Path,
    call: Mapping[str, Any],
    values: Mapping[str, bytes] = {},
    files: Mapping[str, bytes] = {},
    python: str = sys.executable,
    stop: bool = False,
    workspace: Optional[Path] = None,
    env: Mapping[str, str] = {},
) -> Ran:
    """Lays out one task in an empty folder, its workspace beside it if no other is given, and runs it. `stop`: it is
    asked to stop when it has printed its first line."""
    task, workspace = folder / "function", workspace or folder / "workspace"
    (task / "values").mkdir(parents=True)
    workspace.mkdir(exist_ok=True)
    programs, package = folder / "runner", Path(gl.__file__).parent / "_runner"
    if not programs.exists():
        shutil.copytree(package, programs / "_gpulayer_runner", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(package / "run.py", programs)
    (task / "call.json").write_text(json.dumps({"entrypoint": None, "index": None, "item": None, **call}))
    for name, contents in {**files, **{f"values/{name}": data for name, data in values.items()}}.items():
        (task / name).write_bytes(contents)
    env = {"PATH": os.environ["PATH"], "GPULAYER_FUNCTION": str(task), "PYTHONDONTWRITEBYTECODE": "1", **env}
    env["GPULAYER_STOP_FILE"] = str(folder / "stop")
    env["GPULAYER_CHECKPOINT_DIR"] = str(folder / "checkpoint")
    (folder / "checkpoint").mkdir()
    begin, pipe = "", subprocess.PIPE
    with subprocess.Popen(
        [python, programs / "run.py"], env=env, cwd=workspace, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            if stop:
                assert process.stdout is not None
                begin = process.stdout.readline()
                (folder / "stop").write_text("{}")
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    found = {each.name: each.read_bytes() for each in task.glob("*") if each.is_file()}
    assert not any(name.endswith(".part") for name in found) or process.returncode == 1
    untold = process.returncode == 1 and "[what came of the call cannot be left in" in err
    assert stop or untold or "outcomes" in found or ("returned" in found) != ("raised" in found), err
    raised = json.loads(found["raised"]) if "raised" in found else None
    return Ran(process.returncode, begin + out, err, found.get("returned"), raised, task)


def called(
    folder: Path,
    function: Any,
    *args: Any,
    python: str = sys.executable,
    workspace: Optional[Path] = None,
    **kwargs: Any,
) -> Ran:
    """One call, as `run` and `submit` send it."""
    one, call = gl.remote(function), Call(args, kwargs)
    return packed(
        folder, lambda packing: function_call._spec_of_one(one, packing, call), python, workspace=workspace
    )


def stopped(folder: Path, function: Any, *args: Any) -> Ran:
    """One call, stopped when it has printed its first line."""
    one = gl.remote(function)
    return packed(folder, lambda packing: function_call._spec_of_one(one, packing, Call(args)), stop=True)


def mapped(folder: Path, function: Any, *calls: Sequence[Any], stop: bool = False) -> Ran:
    """Several calls in one child of a map. `stop`: it is stopped when it has printed its first line."""
    rows = [tuple(call) for call in calls]
    return packed(
        folder,
        lambda packing: function_call._spec_of_many(gl.remote(function), packing, rows, {}, len(rows), None),
        stop=stop,
    )


def packed(
    folder: Path, make: Any, python: str = sys.executable, stop: bool = False, workspace: Optional[Path] = None
) -> Ran:
    packing = Packing()
    try:
        spec = make(packing)
        sent = dict(spec["workload"]["function"])
        contents = {parcel.address: Path(parcel.path).read_bytes() for parcel in packing.parcels.values()}
        item = spec.get("array", {}).get("items", [None])[0]
        named = [*sent.pop("values", ()), *(item or {}).get("values", ())]
        files = {}
        for holder, name in ((sent, "payload"), (item or {}, "item")):
            if str(holder.get("payload")).startswith("artifact://"):
                files[name], holder["payload"] = contents[holder["payload"]], None
        values = {address.rpartition("/")[2]: contents[address] for address in named}
        call = {**sent, "item": item, "index": None if item is None else 0}
        return run(folder, call, values, files, python, stop, workspace)
    finally:
        packing.close()


def payload(python: list[int], function: bytes, args: list[bytes]) -> dict[str, Any]:
    """A call as a client of that version sends it."""
    call = {"args": args, "kwargs": {}}
    fields = {"format": FORMAT, "python": python, "cloudpickle": cloudpickle.__version__, "function": function}
    data = pickle.dumps({**fields, "calls": [call], "many": False}, 4)
    return {"serializer": "cloudpickle", "payload": base64.b64encode(data).decode()}


def others() -> list[str]:
    """Interpreters of other minor versions that this machine has."""
    found = []
    for minor in range(9, 20):
        path = shutil.which(f"python3.{minor}")
        if path and minor != sys.version_info[1]:
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                found.append(path)
    return found
