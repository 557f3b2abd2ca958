"""What a server answers, as it stands in docs/openapi.json: the same names, times as aware `datetime`s, durations in
seconds (`*_s`), sizes in bytes (`*_bytes`), sentences in this package's words. A test compares the fields with the schemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional

from . import shown
from .advice import Said

#: States in which a job stays for ever.
ENDED = frozenset({"succeeded", "failed", "cancelled", "timed_out"})


@dataclass(frozen=True)
class Fault:
    """One field at fault: `pointer` into the request, and what is allowed there."""

    pointer: str
    code: str
    detail: Said


@dataclass(frozen=True)
class JobWarning:
    """Something that was accepted and may not be meant."""

    pointer: str
    detail: Said


@dataclass(frozen=True)
class End:
    """How a job or a task ended. `reason` is one of a closed list (docs/TROUBLESHOOTING.md)."""

    reason: str
    owner: str
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    detail: Optional[Said] = None
    evidence: tuple[str, ...] = ()
    certainty: Optional[str] = None
    basis: Optional[Said] = None
    advice: Optional[Said] = None
    peak_memory_bytes: Optional[int] = None
    duration_s: Optional[float] = None

    def _repr_html_(self) -> str:
        return shown.end(self)


@dataclass(frozen=True)
class OutputFile:
    """One collected file: bytes (`artifact`), a link (`link_target`), or else a folder."""

    name: str
    path: str
    size_bytes: int
    mode: int
    artifact: Optional[str] = None
    link_target: Optional[str] = None


@dataclass(frozen=True)
class UndeclaredFile:
    """A file that the job made and nobody declared; kept on the worker for a while."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class JobRecord:
    """A job as it stood when it was asked for."""

    id: str
    project: str
    submitted_by: str
    state: str
    attempt: int
    submitted_at: datetime
    spec: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=lambda: {})
    name: Optional[str] = None
    queue_reason: Optional[Said] = None
    parent: Optional[str] = None
    array_index: Optional[int] = None
    retry_of: Optional[str] = None
    worker: Optional[str] = None
    scheduled_at: Optional[datetime] = None
    started_at: Optional[datetime] = None
    ended_at: Optional[datetime] = None
    unreachable_since: Optional[datetime] = None
    cancel_requested_at: Optional[datetime] = None
    preempted_by: Optional[str] = None
    progress: Any = None
    end: Optional[End] = None
    result: Any = None
    outputs: tuple[OutputFile, ...] = ()
    undeclared: tuple[UndeclaredFile, ...] = ()
    warnings: tuple[JobWarning, ...] = ()
    log_artifact: Optional[str] = None

    @property
    def ended(self) -> bool:
        """Whether it will not move any more."""
        return self.state in ENDED


@dataclass(frozen=True)
class Task:
    """One placement of a job on a worker."""

    id: str
    job_id: str
    attempt: int
    epoch: int
    rank: int
    worker: str
    state: str
    assigned_at: datetime
    started_at: Optional[datetime] = None
    ended_at: Optional[datetime] = None
    end: Optional[End] = None
    gpus: tuple[str, ...] = ()
    late_outputs: tuple[OutputFile, ...] = ()
    log_artifact: Optional[str] = None


@dataclass(frozen=True)
class Event:
    """One thing that happened to a job; `seq` counts from 1 within the job, `position` over the server."""

    seq: int
    position: int
    time: datetime
    type: str
    data: Any = None
    job_id: Optional[str] = None
    task_id: Optional[str] = None

    def __str__(self) -> str:
        told = self.data if isinstance(self.data, Mapping) else {}
        words = [f"{name}={value}" for name, value in told.items() if isinstance(value, (str, int, float))]
        return " ".join([f"{self.time:%H:%M:%S}", self.type, *words])

    def __repr__(self) -> str:
        return f"<Event {self}>"


@dataclass(frozen=True)
class LogLine:
    """One line of a job's log, without its line end. `stream` is `stdout`, `stderr` or `system`."""

    seq: int
    time: datetime
    task_id: str
    rank: int
    stream: str
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<LogLine {self.time:%H:%M:%S} {self.stream} {self.text!r}>"


@dataclass(frozen=True)
class ReservedFor:
    """Whose a place will be, and until when others may have it; None = not to be seen, or nobody knows."""

    job: Optional[str] = None
    until: Optional[datetime] = None


@dataclass(frozen=True)
class Favoured:
    """A project that has had less than its share, so that its newer jobs go first."""

    project: Optional[str] = None


