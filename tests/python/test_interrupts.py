"""Ctrl-C, and its like for tasks: what only the interrupted call knows of ends, anything else goes on, and both are named."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import until
from gpulayer import background, interrupts
from gpulayer.client import Client
from test_notebook import Watched, surroundings
from test_process import is_parked, started


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


FUNCTIONS = """
import gpulayer as gl
from pathlib import Path

@gl.remote(cpus=0.1, memory="64MiB", grace=600)
def work(x, deaf=False):
    import signal, time
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(f"{folder}/began-{x}").touch()
    while not Path(f"{folder}/end-{x}").exists():
        time.sleep(0.01)
    return x * 10
"""


class Script:
    """A program that waits for calls of `work`, and is interrupted."""

    def __init__(self, folder: Path, calls: str) -> None:
        functions = FUNCTIONS.replace("{folder}", str(folder))
        interrupted = "except KeyboardInterrupt:\n    print('interrupted')"
        self.process = started(f"{functions}\ntry:\n{textwrap.indent(calls, '    ')}\n{interrupted}")
        self.folder = folder

    def interrupt(self) -> None:
        """When its main thread waits."""
        until(functools.partial(is_parked, self.process.pid))
        self.process.send_signal(signal.SIGINT)

    def begun(self, x: int = 1) -> None:
        until((self.folder / f"began-{x}").exists)

    def said(self) -> str:
        """What stands on its standard error when it has ended."""
        out, err = self.process.communicate(timeout=60)
        assert out.endswith("interrupted\n") and "Traceback" not in err and self.process.returncode == 0, err
        return err


def steps(job: gl.Job) -> str:
    return f'gpulayer show {job.id[-6:]} · gl.attach("{job.id}")'


def test_a_call_that_is_interrupted_is_cancelled(client: gl.Client, tmp_path: Path) -> None:
    script = Script(tmp_path, "work.run(1)")
    script.begun()
    script.interrupt()
    said = script.said().splitlines()
    [job] = client.jobs()
    assert said == [
        f"gpulayer: cancelling job {job}; Ctrl-C again ends it at once",
        f"gpulayer: job {job} cancelled · {steps(job)}",
    ]
    assert job.state == "cancelled"


def test_a_second_interrupt_does_not_wait_for_the_grace(client: gl.Client, tmp_path: Path) -> None:
    script = Script(tmp_path, "work.run(1, deaf=True)")
    script.begun()
    script.interrupt()
    [job] = client.jobs()
    until(lambda: job.refresh().record.cancel_requested_at)
    script.interrupt()
    assert script.said().splitlines() == [
        f"gpulayer: cancelling job {job}; Ctrl-C again ends it at once",
        f"gpulayer: job {job} cancelled · {steps(job)}",
    ]
    assert job.refresh().state == "cancelled"


def test_an_interrupt_before_the_answer_leaves_nothing_behind(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    posted = Client.posted
    sent: list[str] = []

    async def cut(
        self: Client, body: Any, key: Any = None, headers: Any = {}, refuse_impossible: bool = False
    ) -> gl.Job:
        job = await posted(self, body, key, headers, refuse_impossible)
        sent.append(job.id)
        if len(sent) % 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return job

    monkeypatch.setattr(Client, "posted", cut)
    slow = gl.remote(cpus=0.1, memory="64MiB")(os.system)
    calls: list[tuple[Any, Any]] = [(slow.run, "sleep 60"), (slow.submit, "sleep 60"), (slow.map, ["sleep 60"])]
    for call, argument in calls:
        with pytest.raises(KeyboardInterrupt):
            call(argument)
    assert len(sent) == 6 and sent[::2] == sent[1::2], "the same again is the same job"
    assert {client.attach(job_id).state for job_id in sent} == {"cancelled"}
    with pytest.raises(KeyboardInterrupt):
        slow.options(key="tonight").run("sleep 60")
    kept = client.attach(sent[-1])
    assert not kept.ended and f"job {kept} goes on · {steps(kept)}" in capsys.readouterr().err
    kept.cancel(now=True).wait()


def test_one_that_nobody_can_be_told_of_is_cancelled_all_the_same(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(gl.command(["sleep", "60"]))
    near, far = os.pipe()
    os.close(near)
    with os.fdopen(far, "w") as closed, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", closed)
        interrupts.Ends(job).interrupted()
        # What could not be written is not tried again when it is closed.
        with pytest.raises(BrokenPipeError):
            closed.close()
    assert job.state == "cancelled"


def test_what_is_configured_and_cannot_be_used_is_no_default(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(gl.command(["true"]))
    monkeypatch.setattr("gpulayer.default._client", None)
    monkeypatch.setenv("GPULAYER_URL", "nonsense url")
    shown = f'gpulayer --server {client.endpoint} show {job.id[-6:]} · client.attach("{job.id}")'
    assert interrupts.next_steps(job) == shown


@pytest.mark.parametrize("calls", ["work.run(1)", "for value in work.map(range(2)): pass"])
def test_what_else_comes_over_a_call_cancels_it_as_well(calls: str, client: gl.Client, tmp_path: Path) -> None:
    script = Script(tmp_path, f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n{calls}")
    script.begun()
    until(functools.partial(is_parked, script.process.pid))
    script.process.terminate()
    _, err = script.process.communicate(timeout=60)
    [job] = [each for each in client.jobs() if each.record.parent is None]
    assert (script.process.returncode, err) == (7, f"gpulayer: cancelling {job.noun} {job} · {steps(job)}\n")
    assert job.wait(60).state == "cancelled"


def test_an_order_that_the_server_is_silent_to_is_told_of_and_goes_on(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.1)
    job = client.submit(gl.command(["sleep", "60"]))
    daemon = client.server().pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        background.run(interrupts.Ends(job).cancelled())
    finally:
        os.kill(daemon, signal.SIGCONT)
    [told] = caplog.messages
    assert told.startswith(f"job {job} may go on: ") and told.endswith(steps(job))
    assert job.wait(60).state == "cancelled"


def test_a_map_that_is_iterated_over_is_such_a_call(client: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "end-0").touch()
    script = Script(tmp_path, "for value in work.map(range(3)):\n    print(value, flush=True)")
    assert script.process.stdout is not None and script.process.stdout.readline() == "0\n"
    script.interrupt()
    said = script.said()
    [values] = [job for job in client.jobs() if isinstance(job, gl.Map)]
    assert f"cancelling map {values};" in said and f"map {values} cancelled · {steps(values)}" in said
    assert values.state == "cancelled"
    kept: list[Any] = values.result(return_exceptions=True)
    assert kept[0] == 0 and [type(each) for each in kept[1:]] == [gl.JobCancelledError] * 2


@pytest.mark.parametrize(
    "calls",
    [
        "values.result()",
        "list(values.results())",
        "list(gl.attach(values.id))",
        "list(values.logs(follow=True))",
        "list(values.events(follow=True))",
    ],
)
def test_a_map_that_one_has_goes_on(calls: str, client: gl.Client, tmp_path: Path) -> None:
    script = Script(tmp_path, f"values = work.map(range(2))\n{calls}")
    script.begun(0)
    script.interrupt()
    said = script.said()
    [values] = [job for job in client.jobs() if isinstance(job, gl.Map)]
    assert said == f"gpulayer: map {values} goes on · {steps(values)}\n"
    for x in range(2):
        (tmp_path / f"end-{x}").touch()
    assert values.result() == [0, 10]


def test_cancelling_a_task_is_the_same_without_a_word(
    client: gl.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def endless(_: int = 0) -> None:
        import time

        time.sleep(600)

    async def work() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endless.run.aio(), 0.5)
        [job] = await client.jobs.aio()
        assert (await job.wait.aio()).state == "cancelled"
        kept = await endless.submit.aio()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(kept.result.aio(), 0.1)
        assert not (await kept.refresh.aio()).ended
        await kept.cancel.aio(now=True)
        values = await endless.map.aio(range(2))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(values.__aiter__().__anext__(), 0.5)
        assert (await values.wait.aio()).state == "cancelled"

    asyncio.run(work())
    assert capsys.readouterr() == ("", "")


def test_a_task_that_is_cancelled_before_the_first_step_of_its_work_is_told_all_the_same() -> None:
    gate = threading.Event()
    after: list[str] = []

    class Tells:
        def interrupted(self) -> None: ...

        def left(self) -> None: ...

        async def cancelled(self) -> None:
            after.append("cancelled")

    async def submits() -> None:
        background.if_left(Tells())
        after.append("submitted")
        await asyncio.Event().wait()

    async def leaves() -> None:
        loop = background.current().hold()
        loop.call_soon_threadsafe(gate.wait)
        task = asyncio.ensure_future(background.join(submits()))
        await asyncio.sleep(0)
        task.cancel()
        # What the task does when it hears of it comes before the work goes on.
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(gate.set))
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        background.current().let_go()

    asyncio.run(leaves())
    assert after == ["submitted", "cancelled"]


@pytest.mark.filterwarnings("default")  # those of the notebook's own libraries
def test_interrupting_a_kernel_ends_the_call_of_its_cell(
    client: gl.Client, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Watched):
        """Its kernel is interrupted when a function has begun."""

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            found = super().process_message(msg, cell, cell_index)
            begun = tmp_path / f"began-{cell_index}"
            if begun.exists():
                begun.unlink()
                assert self.km is not None
                interrupting: Any = self.km.interrupt_kernel()
                self.interrupting = asyncio.ensure_future(interrupting)
            return found

    cells = (
        FUNCTIONS.replace("{folder}", str(tmp_path)) + "\nwork.submit(0).result()",
        "work.run(1)",
        "await work.run.aio(2)",
    )
    # Once the line of progress is there, messages keep coming.
    watched = Interrupted(*cells)
    watched.allow_errors = True
    watched.execute(env=surroundings(home, monkeypatch))
    assert [cell["outputs"][-1]["ename"] for cell in watched.nb.cells[:2]] == ["KeyboardInterrupt"] * 2
    third, second, first = client.jobs()
    texts = ["".join(each.get("text", "") for each in cell["outputs"]) for cell in watched.nb.cells]
    assert f"job {first} goes on" in texts[0] and not first.ended
    assert f"job {second} cancelled · {steps(second)}" in texts[1] and second.state == "cancelled"
    assert third.wait().state == "cancelled"
    first.cancel(now=True)


@pytest.mark.parametrize(
    "loop",
    [
        "for value in work.map(range(3)): break",
        "for value in work.map(range(3)).as_completed(): break",
        "for value in work.map(range(3)): raise KeyboardInterrupt",
        "for value in work.map([0, 'fails', 2]): pass",
        "work.map(['fails', 1, 2]).result()",
        "values = work.map(range(3))\nfor value in values: sys.exit()",
    ],
)
def test_a_map_that_is_left_says_once_that_it_goes_on(loop: str, client: gl.Client, tmp_path: Path) -> None:
    for x in ("0", "fails"):
        (tmp_path / f"end-{x}").touch()
    functions = FUNCTIONS.replace("{folder}", str(tmp_path)).replace("x * 10", "10 * int(x)")
    caught = "except (KeyboardInterrupt, ValueError): pass"
    process = started(f"import sys\n{functions}\ntry:\n{textwrap.indent(loop, '    ')}\n{caught}")
    _, said = process.communicate(timeout=60)
    [values] = [job for job in client.jobs() if isinstance(job, gl.Map)]
    called = f'map {values} goes on · gpulayer cancel {values.id[-6:]} · gl.attach("{values.id}")'
    assert (said, process.returncode) == (f"gpulayer: {called}\n", 0)
    values.cancel(now=True)


def test_a_map_that_somebody_has_says_nothing_before_it_is_let_go(
    client: gl.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def work(x: int) -> int:
        import time

        while x == 2 and not (tmp_path / "end").exists():
            time.sleep(0.01)
        return x

    def is_let_go(values: "weakref.ref[Any]") -> None:
        until(lambda: values() is None)

    values = work.map(range(3))
    assert next(iter(values)) == 0 and capsys.readouterr().err == ""
    told, last = interrupts.goes_on(values), weakref.ref(values)
    del values
    is_let_go(last)
    assert capsys.readouterr().err == f"gpulayer: {told}\n"

    values = work.map(range(3))
    assert next(iter(values)) == 0
    values.cancel(now=True)
    last = weakref.ref(values)
    del values
    is_let_go(last)
    (tmp_path / "end").touch()

    values = work.map(range(3))
    last = weakref.ref(values)
    assert next(iter(values)) == 0 and values.result() == [0, 1, 2]
    del values
    is_let_go(last)

    values = work.map(range(3))
    last = weakref.ref(values)
    through = zip(iter("abc"), values)
    del values
    assert list(through) == [("a", 0), ("b", 1), ("c", 2)]
    del through
    is_let_go(last)
    assert capsys.readouterr().err == ""
