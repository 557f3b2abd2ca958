"""Nothing is left behind and nothing is printed, however a process ends: under `-X dev -W error`, where Python tells of
every socket, task and coroutine that was forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, Iterator

import gpulayer as gl
import pytest
from conftest import SOURCES, until
from gpulayer import background, daemon_threads

BEGIN = """
import asyncio, gc, os, sys, threading, time
import gpulayer as gl

def sockets():
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            pass
    return found

client = gl.local()
job = client.attach(sys.argv[1])
"""


@pytest.fixture
def endless(client: gl.Client) -> Iterator[gl.Job]:
    """A job that has said one line, and runs until the test is over."""
    job = client.submit(gl.command(shell="echo a; exec sleep 600"))
    assert next(job.logs(follow=True)).text == "a"
    yield job
    job.cancel(now=True).wait()


def ended(job: gl.Job, script: str, *, before: str = "", status: int = 0, err: str = "") -> str:
    """What a script prints, which ends with a status and says nothing else."""
    whole = before + BEGIN + textwrap.dedent(script)
    asked = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", whole, job.id],
        env=dict(os.environ, PYTHONPATH=SOURCES),
        capture_output=True,
        text=True,
        cwd="/",
        timeout=120,
        check=False,
    )
    assert asked.returncode == status and asked.stderr.endswith(err) and (err or not asked.stderr), asked.stderr
    return asked.stdout


def test_a_closed_client_leaves_nothing_of_ours(endless: gl.Job) -> None:
    out = ended(
        endless,
        """
        stream = job.logs(follow=True)
        next(stream)
        async def half():
            waiting = asyncio.ensure_future(job.wait.aio())
            following = job.events(follow=True)
            await following.__anext__()
            await asyncio.sleep(0)
            await client.aclose()
            waiting.cancel()
            await asyncio.wait([waiting])
        asyncio.run(half())
        from gpulayer import background
        deadline = time.monotonic() + 30
        while threading.active_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        gc.collect()
        print([each.name for each in threading.enumerate()], sockets(), background.current()._loop)
        """,
    )
    assert out == "['MainThread'] 0 None\n"


def test_a_stream_keeps_its_client(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell=f"echo a; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo b"))
    script = f"""
    stream = gl.local().attach(job.id).logs(follow=True)
    print(next(stream))
    gc.collect()
    open("{tmp_path}/go", "w").close()
    print(*stream)
    del stream
    deadline = time.monotonic() + 30
    while threading.active_count() > 1 and time.monotonic() < deadline:
        client.close()
        time.sleep(0.01)
    print(threading.active_count())
    """
    assert ended(job, script) == "a\nb\n1\n"


def test_the_end_comes_in_the_middle_of_a_follow(endless: gl.Job) -> None:
    assert ended(endless, "for line in job.logs(follow=True):\n    print(line); sys.exit(3)", status=3) == "a\n"
    assert ended(endless, "stream = job.logs(follow=True); print(next(stream))") == "a\n"
    script = """
    async def half():
        async for line in job.logs(follow=True):
            print(line)
            return
    asyncio.run(half())
    """
    assert ended(endless, script) == "a\n"
    script = """
    async def half():
        stream = job.logs(follow=True)
        await stream.__anext__()
        asyncio.ensure_future(stream.__anext__())
        asyncio.ensure_future(job.wait.aio())
        await asyncio.sleep(0)
        print("leaves")
    asyncio.run(half())
    """
    assert ended(endless, script) == "leaves\n"


def test_the_end_comes_while_threads_wait(endless: gl.Job) -> None:
    script = """
    begun = [threading.Event() for _ in range(4)]
    def follow():
        for line in job.logs(follow=True):
            begun[0].set()
    def wait():
        begun[1].set()
        job.wait()
    def ask():
        while True:
            client.whoami()
            begun[2].set()
    async def half():
        begun[3].set()
        while True:
            await client.whoami.aio()
    for work in (follow, wait, ask, lambda: asyncio.run(half())):
        threading.Thread(target=work, daemon=True).start()
    for each in begun:
        each.wait()
    print("leaves")
    """
    for _ in range(5):
        assert ended(endless, script) == "leaves\n"


def test_handlers_of_the_end_may_still_close(endless: gl.Job) -> None:
    script = """
    import atexit
    atexit.register(lambda: print(client.whoami().role, flush=True))
    stream = job.logs(follow=True)
    next(stream)
    """
    assert ended(endless, script) == "admin\n"
    # One that was there before the package comes after it.
    before = """
import atexit
def late():
    stream.close()
    client.close()
    try:
        gl.local().whoami()
    except RuntimeError as fault:
        print(fault, flush=True)
