"""docs/SDK.md as a reader would try it: its blocks one after the other, each printing what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "SDK.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_every_example_prints_what_the_page_says(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", None)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```python") > 5
    names: dict[str, Any] = {"__name__": "__main__"}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/SDK.md", "exec"), names)
        # `…` stands for what differs from run to run.
        pattern = ".*".join(re.escape(part) for part in re.split("…+", expected))
        assert re.fullmatch(pattern, printed.getvalue()), f"{code}\nprinted\n{printed.getvalue()}"
    gl.default_client().close()


def test_the_table_of_errors_has_all_of_them() -> None:
    errors = [name for name in gl.__all__ if isinstance(getattr(gl, name), type)]
    errors = [name for name in errors if issubclass(getattr(gl, name), Exception)]
    missing = [name for name in errors if f"`{name}`" not in PAGE and f"gl.{name}" not in PAGE]
    assert missing == ["ConnectionFailedError"], "its three kinds are named in its place"