@dataclass(frozen=True)
class WorkersAnswer:
    """Why these workers do not take a job, or that they do."""

    verdict: str
    reason: Said
    workers: tuple[str, ...] = ()
    reserved_for: Optional[ReservedFor] = None


@dataclass(frozen=True)
class Suggestion:
    """A change of the spec that would let the job run: `value` at `pointer`."""

    change: Said
    pointer: str
    value: Any = None


@dataclass(frozen=True)
class Holder:
    """A job that holds what another waits for."""

    job: Optional[str] = None
    submitted_by: Optional[str] = None
    up_to_s: Optional[float] = None


@dataclass(frozen=True)
class WaitingFor:
    """What a job waits for on the worker that could take it first."""

    what: Said
    worker: str
    held_by: tuple[Holder, ...] = ()
    more: int = 0
    up_to_s: Optional[float] = None
    preempted: bool = False
    reserved_for: Optional[ReservedFor] = None


@dataclass(frozen=True)
class ReservedPlace:
    """Workers that are kept free for a job."""

    workers: tuple[str, ...] = ()
    free_by: Optional[datetime] = None


@dataclass(frozen=True)
class Explanation:
    """Where a spec or a waiting job would run, and why not elsewhere."""

    verdict: str
    summary: Said
    workers: tuple[WorkersAnswer, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    ahead: Optional[int] = None
    served_before: tuple[str, ...] = ()
    favoured: Optional[Favoured] = None
    held: Optional[Said] = None
    nodes: Optional[int] = None
    quota: Optional[Said] = None
    quota_held_by: tuple[Holder, ...] = ()
    remedy: Optional[Suggestion] = None
    reservation: Optional[ReservedPlace] = None
    starts_by: Optional[datetime] = None
    untested: Optional[Said] = None
    waiting_for: Optional[WaitingFor] = None
    warnings: tuple[JobWarning, ...] = ()

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        return shown.explanation(self)


@dataclass(frozen=True)
class CountedAnswer:
    """What some workers had to say of a job: how many, and some of their names."""

    verdict: str
    reason: Said
    workers: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastStanding:
    """How a job stood to the workers when it left the queue."""

    verdict: str
    summary: Said
    workers: tuple[CountedAnswer, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    quota: Optional[Said] = None
    reservation: Optional[ReservedPlace] = None
    remedy: Optional[Suggestion] = None


@dataclass(frozen=True)
class PastPlacement:
    """One placement of a job that has ended."""

    task_id: str
    attempt: int
    worker: str
    placed_at: datetime
    started_at: Optional[datetime] = None
    ended_at: Optional[datetime] = None
    gpus: tuple[str, ...] = ()
    reason: Optional[str] = None
    waited_for: Optional[Said] = None
    waited_s: float = 0
    rank: Optional[int] = None


@dataclass(frozen=True)
class PastExplanation:
    """What a job that does not wait any more had waited for, and where it runs or ran."""

    state: str
    summary: Said
    queued_at: datetime
    waited_s: float
    attempts: int
    preemptions: int
    placed: int
    placements: tuple[PastPlacement, ...] = ()
    left_queue: Optional[LastStanding] = None

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        return shown.past_explanation(self)


@dataclass(frozen=True)
class WhoAmI:
    """Whose token it is, and what it may do."""

    name: str
    role: str
    via: str
    projects: tuple[str, ...] = ()
    max_priority: Optional[int] = None
    expires_at: Optional[datetime] = None
    user: Optional[str] = None

    def _repr_html_(self) -> str:
        return shown.fields(self)


@dataclass(frozen=True)
class Limits:
    """What the server takes at once."""

    json_body_bytes: int
    batch_body_bytes: int
    batch_jobs: int
    page_limit: int
    wait_s: float
    max_artifact_bytes: int


@dataclass(frozen=True)
class ProtocolRange:
    """Versions of the worker protocol."""

    min: int
    max: int


@dataclass(frozen=True)
class LiveJobs:
    """How many jobs have not ended."""

    queued: int
    scheduled: int
    running: int


@dataclass(frozen=True)
class Listening:
    """Where a server listens on TCP. `pin` is the key of its certificate."""

    url: str
    address: str
    pin: Optional[str] = None
    self_signed: bool = False


@dataclass(frozen=True)
class ServerStatus:
    """Versions, limits and counts of a server."""

    version: str
    api_version: str
    protocol: ProtocolRange
    schema: str
    started_at: datetime
    pid: int
    limits: Limits
    jobs: LiveJobs
    on_demand: bool = False
    listening: Optional[Listening] = None
    time: Optional[datetime] = None

    def _repr_html_(self) -> str:
        return shown.fields(self)
