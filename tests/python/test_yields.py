"""Generators: what they yield comes one by one, in order, once, whoever is killed; and leaving ends them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, AsyncIterator, Generator, Iterator, cast

import gpulayer as gl
import pytest
from conftest import kill_own_daemon, until
from gpulayer import remote_function
from laid_out import Ran, called, mapped, run
from test_process import is_parked, started
from typing_extensions import assert_type


def frames(ran: Ran) -> list[bytes]:
    """What a worker finds, value by value."""
    data = (ran.folder / "yielded").read_bytes()
    found: list[bytes] = []
    while data:
        head = int.from_bytes(data[:8], "little")
        apart, length = head >> 63, head & ~(1 << 63)
        found.append((ran.folder / f"yielded.{len(found) + 1}").read_bytes() if apart else data[8 : 8 + length])
        assert len(found[-1]) == length
        data = data[8:] if apart else data[8 + length :]
    return found


# The runner alone.


def test_values_are_left_in_order_and_long_ones_apart(tmp_path: Path) -> None:
    def count(n: int) -> Generator[Any, None, str]:
        for each in range(n):
            yield "x" * 10_000 if each == 1 else each
        return "done"

    ran = called(tmp_path, count, 3)
    assert [pickle.loads(each) for each in frames(ran)] == [0, "x" * 10_000, 2]
    assert ran.value == "done"
    assert sorted(path.name for path in ran.folder.glob("yielded*")) == ["yielded", "yielded.2"]


def test_an_asynchronous_one_is_run_to_its_end(tmp_path: Path) -> None:
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            await asyncio.sleep(0)
            yield each

    ran = called(tmp_path, count, 3)
    assert [pickle.loads(each) for each in frames(ran)] == [0, 1, 2] and ran.value is None


def test_what_a_generator_raises_comes_after_what_it_yielded(tmp_path: Path) -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    ran = called(tmp_path, fail)
    assert [pickle.loads(each) for each in frames(ran)] == [1] and ran.raised is not None
    assert (ran.raised["type"], ran.raised["stage"]) == ("KeyError", "call")
    assert "run.py" not in ran.raised["traceback"] and "in fail" in ran.raised["traceback"]


def test_what_cannot_be_sent_closes_the_generator(tmp_path: Path) -> None:
    def odd() -> Iterator[Any]:
        import threading

        try:
            yield 1
            yield threading.Lock()
        finally:
            print("closed")

    ran = called(tmp_path, odd)
    assert [pickle.loads(each) for each in frames(ran)] == [1] and ran.out == "closed\n"
    assert ran.raised is not None and ran.raised["stage"] == "return"


def test_a_forked_child_yields_nothing(tmp_path: Path) -> None:
    def forks() -> Iterator[int]:
        import os

        yield 1
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        yield 2

    ran = called(tmp_path, forks)
    assert [pickle.loads(each) for each in frames(ran)] == [1, 2] and ran.status == 0


def test_calls_of_a_map_give_lists(tmp_path: Path) -> None:
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    outcomes = mapped(tmp_path, count, (2,), (0,)).outcomes
    assert [pickle.loads(each) for each in outcomes] == [[0, 1], []]


def test_by_name_values_are_json(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "own.py").write_text("def count(n):\n    yield from range(n)\n    yield 'y' * 9000\n")
    ran = run(tmp_path, {"serializer": "json", "entrypoint": "own:count", "payload": '{"args": [2]}'})
    assert [json.loads(each) for each in frames(ran)] == [0, 1, "y" * 9000]


def test_generator_functions_are_known_for_what_they_are() -> None:
    def plain() -> Iterator[int]:
        return iter([1])

    def generator(_: int = 0) -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    class Object:
        def method(self) -> Iterator[int]:
            yield 1

        def __call__(self) -> Iterator[int]:
            yield 1

    for each in (generator, asynchronous, partial(generator, 1), Object().method, Object()):
        assert remote_function.yields(each), each
    for other in (plain, len, partial(len, [1]), Object):
        assert not remote_function.yields(other), other


# With a daemon.


@gl.remote
def count(n: int, fail: bool = False) -> Generator[int, None, str]:
    yield from range(n)
    if fail:
        raise ValueError("counted enough")
    return f"counted {n}"


def waits_at(place: str, go: str, n: int) -> Iterator[int]:
    """Yields `n` numbers, says so, waits, and yields as many again."""
    import os
    import time

    yield from range(n)
    open(place, "w").close()
    while not os.path.exists(go):
        time.sleep(0.01)
    yield from range(n, 2 * n)


def test_what_comes_of_a_generator_has_its_type(client: gl.Client) -> None:
    gl.use(client)
    run = count.run(1)
    assert_type(run, gl.RunYields[int])
    run.close()
    job = count.submit(1)
    assert_type(job.stream(), gl.Yields[int])
    assert isinstance(run, gl.RunYields) and job.wait().succeeded


def test_values_come_as_they_are_yielded(client: gl.Client, tmp_path: Path) -> None:
    gl.use(client)
    place, go = tmp_path / "place", tmp_path / "go"
    assert list(count(3)) == [0, 1, 2], "here it is what it was"
    run = gl.remote(waits_at).run(str(place), str(go), 2)
    seen = []
    for value in run:
        seen.append(value)
        if value == 1:
            go.touch()
    assert seen == [0, 1, 2, 3]
    assert list(count.run(0)) == []


def test_what_it_returns_is_the_result_and_what_it_raises_comes_last(client: gl.Client) -> None:
    gl.use(client)

    def both() -> Generator[int, None, str]:
        returned: str = yield from count.run(2)
        return returned

    generator = both()
    assert [next(generator), next(generator)] == [0, 1]
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == "counted 2"

    seen = []
    with pytest.raises(ValueError, match="counted enough") as failed:
        for value in count.run(3, fail=True):
            seen.append(value)
    assert seen == [0, 1, 2] and isinstance(failed.value.__cause__, gl.RemoteTraceback)

    job = count.submit(3)
    result: Any = job.result()
    assert list(job.stream()) == [0, 1, 2] and result == "counted 3"
    assert list(gl.attach(job.id).stream()) == [0, 1, 2], "again, by anybody"  # type: ignore[attr-defined]
    assert list(job.stream(after=2)) == [2]


def test_a_run_that_no_worker_could_ever_take_is_refused(client: gl.Client) -> None:
    @gl.remote(client=client, cpus=1000)
    def huge() -> Iterator[int]:
        yield 1

    # A daemon that has just begun knows of no worker yet, and waits for one.
    client.submit(gl.command(["true"])).result()
    with pytest.raises(gl.NoWorkerFitsError, match="1000 CPUs"):
        list(huge.run())
    assert len(client.jobs()) == 1


def test_a_run_that_never_begins_is_a_mistake(client: gl.Client) -> None:
    @gl.remote(client=client)
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    with pytest.warns(gl.GPUlayerWarning, match=r"^count.run\(…\) was never iterated over") as warned:
        count.run(3)
        gc.collect()
    assert [each.filename for each in warned] == [__file__]
    run: Any = count.run(2)
    assert repr(run) == "<RunYields of count, not begun: iterating over it does>"
    assert next(run) == 0 and repr(run) == f"<RunYields of count, begun, job {run.job}>"
    assert list(run) == [1] and ", over, job " in repr(run)
    closed: Any = count.run(2)
    closed.close()
    assert repr(closed) == "<RunYields of count, over>"
    del closed
    gc.collect()
    assert len(client.jobs()) == 1


def test_a_line_says_how_the_job_stands_until_the_first_value(
    client: gl.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go = tmp_path / "go"

    @gl.remote(client=client)
    def late(go: str) -> Iterator[int]:
        import os
        import time

        while not os.path.exists(go):
            time.sleep(0.01)
        yield 1

    job = late.submit(str(go))
    job.logs()
    until(lambda: job.refresh().state == "running")
    stream = job.stream(progress=True)
    with ThreadPoolExecutor() as pool:
        values = pool.submit(list, stream)
        shown: list[str] = []

        def is_told() -> bool:
            shown.append(capsys.readouterr().err)
            return "running" in "".join(shown)

        until(is_told)
        go.touch()
        assert values.result() == [1]
    assert capsys.readouterr().err.endswith("\r\x1b[2K"), "nothing is left of it"


def test_long_values_come_as_they_are(client: gl.Client) -> None:
    @gl.remote(client=client)
    def blocks(n: int) -> Iterator[bytes]:
        for each in range(n):
            yield bytes([each]) * (3 << 20 if each % 2 else 10)

    job = blocks.submit(6)
    seen = [(len(block), block[0]) for block in job.stream()]
    assert seen == [(3 << 20 if each % 2 else 10, each) for each in range(6)]
    job.purge()
    with pytest.raises(gl.NotFoundError):
        next(job.stream())


def test_many_short_values_come_in_order(client: gl.Client) -> None:
    @gl.remote(client=client)
    def many(n: int) -> Iterator[int]:
        yield from range(n)

    job = many.submit(20_000)
    assert list(job.stream()) == list(range(20_000))
    # Taken slowly from the middle on, by another client.
    with gl.local() as other:
        stream = other.attach(job.id).stream()  # type: ignore[attr-defined]
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        assert sum(1 for _ in stream) == 19_997


def test_leaving_a_run_cancels_its_job(client: gl.Client, tmp_path: Path) -> None:
    @gl.remote(client=client, grace=0)
    def forever(_: bytes = b"") -> Iterator[int]:
        import itertools
        import time

        for each in itertools.count():
            yield each
            time.sleep(0.01)

    def cancelled() -> bool:
        [job] = client.jobs(name="forever")[:1]
        job.wait(60)
        return job.state == "cancelled"

    for value in forever.run():
        if value == 3:
            break
    gc.collect()
    assert cancelled()
    with pytest.raises(ZeroDivisionError):
        for value in forever.run():
            assert value / 0
    gc.collect()
    assert cancelled()
    run = forever.run()
    next(run)
    run.close()
    assert cancelled() and list(run) == []

    begun = forever.run(os.urandom(100_000))
    with pytest.warns(gl.GPUlayerWarning, match="never iterated over"):
        del begun
        gc.collect()
    assert len(client.jobs(name="forever")) == 3, "no value was asked for"

    left = forever.submit()
    with left.stream() as values:
        assert next(values) == 0
    assert left.refresh().state == "running" and left.record.cancel_requested_at is None
    left.cancel(now=True)
    with pytest.raises(gl.JobCancelledError):
        list(left.stream())


def test_a_run_that_the_program_leaves_open_is_cancelled_with_it(client: gl.Client) -> None:
    code = (
        "import gpulayer as gl\n"
        "@gl.remote(name='left open', grace=0)\n"
        "def forever():\n"
        "    import time\n"
        "    while True:\n"
        "        yield 1\n"
        "        time.sleep(0.01)\n"
        "run = forever.run()\n"
        "print(next(run))\n"
    )
    client.server()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
    [job] = client.jobs(name="left open")
    assert job.wait(60).state == "cancelled"


def test_ctrl_c_cancels_a_run_and_leaves_a_stream(client: gl.Client, tmp_path: Path) -> None:
    functions = (
        "import gpulayer as gl\n"
        "@gl.remote(cpus=0.1, grace=600)\n"
        "def once():\n"
        "    import time\n"
        "    yield 1\n"
        "    time.sleep(600)\n"
    )
    for call, state in (("once.run()", "cancelled"), ("once.submit().stream()", "running")):
        loop = f"try:\n    for value in {call}:\n        print(value, flush=True)\nexcept KeyboardInterrupt:\n    print('left')"
        process = started(functions + loop)
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        until(partial(is_parked, process.pid))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert out == "left\n" and "Traceback" not in err, err
        [job] = client.jobs(limit=1)
        assert job.state == state
        # Of what is nobody's it is always said; of the other only while it is waited for, and that may begin just now.
        assert state == "running" or f"job {job} cancelled · " in err
        job.cancel(now=True)


def test_a_run_with_a_key_is_left_alone(client: gl.Client) -> None:
    @gl.remote(client=client, key="mine")
    def forever() -> Iterator[int]:
        import time

        while True:
            yield 1
            time.sleep(0.01)

    for value in forever.run():
        assert value == 1
        break
    [job] = client.jobs()
    assert job.state == "running" and job.record.cancel_requested_at is None
    with forever.run() as again:
        assert next(again) == 1 and again.job == job, "whoever comes with the key has it"
    job.cancel(now=True).wait(60)


def test_on_a_loop(client: gl.Client) -> None:
    gl.use(client)

    @gl.remote(client=client)
    async def slowly(n: int) -> AsyncIterator[int]:
        for each in range(n):
            await asyncio.sleep(0.01)
            yield each

    async def main() -> None:
        assert [value async for value in slowly.run(3)] == [0, 1, 2]
        job = await slowly.submit.aio(4)
        assert [value async for value in job.stream()] == [0, 1, 2, 3]
        run: Any = await slowly.run.aio(1000)
        assert run.job is not None
        async for value in run:
            if value == 1:
                break
        await run.aclose()
        with pytest.raises(gl.JobCancelledError):
            await run.job.result.aio()

        async def whole() -> None:
            async for _ in slowly.run(1000):
                entered.set()

        entered = asyncio.Event()
        task = asyncio.ensure_future(whole())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [last] = await client.jobs.aio(limit=1)
        assert (await last.wait.aio(60)).state == "cancelled"

    asyncio.run(main())


def test_a_run_that_is_forgotten_on_a_loop_does_not_hold_it_up(client: gl.Client) -> None:
    @gl.remote(client=client, grace=0)
    def forever() -> Iterator[int]:
        import time

        while True:
            yield 1
            time.sleep(0.01)

    daemon = client.server().pid

    async def main() -> None:
        async for _ in cast(Any, forever.run()):
            # Who waited for it here would wait in vain.
            os.kill(daemon, signal.SIGSTOP)
            break
        gc.collect()
        os.kill(daemon, signal.SIGCONT)

    try:
        asyncio.run(main())
    finally:
        os.kill(daemon, signal.SIGCONT)
    [job] = client.jobs()
    assert job.wait(60).state == "cancelled"


def test_a_map_of_generators_gives_lists(client: gl.Client) -> None:
    gl.use(client)
    for chunksize in (1, 2):
        lists: Any = count.map([2, 0, 1], chunksize=chunksize).result()
        assert lists == [[0, 1], [], [0]]


def test_by_name(client: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def count(n):\n    for each in range(n):\n        yield {'n': each}\n    return 'x'\n"
    )
    job: Any = client.submit(gl.function("own:count", args=[2], source=tmp_path))
    assert list(job.stream()) == [{"n": 0}, {"n": 1}] and job.result() == "x"


def test_a_killed_daemon_loses_and_doubles_nothing(client: gl.Client, tmp_path: Path) -> None:
    """Its worker is in the same process: killed in the middle, both begin again where they were."""
    go, place = tmp_path / "go", tmp_path / "place"
    job = gl.remote(client=client)(waits_at).submit(str(place), str(go), 300)
    seen = []
    for value in job.stream():
        seen.append(value)
        if value in (50, 250):
            kill_own_daemon(client)
        if value == 299:
            until(place.exists)
            kill_own_daemon(client)
            go.touch()
    assert seen == list(range(600)) and job.refresh().record.attempt == 1
    assert list(job.stream()) == seen


def test_values_that_nobody_was_there_for_are_brought_later(client: gl.Client, tmp_path: Path) -> None:
    go, place = tmp_path / "go", tmp_path / "place"

    @gl.remote(client=client)
    def long(go: str, place: str) -> Iterator[bytes]:
        import os
        import time

        yield b"first"
        while not os.path.exists(go):
            time.sleep(0.01)
        for each in range(40):
            yield bytes([each]) * 20_000
        open(place, "w").close()

    job = long.submit(str(go), str(place))
    stream = job.stream()
    assert next(stream) == b"first"
    kill_own_daemon(client)
    go.touch()
    until(place.exists)
    assert [block[0] for block in stream] == list(range(40)) and job.refresh().succeeded


def test_another_attempt_goes_on_where_the_last_one_was(client: gl.Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    @gl.remote(client=client, retries=1, retry_on=["any"])
    def twice(mark: str) -> Iterator[str]:
        import os
        import time

        attempt = gl.job.attempt
        for each in range(3 if attempt == 1 else 6):
            yield f"{each} of {attempt}"
        if attempt == 1:
            while not os.path.exists(mark):
                time.sleep(0.01)
            os.abort()

    job = twice.submit(str(mark))
    seen = []
    for value in job.stream():
        seen.append(value)
        if len(seen) == 3:
            mark.touch()
    assert seen == ["0 of 1", "1 of 1", "2 of 1", "3 of 2", "4 of 2", "5 of 2"]
    assert list(job.stream()) == seen and job.refresh().record.attempt == 2


def test_a_killed_client_loses_nothing(client: gl.Client, tmp_path: Path) -> None:
    go, place = tmp_path / "go", tmp_path / "place"
    client.server()
    source = inspect.getsource(waits_at)
    program = tmp_path / "program.py"
    program.write_text(
        "import gpulayer as gl\nfrom typing import Iterator\n\n"
        f"{source}\n"
        f"run = gl.remote(waits_at).run({str(place)!r}, {str(go)!r}, 3)\n"
        "for value in run:\n    print(value, run.job.id, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, job_id = process.stdout.readline().split()
        process.kill()
    go.touch()
    stream = client.attach(job_id).stream()  # type: ignore[attr-defined]
    assert list(stream) == list(range(6)) and stream.job.succeeded
