"""What is to run: a `JobSpec` (docs/CONTRACT.md, The job spec), built by `command` and `distributed` from the words of
the command line, or written out as a mapping. Sizes and durations may be written as people do (`"16GiB"`, `"90m"`).

Nothing is checked here that the server checks too: it names all faults at once, each with what is allowed.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Coroutine, Iterable, Mapping, Optional, Sequence, Union

from .both import both
from .errors import ConfigurationError
from .python_environment import Requirements, python_field
from .quantities import Size, Span, size_bytes, span_s
from .word_types import check, is_whole, plain

if TYPE_CHECKING:
    from .client import Client
    from .job_handle import Job
    from .records import Explanation

    JobLike = Union[Job, str]
    After = Union[JobLike, tuple[JobLike, str], Mapping[str, str]]
    Source = Union[str, "os.PathLike[str]", tuple[JobLike, str], Mapping[str, Any]]

#: Variables that make a program find its environment: on the own daemon a job gets them from the submitting process.
RECORDED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")
#: The fields of the contract, which may be given as they stand there.
FIELDS = frozenset(
    "api_version name labels project priority workload distributed target source inputs outputs resources profile env "
    "shell_env secrets python timeout_s queue_timeout_s grace_s stop_signal retry on_unreachable "
    "unreachable_timeout_s depends_on array workspace_ttl_s container run_as mounts notify hold".split()
)
#: Whose values belong to the user, whatever their names look like.
_VERBATIM = frozenset({"env", "labels", "array", "secrets", "workload", "frameworks", "inputs", "outputs"})


@dataclass(frozen=True)
class Spec:
    """A job to be submitted: `fields` as they are sent, `files` and folders of this machine that go along, by their
    path in the workspace, and `source`, the folder that the workspace is made from. Immutable; `spec | {...}` gives
    one with other fields."""

    fields: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=lambda: {})
    source: Optional[str] = None

    def __or__(self, other: Mapping[str, Any]) -> Spec:
        source = None if "source" in other else self.source
        return replace(self, fields={**self.fields, **other}, source=source)

    @both
    def submit(self, client: Optional[Client] = None, *, key: Optional[str] = None) -> Coroutine[Any, Any, Job]:
        """Submits it to the default server, or to this one."""
        from . import notices

        return _client(client).submitted(self, key, False, notices.here())

    @both
    async def explain(self, client: Optional[Client] = None) -> Explanation:
        """Where it would run, and the smallest change that lets it. Submits nothing."""
        return await _client(client).explain.aio(self)


def _client(given: Optional[Client]) -> Client:
    if given is not None:
        return given
    from .default import default_client

    return default_client()


def command(
    argv: Optional[Sequence[Union[str, "os.PathLike[str]"]]] = None,
    *,
    shell: Optional[str] = None,
    cwd: Union[str, "os.PathLike[str]", None] = None,
    name: Optional[str] = None,
    labels: Optional[Mapping[str, str]] = None,
    project: Optional[str] = None,
    priority: Optional[int] = None,
    cpus: Optional[float] = None,
    memory: Optional[Size] = None,
    disk: Optional[Size] = None,
    gpus: Union[int, str, Mapping[str, Any], None] = None,
    gpu_memory: Optional[Size] = None,
    frameworks: Optional[Mapping[str, str]] = None,
    profile: Optional[str] = None,
    on: Union[str, Mapping[str, str], None] = None,
    target: Optional[str] = None,
    source: Union[str, "os.PathLike[str]", None] = None,
    inputs: Union[Mapping[str, Source], Sequence[Mapping[str, Any]], None] = None,
    outputs: Union[str, Sequence[Union[str, Mapping[str, Any]]], None] = None,
    env: Optional[Mapping[str, str]] = None,
    secrets: Optional[Mapping[str, str]] = None,
    python: Union[str, Mapping[str, Any], None] = None,
    requirements: Optional[Requirements] = None,
    after: Union[After, Sequence[After], None] = None,
    array: Union[int, range, Iterable[Any], Mapping[str, Any], None] = None,
    timeout: Optional[Span] = None,
    queue_timeout: Optional[Span] = None,
    grace: Optional[Span] = None,
    stop_signal: Optional[str] = None,
    retries: Optional[int] = None,
    retry_on: Optional[Sequence[str]] = None,
    **more: Any,
) -> Spec:
    """A command as a job: `argv`, or `shell` text.

    - `memory`, `disk`, `gpu_memory`: bytes, or such as `"16GiB"`. `timeout`, `queue_timeout`, `grace`: seconds, such as
      `"90m"`, or a `timedelta`.
    - `gpus`: how many, `"all"` of one worker, `"H100:2"`, or a mapping as in the contract.
    - `on`: a worker by name or id, or labels it must have (`"zone=attic"` is one).
    - `source`: a folder of this machine whose files are the workspace, without what `.gitignore` names, or the
      `artifact://…` address of a bundle.
    - `inputs`: by their path in the workspace: a file or a folder of this machine, an `artifact://…` address, or
      `(job, "output name")`. `outputs`: paths or globs, or mappings `{path, name, optional}`.
    - `python`: an interpreter, such as `"3.12"` or a path on the worker, or a mapping as in the contract.
      `requirements`: lines, or a file with some. The worker gives the job an environment with these packages.
    - `after`: jobs that have to succeed first; `(job, "ended")` = only to end.
    - `array`: a count, a `range`, the items, or a mapping as in the contract. One job for each.
    - `retries`: how often it is tried again (`max_attempts` - 1), for the reasons in `retry_on`.
    - `more`: any other field of the contract, as it stands there.
    """
    check(locals())
    for word in more:
        _is_meant(word)
    if not isinstance(more.get("retry", {}), Mapping):
        raise ConfigurationError(f"retry={more['retry']!r} cannot be used: retry is a mapping; did you mean `retries`?")
    run: dict[str, Any] = {}
    if argv is not None:
        if isinstance(argv, str):
            raise ConfigurationError(
                f"argv is a list of words: {argv.split()}; for a line of shell give shell={argv!r}"
            )
        run["argv"] = [os.fspath(word) for word in argv]
    if shell is not None:
        run["shell"] = shell
    if cwd is not None:
        run["cwd"] = os.fspath(cwd)
    fields: dict[str, Any] = {"workload": {"command": run}}
    for key, value in (
        ("name", name),
        ("project", project),
        ("priority", priority),
        ("profile", profile),
        ("target", target),
        ("source", source if is_address(source) else None),
        ("timeout_s", timeout),
        ("queue_timeout_s", queue_timeout),
        ("grace_s", grace),
        ("stop_signal", stop_signal),
        ("labels", labels and dict(labels)),
        ("env", env and dict(env)),
        ("secrets", secrets and [{"name": each, "ref": ref} for each, ref in secrets.items()]),
        ("resources", _resources(cpus, memory, disk, gpus, gpu_memory, frameworks, on)),
        ("outputs", _outputs(outputs)),
        ("python", python_field(python, requirements)),
        ("depends_on", _after(after)),
        ("array", _array(array)),
        ("retry", _retry(retries, retry_on)),
    ):
        if value is not None and value != {} and value != []:
            fields[key] = value
    files: dict[str, str] = {}
    if inputs:
        fields["inputs"] = _inputs(inputs, files)
        plain(list(files), "inputs")
    folder = None if source is None or is_address(source) else os.path.abspath(source)
    return Spec(plain(_merged(fields, more)), files, folder)


def distributed(
    argv: Optional[Sequence[Union[str, "os.PathLike[str]"]]] = None,
    *,
    nodes: int,
    processes_per_node: Union[int, str, None] = None,
    launcher: str = "env",
    backend: Optional[str] = None,
    **words: Any,
) -> Spec:
    """A gang: one task on each of `nodes` workers, placed together or not at all. All other words are those of
    `command`. The launcher `env` starts the command once per node with its rank and peers in the environment; a
    launcher that the server does not have yet comes back as `NotSupportedError`."""
    gang: dict[str, Any] = {"nodes": nodes, "launcher": launcher}
    if processes_per_node is not None:
        gang["processes_per_node"] = processes_per_node
    if backend is not None:
        gang["backend"] = backend
    return command(argv, **words) | {"distributed": gang}


def is_address(given: object) -> bool:
    """Whether something that may stand for a file is the address of an artifact."""
    return isinstance(given, str) and given.startswith("artifact://")


def in_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as the wire has them: sizes and durations in numbers."""
    return {key: _in_numbers(key, value) for key, value in plain(fields).items()}


