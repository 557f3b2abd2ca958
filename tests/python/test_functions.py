"""Remote functions on a real daemon: what a user relies on."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
import weakref
import zipapp
from pathlib import Path
from typing import Any, Callable, Iterator

import cloudpickle
import gpulayer as gl
import pytest
from conftest import SOURCES, lines
from gpulayer import function_call


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def test_a_function_runs_elsewhere_and_gives_its_value() -> None:
    base = 40

    @gl.remote
    def add(x: int, *, y: int = 1) -> tuple[int, str, int]:
        """Adds."""
        return base + x + y, os.environ["GPULAYER_JOB_ID"], os.getpid()

    value, job_id, pid = add.run(1)
    assert value == 42 and job_id.startswith("job_") and pid != os.getpid()
    assert add.run(1, y=2)[0] == 43
    assert add.__name__ == "add" and add.__doc__ == "Adds."
    with pytest.raises(KeyError):
        add(1)


def test_called_plainly_it_runs_here() -> None:
    double = gl.remote(lambda x: (x * 2, os.getpid()))
    assert double(4) == (8, os.getpid())
    assert double.run(4)[0] == 8


def test_arguments_that_it_does_not_take_are_told_here(client: gl.Client) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def add(a: int, b: int = 1) -> int:
        return a + b

    run: Any = add.run
    submit: Any = add.submit
    calls: list[Callable[[], Any]] = [
        run,
        lambda: run(1, 2, 3),
        lambda: run(1, c=2),
        lambda: submit(1, 2, 3),
        lambda: add.map([1], [2], [3]),
        lambda: add.starmap([(1,), (1, 2), ()]),
        lambda: add.map([1], kwargs={"a": 2}),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^add\(a: '?int'?, b: '?int'? = 1\).*: ") as told:
            call()
        assert told.value.__cause__ is None
    with pytest.raises(TypeError, match="missing a required argument: 'a' .call 3 of the map."):
        add.starmap([(1,), (1, 2), ()])
    assert not client.jobs(), "nothing was sent"

    def with_seven(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def called() -> int:
            return function(7)

        return called

    assert gl.remote(cpus=0.1, memory="64MiB")(with_seven(add.function)).run() == 8, "a wrapper's own arguments count"
    assert gl.remote(cpus=0.1, memory="64MiB")(max).run(3, 4) == 4, "of one that does not tell the job finds out"


def test_attributes_of_the_function_replace_nothing_of_its_own() -> None:
    def add(x: int) -> int:
        return x + 1

    wrong: Any = add
    wrong.function, wrong.words, wrong.run, wrong.note = str, {"gpus": 8}, None, "mine"
    function: Any = gl.remote(add, cpus=0.1, memory="64MiB")
    assert (function(1), function.run(1), function.words) == (2, 2, {"cpus": 0.1, "memory": "64MiB"})
    assert function.note == "mine"


def test_an_argument_may_have_any_name() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def told(**named: int) -> dict[str, int]:
        return named

    @gl.remote(cpus=0.1, memory="64MiB")
    def counted(**named: int) -> Iterator[str]:
        yield from named

    names = {"self": 1, "function": 2, "args": 3, "instance": 4, "call": 5}
    assert told(**names) == told.run(**names) == told.submit(**names).result() == names
    assert asyncio.run(told.run.aio(**names)) == names
    assert list(counted.run(**names)) == list(names) and told.map([], kwargs=names).result() == []


def test_a_method_is_one_of_its_object() -> None:
    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @gl.remote(cpus=0.1, memory="64MiB")
        def predict(self, x: int) -> int:
            return self.factor * x

        @gl.remote(cpus=0.1, memory="64MiB")
        def count(self, x: int) -> Iterator[int]:
            yield from range(self.factor, self.factor + x)

        @staticmethod
        @gl.remote(cpus=0.1, memory="64MiB")
        def alone(x: int) -> int:
            return x + 1

    model = Model(3)
    assert model.predict(2) == 6 and Model.predict(model, 2) == 6
    assert model.predict.run(2) == 6 and list(model.predict.map([1, 2])) == [3, 6]
    assert list(model.count.run(2)) == [3, 4] and Model.alone.run(2) == 3
    assert model.predict.options(name="other").submit(5).result() == 15
    with pytest.raises(TypeError, match="^predict.x: .*missing a required argument: 'x'"):
        model.predict.run()  # type: ignore[call-arg]

    class Local:
        @gl.remote(cpus=0.1, memory="64MiB")
        def twice(self, x: int) -> int:
            return 2 * x

        held: Any = gl.remote(cpus=0.1, memory="64MiB")(abs)

    assert Local().twice(2) == Local().twice.run(2) == 4 and Local().held.run(-1) == 1


def test_a_class_method_is_one_of_its_class() -> None:
    class Model:
        factor = 3

        @gl.remote(cpus=0.1, memory="64MiB")
        @classmethod
        def scaled(cls, x: int = 7) -> tuple[str, int]:
            return cls.__name__, cls.factor * x

        @gl.remote(cpus=0.1, memory="64MiB")
        @classmethod
        def count(cls) -> Iterator[int]:
            yield from range(cls.factor)

    class Larger(Model):
        factor = 5

    # No type checker knows whose argument `cls` is.
    model: Any = Model
    larger: Any = Larger
    assert model.scaled(2) == model.scaled.run(2) == Model().scaled.run(2) == ("Model", 6)
    assert larger.scaled.run() == larger().scaled.submit().result() == ("Larger", 35)
    assert larger.scaled.options(name="other").map([1, 2]).result() == [("Larger", 5), ("Larger", 10)]
    assert list(model.count.run()) == [0, 1, 2] and model.scaled.__name__ == "scaled"
    with pytest.raises(TypeError, match="too many positional arguments"):
        model.scaled.run(2, 3)


def test_what_is_no_function_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="Path is a class: decorate its methods, or a function"):
        gl.remote(Path)
    wrapped: Any = staticmethod(max)
    with pytest.raises(TypeError, match="@staticmethod belongs above @gpulayer.remote"):
        gl.remote(wrapped)
    with pytest.raises(TypeError, match=r"Model.make takes `cls`: @gpulayer.remote belongs above @classmethod"):

        class Model:
            @classmethod
            @gl.remote
            def make(cls) -> None:
                """On 3.13 it would be called without its class."""

    assert gl.remote(lambda cls: cls)(1) == 1, "the name alone makes no class method"


def test_a_submitted_call_is_a_job_with_a_value(client: gl.Client) -> None:
    @gl.remote(memory="64MiB", env={"GREETING": "hello"}, timeout="5m")
    def speak(name: str) -> str:
        print("speaking")
        return f"{os.environ['GREETING']} {name}"

    job = speak.options(name="told", labels={"a": "b"}).submit("you")
    assert job.result() == "hello you" and job.result() == "hello you"
    assert job.end is not None and job.end.reason == "completed"
    assert (job.name, job.record.labels, lines(job)) == ("told", {"a": "b"}, ["speaking"])
    assert job.record.spec["resources"]["memory_bytes"] == 64 << 20
    assert client.attach(job.id).result() == client.attach(job.id, gl.FunctionJob).result() == "hello you"
    with pytest.raises(
        gl.ConfigurationError, match=r"job … \(told\) is a FunctionJob, and no Map".replace("…", "….{6}")
    ):
        client.attach(job.id, gl.Map)
    keyed = speak.options(key="tonight")
    assert keyed.submit("you") == keyed.submit("you") != keyed.options(key="tomorrow").submit("you")
    repeated = job.retry()
    assert isinstance(repeated, gl.FunctionJob) and repeated.result() == "hello you"


class OwnError(Exception):
    """Whose constructor takes something else than its message."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} {code}")


