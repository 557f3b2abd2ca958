"""What a program inside a job says and hears, and that the same program runs by hand."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import SOURCES, until

PROGRAM = """
import gpulayer as gl
{body}
"""


def ran(body: str, folder: Path, **env: str) -> str:
    """The same program without a job."""
    environment = {"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", **env}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(body=body)],
        cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def test_by_hand_it_runs_as_well(tmp_path: Path) -> None:
    out = ran(
        """
gl.progress(3, 10)
gl.metrics(7, loss=0.25, lr=float("nan"), note="warm")
(gl.checkpoint_dir / "step").write_text("7")
gl.checkpoint_saved()
print(bool(gl.job), gl.job.attempt, gl.job.index, gl.should_stop(), gl.checkpoint_dir)
""",
        tmp_path,
    )
    assert out.splitlines() == [
        "step 7 loss=0.25 lr=nan note=warm",
        "False 1 None False .gpulayer/checkpoint",
    ]
    assert (tmp_path / ".gpulayer/checkpoint/step").read_text() == "7"


def test_what_is_said_is_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ran(
        """
for step in range(1, 101):
    gl.progress(step, 100)
    gl.metrics(step, loss=1 / step)
gl.checkpoint_saved()
gl.progress(100.5)
""",
        tmp_path,
        GPULAYER_PROGRESS_FILE=str(path),
    )
    said: dict[str, Any] = json.loads(path.read_text())
    assert said == {"done": 100.5, "total": None, "step": 100, "metrics": {"loss": 0.01}, "checkpoint": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["progress.json"]


def said_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_several_processes_of_a_job_go_on_where_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    for stage in range(1, 5):
        ran(f"gl.progress({stage}, 4)\ngl.checkpoint_saved()", tmp_path, GPULAYER_PROGRESS_FILE=str(path))
        assert said_of(path) == {"done": stage, "total": 4, "checkpoint": stage}
    ran("gl.metrics(9, loss=0.5)", tmp_path, GPULAYER_PROGRESS_FILE=str(path))
    assert said_of(path) == {"done": 4, "total": 4, "checkpoint": 4, "step": 9, "metrics": {"loss": 0.5}}
    path.write_text('{"checkpoint": ')
    ran("gl.checkpoint_saved()", tmp_path, GPULAYER_PROGRESS_FILE=str(path))
    assert said_of(path) == {"checkpoint": 1}, "whatever a program of another kind left there"


def test_two_processes_at_once_lose_no_word_of_each_other(tmp_path: Path) -> None:
    path, go = tmp_path / "progress.json", tmp_path / "go"
    env = {"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", "GPULAYER_PROGRESS_FILE": str(path)}
    body = """
import os, sys, threading, time
print("ready", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.001)
def save():
    for _ in range(50):
        gl.checkpoint_saved()
threads = [threading.Thread(target=save) for _ in range(2)]
[each.start() for each in threads]
{word}
[each.join() for each in threads]
"""
    words = ["gl.progress(1, 2)", "gl.metrics(3, loss=0.5)", ""]
    programs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM.format(body=body.format(go=str(go), word=word))],
            env=env, stdout=subprocess.PIPE, text=True,
        )
        for word in words
    ]
    for program in programs:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
    go.touch()
    seen = [0]
    while any(program.poll() is None for program in programs):
        try:
            seen.append(said_of(path).get("checkpoint", 0))
        except (FileNotFoundError, ValueError):
            continue
    assert seen == sorted(seen), "it only grows"
    for program in programs:
        program.communicate()
        assert program.returncode == 0
    assert said_of(path) == {"done": 1, "total": 2, "step": 3, "metrics": {"loss": 0.5}, "checkpoint": 300}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["go", "progress.json"]


def test_a_forked_child_counts_on_and_repeats_no_word_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ran(
        """
import os, sys
gl.checkpoint_saved()
gl.progress(1)
near, far = os.pipe()
child = os.fork()
if child == 0:
    os.read(near, 1)
    gl.checkpoint_saved()
    sys.exit()
gl.progress(2)
gl.checkpoint_saved()
os.write(far, b"x")
os.waitpid(child, 0)
""",
        tmp_path,
        GPULAYER_PROGRESS_FILE=str(path),
    )
    assert said_of(path) == {"done": 2, "total": None, "checkpoint": 3}


def test_a_handler_of_a_signal_may_say_something_in_the_middle_of_a_word(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ran(
        """
import os, signal
from gpulayer import progress_file

def heard(number, _):
    gl.progress(7)
    gl.checkpoint_saved()

signal.signal(signal.SIGTERM, heard)
write = progress_file._write

