"""The calls of the API that this package makes. A test looks each of them up in docs/openapi.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping
from urllib.parse import quote, urlencode


@dataclass(frozen=True)
class Route:
    """One call: its method, its path with `{names}`, the query it takes, and whether it carries an
    `Idempotency-Key`. `repeatable`: it is harmless to send it again after a cut. `answers`: with an object, unless it is
    a stream or a file."""

    method: str
    path: str
    query: frozenset[str] = frozenset()
    keyed: bool = False
    repeatable: bool = True
    answers: bool = True

    def url(self, names: Mapping[str, str], query: Mapping[str, object]) -> str:
        """Path and query, percent-encoded. Slashes stay only in `{path}`. What is asked by several values is repeated."""
        encoded = {name: _part(value, safe="/" if name == "path" else "") for name, value in names.items()}
        unknown = set(query) - self.query
        if unknown:
            raise ValueError(f"{self.method} {self.path} takes no {', '.join(sorted(unknown))}")
        given = {name: value for name, value in query.items() if value is not None}
        path = self.path.format_map(encoded)
        return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _part(value: str, safe: str) -> str:
    # By these alone one means the folder above.
    return quote(value, safe=safe) if value.strip(".") else value.replace(".", "%2E")


def _query(words: str) -> frozenset[str]:
    return frozenset(words.split())


SUBMIT = Route("POST", "/v1/jobs", keyed=True)
BATCH = Route("POST", "/v1/jobs/batch", keyed=True)
JOBS = Route(
    "GET",
    "/v1/jobs",
    _query("state project label name submitted_by worker parent submitted_after cursor limit match"),
)
JOB = Route("GET", "/v1/jobs/{job_id}", _query("wait_s"))
PURGE = Route("DELETE", "/v1/jobs/{job_id}", keyed=True, answers=False)
CANCEL = Route("POST", "/v1/jobs/{job_id}/cancel", keyed=True)
RETRY = Route("POST", "/v1/jobs/{job_id}/retry", keyed=True)
TASKS = Route("GET", "/v1/jobs/{job_id}/tasks")
EVENTS = Route("GET", "/v1/jobs/{job_id}/events", _query("after limit wait_s"))
YIELDED = Route("GET", "/v1/jobs/{job_id}/yielded", _query("after limit wait_s"))
FEED = Route("GET", "/v1/events", _query("after limit wait_s"))
LOGS = Route("GET", "/v1/jobs/{job_id}/logs", _query("after limit wait_s task stream tail"))
EXPLAIN_JOB = Route("GET", "/v1/jobs/{job_id}/explain")
UNDECLARED = Route("GET", "/v1/jobs/{job_id}/undeclared/{path}")
EXPLAIN = Route("POST", "/v1/explain")
MISSING = Route("POST", "/v1/artifacts/missing")
ARTIFACT = Route("GET", "/v1/artifacts/sha256/{hex}")
ARTIFACT_HEAD = Route("HEAD", "/v1/artifacts/sha256/{hex}")
UPLOAD = Route("PUT", "/v1/artifacts/sha256/{hex}", repeatable=False)
WHOAMI = Route("GET", "/v1/whoami")
SERVER = Route("GET", "/v1/server")

ALL = tuple(each for each in list(globals().values()) if isinstance(each, Route))
