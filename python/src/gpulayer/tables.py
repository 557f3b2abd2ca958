"""Tables for notebooks. Everything in them is text: whatever a job or a server says is escaped."""

from __future__ import annotations

from html import escape
from typing import Iterable, Sequence

_LEFT = ' style="text-align:left"'


def named(rows: Iterable[tuple[str, str]]) -> str:
    """A name and a text in each row; rows without a text are left out."""
    return _table(f"<tr><th{_LEFT}>{escape(name)}</th>{_cell(text)}</tr>" for name, text in rows if text)


def listed(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under a head."""
    names = "".join(f"<th{_LEFT}>{escape(name)}</th>" for name in head)
    return _table([f"<tr>{names}</tr>", *(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)])


def said(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def _cell(text: str) -> str:
    return f"<td{_LEFT}>{escape(text.strip())}</td>"


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(rows)}</table>"