def test_an_exception_is_raised_as_itself_with_where_it_was_raised() -> None:
    class Empty(LookupError):
        pass

    @gl.remote
    def fail(how: str) -> None:
        if how == "own":
            raise Empty("nothing there")
        raise ValueError("told")

    with pytest.raises(ValueError, match="^told$") as failed:
        fail.run("value")
    cause = failed.value.__cause__
    assert isinstance(cause, gl.RemoteTraceback)
    assert 'raise ValueError("told")' in str(cause) and f'File "{__file__}"' in str(cause) and "job …" in str(cause)
    with pytest.raises(Empty, match="nothing there"):
        fail.run("own")
    job = fail.submit("value").wait()
    assert job.state == "failed" and job.exit_code == 1 and "ValueError: told" in job._repr_html_()
    assert any("ValueError: told" in line for line in lines(job))


def test_an_exception_keeps_nothing_of_who_met_it() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def fails(x: int) -> int:
        raise ValueError(x)

    class Large:
        pass

    job, values = fails.submit(1), fails.map([1])
    with pytest.raises(ValueError):
        job.result()
    chunk = fails.map([1, 2], chunksize=2)

    def here(call: Callable[[], Any]) -> Any:
        large = Large()
        try:
            call()
        except ValueError:
            pass
        return weakref.ref(large)

    async def awaited() -> Any:
        large = Large()
        try:
            await job
        except ValueError:
            pass
        return weakref.ref(large)

    gc.collect()
    gc.disable()
    try:
        calls = (lambda: fails.run(1), job.result, values.result, chunk.result, lambda: next(chunk.results()))
        assert [here(call)() for call in calls] == [None] * len(calls)
        assert asyncio.run(awaited())() is None
    finally:
        gc.enable()
    kept = [*values.results(return_exceptions=True), *chunk.result(return_exceptions=True)]
    assert [each.__traceback__ for each in kept if isinstance(each, ValueError)] == [None] * 3


