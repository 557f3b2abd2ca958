"""Maps on a real daemon: order, exceptions, chunks, and going on when somebody was killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import kill_own_daemon, lines, until
from gpulayer.function_job import calls_of
from test_process import sockets, started


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def waits_for(folder: Path) -> gl.RemoteFunction[[int], int]:
    """A function whose call `x` returns ten times that when the file `x` is there."""

    @gl.remote(cpus=0.1, memory="64MiB")
    def work(x: int) -> int:
        import time

        while not (folder / str(x)).exists():
            time.sleep(0.01)
        return x * 10

    return work


def test_values_come_in_the_order_of_the_arguments(client: gl.Client) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def add(x: int, y: int = 1, *, z: int = 0) -> int:
        return x + y + z

    values = add.map(range(5))
    assert list(values) == [1, 2, 3, 4, 5] and len(values) == 5
    assert values.result() == [1, 2, 3, 4, 5], "as often as one likes"
    assert list(add.map([1, 2], [10, 20])) == [11, 22]
    assert list(add.starmap([(1, 2), (3, 4)], kwargs={"z": 100})) == [103, 107]
    attached = client.attach(values.id, gl.Map)
    assert list(attached) == attached.result() == [1, 2, 3, 4, 5] and len(attached) == 5
    assert values.wait().state == "succeeded" and values.record.progress["succeeded"] == 5
    assert "5 succeeded" in values._repr_html_()


def test_a_map_over_nothing_is_empty(client: gl.Client, tmp_path: Path) -> None:
    none = gl.remote(abs).map([])
    assert (str(none), repr(none)) == ("of nothing", "<Map of nothing>")
    assert list(none) == none.result() == [] and len(none) == 0 and none.succeeded
    for same in (none.wait(), none.refresh(), none.cancel(), none.retry(failed=True), pickle.loads(pickle.dumps(none))):
        assert same == none and repr(same) == repr(none)
    assert list(none.logs()) == list(none.logs(follow=True)) == list(none.logs(tail=3)) == []
    assert list(none.events()) == list(none.events(follow=True)) == [] == list(none.children()) == list(none.tasks())
    assert none.fetch(tmp_path / "out") == none.fetch(tmp_path / "out", undeclared=True) == none.outputs.download() == []
    assert str(none.explain()) == "it makes no calls, so there is no job" and none._repr_html_()
    none.purge()
    assert client.jobs() == []


def test_values_come_as_they_are_done_when_asked_so(tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(3), ordered=False)
    (tmp_path / "2").touch()
    stream = iter(values)
    assert next(stream) == 20
    (tmp_path / "0").touch()
    assert next(stream) == 0
    with values.as_completed() as pairs:
        assert sorted(next(pairs) for _ in range(2)) == [(0, 0), (2, 20)]
        (tmp_path / "1").touch()
        assert list(pairs) == [(1, 10)] and list(stream) == [10]


def test_logs_and_files_of_a_map_are_those_of_its_jobs(client: gl.Client, tmp_path: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB", outputs="n")
    def talk(n: int) -> None:
        print("begin", n)
        print("end", n)
        Path("n").write_text(str(n))

    values = talk.map(range(3))
    expected = [f"{word} {n}" for n in range(3) for word in ("begin", "end")]
    assert lines(values, follow=True) == expected == lines(values)
    assert lines(values, tail=1) == ["end 0", "end 1", "end 2"]
    with pytest.raises(gl.ConfigurationError, match=r"children\(\) has them"):
        values.logs(after=1)
    values.wait()
    assert repr(values.outputs) == f"<Outputs of the jobs of {values}: download() brings them, children() has each>"
    brought = values.outputs.download("out")
    assert [str(path.relative_to(tmp_path)) for path in brought] == ["out/0/n", "out/1/n", "out/2/n"]
    assert [path.read_text() for path in brought] == ["0", "1", "2"]
    array = client.submit(gl.command(shell="echo $GPULAYER_ARRAY_INDEX", array=2, cpus=0.1, memory="64MiB"))

    async def followed() -> list[str]:
        return [line.text async for line in array.logs(follow=True)]

    assert asyncio.run(followed()) == ["0", "1"]


def test_an_exception_is_raised_in_its_turn_or_kept(tmp_path: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def divide(x: int) -> float:
        if x == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return 6 / x

    for chunksize in (1, 2):
        values = divide.map([1, 0, 2], chunksize=chunksize)
        stream = iter(values)
        assert next(stream) == 6.0
        with pytest.raises(ZeroDivisionError) as failed:
            next(stream)
        assert isinstance(failed.value.__cause__, gl.RemoteTraceback)
        assert next(stream) == 3.0 and list(stream) == [], "the ones after it are there"
        kept: list[Any] = values.result(return_exceptions=True)
        assert kept[0] == 6.0 and isinstance(kept[1], ZeroDivisionError) and kept[2] == 3.0
        with pytest.raises(ZeroDivisionError):
            values.result()
    lost: list[Any] = divide.map([1, 3, 2, 6], chunksize=2, return_exceptions=True).result()
    assert [type(each) for each in lost] == [float, gl.JobFailedError, float, float]


class Unread:
    """Arguments, so many, that nobody may read."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Any:
        raise AssertionError("it was read")


