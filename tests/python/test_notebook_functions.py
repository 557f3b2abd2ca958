"""Functions of a notebook's cells. A kernel is started for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_notebook import executed


@pytest.mark.filterwarnings("default")  # those of the notebook's own libraries
def test_what_cells_define_runs_elsewhere_and_comes_back(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watched = executed(
        home,
        monkeypatch,
        "import gpulayer as gl\n"
        "from dataclasses import dataclass\n"
        "client = gl.local(); gl.use(client)\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "step = 3\n"
        "@gl.remote\n"
        "def move(point):\n"
        "    return Point(point.x + step)",
        "move.run(Point(1)) == Point(4), await move.run.aio(Point(2))",
        "step = 10\n[point.x async for point in await move.map.aio([Point(1), Point(2)])]",
        "try:\n    move.run('x')\nexcept AttributeError as error:\n    print(error.__cause__)",
        "client.close()",
    )
    outputs = [cell["outputs"] for cell in watched.nb.cells]
    assert outputs[1][-1]["data"]["text/plain"] == "(True, Point(x=5))"
    assert outputs[2][-1]["data"]["text/plain"] == "[11, 12]", "as the cells stand now"
    told = next(each["text"] for each in outputs[3] if each["output_type"] == "stream")
    assert "return Point(point.x + step)" in told and "'str' object has no attribute 'x'" in told