def _in_numbers(key: str, value: Any) -> Any:
    if key in _VERBATIM:
        return value
    if isinstance(value, Mapping):
        return {key: _in_numbers(key, each) for key, each in value.items()}
    if isinstance(value, str) and key.endswith("_bytes"):
        return size_bytes(value, key)
    if isinstance(value, str) and key.endswith("_s"):
        return span_s(value, key)
    return value


def with_recorded(fields: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """With the variables of this process that make a program find its environment, unless they are given."""
    workload = fields.get("workload")
    if not isinstance(workload, Mapping) or not ("command" in workload or "function" in workload):
        return fields
    env = fields.get("env") or {}
    if not isinstance(env, Mapping):
        return fields
    found = {name: _whole(environ.get(name, "")) for name in RECORDED}
    recorded = {name: value for name, value in found.items() if value}
    if "function" in workload:
        recorded.update(own_python(environ))
    of_shell = sorted(set(recorded) - set(env))
    return {**fields, "env": {**recorded, **env}, **({"shell_env": of_shell} if of_shell else {})}


def own_python(environ: Mapping[str, str]) -> dict[str, str]:
    """What makes this interpreter the `python3` of a job, also where nobody activated its environment."""
    folder = _python_folder(sys.executable or "")
    if folder is None or not is_whole(folder):
        return {}
    path = _whole(environ.get("PATH", ""))
    found = {"PATH": os.pathsep.join(dict.fromkeys([folder, *path.split(os.pathsep)]))}
    in_environment = sys.prefix != sys.base_prefix and is_whole(sys.prefix)
    return {**found, "VIRTUAL_ENV": sys.prefix} if in_environment else found


def _whole(paths: str) -> str:
    """Those of several paths that JSON has texts for."""
    return os.pathsep.join(filter(is_whole, paths.split(os.pathsep)))


@functools.lru_cache(maxsize=1)
def _python_folder(executable: str) -> Optional[str]:
    """Where this interpreter is the `python3`; `None` if it is nowhere."""
    folder = os.path.dirname(os.path.abspath(executable))
    same = os.path.realpath(os.path.join(folder, "python3")) == os.path.realpath(executable)
    return folder if executable and same else None


def _is_meant(word: str) -> None:
    """Complains of a word that is nearly one there is. Others are the server's to judge, which may be newer."""
    if word in FIELDS:
        return
    # Only whose word is none needs them.
    import difflib
    import inspect

    words = [*inspect.signature(command).parameters, *FIELDS]
    begun = [
        each for each in words if len(min(each, word, key=len)) > 2 and (each.startswith(word) or word.startswith(each))
    ]
    near = begun or difflib.get_close_matches(word, words, 1, 0.75)
    if near:
        raise ConfigurationError(f"`{word}` is no word of a job; did you mean `{near[0]}`?")


def _merged(fields: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        if isinstance(fields.get(key), Mapping) and isinstance(value, Mapping):
            fields[key] = {**fields[key], **value}
        else:
            fields[key] = value
    return fields


def _resources(
    cpus: Optional[float],
    memory: Optional[Size],
    disk: Optional[Size],
    gpus: Union[int, str, Mapping[str, Any], None],
    gpu_memory: Optional[Size],
    frameworks: Optional[Mapping[str, str]],
    on: Union[str, Mapping[str, str], None],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if cpus is not None:
        found["cpus"] = cpus
    if memory is not None:
        found["memory_bytes"] = size_bytes(memory, "memory")
    if disk is not None:
        found["disk_bytes"] = size_bytes(disk, "disk")
    if gpus is not None:
        found["gpus"] = _gpus(gpus)
    if gpu_memory is not None:
        found["gpus"] = {"count": 1, **found.get("gpus", {}), "memory_bytes": size_bytes(gpu_memory, "gpu_memory")}
    if frameworks:
        found["frameworks"] = dict(frameworks)
    if isinstance(on, str):
        # As the command line has it: no worker's name has such a sign.
        label, is_label, value = on.partition("=")
        found.update({"labels": {label: value}} if is_label else {"worker": on})
    elif on:
        found["labels"] = dict(on)
    return found


def _gpus(given: Union[int, str, Mapping[str, Any]]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str) or given == "all":
        return {"count": given}
    model, colon, count = given.rpartition(":")
    number: Union[int, str] = int(count) if count.isdigit() else count
    if not colon and not count.isdigit():
        return {"count": 1, "models": [given]}
    return {"count": number, "models": [model]} if model else {"count": number}


def _inputs(
    given: Union[Mapping[str, Source], Sequence[Mapping[str, Any]]], files: dict[str, str]
) -> list[dict[str, Any]]:
    if not isinstance(given, Mapping):
        return [dict(each) for each in given]
    found: list[dict[str, Any]] = []
    for path, source in given.items():
        if isinstance(source, Mapping):
            found.append({**source, "path": path})
        elif isinstance(source, tuple):
            found.append({"from": {"job": str(getattr(source[0], "id", source[0])), "output": source[1]}, "path": path})
        elif is_address(source):
            found.append({"artifact": source, "path": path})
        else:
            files[path] = os.path.abspath(source)
    return found


def _outputs(given: Union[str, Sequence[Union[str, Mapping[str, Any]]], None]) -> list[dict[str, Any]]:
    listed = [given] if isinstance(given, str) else given or []
    return [{"path": each} if isinstance(each, str) else dict(each) for each in listed]


def _after(given: Any) -> list[dict[str, str]]:
    if given is None:
        return []
    one = isinstance(given, (str, Mapping)) or hasattr(given, "id")
    one = one or (isinstance(given, tuple) and len(given) == 2 and given[1] in ("succeeded", "ended"))
    return [_dependency(each) for each in ([given] if one else given)]


def _dependency(given: Any) -> dict[str, str]:
    if isinstance(given, Mapping):
        return dict(given)
    job, when = given if isinstance(given, tuple) else (given, "succeeded")
    return {"job": str(getattr(job, "id", job)), "when": when}


def _array(given: Any) -> Optional[dict[str, Any]]:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, int):
        return {"count": given}
    if isinstance(given, range) and given.step == 1:
        return {"start": given.start, "count": len(given)}
    if isinstance(given, str):
        raise ConfigurationError("array is a count, a range or a list of items, not a text")
    return {"items": list(given)}


def _retry(retries: Optional[int], retry_on: Optional[Sequence[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if retries is not None:
        if operator.index(retries) < 0:
            raise ConfigurationError(f"retries={retries} cannot be used: so many further attempts, 0 or more")
        found["max_attempts"] = operator.index(retries) + 1
    # Nothing to be tried again for is what there is without.
    if retry_on is not None and (retries or retry_on):
        found["retry_on"] = [retry_on] if isinstance(retry_on, str) else list(retry_on)
    return found