atexit.register(late)
"""
    out = ended(endless, "stream = job.logs(follow=True); next(stream)", before=before)
    assert out == "this process is ending, and its connections are closed\n"


def test_handlers_of_the_end_may_call_what_was_imported_before_them(endless: gl.Job, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = f"""
import atexit, gpulayer
atexit.register(lambda: print(gpulayer.local().put({str(tmp_path / "file")!r})[:11], flush=True))
"""
    assert ended(endless, "client.whoami()", before=before) == "artifact://\n"


def test_threads_that_outlive_the_main_one_work_on(endless: gl.Job, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    script = f"""
    def late():
        threading.main_thread().join()
        print(client.whoami().role, client.put({str(tmp_path / "file")!r})[:11])
        try:
            gl.connect("http://localhost:9").whoami()
        except gl.UnreachableError:
            print("not there")
    client.whoami()
    threading.Thread(target=late).start()
    """
    assert ended(endless, script) == "admin artifact://\nnot there\n"


def test_an_error_in_the_middle_is_the_only_one(endless: gl.Job) -> None:
    ended(endless, "for line in job.logs(follow=True): 1 / 0", status=1, err="\nZeroDivisionError: division by zero\n")
    script = """
    async def half():
        async with gl.local() as other:
            async for line in other.attach(job.id).logs(follow=True):
                raise RuntimeError("mine")
    asyncio.run(half())
    """
    script = script.replace("other.attach(job.id)", "(await other.attach.aio(job.id))")
    ended(endless, script, status=1, err="\nRuntimeError: mine\n")


def test_an_interrupt_in_the_middle_is_one_of_python(endless: gl.Job) -> None:
    script = """
    import signal
    stream = job.logs(follow=True)
    print(next(stream), flush=True)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    next(stream)
    """
    assert ended(endless, script, status=-signal.SIGINT, err="KeyboardInterrupt\n") == "a\n"


def test_an_interrupt_ends_the_reading_of_a_large_file(endless: gl.Job, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    script = f"""
    import signal
    client.put({str(tmp_path / "one")!r})
    def is_read():
        files = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
        return any(os.path.islink(each) and os.readlink(each).endswith("/huge") for each in files)
    def interrupt():
        while not is_read():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    client.put({str(tmp_path / "huge")!r})
    """
    (tmp_path / "one").touch()
    ended(endless, script, status=-signal.SIGINT, err="KeyboardInterrupt\n")


def test_forks_end_as_silently(endless: gl.Job) -> None:
    script = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads at all
    stream = job.logs(follow=True)
    next(stream)
    for way in ("untouched", "used", "following", "closes all", "at once"):
        child = os.fork()
        if child == 0:
            if way == "used":
                client.whoami()
            if way == "closes all":
                stream.close()
                client.close()
            if way == "following":
                mine = job.logs(follow=True)
                next(mine)
            if way == "at once":
                os._exit(0)
            sys.exit()
        print(os.waitpid(child, 0)[1], end=" ", flush=True)
    print(client.whoami().role)
    """
    assert ended(endless, script) == "0 0 0 0 0 admin\n"


def test_a_stream_goes_on_in_both_processes_after_a_fork(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell=f"echo a; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; seq 1000"))
    script = f"""
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    stream = job.logs(follow=True)
    next(stream)
    child = os.fork()
    open("{tmp_path}/go", "w").close()
    whole = [int(line.text) for line in stream] == list(range(1, 1001))
    if child:
        print(os.waitpid(child, 0)[1], whole)
    sys.exit(not whole)
    """
    assert ended(job, script) == "0 True\n"


def test_the_values_of_a_map_go_on_in_both_processes_after_a_fork(client: gl.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def square(x: int) -> int:
        import os
        import time

        while x and not os.path.exists(go):
            time.sleep(0.02)
        return x * x

    job = gl.remote(cpus=0.1, memory="64MiB", client=client)(square).map(range(5))
    script = f"""
    import warnings
    from gpulayer import map_feed
    warnings.simplefilter("ignore", DeprecationWarning)
    # It reads on while it hands out what has come, and is never rescued by a second look.
    map_feed._MANY, map_feed._LOOK_AGAIN_S = 0, 1e9
    values, left = iter(job), iter(job)
    print(next(values), next(left), flush=True)
    child = os.fork()
    open("{go}", "w").close()
    if not child:
        left.close()
    whole = list(values) == [1, 4, 9, 16]
    if child:
        print(os.waitpid(child, 0)[1], whole)
    sys.exit(not whole)
    """
    assert ended(job, script) == "0 0\n0 True\n"


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_jobs_go_through_process_pools(endless: gl.Job, way: str) -> None:
    script = f"""
    import multiprocessing, operator, warnings
    from concurrent.futures import ProcessPoolExecutor
    warnings.simplefilter("ignore", DeprecationWarning)
    client.whoami()
    with ProcessPoolExecutor(2, multiprocessing.get_context({way!r})) as pool:
        for other in pool.map(operator.methodcaller("refresh"), [job] * 3):
            print(other == job, other.state, other.client is client)
    """
    assert ended(endless, script) == "True running True\n" * 3


def test_a_thread_that_cannot_start_is_an_error_and_the_next_call_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ours = background.Background()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        with pytest.raises(gl.GPUlayerError, match="can't start new thread"):
            ours.hold()
    begun = threading.Event()
    ours.hold().call_soon_threadsafe(begun.set)
    assert begun.wait(60)
    ours.let_go()


def test_work_that_no_thread_can_be_started_for_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threads = daemon_threads.DaemonThreads()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        assert threads.submit(str, 1).result(0) == "1"
    for _ in range(2):
        assert threads.submit(threading.current_thread).result(60).daemon
    failing = threads.submit(int, "no number")
    with pytest.raises(ValueError):
        failing.result(60)
    threads.shutdown()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_in_the_moment_of_sending_ends_the_work(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.BaseEventLoop.call_soon_threadsafe
    interrupted: list[bool] = []
    begun, ended = threading.Event(), threading.Event()

    def call_soon(loop: Any, callback: Any, *words: Any, **more: Any) -> Any:
        is_first = getattr(callback, "__name__", "") == "_begin" and not interrupted
        if is_first:
            interrupted.append(True)
            if moment == "before":
                raise KeyboardInterrupt
        found = told(loop, callback, *words, **more)
        if is_first:
            begun.wait()
            raise KeyboardInterrupt
        return found

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def quick() -> str:
        return "on"

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", call_soon)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        background.run(endless())
    assert ended.wait(60) if moment == "after" else not begun.is_set()
    assert background.run(quick()) == "on"
    until(lambda: threading.active_count() == before)
