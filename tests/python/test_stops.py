"""What becomes of a function whose job is to stop: `finally` runs, and who asks ends in its own time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Iterator

import gpulayer as gl
import pytest
from conftest import SOURCES, until
from laid_out import others, run, stopped


def test_finally_runs_and_nothing_is_raised(tmp_path: Path) -> None:
    def work() -> None:
        import time

        try:
            print("works", flush=True)
            time.sleep(120)
        finally:
            print("cleans up", flush=True)

    ran = stopped(tmp_path, work)
    assert (ran.status, ran.out, ran.err) == (143, "works\ncleans up\n", "")
    assert ran.returned is None and ran.raised is None


def test_a_coroutine_and_a_generator_clean_up_as_well(tmp_path: Path) -> None:
    async def waits() -> None:
        import asyncio

        try:
            print("works", flush=True)
            await asyncio.gather(asyncio.sleep(120), asyncio.sleep(120))
        finally:
            print("cleans up", flush=True)

    def yields() -> Iterator[int]:
        import time

        try:
            print("works", flush=True)
            yield 1
            time.sleep(120)
        finally:
            print("cleans up", flush=True)

    for name, function in (("a", waits), ("b", yields)):
        ran = stopped(tmp_path / name, function)
        assert (ran.status, ran.out, ran.err) == (143, "works\ncleans up\n", "")


def test_a_stop_that_comes_in_another_task_ends_the_loop(tmp_path: Path) -> None:
    async def in_a_task() -> None:
        import asyncio

        async def busy() -> None:
            print("works", flush=True)
            while True:
                pass

        task = asyncio.create_task(busy())
        try:
            await asyncio.sleep(120)
        finally:
            print("cleans up", task.done(), flush=True)

    async def in_a_callback() -> None:
        import asyncio

        def busy() -> None:
            print("works", flush=True)
            while True:
                pass

        asyncio.get_running_loop().call_soon(busy)
        try:
            await asyncio.sleep(120)
        finally:
            print("cleans up", True, flush=True)

    for name, function in (("a", in_a_task), ("b", in_a_callback)):
        ran = stopped(tmp_path / name, function)
        assert (ran.status, ran.out) == (143, "works\ncleans up True\n")
        assert ran.returned is None and ran.raised is None


#: Each is destroyed in the loop, and the signal comes in the middle of the second one's destruction.
DESTROYS = """
import signal, time

class Slow:
    def __init__(self, number):
        self.number = number

    def __del__(self):
        if self.number == 1:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            print("works", flush=True)
            while signal.SIGTERM not in signal.sigpending():
                pass
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            print("went on", flush=True)

def work():
    try:
        for number in range(3):
            slow = Slow(number)
            slow = None
        time.sleep(120)
    finally:
        print("cleans up", flush=True)
"""


@pytest.mark.parametrize("python", [sys.executable, *others()])
def test_a_stop_that_comes_while_something_is_destroyed_is_not_ignored(tmp_path: Path, python: str) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mine.py").write_text(DESTROYS)
    entry = {"serializer": "json", "payload": "{}", "entrypoint": "mine:work"}
    ran = run(tmp_path, entry, python=python, stop=True)
    assert (ran.status, ran.err) == (143, "")
    assert ran.out == "works\nwent on\ncleans up\n"


def test_an_error_of_the_cleaning_up_is_told(tmp_path: Path) -> None:
    def work() -> None:
        import time

        try:
            print("works", flush=True)
            time.sleep(120)
        finally:
            raise OSError("the disk is full")

    ran = stopped(tmp_path, work)
    assert ran.status == 1 and ran.raised is not None and ran.raised["message"] == "the disk is full"


def test_who_asks_is_not_interrupted(tmp_path: Path) -> None:
    def work(sources: str) -> str:
        import sys
        import time

        sys.path.append(sources)
        import gpulayer as gl

        before = gl.should_stop()
        print("works", flush=True)
        while not gl.should_stop():
            time.sleep(0.01)
        return f"{before}, saved"

    assert stopped(tmp_path, work, SOURCES).value == "False, saved"


def test_a_handler_of_the_function_wins(tmp_path: Path) -> None:
    def work() -> str:
        import signal
        import time

        heard: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        print("works", flush=True)
        while not heard:
            time.sleep(0.01)
        return "heard"

    assert stopped(tmp_path, work).value == "heard"


def test_children_and_threads_do_not_hold_the_end_up(tmp_path: Path) -> None:
    def forks() -> None:
        import os
        import signal
        import time

        child = os.fork()
        if child == 0:
            while True:
                time.sleep(120)
        try:
            print("works", flush=True)
            time.sleep(120)
        finally:
            os.kill(child, signal.SIGTERM)
            print(os.waitpid(child, 0)[1], flush=True)

    def threads() -> None:
        import threading
        import time

        threading.Thread(target=time.sleep, args=(120,)).start()
        print("works", flush=True)
        time.sleep(120)

    ran = stopped(tmp_path / "a", forks)
    assert (ran.status, ran.out, ran.err) == (143, "works\n15\n", ""), "the child ended of the signal, without a word"
    ran = stopped(tmp_path / "b", threads)
    assert (ran.status, ran.err) == (143, "")


@pytest.mark.parametrize("reuse", [False, True])
def test_a_cancelled_job_cleans_up_and_one_that_asks_saves(client: gl.Client, tmp_path: Path, reuse: bool) -> None:
    def work(asks: bool) -> None:
        import time

        if asks:
            gl.should_stop()
        try:
            print("works", flush=True)
            while not asks or not gl.should_stop():
                time.sleep(0.01)
            print("saves", flush=True)
        finally:
            print("cleans up", flush=True)

    function: Any = gl.remote(work, client=client, grace="30s", reuse=reuse)
    for asks in (True, False, True):
        job = function.submit(asks)
        until(lambda: [line.text for line in job.logs()] == ["works"])
        job.cancel()
        assert job.wait().state == "cancelled"
        expected = ["works", "saves", "cleans up"] if asks else ["works", "cleans up"]
        assert [line.text for line in job.logs()] == expected


def test_a_call_after_one_that_asked_is_interrupted_again(client: gl.Client) -> None:
    @gl.remote(client=client, grace="30s", reuse=True)
    def work(asks: bool) -> int:
        import time

        if asks:
            gl.should_stop()
            return os.getpid()
        try:
            print("works", os.getpid(), flush=True)
            time.sleep(120)
        finally:
            print("cleans up", flush=True)
        return 0

    first = work.run(True)
    job = work.submit(False)
    until(lambda: [line.text for line in job.logs()] == [f"works {first}"])
    job.cancel()
    assert job.wait().state == "cancelled"
    assert [line.text for line in job.logs()][1:] == ["cleans up"]