def interrupted(path, said):
    progress_file._write = write
    os.kill(os.getpid(), signal.SIGTERM)
    write(path, said)

progress_file._write = interrupted
gl.metrics(1)
os._exit(0)
""",
        tmp_path,
        GPULAYER_PROGRESS_FILE=str(path),
    )
    assert said_of(path) == {"metrics": {}, "step": 1, "done": 7, "total": None, "checkpoint": 1}


def test_a_word_that_a_handler_ends_is_said_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ran(
        """
import signal, sys
from gpulayer import progress_file

signal.signal(signal.SIGTERM, lambda *_: (gl.checkpoint_saved(), sys.exit(0)))
write = progress_file._write

def interrupted(path, said):
    progress_file._write = write
    signal.raise_signal(signal.SIGTERM)

progress_file._write = interrupted
gl.progress(3)
""",
        tmp_path,
        GPULAYER_PROGRESS_FILE=str(path),
    )
    assert said_of(path) == {"done": 3, "total": None, "checkpoint": 1}


def test_who_was_stopped_in_the_middle_of_a_word_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"checkpoint": 6}')
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran("gl.checkpoint_saved()", tmp_path, GPULAYER_PROGRESS_FILE=str(path))
    assert said_of(path) == {"checkpoint": 7}


def test_a_word_that_found_no_room_is_said_with_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    ran(
        f"""
import os
gl.progress(1, 2)
gl.checkpoint_saved()
os.mkdir({str(folder)!r})
gl.checkpoint_saved()
""",
        tmp_path,
        GPULAYER_PROGRESS_FILE=str(folder / "progress.json"),
    )
    assert said_of(folder / "progress.json") == {"done": 1, "total": 2, "checkpoint": 2}


def test_progress_is_a_number_that_can_be_reached() -> None:
    with pytest.raises(ValueError, match="done is nan"):
        gl.progress(float("nan"))
    with pytest.raises(ValueError, match="done is -1: progress begins at 0"):
        gl.progress(-1, 5)
    with pytest.raises(ValueError, match="total is -0.5: progress begins at 0"):
        gl.progress(0, -0.5)


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    body = """
class Int:  # as numpy.int64
    __index__ = lambda self: 3
class Float:  # as numpy.float32
    __float__ = lambda self: 0.5
gl.progress(Float(), Int())
gl.metrics(Int(), loss=Float(), right=Int())
"""
    assert ran(body, tmp_path, GPULAYER_PROGRESS_FILE=str(path)) == "step 3 loss=0.5 right=3\n"
    assert json.loads(path.read_text()) == {"done": 0.5, "total": 3, "step": 3, "metrics": {"loss": 0.5, "right": 3}}
    text: Any = "1"
    with pytest.raises(TypeError, match="done is '1': progress is a number"):
        gl.progress(text)


def test_what_the_worker_would_not_read_is_left_out_and_the_rest_is_said(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    env = {"GPULAYER_PROGRESS_FILE": str(path)}
    out = ran('gl.progress(3, 10)\ngl.metrics(1, note="caf\\udce9", **{"n\\udce9": 1, "é": "é"})', tmp_path, **env)
    assert out == "step 1 note=caf\ufffd n\ufffd=1 é=é\n"
    metrics = {"note": "caf\ufffd", "n\ufffd": 1, "é": "é"}
    assert said_of(path) == {"done": 3, "total": 10, "step": 1, "metrics": metrics}
    body = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for step in (2, 3):
        gl.metrics(step, **{f"layer{i}/grad_norm": i / 7 for i in range(3000)})
    gl.checkpoint_saved()
print(*(f"{each.filename}: {each.message}" for each in seen), sep="\\n")
"""
    *logged, warned = ran(body, tmp_path, **env).splitlines()
    assert [len(line.split()) for line in logged] == [3002, 3002]
    said = said_of(path)
    kept = said.pop("metrics")
    assert said == {"done": 3, "total": 10, "step": 3, "checkpoint": 1} and path.stat().st_size <= 16 << 10
    assert list(kept) == [f"layer{number}/grad_norm" for number in range(len(kept))] and len(kept) > 300
    left = 3000 - len(kept)
    assert warned.startswith(f"<string>: gpulayer.metrics leaves out {left} of 3000 metrics beside the job's progress")
    assert "where 15 KiB of them fit" in warned


def test_what_another_wrote_takes_the_room_of_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"done": 1, "checkpoint": 4, "mine": "x" * 20_000}))
    ran("gl.checkpoint_saved()", tmp_path, GPULAYER_PROGRESS_FILE=str(path))
    assert said_of(path) == {"done": 1, "checkpoint": 5}