def test_what_is_no_way_to_map_says_what_is(client: gl.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def add(a: int, b: int = 1) -> int:
        return a + b

    map: Any = add.map
    starmap: Any = add.starmap
    with pytest.raises(TypeError, match=r"no argument `b`: one that all calls get is given as kwargs=\{'b': 3\}"):
        map([1], b=3)
    with pytest.raises(TypeError, match=r"kwargs=\{'b': 3\}"):
        asyncio.run(starmap.aio([(1,)], b=3))
    with pytest.raises(TypeError, match="map takes at least one iterable"):
        map()
    for given in ([], [[(1,)], [(2,)]]):
        with pytest.raises(TypeError, match=f"starmap takes one iterable, of tuples of arguments, and not {len(given)}"):
            starmap(*given)
    for words in ({"concurrency": "2"}, {"chunksize": 2.5}):
        name, value = next(iter(words.items()))
        with pytest.raises(TypeError, match=f"{name}={value!r} is no whole number"):
            map([1], **words)
    with pytest.raises(gl.ConfigurationError, match="chunksize=0 is too small"):
        map([1], chunksize=0)
    with pytest.raises(TypeError, match="call 2 has a value of type dict, whose names would be lost"):
        starmap([(1,), {"a": 1}])
    with pytest.raises(TypeError, match="call 1 has a value of type int; map takes single ones"):
        starmap([1])
    monkeypatch.setattr("gpulayer.function_call._MOST_JOBS", 3)
    monkeypatch.setattr("gpulayer.function_call._MOST_CALLS", 7)
    with pytest.raises(gl.ConfigurationError, match="more than 6 arguments, or no end of them: .* at most 3 jobs, here of chunksize=2"):
        add.map(itertools.count(), chunksize=2)
    with pytest.raises(gl.ConfigurationError, match="more than 7 arguments, or no end of them: .*; a chunksize= of your own takes more"):
        add.starmap((each,) for each in itertools.count())
    # What tells its length is refused before it is read.
    calls: list[Any] = [
        lambda: add.map(Unread(8)),
        lambda: add.map(Unread(8), range(10**30)),
        lambda: add.map(range(10**30)),
        lambda: add.starmap(Unread(8)),
    ]
    for call in calls:
        with pytest.raises(gl.ConfigurationError, match="more than 7 arguments: a map is at most 3 jobs; a chunksize="):
            call()
    assert not client.jobs(), "nothing was sent"
    assert add.map(range(6), itertools.count()).result() == [0, 2, 4, 6, 8, 10], "the shortest counts"
    assert add.map(range(6), chunksize=2).result() == add.map(range(6)).result() == [1, 2, 3, 4, 5, 6]


def test_a_map_that_is_repeated_gives_its_values_as_before(tmp_path: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def divide(x: int) -> float:
        if x == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return 6 / x

    calls = divide.map([1, 0, 2], chunksize=1, return_exceptions=True, ordered=False)
    calls.wait()
    again = calls.retry(failed=True)
    assert isinstance(calls.retry(), gl.Map) and again.return_exceptions and not again.ordered
    assert len(again) == 1 and [type(each) for each in again] == [ZeroDivisionError]
    # Of several calls in one job only what ended the job is one that failed.
    several = divide.map([1, 0, 3, 2, 6], chunksize=2, return_exceptions=True)
    several.wait()
    lost = several.retry(failed=True)
    assert len(lost) == 2 and len(several.retry()) == 5
    raised = divide.map([1, 0, 2], chunksize=2)
    raised.wait()
    with pytest.raises(gl.ConfigurationError, match=r"up to 2 calls share a job.*retry\(\) repeats all calls.*exceptions"):
        raised.retry(failed=True)


def test_what_runs_is_not_repeated_and_says_what_to_do_first(tmp_path: Path) -> None:
    calls = waits_for(tmp_path).map([1])
    for job in (calls, waits_for(tmp_path).submit(1)):
        with pytest.raises(gl.ConflictError, match=r"can be repeated after its end: wait\(\) first, or cancel\(\)"):
            job.retry()
    (tmp_path / "1").touch()


def test_no_secret_comes_back_with_what_calls_of_one_job_raised(tmp_path: Path, home: Path) -> None:
    @gl.remote
    def login(x: int) -> int:
        if x == 2:
            raise ConnectionError("no route")
        if x:
            raise ConnectionError(f"not with {os.environ['KEY']}")
        return x

    place = tmp_path / "key"
    place.write_text("s3cr3t/Value+of=28&characters")
    place.chmod(0o600)
    keyed = login.options(secrets={"KEY": f"file:{place}"})
    values: list[Any] = keyed.map(range(4), chunksize=4, return_exceptions=True).result()
    assert values[0] == 0 and type(values[2]) is ConnectionError and str(values[2]) == "no route"
    for told in (values[1], values[3]):
        assert type(told) is gl.RemoteError and told.message == "not with [secret KEY]"
        assert "s3cr3t" not in str(told.remote_traceback)
    for file in home.rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file


def test_a_crash_in_one_call_of_a_job_takes_nothing_of_those_before() -> None:
    @gl.remote
    def crash(x: int) -> int:
        if x == 2:
            os._exit(0)
        if x == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return x * 10

    values: list[Any] = crash.map(range(8), chunksize=4, return_exceptions=True).result()
    assert [each if isinstance(each, int) else type(each) for each in values] == [
        0, 10, gl.JobFailedError, gl.JobFailedError, 40, 50, gl.JobFailedError, gl.JobFailedError,
    ]  # fmt: skip
    assert values[2].end.reason == "missing_output" and values[6].end.reason == "signalled"


def test_a_crash_after_all_calls_takes_none_of_their_values() -> None:
    @gl.remote
    def crash(x: int) -> int:
        import atexit

        if x % 2 == 0:
            raise ValueError(x)
        atexit.register(os.abort)
        return x

    values = crash.map(range(4), chunksize=2, return_exceptions=True)
    first, one, third, three = values.result()
    assert (type(first), one, type(third), three) == (ValueError, 1, ValueError, 3)
    assert [child.state for child in values.children()] == ["failed", "failed"]
    *_, last = crash.map([1], return_exceptions=True)
    assert isinstance(last, gl.JobFailedError) and "even_if_failed=True" in str(last)


def test_calls_that_were_through_have_values_after_a_cancel_and_a_timeout(tmp_path: Path) -> None:
    @gl.remote(grace=60)
    def step(x: int) -> bytes:
        import time

        if x == 2:
            (tmp_path / "at two").touch()
            time.sleep(600)
        # Not in the job's record, but an artifact.
        return bytes([x]) * 10_000

    cancelled = step.map(range(4), chunksize=4)
    until((tmp_path / "at two").exists)
    cancelled.cancel()
    late = step.options(timeout=5).map(range(4), chunksize=4)
    for values, ended in ((cancelled, gl.JobCancelledError), (late, gl.JobTimedOutError)):
        again: gl.Map[Any] = gl.attach(values.id, gl.Map)
        found: list[Any] = again.result(return_exceptions=True)
        assert [each[:1] for each in found[:2]] == [b"\0", b"\1"]
        assert [type(each) for each in found[2:]] == [ended, ended]


def test_calls_that_leave_outputs_have_jobs_of_their_own(tmp_path: Path) -> None:
    @gl.remote(outputs="m.txt", reuse=True, cpus=0.1, memory="64MiB")
    def write(x: int) -> None:
        Path("m.txt").write_text(str(x))

    values = write.map(range(70))
    values.result()
    values.outputs.download(to=tmp_path / "all")
    assert {path.read_text() for path in (tmp_path / "all").rglob("m.txt")} == {str(x) for x in range(70)}


def test_values_that_are_not_read_leave_no_files_and_a_fork_reads_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def large(x: int) -> bytes:
        return os.urandom(20_000) + bytes([x])

    here = tmp_path / "tmp"
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(here))
    values = large.map(range(12))
    values.wait()
    for _ in range(3):
        next(iter(gl.attach(values.id, gl.Map).as_completed()))
    read = iter(values)
    assert next(read)[-1] == 0
    child = os.fork()
    rest = [value[-1] for value in read]
    if child == 0:
        os._exit(0 if rest == [*range(1, 12)] else 1)
    assert rest == [*range(1, 12)] and os.waitpid(child, 0)[1] == 0
    assert list(here.iterdir()) == []


def test_chunks_make_fewer_jobs_and_the_same_values(client: gl.Client) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def square(x: int) -> int:
        return x * x

    values = square.map(range(2500), chunksize=400)
    assert values.result() == [x * x for x in range(2500)]
    assert len(values) == 2500 and len(client.jobs(100, parent=values.id)) == 7
    attached = client.attach(values.id)
    assert isinstance(attached, gl.Map) and attached.result() == values.result()
    assert sorted(attached.as_completed()) == [(x, x * x) for x in range(2500)]
    with pytest.raises(gl.ConfigurationError, match="chunksize=0"):
        square.map([1], chunksize=0)
    for count in (1, 3):
        whole = square.map(range(count), chunksize=10**12)
        assert whole.result() == [x * x for x in range(count)] and (whole.jobs, len(whole)) == (1, count)


def test_a_retry_of_what_failed_counts_what_it_repeats(client: gl.Client, tmp_path: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def work(x: int) -> int:
        import time

        if x in (4, 9) and not (tmp_path / "again").exists():
            os._exit(3)
        while x > 3 and not (tmp_path / str(x)).exists():
            time.sleep(0.01)
        return x * 10

    values = work.map(range(10), chunksize=4)
    for x in range(4, 10):
        (tmp_path / str(x)).touch()
    values.wait()
    (tmp_path / "again").touch()
    for x in range(4, 10):
        (tmp_path / str(x)).unlink()
    retried = values.retry(failed=True)
    assert isinstance(retried, gl.Map) and (len(retried), retried.jobs) == (6, 2)
    assert "of 6 calls" in repr(retried)
    for x in (8, 9):
        (tmp_path / str(x)).touch()
    stream = retried.as_completed()
    assert [next(stream), next(stream)] == [(8, 80), (9, 90)]
    with pytest.raises(gl.WaitTimeoutError, match="4 of 6 calls have not ended"):
        retried.result(timeout=0.5)
    for x in range(4, 8):
        (tmp_path / str(x)).touch()
    assert retried.result() == [40, 50, 60, 70, 80, 90]
    attached = client.attach(retried.id, gl.Map)
    assert len(attached) == 6 and attached.result() == retried.result()


def test_calls_that_are_tried_again_when_they_raise_have_jobs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulayer.function_call._JOBS", 2)

    def fails_first(name: str) -> str:
        if name != "c" and not (tmp_path / name).exists():
            (tmp_path / name).touch()
            raise ValueError(name)
        return name

    plain = gl.remote(cpus=0.05, memory="16MiB", retries=1)(fails_first)
    tried = plain.options(retry_on=["exit_nonzero"])
    values = tried.map("abc")
    assert values.jobs == 3 and values.result() == ["a", "b", "c"]
    assert plain.map("abc").jobs == 2
    with pytest.warns(gl.GPUlayerWarning, match="chunksize=2 calls succeeds whatever they raise.*chunksize=1 retries each"):
        shared = tried.map("cde", chunksize=2)
    with pytest.raises(ValueError, match="d"):
        shared.result()


def test_no_label_of_a_user_says_how_a_map_is_dealt(client: gl.Client) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def square(x: int) -> int:
        return x * x

    for text in ("4/2", "x"):
        with pytest.raises(gl.ConfigurationError, match="'gpulayer.calls' cannot be given: names that begin with"):
            square.options(labels={"gpulayer.calls": text}).map(range(4))
    # What another program wrote.
    for text in ("", "4/2", "6", "6/0", "1/4", "²/3", "9" * 5000 + "/2", "2/1", "6/2/1", "-6/2", "0/2"):
        assert calls_of({"gpulayer.calls": text}, 3) == (3, 1), text
    assert calls_of({"gpulayer.calls": "6/2"}, 3) == (6, 2) == calls_of({"gpulayer.calls": "6/2"}, 1)
    job = square.submit(3)
    again = client.submit({**job.record.spec, "labels": {"gpulayer.calls": "4/2"}})
    assert isinstance(again, gl.FunctionJob) and again.result() == 9


def test_no_more_run_at_once_than_were_allowed(client: gl.Client, tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(4), concurrency=1)
    until(lambda: client.jobs(parent=values.id, state="running"))
    assert len(client.jobs(parent=values.id, state="running,scheduled")) == 1
    for x in range(4):
        (tmp_path / str(x)).touch()
    assert values.result() == [0, 10, 20, 30]


def test_one_large_argument_of_many_calls_is_sent_once(client: gl.Client) -> None:
    data = os.urandom(1 << 20)

    @gl.remote(cpus=0.1, memory="128MiB")
    def part(whole: bytes, at: int) -> bytes:
        return whole[at : at + 20_000]

    values = part.map([data] * 8, range(8))
    assert values.result() == [data[at : at + 20_000] for at in range(8)]
    items = values.record.spec["array"]["items"]
    assert len({tuple(item["values"]) for item in items}) == 1


def test_the_calls_of_a_map_are_few_however_many_jobs_it_has(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    @gl.remote(cpus=0.01, memory="16MiB")
    def same(x: int) -> int:
        return x

    done = same.map(range(200), chunksize=1)
    done.wait()
    asked: list[str] = []
    call = type(client.session).call

    async def counted(self: Any, route: Any, *args: Any, **words: Any) -> Any:
        asked.append(route.path)
        return await call(self, route, *args, **words)

    monkeypatch.setattr(type(client.session), "call", counted)
    attached = client.attach(done.id)
    assert isinstance(attached, gl.Map) and attached.result() == list(range(200))
    assert len(asked) < 6, asked


def test_cancelling_ends_all_that_has_not_ended(tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(3))
    (tmp_path / "0").touch()
    stream = iter(values)
    assert next(stream) == 0
    values.cancel(now=True)
    with pytest.raises(gl.JobCancelledError):
        list(stream)
    assert values.wait().state == "cancelled"
    kept: list[Any] = values.result(return_exceptions=True)
    assert kept[0] == 0 and isinstance(kept[1], gl.JobCancelledError)


def test_patience_may_end_before_a_map(tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(2))
    with pytest.raises(gl.WaitTimeoutError, match="2 of 2 calls have not ended"):
        values.result(timeout="100ms")
    with pytest.raises(gl.ConfigurationError, match="timeout='soon' is not a duration"):
        values.results(timeout="soon")
    (tmp_path / "0").touch()
    (tmp_path / "1").touch()
    assert values.result() == [0, 10]


def test_what_no_worker_could_ever_take_is_not_waited_for(client: gl.Client) -> None:
    @gl.remote(cpus=1000)
    def huge(x: int) -> int:
        return x

    # A daemon that has just begun knows of no worker yet, and waits for one.
    gl.command(["true"]).submit().result()
    with pytest.warns(gl.GPUlayerWarning, match="huge: .* no worker could ever take it") as warned:
        values, iterated, late = huge.map([1, 2]), huge.map([1, 2]), huge.map([1, 2])
    assert {each.filename for each in warned} == {__file__}
    with pytest.raises(gl.NoWorkerFitsError, match="1000 CPUs.*this would do") as refused:
        values.result()
    assert "stays queued" in str(refused.value) and values.refresh().state == "queued"
    for value in ("all", "one"):
        with pytest.raises(gl.NoWorkerFitsError, match="1000 CPUs"):
            list(values.results()) if value == "all" else next(values.as_completed())
    with pytest.raises(gl.NoWorkerFitsError, match="1000 CPUs"):
        list(iterated)
    assert iterated.wait().state == "cancelled", "nobody else has it"
    with pytest.raises(gl.WaitTimeoutError, match="2 of 2 calls have not ended: 1 worker: needs 1000 CPUs"):
        gl.attach(late.id, gl.Map).result(timeout=0.1)

    async def later() -> None:
        with pytest.raises(gl.NoWorkerFitsError, match="1000 CPUs"):
            await values

    asyncio.run(later())
    for each in (values, late):
        each.cancel().wait()


def test_a_line_says_how_a_map_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def is_told(text: str) -> bool:
        shown.append(capsys.readouterr().err)
        return text in "".join(shown)

    values = waits_for(tmp_path).map(range(6), chunksize=4)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(values.result, progress=True)
        until(lambda: is_told(" 0 of 6 done "))
        until(lambda: is_told("2 running"))
        for each in (4, 5):
            (tmp_path / str(each)).touch()
        until(lambda: is_told(" 2 of 6 done "))
        for each in range(4):
            (tmp_path / str(each)).touch()
        assert waiting.result() == [0, 10, 20, 30, 40, 50]
    shown.append(capsys.readouterr().err)
    assert "".join(shown).count("\r\x1b[2K") == "".join(shown).count(" of 6 done") + 1, "taken away once, at the end"
    for value in values.results(progress=True):
        assert capsys.readouterr().err == "", "no line among what is printed"
        assert values.state == "succeeded"


def test_maps_have_a_form_for_asyncio() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def double(x: int) -> int:
        return 2 * x

    async def work() -> None:
        values = await double.map.aio(range(4))
        assert [value async for value in values] == [0, 2, 4, 6] == await values
        assert sorted([pair async for pair in values.as_completed()]) == [(0, 0), (1, 2), (2, 4), (3, 6)]
        assert await values.result.aio() == [0, 2, 4, 6]

    asyncio.run(work())


def test_a_map_left_early_leaves_no_connection(tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(3))
    (tmp_path / "0").touch()
    assert values.refresh().id
    before = sockets()
    for _ in range(3):
        with values.results() as some:
            assert next(some) == 0
        assert next(iter(values)) == 0
    until(lambda: sockets() <= before)
    values.cancel(now=True).wait()


def test_a_killed_daemon_loses_nothing_of_a_map(client: gl.Client, tmp_path: Path) -> None:
    values = waits_for(tmp_path).map(range(6))
    (tmp_path / "0").touch()
    seen = []
    for value in values:
        seen.append(value)
        if value == 0:
            kill_own_daemon(client)
            for x in range(1, 6):
                (tmp_path / str(x)).touch()
    assert seen == [0, 10, 20, 30, 40, 50]


def test_a_killed_client_loses_nothing_of_a_map(client: gl.Client, tmp_path: Path) -> None:
    process = started(
        f"""
        import gpulayer as gl
        from pathlib import Path

        @gl.remote(cpus=0.1, memory="64MiB")
        def work(x):
            import time
            while not (Path({str(tmp_path)!r}) / str(x)).exists():
                time.sleep(0.01)
            return x * 10

        gl.use(gl.local())
        values = work.map(range(4))
        print(values.id, flush=True)
        list(values)
        """
    )
    assert process.stdout is not None and process.stderr is not None
    job_id = process.stdout.readline().strip()
    (tmp_path / "0").touch()
    until(lambda: client.jobs(parent=job_id, state="succeeded"))
    process.kill()
    process.communicate()
    for x in range(1, 4):
        (tmp_path / str(x)).touch()
    attached = client.attach(job_id)
    assert isinstance(attached, gl.Map) and attached.result() == [0, 10, 20, 30]