def test_a_lost_module_is_a_reason_of_its_own() -> None:
    @gl.remote
    def fail(how: str) -> None:
        if how == "long":
            fail_at_length()
        __import__("notthere")

    def fail_at_length() -> None:
        raise ImportError("x" * 40_000) from None

    for how in ("plain", "long"):
        job = fail.options(retries=1, retry_on=["import_error"]).submit(how).wait()
        assert job.end is not None and job.end.reason == "import_error" and job.record.attempt == 2, job.end
        with pytest.raises(ImportError):
            job.result()


def test_attempts_that_were_left_say_what_they_were_for(client: gl.Client) -> None:
    @gl.remote(cpus=0.1, memory="64MiB", retries=2)
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError) as failed:
        fail.run()
    told = str(failed.value.__cause__)
    assert '[2 more attempts were allowed, for worker_lost only: retry_on=["exit_nonzero"] is for this end]' in told
    with pytest.raises(ValueError) as failed:
        fail.options(retries=1, retry_on=["any"]).run()
    assert "more attempt" not in str(failed.value.__cause__)
    with pytest.raises(gl.JobFailedError, match="  1 more attempt was allowed, for worker_lost only"):
        client.submit(gl.command(["false"], retries=1)).result()


def test_why_a_call_failed_is_what_it_raised() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def fail(how: str) -> None:
        if how == "group":
            raise ExceptionGroup("several", [KeyError("one")])  # type: ignore[name-defined,unused-ignore]  # noqa: F821
        raise ValueError(how)

    told = {"plain": "exited with status 1: ValueError: plain", "two\nlines": "exited with status 1: ValueError: two"}
    if sys.version_info >= (3, 11):
        told["group"] = "exited with status 1: ExceptionGroup: several (1 sub-exception)"
    for how, why in told.items():
        job = fail.submit(how)
        assert job.wait().why.startswith(why)


def test_what_cannot_be_raised_as_itself_says_what_it_was() -> None:
    @gl.remote
    def fail(how: str) -> Any:
        if how == "lost":
            import types

            module = types.ModuleType("lost_package")
            sys.modules["lost_package"] = module
            exec("class LostError(Exception): pass", vars(module))
            raise module.LostError("only there")
        if how == "stop":
            raise StopIteration("early")
        return (each for each in "ab") if how == "generator" else sys.exit(how)

    for how, kind, told in [
        ("lost", "lost_package.LostError", "install lost_package here too"),
        ("stop", "StopIteration", "would end more than the call"),
        ("bye", "SystemExit", "bye"),
        ("generator", "TypeError", "return what can be sent"),
    ]:
        with pytest.raises(gl.RemoteError) as failed:
            fail.run(how)
        assert failed.value.type == kind and told in str(failed.value)