def test_a_number_that_the_worker_cannot_take_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    body = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for step in (-1, -2):
        gl.metrics(step, loss=1.0, big=10**400)
print(*(each.message for each in seen), sep="\\n")
"""
    assert ran(body, tmp_path, GPULAYER_PROGRESS_FILE=str(path)).splitlines() == [
        "loss=1",
        "loss=1",
        "gpulayer.metrics leaves out big, which is larger than any float (1.8e+308)",
        "gpulayer.metrics leaves out step, which is below 0, where steps begin",
    ]
    assert said_of(path) == {"metrics": {"loss": 1.0}}
    with pytest.raises(ValueError, match="done is larger than any float"):
        gl.progress(10**400)


def test_what_is_no_number_is_left_out_of_a_report_and_ends_nothing(client: gl.Client) -> None:
    @gl.remote(client=client)
    def work() -> str:
        for step in range(2):
            gl.metrics(step, loss=0.5, val=None, pair=[1, 2], note="warm")
        third: Any = "third"
        gl.metrics(third, loss=0.25)
        return "done"

    job = work.submit()
    assert job.result() == "done"
    assert [line.text for line in job.logs(stream="stdout")] == [
        "step 0 loss=0.5 note=warm", "step 1 loss=0.5 note=warm", "loss=0.25"
    ]  # fmt: skip
    said = "\n".join(line.text for line in job.logs(stream="stderr"))
    for left in ("val, which is a NoneType and no number", "pair, which is a list and", "step, which is a str and"):
        assert said.count(f"GPUlayerWarning: gpulayer.metrics leaves out {left}") == 1
    assert job.record.progress and job.record.progress["metrics"] == {"loss": 0.25}


def test_a_function_tells_who_it_is_and_how_far_it_is(client: gl.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"

    @gl.remote(client=client)
    def work(go: str) -> list[object]:
        import os
        import time

        gl.progress(1, 2)
        gl.metrics(1, loss=0.5)
        while not os.path.exists(go):
            time.sleep(0.01)
        return [gl.job.id, gl.job.attempt, bool(gl.job), gl.should_stop(), gl.job.workspace == gl.job.workspace.resolve()]

    job = work.submit(str(go))
    until(lambda: "metrics" in (job.refresh().record.progress or {}))
    assert job.record.progress == {"done": 1, "total": 2, "step": 1, "metrics": {"loss": 0.5}}
    go.touch()
    assert job.result() == [job.id, 1, True, False, True]
    assert [line.text for line in job.logs()] == ["step 1 loss=0.5"]


def test_a_retried_function_goes_on_from_its_checkpoint(client: gl.Client) -> None:
    @gl.remote(client=client, retries=2, retry_on=["any"])
    def train(steps: int) -> list[int]:
        import os
        import signal

        at = gl.checkpoint_dir / "step"
        first = int(at.read_text()) if at.exists() else 0
        for step in range(first, steps):
            if step == 3 and gl.job.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            at.write_text(str(step + 1))
            gl.checkpoint_saved()
        return [first, gl.job.attempt]

    job = train.submit(5)
    assert job.result() == [3, 2]


def test_a_job_starts_no_daemon_and_may_call_the_one_that_is_there(
    client: gl.Client, home: Path, tmp_path: Path
) -> None:
    @gl.remote(client=client)
    def nested(where: dict[str, str]) -> str:
        import os

        os.environ.update(where)
        try:
            job = gl.command(["echo", "inner"]).submit()
            job.result()
            return "".join(line.text for line in job.logs())
        except gl.DaemonError as fault:
            return str(fault)

    said = nested.run({"HOME": str(tmp_path)})
    assert f"nothing answers at {tmp_path}/.gpulayer/state/gpulayer.sock" in said and "gpulayer.connect(URL" in said
    assert not (tmp_path / ".gpulayer").exists()
    assert nested.run({"HOME": str(tmp_path), "GPULAYER_HOME": str(home)}) == "inner"
    # The default home, with a daemon that runs.
    (tmp_path / ".gpulayer").symlink_to(home)
    assert nested.run({"HOME": str(tmp_path)}) == "inner"


def test_who_is_to_stop_hears_of_it(client: gl.Client) -> None:
    @gl.remote(client=client, grace="30s")
    def work() -> None:
        import time

        assert not gl.should_stop()
        print("works", flush=True)
        while not gl.should_stop():
            time.sleep(0.01)
        print("saves", flush=True)

    job = work.submit()
    until(lambda: [line.text for line in job.logs()] == ["works"])
    job.cancel()
    assert job.wait().state == "cancelled"
    assert [line.text for line in job.logs()] == ["works", "saves"]
