"""In a notebook: what a cell shows while it waits, and what its values look like. A kernel is started for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gpulayer as gl
import nbformat
import pytest
from conftest import SOURCES
from gpulayer import records, wire
from nbclient import NotebookClient


class Watched(NotebookClient):
    """Executes, and keeps what was shown in between as well."""

    def __init__(self, *cells: str) -> None:
        new: Any = nbformat.v4
        notebook = new.new_notebook(cells=[new.new_code_cell(cell) for cell in cells])
        super().__init__(notebook, timeout=120, kernel_name="python3")
        self.shown: list[dict[str, str]] = []

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(msg["content"]["data"])
        return super().process_message(msg, cell, cell_index)


def surroundings(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a kernel finds."""
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    return dict(os.environ)


def executed(home: Path, monkeypatch: pytest.MonkeyPatch, *cells: str) -> Watched:
    watched = Watched(*cells)
    watched.execute(env=surroundings(home, monkeypatch))
    return watched


@pytest.mark.filterwarnings("default")  # those of the notebook's own libraries
def test_a_cell_shows_how_things_stand_and_nothing_at_the_end(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = executed(
        home,
        monkeypatch,
        "import gpulayer as gl\n"
        "client = gl.local()\n"
        "client.submit(gl.command(['true'])).wait()  # too short to say anything\n"
        "job = client.submit(gl.command(shell='sleep 1.5; head -c 30000000 /dev/zero > a', outputs='a', name='red'))\n"
        "job.wait()",
        f"len(job.outputs.download({str(tmp_path)!r}, progress=True))",
        "async for line in job.logs(follow=True): print(line)\n(await job).reason",
        "job.wait(progress=False); client.close(); job.end",
    )
    assert any("(red) " in each["text/plain"] for each in watched.shown)
    assert any('<progress max="1" value="' in each["text/html"] for each in watched.shown)
    outputs = [cell["outputs"] for cell in watched.nb.cells]
    assert [each["output_type"] for each in outputs[0]] == ["display_data", "execute_result"]
    assert outputs[0][0]["data"] == {"text/plain": "", "text/html": ""}
    assert "<table>" in outputs[0][1]["data"]["text/html"] and "succeeded" in outputs[0][1]["data"]["text/html"]
    assert outputs[1][-1]["data"]["text/plain"] == "1"
    assert [each["data"]["text/plain"] for each in outputs[2]] == ["'completed'"]
    assert len(outputs[3]) == 1 and "completed" in outputs[3][0]["data"]["text/html"], "nothing but the table"


@pytest.mark.filterwarnings("default")  # those of the notebook's own libraries
def test_a_cell_shows_a_map_in_one_line_to_its_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = executed(
        home,
        monkeypatch,
        "import gpulayer as gl\n"
        "@gl.remote(cpus=0.1, memory='64MiB')\n"
        "def slow(x):\n"
        "    import time\n"
        "    time.sleep(0.5)\n"
        "for value in slow.map(range(6), concurrency=1, chunksize=2):\n"
        "    pass\n"
        "gl.default_client().close()",
    )
    texts = [each["text/plain"] for each in watched.shown]
    assert " 0 of 6 done " in texts[0] and any(" 4 of 6 done " in text for text in texts)
    assert texts.index("") == len(texts) - 1, "written over, and empty at the end only"


def test_tables_say_what_counts_and_escape_what_others_wrote() -> None:
    end = gl.End("exit_nonzero", "user", exit_code=3, detail="<b>", evidence=("line",), duration_s=90.0)
    shown = end._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;" in shown and "1m30s" in shown and ">3<" in shown and ">line<" in shown
    assert "peak memory" not in shown, "what is not known is left out"
    told = {
        "verdict": "never",
        "summary": "no <worker> fits",
        "workers": [{"verdict": "never", "reason": "has 2 CPUs", "workers": ["a", "b"]}],
        "suggestions": [
            {"change": "ask for 2 CPUs", "pointer": "/resources/cpus", "value": 2},
            {"change": "drop the model", "pointer": "/resources/gpus", "value": None},
        ],
    }
    shown = wire.read(records.Explanation, told)._repr_html_()
    for text in ("no &lt;worker&gt; fits", "has 2 CPUs", "a, b", "/resources/cpus", ">2<", "left out"):
        assert text in shown
    placed = {"task_id": "t", "attempt": 1, "worker": "w", "placed_at": "2026-11-30T00:00:00Z", "waited_s": 3.0}
    past = {"state": "failed", "summary": "ran once", "queued_at": "2026-11-30T00:00:00Z", "waited_s": 3.0}
    past.update(attempts=1, preemptions=0, placed=1, placements=[placed])
    shown = wire.read(records.PastExplanation, past)._repr_html_()
    assert "ran once" in shown and ">w<" in shown and ">3.0s<" in shown


def test_a_thousand_outputs_are_not_all_shown() -> None:
    files = tuple(gl.OutputFile("d", f"d/{number}", 10, 0o644) for number in range(1000))
    shown = gl.Outputs(None, files)._repr_html_()  # type: ignore[arg-type]
    assert "d/99<" in shown and "d/100<" not in shown and "and 900 more" in shown and "10 B" in shown
