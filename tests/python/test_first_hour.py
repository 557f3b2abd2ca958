"""What a newcomer meets in the first hour: how things look when they are typed into a cell, and what is said when they
do not work."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Iterator

import gpulayer as gl
import pytest
from conftest import until


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def test_a_map_whose_values_came_has_ended() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def double(x: int) -> int:
        return 2 * x

    values = double.map(range(3))
    assert list(values) == [0, 2, 4]
    assert values.state == "succeeded" and repr(values) == f"<Map {values.id} (double) of 3 calls, succeeded>"
    assert "3 succeeded" in values._repr_html_()


def test_waiting_for_what_can_never_run_is_refused() -> None:
    # A daemon that has just begun knows of no worker yet, and waits for one.
    gl.command(["true"]).submit().result()

    @gl.remote(memory="900TB")
    def huge() -> None: ...

    with pytest.raises(gl.NoWorkerFitsError, match="memory"):
        huge.run()
    with pytest.warns(gl.GPUlayerWarning, match="huge: .* no worker could ever take it") as warned:
        job = huge.submit()
    assert warned[0].filename == __file__, "where the call stands"
    assert "no worker could ever take it" in job.why and "no worker could ever take it" in job._repr_html_()
    job.cancel()


def test_what_it_is_called_elsewhere_is_told() -> None:
    function: Any = gl.remote(abs)
    for name, meant in (("remote", "run"), ("delay", "submit"), ("spawn", "submit"), ("get", "submit"), ("imap", "map")):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; did you mean {meant}\("):
            getattr(function, name)
    assert not hasattr(function, "anything_else")


def test_only_what_is_for_others_is_listed() -> None:
    assert {name for name in dir(gl) if not name.startswith("__")} == {name for name in gl.__all__ if name[0] != "_"}
    shown = str(inspect.signature(gl.remote(abs).map))
    assert "*iterables" in shown and "chunksize" in shown and "Coroutine" not in shown
    for method in (gl.remote(abs).map, gl.remote(abs).starmap):
        told = inspect.getdoc(method) or ""
        assert all(name in told for name in inspect.signature(method).parameters if name not in ("iterables", "others"))


def test_a_method_takes_what_its_function_takes() -> None:
    def scale(x: int, *, by: float = 2.0) -> float:
        return x * by

    def count(n: int) -> Iterator[int]:
        yield n

    function, generator = gl.remote(scale), gl.remote(count)
    for method in (function.run, function.submit):
        assert [*inspect.signature(method).parameters] == ["x", "by"]
    assert [*inspect.signature(generator.run).parameters] == ["n"]
    assert "Coroutine" not in str(inspect.signature(gl.remote(max).run)), "Python does not know what `max` takes"


def test_a_job_shows_how_far_it_says_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def count() -> None:
        import time

        gl.metrics(3, loss=0.5)
        gl.progress(1, 4)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    job = count.submit()
    until(lambda: (job.refresh().record.progress or {}).get("total"))
    with pytest.raises(gl.WaitTimeoutError):
        job.wait(0.5, progress=True)
    shown = capfd.readouterr().err
    assert "25%" in shown and "loss=0.5" in shown and str(job) in shown
    (tmp_path / "go").touch()
    job.result()


def test_lists_and_lines_can_be_read(client: gl.Client) -> None:
    outputs = [{"path": "a.txt", "name": "it"}]
    job = gl.command(shell="echo 1 > a.txt; echo hi", name="first", outputs=outputs).submit()
    job.result()
    assert repr(job) == f"<Job {job.id} (first) succeeded>" and job.why == "completed"
    assert job.outputs["a.txt"] == job.outputs["it"] == job.outputs[0]
    with pytest.raises(KeyError, match="there are a.txt"):
        job.outputs["b.txt"]
    [line] = job.logs()
    assert repr(line) == f"<LogLine {line.time:%H:%M:%S} stdout 'hi'>"
    told = str(next(job.events()))
    assert told.endswith("job_queued cause=submitted") and repr(job.logs()) == "<Stream, read by `for`>"
    table = client.jobs()._repr_html_()  # type: ignore[attr-defined]
    for text in (job.id, ">first<", ">completed<", ">succeeded<"):
        assert text in table
    assert ">admin<" in client.whoami()._repr_html_()
    assert ">limits.page_limit<" in client.server()._repr_html_()


def test_a_script_that_was_not_sent_is_told_of() -> None:
    with pytest.raises(gl.JobFailedError, match=r'no folder was sent with it: source="\."'):
        gl.command(["python3", "train.py"]).submit().result()
    Path("train.py").write_text("print('trained')")
    assert gl.command(["python3", "train.py"], source=".").submit().result().reason == "completed"
