"""The runner alone: what it leaves for a worker, whatever a function does."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import types
import venv
from pathlib import Path
from typing import Any

import cloudpickle
import gpulayer as gl
import pytest
from gpulayer.calls import FORMAT
from gpulayer.results import Fetched, error_of
from laid_out import Ran, called, mapped, others, payload, run


def test_a_call_comes_back_with_its_value_and_its_output(tmp_path: Path) -> None:
    base = 40

    def add(x: int, *more: int, y: int = 0) -> int:
        print("adding", x)
        return base + x + sum(more) + y

    ran = called(tmp_path, add, 1, 2, y=3)
    assert (ran.value, ran.out, ran.err) == (46, "adding 1\n", "")


def test_a_short_call_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    def loaded(_: int) -> list[str]:
        import sys

        long = {"json", "re", "pickle", "cloudpickle", "typing", "asyncio", "traceback", "functools", "collections"}
        return sorted(long & set(sys.modules))

    assert called(tmp_path, loaded, 1).value == []


def test_what_the_runner_spared_itself_is_whole_for_the_function(tmp_path: Path) -> None:
    def partials(x: int) -> tuple[int, bool, Any]:
        import functools
        import pickle

        double = functools.partial(max, 2 * x)
        again = pickle.loads(pickle.dumps(double))
        return again(1), hasattr(functools, "wraps"), double

    value, is_whole, double = called(tmp_path, partials, 21).value
    assert (value, is_whole, double(50)) == (42, True, 50)


def test_the_workspace_comes_first_and_what_is_sent_along_last(tmp_path: Path) -> None:
    library = tmp_path / "workspace" / ".gpulayer" / "lib"
    library.mkdir(parents=True)

    def paths() -> tuple[str, str, str]:
        import os
        import sys

        return os.getcwd(), sys.path[0], sys.path[-1]

    workspace = str(tmp_path / "workspace")
    assert called(tmp_path, paths).value == (workspace, workspace, str(library))


def test_what_was_sent_along_reads_before_what_is_older_there(tmp_path: Path) -> None:
    library = tmp_path / "workspace" / ".gpulayer" / "lib"
    shutil.copytree(Path(cloudpickle.__file__).parent, library / "cloudpickle")
    (tmp_path / "workspace" / "cloudpickle.py").write_text("raise ImportError('too old')\n")

    class Point:
        x = 1

    def where(point: Point) -> tuple[str, int]:
        import cloudpickle

        return cloudpickle.__file__, point.x

    file, x = called(tmp_path, where, Point()).value
    assert (os.path.dirname(os.path.dirname(file)), x) == (str(library), 1)


def test_an_exception_is_told_as_python_tells_it(tmp_path: Path) -> None:
    def inner() -> None:
        raise KeyError("gone")

    def outer() -> None:
        try:
            inner()
        except KeyError as fault:
            raise ValueError("no luck") from fault

    ran = called(tmp_path, outer)
    assert ran.status == 1 and ran.raised is not None
    assert (ran.raised["type"], ran.raised["module"], ran.raised["stage"]) == ("ValueError", "builtins", "call")
    assert ran.raised["message"] == "no luck" and ran.raised["advice"] is None
    traceback = ran.raised["traceback"]
    assert traceback.startswith("Traceback") and "in inner" in traceback and "direct cause" in traceback
    assert "run.py" not in traceback and traceback == ran.err
    assert f'File "{__file__}"' in traceback, "where its source is"
    failure = error_of(ran.raised, "…abc")
    assert type(failure) is ValueError and isinstance(failure.__cause__, gl.RemoteTraceback)


def test_half_a_character_is_no_reason_to_say_nothing(tmp_path: Path) -> None:
    raised = called(tmp_path, lambda: {"a": 1}["\ud800"]).raised
    assert raised is not None and raised["type"] == "KeyError" and json.dumps(raised, ensure_ascii=False).encode()


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "raise KeyboardInterrupt", "import sys; sys.exit('bad')"])
def test_what_would_end_a_program_is_raised_like_anything(tmp_path: Path, end: str) -> None:
    ran = called(tmp_path, lambda: exec(end))
    assert ran.status == 1 and ran.raised is not None
    failure = error_of(ran.raised, "…abc")
    assert isinstance(failure, gl.RemoteError) and failure.type in ("SystemExit", "KeyboardInterrupt")


def test_what_ends_a_program_when_it_is_read_ends_none() -> None:
    ending = b"csys\nexit\n(I3\ntR."
    with pytest.raises(gl.RemoteError, match="cannot be read here: SystemExit: 3"):
        Fetched("cloudpickle", False, base64.b64encode(ending).decode()).read()
    told = {"type": "Own", "module": "mine", "message": "no", "pickle": base64.b64encode(ending).decode()}
    failure = error_of(told, "…abc")
    assert type(failure) is gl.RemoteError and "not raised as itself: it cannot be read here: SystemExit" in str(failure)


def test_a_class_of_the_program_comes_back_as_that_class(tmp_path: Path) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    class OwnError(Exception):
        def __init__(self, point: Point) -> None:
            super().__init__(point)
            self.point = point

    def move(point: Point, fail: bool) -> Point:
        if fail:
            raise OwnError(Point(point.x + 1))
        return Point(point.x + 1)

    moved = called(tmp_path / "a", move, Point(1), False).value
    assert type(moved) is Point and moved.x == 2
    raised = called(tmp_path / "b", move, Point(1), True).raised
    assert raised is not None
    failure = error_of(raised, "…abc")
    assert type(failure) is OwnError and failure.point.x == 2


def test_several_calls_of_one_task_have_outcomes_of_their_own(tmp_path: Path) -> None:
    def part(x: int) -> Any:
        if x == 1:
            raise ZeroDivisionError("one")
        if x == 2:
            raise SystemExit(3)
        return "large" * 100_000 if x == 3 else [x]

    zero, one, two, three, four = mapped(tmp_path, part, [0], [1], [2], [3], [4]).outcomes
    assert pickle.loads(zero) == [0] and len(pickle.loads(three)) == 500_000 and pickle.loads(four) == [4]
    assert type(error_of(one, "…abc")) is ZeroDivisionError and two["type"] == "SystemExit"


def test_whatever_a_call_raises_is_its_own(tmp_path: Path) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise SystemExit(1)

        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    def fail(x: int) -> int:
        import asyncio

        Silent.__module__ = 7  # type: ignore[assignment]
        others = (KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), BaseException("any"), Silent())
        if x < len(others):
            raise others[x]
        if x == 5:
            raise ValueError("wide" * 1_000_000)
        return x

    *failed, large, last = mapped(tmp_path, fail, *([x] for x in range(7))).outcomes
    told = [each["type"].rpartition(".")[2] for each in failed]
    assert told == ["KeyboardInterrupt", "CancelledError", "GeneratorExit", "BaseException", "Silent"]
    assert failed[4]["message"] == "(its message cannot be shown)" and failed[4]["module"] == "7"
    assert 1_000_000 < len(large["message"]) < 1_100_000 and large["message"].endswith("wide")
    assert pickle.loads(last) == 6


def test_what_ends_the_process_in_one_call_takes_nothing_of_those_before(tmp_path: Path) -> None:
    def part(x: int) -> int:
        import os

        if x == 2:
            os._exit(0)
        return x

    ran = mapped(tmp_path, part, [0], [1], [2], [3])
    assert ran.returned is None and ran.raised is None
    assert [pickle.loads(each) for each in ran.outcomes] == [0, 1]


def test_after_a_stop_no_further_call_begins(tmp_path: Path) -> None:
    def part(x: int) -> int:
        try:
            print("begins", x, flush=True)
            while True:
                pass
        except BaseException:
            # A library that takes whatever comes.
            return x

    ran = mapped(tmp_path, part, [0], [1], [2], stop=True)
    assert ran.status == 143 and [pickle.loads(each) for each in ran.outcomes] == [0]
    assert ran.out.split() == ["begins", "0"]


def test_each_call_of_a_task_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    def train(x: int) -> list[str]:
        import os

        folder = os.environ["GPULAYER_CHECKPOINT_DIR"]
        found = os.listdir(folder)
        if x < 2:
            open(os.path.join(folder, f"of-{x}"), "w").close()
        return found

    first = mapped(tmp_path, train, [0], [1], [2], [3])
    assert [pickle.loads(each) for each in first.outcomes] == [[], [], [], []]
    kept = sorted(path.relative_to(tmp_path / "checkpoint") for path in (tmp_path / "checkpoint").rglob("*"))
    assert [str(path) for path in kept] == ["call-0", "call-0/of-0", "call-1", "call-1/of-1"]


def test_large_values_lie_in_files_also_the_function(tmp_path: Path) -> None:
    weights = os.urandom(1 << 20)

    def same(data: bytes, more: bytes) -> bool:
        return data == weights and more == weights

    ran = called(tmp_path, same, weights, more=weights)
    assert ran.value is True
    assert len(list((ran.folder / "values").iterdir())) == 2, "one object is there once, and the function"


def test_a_coroutine_is_run_to_its_end(tmp_path: Path) -> None:
    async def later(x: int) -> int:
        import asyncio

        await asyncio.sleep(0)
        return x + 1

    assert called(tmp_path, later, 1).value == 2


def test_a_forked_child_leaves_the_outcome_to_its_parent(tmp_path: Path) -> None:
    def fork(how: str) -> str:
        import os

        child = os.fork()
        if child == 0:
            if how == "raise":
                raise ValueError("in the child")
            return "the child's"
        _, status = os.waitpid(child, 0)
        return f"the parent's {status}"

    assert called(tmp_path / "a", fork, "return").value == "the parent's 0"
    ran = called(tmp_path / "b", fork, "raise")
    assert ran.value == "the parent's 256" and "in the child" in ran.err


def test_a_forked_child_may_exit_as_any_does(tmp_path: Path) -> None:
    def fork() -> "list[int]":
        import os
        import sys

        found = []
        for code in (None, 0, 3, 256, "no data"):
            child = os.fork()
            if child == 0:
                sys.exit(code)
            found.append(os.waitpid(child, 0)[1] >> 8)
        return found

    ran = called(tmp_path, fork)
    assert (ran.value, ran.err) == ([0, 0, 3, 0, 1], "no data\n")


def test_a_value_that_cannot_be_sent_is_said(tmp_path: Path) -> None:
    ran = called(tmp_path, lambda: (each for each in "ab"))
    assert ran.raised is not None and ran.raised["stage"] == "return" and "generator" in ran.raised["message"]
    assert "write anything else to a file" in ran.raised["advice"] and "write anything else to a file" in ran.err
    failure = error_of(ran.raised, "…abc")
    assert isinstance(failure, gl.RemoteError) and "could not send what its function returned" in str(failure)


def test_a_lost_module_is_named_with_what_to_do(tmp_path: Path) -> None:
    call = {"serializer": "json", "payload": "{}", "entrypoint": "lost.deep:f"}
    for raised in (run(tmp_path / "a", call).raised, called(tmp_path / "b", lambda: __import__("lost.deep")).raised):
        assert raised is not None and raised["type"] == "ModuleNotFoundError"
        assert "lost is not there for" in raised["advice"] and "requirements" in raised["advice"]
        assert "source" in raised["advice"]


def test_the_package_that_did_not_come_along_is_named_with_what_to_do(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare")
    call = {"serializer": "json", "payload": "{}", "entrypoint": "gpulayer:f"}
    raised = run(tmp_path / "task", call, python=str(tmp_path / "bare/bin/python")).raised
    assert raised is not None and raised["type"] == "ModuleNotFoundError"
    assert raised["advice"].startswith(f"install gpulayer for {tmp_path / 'bare/bin/python'} on this worker")


def test_a_remote_function_that_travels_as_code_is_a_function_there_and_says_so(tmp_path: Path) -> None:
    inner = gl.remote(lambda x: x)

    def outer() -> Any:
        return inner.run(-1)

    raised = called(tmp_path, outer).raised
    assert raised is not None and raised["message"] == "'function' object has no attribute 'run'"
    assert "the plain function: call it, f(…), or put it into a module" in raised["advice"]


def test_code_of_another_python_is_refused_and_what_is_imported_is_not(tmp_path: Path) -> None:
    args = [pickle.dumps((-3, "x")[0])]
    raised = run(tmp_path / "a", payload([3, 5, 0], cloudpickle.dumps(lambda x: x), args)).raised
    assert raised is not None and raised["stage"] == "load"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for text in (raised["message"], raised["advice"]):
        assert "Python 3.5" in text and here in text
    assert 'python="3.5"' in raised["advice"] and "module of the project" in raised["advice"]
    assert "could not read its call" in str(error_of(raised, "…abc"))
    assert run(tmp_path / "b", payload([3, 5, 0], pickle.dumps(abs), args)).value == 3


@pytest.mark.parametrize("python", [sys.executable, *others()])
def test_it_works_with_every_python_of_this_machine(tmp_path: Path, python: str) -> None:
    def add(x: int, y: int) -> int:
        return x + y

    (tmp_path / "a" / "workspace").mkdir(parents=True)
    (tmp_path / "a" / "workspace" / "mine.py").write_text("def add(x, y=1):\n    return x + y\n")
    entry = {"serializer": "json", "payload": json.dumps({"args": [1]}), "entrypoint": "mine:add"}
    assert run(tmp_path / "a", entry, python=python).returned == b"2"
    ran: Ran = called(tmp_path / "b", add, 1, 2, python=python)
    if python == sys.executable:
        assert ran.value == 3
    else:
        assert ran.raised is not None and "code cannot go from" in ran.raised["advice"]


@pytest.mark.parametrize("python", [sys.executable, *others()])
def test_modules_of_the_project_take_the_place_of_none_that_the_runner_needs(tmp_path: Path, python: str) -> None:
    names = ("asyncio", "ast", "binascii", "copyreg", "json", "linecache", "re", "token", "traceback", "types")
    mine = """
        import json
        import token

        class Wrong(ValueError):
            def __init__(self, a, b):
                super().__init__(f"{json.mine} {a} {b}")

        def fails():
            raise Wrong(1, token.mine)

        def gives():
            return json.mine

        async def waits():
            return token.mine

        async def yields():
            yield token.mine
        """
    entry = {"serializer": "json", "payload": "{}"}
    ran = {}
    for name in ("fails", "gives", "waits", "yields"):
        workspace = tmp_path / name / "workspace"
        workspace.mkdir(parents=True)
        for each in names:
            (workspace / f"{each}.py").write_text(f"mine = {each!r}\n")
        (workspace / "mine.py").write_text(textwrap.dedent(mine))
        ran[name] = run(tmp_path / name, {**entry, "entrypoint": f"mine:{name}"}, python=python)
    raised = ran["fails"].raised
    assert raised is not None and (raised["type"], raised["message"]) == ("Wrong", "json 1 token"), ran["fails"].err
    assert 'raise Wrong(1, token.mine)' in raised["traceback"] and raised["pickle"]
    assert [ran[name].returned for name in ("gives", "waits", "yields")] == [b'"json"', b'"token"', b"null"]


@pytest.mark.parametrize("name", ["fails", "fails_too", "Net.fails", "called_by_its_wrapper"])
def test_a_traceback_begins_in_the_users_code(name: str, tmp_path: Path) -> None:
    mine = """
        import functools
        import gpulayer as gl

        @gl.remote
        def fails(self=None):
            raise ValueError("no")

        fails_too = gl.remote(gl.remote(fails.options(cpus=2)))

        class Net:
            fails = fails

        net = Net()

        @gl.remote
        @functools.wraps(fails)
        def called_by_its_wrapper():
            return net.fails()
        """
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mine.py").write_text(textwrap.dedent(mine))
    entry = {"serializer": "json", "payload": "{}", "entrypoint": f"mine:{name}"}
    ran = run(tmp_path, entry, env={"PYTHONPATH": os.path.dirname(os.path.dirname(gl.__file__))})
    assert ran.raised is not None and ran.raised["message"] == "no", ran.err
    frames = re.findall(r'File ".*?([^/]+)", line', ran.raised["traceback"])
    assert frames[0] == frames[-1] == "mine.py" and ran.err == ran.raised["traceback"]
    assert len(frames) == (4 if "wrapper" in name else 1), "of a call within the user's code all are kept"


def test_a_call_with_code_is_read_beside_modules_of_any_name(tmp_path: Path) -> None:
    class Point:
        x = 1

    def move(point: Any) -> Any:
        import copyreg
        import types

        return type(point), copyreg.__file__ == types.__file__

    (tmp_path / "workspace").mkdir()
    for name in ("copyreg", "types", "functools", "token", "logging", "uuid", "platform", "dis", "weakref"):
        (tmp_path / "workspace" / f"{name}.py").write_text("raise ImportError('mine')\n")
    assert called(tmp_path, move, Point()).value[1] is False


def test_a_safe_path_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mine.py").write_text("def add(x):\n    return x + 1\n")
    entry = {"serializer": "json", "payload": json.dumps({"args": [1]}), "entrypoint": "mine:add"}
    assert run(tmp_path, entry, env={"PYTHONSAFEPATH": "1"}).returned == b"2"


@pytest.mark.parametrize(
    "item, expected",
    [
        (None, [[1], {"a": 2}]),
        (5, [[1, 5], {"a": 2}]),
        ({"lr": 0.1}, [[1, {"lr": 0.1}], {"a": 2}]),
        ({"args": [7], "kwargs": {"b": 3}}, [[1, 7], {"a": 2, "b": 3}]),
        ({"payload": '{"args": [9]}'}, [[9], {}]),
    ],
)
def test_json_calls_and_the_items_of_their_arrays(tmp_path: Path, item: Any, expected: Any) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "mine.py").write_text("class Deep:\n    def f(*a, **k):\n        return [a, k]\n")
    call = {"serializer": "json", "payload": '{"args": [1], "kwargs": {"a": 2}}', "entrypoint": "mine:Deep.f"}
    returned = run(tmp_path, {**call, "item": item, "index": 0}).returned
    assert returned is not None and json.loads(returned) == expected


def test_what_is_no_json_is_not_returned(tmp_path: Path) -> None:
    call = {"serializer": "json", "payload": '{"args": ["nan"]}', "entrypoint": "builtins:float"}
    raised = run(tmp_path, call).raised
    assert raised is not None and raised["stage"] == "return" and "JSON" in raised["message"]


def test_an_exception_with_an_init_of_its_own_comes_back_as_itself(tmp_path: Path) -> None:
    class Own(Exception):
        def __init__(self, *, why: str) -> None:
            super().__init__(f"because {why}")
            self.why = why

    class CodedError(Exception):
        def __init__(self, code: int, message: str) -> None:
            super().__init__(message)
            self.code = code

    class CodedKeyError(CodedError, KeyError):
        """Of a family."""

    class CodedOSError(OSError):
        def __init__(self, path: str) -> None:
            super().__init__(5, "bad", path)

    def fails(how: str) -> None:
        if how == "coded":
            raise CodedKeyError(7, "no luck")
        if how == "os":
            raise CodedOSError("/x")
        error = Own(why="of rain")
        if how == "group":
            raise ValueError(error)
        raise error

    failures = {}
    for how in ("own", "coded", "os", "group"):
        raised = called(tmp_path / how, fails, how).raised
        assert raised is not None
        failures[how] = error_of(raised, "…abc")
    own, coded, nested = failures["own"], failures["coded"], failures["group"].args[0]
    assert type(own) is Own and (str(own), own.why, own.args) == ("because of rain", "of rain", ("because of rain",))
    assert type(coded) is CodedKeyError and (coded.code, coded.args) == (7, ("no luck",))
    assert type(nested) is Own and nested.why == "of rain"
    assert type(failures["os"]) is gl.RemoteError, "what only its `__init__` can set is not made up"


def test_an_exception_that_could_not_be_sent_says_why_and_what_to_do(tmp_path: Path) -> None:
    def fails(how: str) -> None:
        import threading

        fault = ValueError("v")
        if how == "attribute":
            fault.lock = threading.Lock()  # type: ignore[attr-defined]
        elif how == "argument":
            fault.args = ("v", threading.Lock())
        else:
            fault.args = ("x" * (1 << 20),)
        raise fault

    for how, why in (
        ("attribute", "its `lock` (lock): TypeError: cannot pickle"),
        ("argument", "its `args[1]` (lock): TypeError: cannot pickle"),
        ("large", "it has 1,048,6"),
    ):
        raised = called(tmp_path / how, fails, how).raised
        assert raised is not None and raised["pickle"] is None
        failure = error_of(raised, "…abc")
        assert isinstance(failure, gl.RemoteError) and failure.type == "ValueError"
        assert f"(not raised as itself: it could not be sent: {why}" in str(failure)
        assert failure.advice is not None and "write anything else to a file" in failure.advice
    assert "1,048,576 are the most" in str(failure)
    whole = called(tmp_path / "whole", lambda: {1: 2}[3]).raised
    assert whole is not None and whole["unsent"] is None
    assert "a secret of the job stood in it" in str(error_of({**whole, "pickle": None}, "…abc"))
    whole.pop("unsent")
    assert "(not raised as itself: it could not be sent)" in str(error_of({**whole, "pickle": None}, "…abc"))


SCRIPT = '''
import functools, io, pickle, sys
import gpulayer as gl
from gpulayer.results import Fetched, error_of
from laid_out import called
from pathlib import Path

@functools.lru_cache(maxsize=3)
def load(n):
    """Loads."""
    return n + 1

@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def helper(x):
    return load(x) * 2

def main(x):
    return helper(x) + 1

class Net:
    size = 4

class CodedError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

def fails():
    raise CodedError(7, "no luck")

def work(method):
    import concurrent.futures, multiprocessing, pickle
    net = pickle.loads(pickle.dumps(Net()))
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(main, [1, 2])
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found += pool.map(helper, [1, 2])
    return net, found, load(1), load.cache_info(), load.__doc__, load.cache_parameters(), fib(50)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        ran = called(Path(sys.argv[1]) / method, work, method)
        net, *rest = ran.value
        assert type(net) is Net and net.size == 4
        assert b"CodeType" in ran.returned, "as code: whoever asks may be another program"
        assert rest[:2] == [[5, 7, 4, 6], 2], rest
        assert rest[3:] == ["Loads.", {"maxsize": 3, "typed": False}, 12586269025], rest
    assert called(Path(sys.argv[1]) / "direct", load, 4).value == 5
    failure = error_of(called(Path(sys.argv[1]) / "fails", fails).raised, "…abc")
    assert type(failure) is CodedError and failure.code == 7, failure
    print("all")
'''


def test_what_a_program_names_is_found_by_pickle_there(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = [str(Path(gl.__file__).parents[1]), str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "jobs"], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def test_a_package_of_another_version_is_said_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "workspace" / "numbers2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1.26'\n")
    newer = types.ModuleType("numbers2")
    newer.__version__ = "2.4"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numbers2", newer)
    deep = types.ModuleType("numbers2._core")
    monkeypatch.setitem(sys.modules, "numbers2._core", deep)
    value = type("Value", (), {"__module__": "numbers2._core"})
    deep.Value = value  # type: ignore[attr-defined]
    raised = called(tmp_path, len, [value]).raised
    assert raised is not None and "is not there" not in raised["advice"]
    assert "has numbers2 1.26, which has no numbers2._core" in raised["advice"]
    told = str(error_of(raised, "…abc"))
    assert told.endswith("use the same version at both ends; yours is numbers2 2.4")


def test_a_remote_function_that_is_a_plain_one_there_says_why(tmp_path: Path) -> None:
    square = gl.remote(lambda x: x * x)
    raised = called(tmp_path, lambda: square.run(3)).raised
    assert raised is not None and "f.run(…) submits a job of its own" in raised["advice"]
    assert called(tmp_path / "b", lambda: square(3)).value == 9


@pytest.mark.parametrize("taken", [True, False])
def test_a_descriptor_that_the_function_closed_is_not_written_to(tmp_path: Path, taken: bool) -> None:
    mine = str(tmp_path / "mine")

    def work(x: int) -> Any:
        import os

        os.closerange(3, 64)
        if taken:
            # Kept open, each under a number that was another's.
            work.__dict__.setdefault("files", []).extend(open(mine, "a+b", buffering=0) for _ in range(16))
        return x

    def generate(x: int) -> Any:
        for each in range(x):
            work(each)
            yield each if each % 2 else "large" * 10_000

    assert called(tmp_path / "one", work, 7).value == 7
    several = mapped(tmp_path / "several", work, [1], [2], [3])
    assert several.status == 0 and [pickle.loads(each) for each in several.outcomes] == [1, 2, 3]
    ran = called(tmp_path / "yields", generate, 4)
    assert ran.status == 0, ran.err
    found, at = (ran.folder / "yielded").read_bytes(), 0
    assert int.from_bytes(found[:8], "little") >> 63, "the first lies apart"
    assert pickle.loads(found[16:]) == 1 and pickle.loads((ran.folder / "yielded.3").read_bytes()) == "large" * 10_000
    assert not os.path.exists(mine) or os.path.getsize(mine) == 0


def test_a_function_that_took_its_way_away_still_says_what_it_raised(tmp_path: Path) -> None:
    def gone(how: str) -> None:
        import os
        import shutil
        import sys

        if how == "folder":
            shutil.rmtree(os.environ["GPULAYER_FUNCTION"])
        elif how == "root":
            # As `chroot` would.
            sys.path[:] = []
            sys.path_importer_cache.clear()
            sys.meta_path[:] = []
        raise ValueError("the first cause")

    for how in ("folder", "root"):
        ran = called(tmp_path / how, gone, how)
        assert ran.status == 1 and ran.raised is None
        assert "ValueError: the first cause" in ran.err and ran.err.count("Traceback") == 1
        *_, last = ran.err.splitlines()
        assert last.startswith(f"[what came of the call cannot be left in {ran.folder}: "), last
    assert "that is not there any more" in called(tmp_path / "again", gone, "folder").err


def test_what_the_other_python_lacks_is_no_matter_of_code(tmp_path: Path) -> None:
    lacks = b"cbuiltins\nExceptionGroupOfTomorrow\n."
    raised = run(tmp_path, payload([3, 5, 0], pickle.dumps(abs), [lacks])).raised
    assert raised is not None and raised["type"] == "AttributeError" and "code" not in raised["advice"]
    assert "sent by Python 3.5" in raised["advice"] and "send what both have" in raised["advice"]
