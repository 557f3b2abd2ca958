"""Records as tables, for notebooks."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any, Iterator, Optional

from . import tables
from .quantities import shown_size, shown_span

if TYPE_CHECKING:
    from .records import End, Explanation, PastExplanation, Suggestion


def end(record: End) -> str:
    """How a job ended."""
    return tables.named(
        [
            ("reason", record.reason),
            ("exit code", _text(record.exit_code)),
            ("signal", record.signal or ""),
            ("detail", record.detail or ""),
            *(("evidence", line) for line in record.evidence),
            ("try", record.advice or ""),
            ("took", "" if record.duration_s is None else shown_span(record.duration_s)),
            ("peak memory", "" if record.peak_memory_bytes is None else shown_size(record.peak_memory_bytes)),
        ]
    )


def explanation(record: Explanation) -> str:
    """Where a spec or a waiting job would run."""
    workers = [(each.verdict, each.reason, ", ".join(each.workers)) for each in record.workers]
    return (
        tables.said(record.summary)
        + (tables.listed(("verdict", "reason", "workers"), workers) if workers else "")
        + _suggested(record.suggestions)
    )


def past_explanation(record: PastExplanation) -> str:
    """What a job that has ended had waited for, and where it ran."""
    rows = [
        (str(each.attempt), each.worker, shown_span(each.waited_s), each.waited_for or "", each.reason or "")
        for each in record.placements
    ]
    head = ("attempt", "worker", "waited", "for", "ended")
    return tables.said(record.summary) + (tables.listed(head, rows) if rows else "")


def fields(record: Any) -> str:
    """Any record, field by field; those of a record in it by dotted names."""
    return tables.named(_rows(record, ""))


def _rows(record: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for each in dataclasses.fields(record):
        value, name = getattr(record, each.name), f"{prefix}{each.name}"
        if dataclasses.is_dataclass(value):
            yield from _rows(value, f"{name}.")
        elif isinstance(value, tuple):
            yield name, ", ".join(map(str, value))
        elif isinstance(value, datetime):
            yield name, f"{value:%Y-%m-%d %H:%M:%S} UTC"
        else:
            yield name, _text(value)


def _suggested(suggestions: tuple[Suggestion, ...]) -> str:
    rows = [(each.change, each.pointer, _text(each.value) or "left out") for each in suggestions]
    return tables.listed(("change", "at", "to"), rows) if rows else ""


def _text(value: Optional[object]) -> str:
    return "" if value is None else str(value)