def test_a_call_that_loses_its_server_names_the_job_that_goes_on(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> Any:
        raise gl.CutError("the connection was cut")

    with monkeypatch.context() as patched:
        patched.setattr("gpulayer.function_job.FunctionJob.outcome", lost)
        with pytest.raises(gl.CutError) as failed:
            gl.remote(client=client)(len).run("abc")
    [job] = client.jobs()
    assert failed.value.job == job
    assert str(failed.value).startswith(f"the connection was cut\n  job {job} goes on · gpulayer ")


def test_a_job_that_ends_otherwise_is_a_failed_job() -> None:
    @gl.remote
    def end(how: str) -> None:
        import signal
        import time

        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(gl.JobFailedError, match="SIGKILL"):
        end.run("kill")
    with pytest.raises(gl.JobTimedOutError):
        end.options(timeout=0.3, grace=0).run("sleep")
    job = end.submit("sleep")
    with pytest.raises(gl.WaitTimeoutError):
        job.result(timeout=0.1)
    job.cancel(now=True)
    with pytest.raises(gl.JobCancelledError):
        job.result()


def test_a_value_is_there_although_the_process_crashed_behind_it() -> None:
    @gl.remote
    def crash(x: int) -> int:
        import atexit

        atexit.register(os.abort)
        if x == 0:
            raise ZeroDivisionError
        if x == 1:
            os.abort()
        return x

    job = crash.submit(2)
    with pytest.raises(gl.JobFailedError, match=r"job.result\(even_if_failed=True\)"):
        job.result()
    assert job.state == "failed" and job.result(even_if_failed=True) == 2
    assert gl.attach(job.id, gl.FunctionJob).result(even_if_failed=True) == 2
    with pytest.raises(ZeroDivisionError):
        crash.submit(0).result(even_if_failed=True)
    with pytest.raises(gl.JobFailedError) as caught:
        crash.submit(1).result(even_if_failed=True)
    assert "even_if_failed" not in str(caught.value), "it had not returned"


def test_arguments_that_cannot_be_sent_are_named() -> None:
    @gl.remote
    def take(*_: Any, **__: Any) -> None: ...

    with pytest.raises(gl.ConfigurationError, match="argument 2 of take cannot be sent: TypeError: cannot pickle"):
        take.run(1, threading.Lock())
    with pytest.raises(gl.ConfigurationError, match="the argument `lock` of take"):
        take.run(lock=threading.Lock())
    with pytest.raises(gl.ConfigurationError, match=r"argument 1 of take \(call 3 of the map\) cannot be sent: TypeError"):
        take.map([0, 1, threading.Lock()], chunksize=2)
    lock = threading.Lock()
    locked = locked_by(lock)
    with pytest.raises(gl.ConfigurationError, match=r"the function locked cannot be sent because of .*`\w+` \(lock\)"):
        gl.remote(locked).run()
    for function in (lambda: locked(), functools.lru_cache(lambda: [locked() for _ in "a"])):
        with pytest.raises(gl.ConfigurationError, match=r"`\w+` \(lock\) of `locked`: TypeError"):
            gl.remote(function).run()
    with pytest.raises(gl.ConfigurationError, match="memory="):
        gl.remote(memory="16 gigs")
        gl.remote(memory="16 gigs")(len)
    with pytest.raises(gl.ConfigurationError, match="`array` is no word of a remote function"):
        gl.remote(array=3)(len)
    with pytest.raises(TypeError, match="takes a function"):
        gl.remote(3)  # type: ignore[call-overload]


def locked_by(lock: Any) -> Any:
    def locked() -> None:
        with lock:
            pass

    return locked


def test_large_arguments_and_results_are_artifacts_and_sent_once(client: gl.Client) -> None:
    data = os.urandom(3 << 20)

    @gl.remote
    def twice(part: bytes) -> bytes:
        return part + part

    first, second = twice.submit(data), twice.submit(data)
    assert first.result() == data + data == second.result()
    sent = first.record.spec["workload"]["function"]
    assert len(sent["values"]) == 1 and len(sent["payload"]) < 8192
    assert sent["values"] == second.record.spec["workload"]["function"]["values"]
    assert first.record.result["size_bytes"] > 6 << 20 and "artifact" in first.record.result
    digests = {digest for _, digest in function_call._sent}
    assert not any(digest in str(sent["values"]) for digest in digests), "only what each call asks for is remembered"


def test_remote_functions_call_each_other_within_a_job() -> None:
    @gl.remote
    def square(x: int) -> int:
        return x * x

    @gl.remote
    def factorial(x: int) -> int:
        return 1 if x < 2 else x * factorial(x - 1)

    @gl.remote
    async def total(numbers: list[int]) -> int:
        return sum(square(x) for x in numbers) + factorial(3)

    assert total.run([1, 2, 3]) == 20


def test_a_function_by_its_name_takes_and_gives_json(client: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("def main(rate, epochs=1):\n    return {'loss': rate * epochs}\n")
    spec = gl.function("train:main", args=[0.5], kwargs={"epochs": 4}, source=tmp_path / "project")
    job = client.submit(spec)
    assert isinstance(job, gl.FunctionJob) and job.result() == {"loss": 2.0}
    rates = client.submit(gl.function("train:main", source=tmp_path / "project", array=[0.1, {"args": [0.2, 10]}]))
    assert isinstance(rates, gl.Map) and rates.result() == [{"loss": 0.1}, {"loss": 2.0}]
    with pytest.raises(ZeroDivisionError):
        client.submit(gl.function("operator:truediv", args=[1, 0])).result()
    with pytest.raises(gl.ConfigurationError, match="write module:function"):
        gl.function("train.main")
    with pytest.raises(gl.ConfigurationError, match=r"gl\.remote"):
        gl.function("train:main", args=[{1}])


def test_every_call_has_a_form_for_asyncio() -> None:
    @gl.remote
    def double(x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return 2 * x

    async def work() -> None:
        assert await asyncio.gather(*(double.run.aio(x) for x in range(4))) == [0, 2, 4, 6]
        job = await double.submit.aio(5)
        assert await job == 10 == await job.result.aio()
        with pytest.raises(ValueError):
            await double.run.aio(-1)

    asyncio.run(work())


PROJECT = {
    "pyproject.toml": "",
    "src/model/__init__.py": "import gpulayer as gl\nfrom .layers import size\n",
    "src/model/layers.py": "size = 7\n",
    "src/model/train.py": """
        import gpulayer as gl
        from . import size

        @gl.remote(name="train")
        def train(x):
            return x * size, __file__

        class Model:
            def __init__(self, factor):
                self.factor = factor

            @gl.remote
            def times(self, x):
                return x * self.factor * size
        """,
    "main.py": """
        import pathlib, sys
        sys.path.insert(0, "src")
        import gpulayer as gl
        from model import layers
        from model.train import Model, train

        @gl.remote
        def local(x):
            return x + layers.size

        with gl.local() as client:
            gl.use(client)
            value, file = train.run(2)
            print(value, local.run(1), "/src/model/" in file and not file.startswith(sys.argv[1]))
            pathlib.Path("src/model/layers.py").write_text("size = 8  # edited\\n")
            print(train.run(2)[0], train(2)[0], Model(10).times.run(2), Model(10).times(2))
        """,
}


def test_modules_of_the_project_travel_and_go_by_reference(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    env = dict(os.environ, PYTHONPATH=SOURCES)
    command = [sys.executable, "-W", "error", "main.py", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("14 8 True\n16 14 160 140\n", ""), "what was edited travels anew"


def test_a_program_in_an_archive_travels_as_any_project(tmp_path: Path) -> None:
    program = tmp_path / "app"
    (program / "tool").mkdir(parents=True)
    (program / "tool" / "__init__.py").touch()
    (program / "tool" / "steps.py").write_text("step = 4\n")
    (program / "tool" / "work.py").write_text(
        textwrap.dedent(
            """
            import gpulayer as gl
            from tool import steps

            @gl.remote(cpus=0.1, memory="64MiB")
            def move(x):
                return x + steps.step

            def main():
                print(move.run(1), gl.__file__, gl.remote(lambda x: 2 * x).run(4))
            """
        )
    )
    for package in (gl, cloudpickle):
        folder = Path(package.__file__ or "").parent
        shutil.copytree(folder, program / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(program, tmp_path / "app.pyz", main="tool.work:main")
    shutil.rmtree(program)
    done = subprocess.run(
        [sys.executable, "app.pyz"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": "", "TMPDIR": str(tmp_path)},
    )
    assert done.stdout == f"5 {tmp_path}/app.pyz/gpulayer/__init__.py 8\n", done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["app.pyz"]


def test_an_interpreter_of_ones_own_choice_gets_what_it_lacks(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)

    @gl.remote(python={"interpreter": str(tmp_path / "bare" / "bin" / "python3")})
    def power(exponent: int) -> Any:
        return sys.prefix, lambda base: base**exponent

    prefix, squared = power.run(2)
    assert prefix == str(tmp_path / "bare") and squared(3) == 9


POOL = """
import multiprocessing, pickle, sys
from concurrent.futures import ProcessPoolExecutor
import gpulayer as gl

@gl.remote(cpus=0.1, memory="64MiB")
def double(x):
    return 2 * x

def run(function, x):
    return function.run(x), function.words.get("name")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        print(list(pool.map(double.run, range(3))), list(pool.submit(double.map, [4]).result()))
        print(pool.submit(double.submit(5).result).result())
        other = double.options(name="other")
        print(pool.submit(run, double, 6).result(), pool.submit(run, other, 7).result())
        assert pickle.loads(pickle.dumps(double)) is double and pickle.loads(pickle.dumps(other)).words == other.words
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_calls_go_through_a_pool_of_processes(how: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(POOL)
    env = dict(os.environ, PYTHONPATH=SOURCES)
    command = [sys.executable, "main.py", how]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[0, 2, 4] [8]\n10\n(12, None) (14, 'other')\n", "")


ELSEWHERE = """
import cloudpickle, sys
import gpulayer as gl

@gl.remote(cpus=0.1, memory="64MiB")
def double(x):
    "Twice."
    return 2 * x if x < 10 else double(x - 1)

@gl.remote(cpus=0.1, memory="64MiB")
def below(x):
    yield from range(x)

class Scale:
    def __init__(self, by):
        self.by = by

    @gl.remote(cpus=0.1, memory="64MiB")
    def scaled(self, x):
        return self.by * x

def via(x):
    return double.run(x)

def declared():
    return double.words, double.__doc__, double.function.__globals__["double"] is double

if __name__ == "__main__":
    other = double.options(name="other")
    sys.stdout.buffer.write(cloudpickle.dumps((double, other, double.run, below.run, double.map, Scale(3).scaled, via, declared)))
"""


def test_another_librarys_cloudpickle_takes_a_function_of_the_program_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(ELSEWHERE)
    env = dict(os.environ, PYTHONPATH=SOURCES)
    packed = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=env, capture_output=True, check=True).stdout
    double, other, run, generate, each, scaled, via, declared = pickle.loads(packed)
    assert run(1) == 2 and list(generate(2)) == [0, 1] and list(each([3])) == [6] and via(4) == 8
    assert (other.run(5), other.words["name"]) == (10, "other") and double(11) == 18
    assert (scaled.run(2), scaled(2)) == (6, 6)
    assert declared() == (double.words, "Twice.", True)


def test_a_function_of_a_spawned_child_travels_as_that_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import gpulayer as gl

            step = 3

            class Point:
                def __init__(self, x):
                    self.x = x

            @gl.remote(cpus=0.1, memory="64MiB")
            def move(point):
                return Point(point.x + step)

            def moved(x):
                point = move.run(Point(x))
                return point.x, type(point) is Point, __name__

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(moved(1), pool.apply(moved, (2,)))
            """
        )
    )
    env = dict(os.environ, PYTHONPATH=SOURCES)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "(4, True, '__main__') (5, True, '__mp_main__')\n", done.stderr


@pytest.mark.parametrize("how", ["-c", "-", "-i"])
def test_a_function_needs_no_file(how: str, tmp_path: Path) -> None:
    script = "import gpulayer as gl\n@gl.remote(cpus=0.1)\ndef f(x):\n    return x + 1\n\nprint(f.run(1))\n"
    space: dict[str, Any] = {}
    exec(script.replace("print(f.run(1))", "value = f.run(1)"), space)
    assert space["value"] == 2
    command = [sys.executable, "-W", "error", "-bb", how, *([script] if how == "-c" else [])]
    env = dict(os.environ, PYTHONPATH=SOURCES)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, input="" if how == "-c" else script, capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize("text", ["[]", "{}", '"x"', '{"type": 1, "message": "m"}', "{" + " " * 10_000])
def test_whatever_a_process_leaves_as_its_exception_is_an_error_that_says_so(text: str) -> None:
    @gl.remote
    def strange(text: str) -> None:
        Path(os.environ["GPULAYER_FUNCTION"], "raised").write_text(text)
        os._exit(1)

    with pytest.raises(gl.RemoteError, match="what its process wrote of it cannot be understood; the log may say more"):
        strange.run(text)


@gl.remote(cpus=0.1, memory="64MiB")
def tripled(x: int) -> int:
    return 3 * x


class Scaled:
    @gl.remote(cpus=0.1, memory="64MiB")
    def by(self, x: int) -> int:
        return 3 * x


def test_a_function_with_other_words_can_be_pickled_and_still_travels(client: gl.Client) -> None:
    for function in (tripled.options(name="other"), Scaled().by, Scaled().by.options(name="other")):
        for pickled in (pickle.dumps(function), cloudpickle.dumps(function)):
            again = pickle.loads(pickled)
            assert again(2) == 6 and again.words == function.words and type(again) is type(function)
    assert pickle.loads(pickle.dumps(tripled)) is tripled and pickle.loads(pickle.dumps(Scaled.by)) is Scaled.by

    @gl.remote(cpus=0.1, memory="64MiB")
    def what(function: Any) -> tuple[str, int]:
        return type(function).__name__, function(2)

    local = gl.remote(lambda x: 3 * x)
    assert what.run(local) == ("function", 6) and what.run(tripled.options(cpus=0.2)) == ("function", 6)
