"""Functions whose process serves more than one call."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import SOURCES, kill_own_daemon, lines, until

SEEN: list[int] = []


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_a_process_has_loaded_is_there_for_its_next_call() -> None:
    loaded: list[int] = []

    @gl.remote(reuse=True)
    def remember(x: int) -> tuple[int, list[int]]:
        loaded.append(x)
        return os.getpid(), loaded

    pid, seen = remember.run(1)
    assert seen == [1]
    assert remember.run(2) == (pid, [1, 2])
    assert gl.remote(remember.function).run(3) != (pid, [1, 2, 3]), "only with reuse"
    assert remember.options(name="again").run(4) == (pid, [1, 2, 4])


def test_each_call_has_the_log_the_folder_and_the_variables_of_its_own_job() -> None:
    @gl.remote(reuse=True)
    def say(word: str) -> tuple[int, str, str, bool]:
        print(word, flush=True)
        os.write(2, f"{word} to stderr".encode())
        Path("left").touch(exist_ok=False)
        gl.progress(len(word), 10)
        own = tempfile.gettempdir() == os.environ["TMPDIR"] and os.getcwd() == os.environ["GPULAYER_WORKSPACE"]
        return os.getpid(), str(gl.job.id), os.environ.get("WORD", ""), own

    first, second = say.submit("one"), say.submit("second")
    assert first.result()[1:] == (first.id, "", True) and second.result()[1:] == (second.id, "", True)
    assert lines(first) == ["one", "one to stderr"] and lines(second) == ["second", "second to stderr"]
    assert [job.refresh().record.progress["done"] for job in (first, second)] == [3, 6]
    silent = gl.remote(lambda: os.getpid() if gl.job else 0, reuse=True).submit()
    assert silent.result() in (first.result()[0], second.result()[0]) and lines(silent) == []
    assert silent.refresh().record.progress is None, "what another call has said is not its own"


def test_other_variables_projects_limits_and_secrets_are_other_processes(
    client: gl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    @gl.remote(reuse=True)
    def who(name: str) -> tuple[int, str]:
        return os.getpid(), os.environ.get(name, "")

    pid, _ = who.run("X")
    others = [
        who.options(env={"X": "1"}).run("X"),
        who.options(project="other").run("X"),
        who.options(memory="512MiB").run("X"),
        who.options(secrets={"X": "file:" + str(secret("a" * 8))}).run("X"),
        who.options(secrets={"X": "file:" + str(secret("b" * 8))}).run("X"),
    ]
    assert [value for _, value in others] == ["1", "", "", "a" * 8, "b" * 8]
    assert len({pid, *(other for other, _ in others)}) == 6
    assert who.run("X")[0] == pid


def secret(value: str) -> Path:
    path = Path("secret").absolute()
    path.write_text(value)
    path.chmod(0o600)
    return path


def test_edited_code_never_meets_an_old_process_and_unedited_code_finds_its_modules(
    client: gl.Client, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "parts").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "parts" / "__init__.py").touch()
    (project / "parts" / "late.py").write_text("VALUE = 1")
    (project / "parts" / "later.py").write_text("from pathlib import Path\nTEXT = Path(__file__).with_name('t').read_text()")
    (project / "parts" / "t").write_text("beside")
    (project / "model.py").write_text(
        textwrap.dedent("""
            import importlib, os, parts
            CALLS = []
            def call(name):
                CALLS.append(name)
                module = importlib.import_module(name)
                return [os.getpid(), len(CALLS), getattr(module, "VALUE", None) or module.TEXT]
        """)
    )

    def call(name: str) -> Any:
        return client.submit(gl.function("model:call", args=[name], source=str(project), reuse=True)).result()

    pid, calls, value = call("parts.late")
    assert (calls, value) == (1, 1)
    assert call("parts.later") == [pid, 2, "beside"], "a module that only the second call imports"
    (project / "parts" / "late.py").write_text("VALUE = 2")
    other, calls, value = call("parts.late")
    assert other != pid and (calls, value) == (1, 2)


def test_a_function_of_a_project_that_calls_another_does_so_in_each_of_its_calls(
    client: gl.Client, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gpulayerignore").touch()
    (tmp_path / "in_turn.py").write_text(
        textwrap.dedent(f"""
            import os
            import gpulayer as gl
            @gl.remote(cpus=0.1)
            def inner(x):
                return x + 1
            @gl.remote(reuse=True, cpus=0.1)
            def outer(x):
                os.environ["GPULAYER_HOME"] = {str(home)!r}
                return os.getpid(), inner.run(x)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outer = importlib.import_module("in_turn").outer
    monkeypatch.setitem(sys.modules, "in_turn", sys.modules["in_turn"])

    @gl.remote(reuse=True, cpus=0.1)
    def program(x: int, where: str) -> tuple[int, int]:
        os.environ["GPULAYER_HOME"] = where
        # Where the project came along, as it does for what calls another of its functions.
        import in_turn  # type: ignore[import-not-found]

        return os.getpid(), in_turn.inner.run(x)

    for called in (outer.run, lambda x: program.run(x, str(home))):
        first, second = called(1), called(2)
        assert (first[1], second[1]) == (2, 3) and first[0] == second[0], "of one process"


def test_two_programs_of_one_source_each_have_their_own_modules(client: gl.Client, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    for name in ("one", "two"):
        (project / name).mkdir()
        (project / name / "work.py").write_text(
            f"import os, gpulayer as gl\n@gl.remote(reuse=True)\ndef which(): return {name!r}, os.getpid()\n"
        )
        (project / name / "main.py").write_text("import work\nprint(*work.which.run())\n")

    def told(name: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": SOURCES}
        ran = subprocess.run([sys.executable, "main.py"], cwd=project / name, env=env, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()
        return ran.stdout.decode().split()

    first, second, third = told("one"), told("two"), told("one")
    assert [each[0] for each in (first, second, third)] == ["one", "two", "one"]
    assert first[1] == second[1] == third[1], "the process begins anew"


def test_a_checkpoint_lies_where_the_present_call_has_its_own() -> None:
    @gl.remote(reuse=True)
    def where() -> tuple[str, str]:
        return str(gl.checkpoint_dir), os.environ["GPULAYER_CHECKPOINT_DIR"]

    for _ in range(2):
        found, own = where.run()
        assert found == own


@pytest.mark.parametrize("fault", ["close1", "close3", "taken3", "garbage3", "timer"])
def test_what_a_call_breaks_is_not_the_next_ones(fault: str) -> None:
    @gl.remote(reuse=True)
    def breaks(how: str) -> int:
        if how == "close1":
            os.close(1)
        elif how == "close3":
            os.close(3)
        elif how == "taken3":
            os.close(3)
            assert socket.socket().detach() == 3
        elif how == "garbage3":
            os.write(3, b"x")
        elif how == "timer":
            signal.setitimer(signal.ITIMER_REAL, 60)
        if how != "close1":
            print("said")
        return os.getpid()

    sound = breaks.run("")
    if fault == "garbage3":
        # It has broken the talk with its shim, which ends it if it has not ended by then: nobody else's affair.
        with contextlib.suppress(gl.JobFailedError):
            assert breaks.run(fault) == sound
    else:
        assert breaks.run(fault) == sound
    job = breaks.submit("")
    assert isinstance(job.result(), int) and lines(job) == ["said"]


def test_clocks_and_tracers_of_a_call_are_not_the_next_ones() -> None:
    @gl.remote(reuse=True)
    def leaves(anything: bool) -> tuple[int, Any]:
        import faulthandler

        timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        if anything:
            faulthandler.dump_traceback_later(600, exit=True)
            for timer in timers:
                signal.setitimer(timer, 600)
            for module in (sys, threading):
                module.setprofile(lambda *_: None)
                module.settrace(lambda *_: None)
        threads = len(os.listdir("/proc/self/task"))
        hooks = (sys.getprofile(), sys.gettrace(), *(getattr(threading, name) for name in ("_profile_hook", "_trace_hook")))
        return os.getpid(), (threads, [signal.getitimer(timer)[0] for timer in timers], [each is None for each in hooks])

    pid, clean = leaves.run(False)
    assert clean[1:] == ([0, 0, 0], [True] * 4)
    leaves.run(True)
    assert leaves.run(False) == (pid, clean)


@pytest.mark.parametrize("fault", ["mask", "ignore", "handler"])
def test_a_stop_reaches_a_call_whatever_the_one_before_did_to_it(fault: str) -> None:
    @gl.remote(reuse=True)
    def work(how: str) -> int:
        if how == "mask":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        elif how == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif how == "handler":
            signal.signal(signal.SIGTERM, lambda *_: None)
        elif how == "wait":
            try:
                print(os.getpid(), flush=True)
                threading.Event().wait()
            finally:
                print("cleans up", flush=True)
        return os.getpid()

    pid = work.run(fault)
    job = work.submit("wait")
    assert next(iter(job.logs(follow=True))).text == str(pid)
    job.cancel().wait()
    assert lines(job) == [str(pid), "cleans up"]


def test_a_process_that_was_sent_a_signal_serves_nobody(client: gl.Client) -> None:
    pid = gl.remote(os.getpid, reuse=True)
    first = pid.run()
    os.kill(first, signal.SIGTERM)
    second = pid.run()
    assert second != first and not is_there(first)


def test_a_signal_that_a_call_holds_back_is_not_the_next_ones() -> None:
    @gl.remote(reuse=True)
    def hold(signals: bool) -> int:
        if signals:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)
        return os.getpid()

    first = hold.run(True)
    assert hold.run(False) != first


def test_an_exception_leaves_the_process_and_what_may_be_broken_does_not() -> None:
    @gl.remote(reuse=True)
    def fail(how: str) -> int:
        if how == "raise":
            raise KeyError(str(os.getpid()))
        if how == "exit":
            sys.exit(3)
        if how == "memory":
            raise MemoryError
        if how == "thread":
            threading.Thread(target=threading.Event().wait, args=(0.01,)).start()
        if how == "process":
            subprocess.Popen(["sleep", "600"])
        return os.getpid()

    pid = fail.run("")
    with pytest.raises(KeyError, match=str(pid)) as caught:
        fail.run("raise")
    assert "KeyError" in str(caught.value.__cause__)
    assert fail.run("") == pid
    for how, raised in (("exit", SystemExit), ("memory", MemoryError), ("thread", None), ("process", None)):
        if raised is None:
            assert fail.run(how) == pid
        else:
            with pytest.raises((raised, gl.RemoteError)):
                fail.run(how)
        other = fail.run("")
        assert other != pid, how
        assert not is_there(pid)
        pid = other


def test_a_map_is_a_few_jobs_of_a_few_processes(client: gl.Client) -> None:
    square = gl.remote(lambda x: (x * x, os.getpid()), reuse=True)
    found = square.map(range(1000))
    values = found.result()
    assert [value for value, _ in values] == [x * x for x in range(1000)]
    assert len(found) == 1000 and found.jobs == 63
    cores = len(os.sched_getaffinity(0))
    assert len({pid for _, pid in values}) <= 2 * cores


def test_a_process_that_waits_is_gone_when_the_daemon_is(client: gl.Client, home: Path, binary: str) -> None:
    who = gl.remote(lambda: os.getpid(), reuse=True)
    pid = who.run()
    assert is_there(pid)
    subprocess.run([binary, "down"], check=True, capture_output=True)
    until(lambda: not is_there(pid))
    other = who.run()
    kill_own_daemon(client)
    assert who.run() != other
    until(lambda: not is_there(other))


def test_a_cancelled_call_takes_its_process_along() -> None:
    @gl.remote(reuse=True)
    def wait(seconds: float) -> int:
        print(os.getpid(), flush=True)
        threading.Event().wait(seconds)
        return os.getpid()

    pid = wait.run(0)
    job = wait.submit(600)
    assert int(next(iter(job.logs(follow=True))).text) == pid
    job.cancel()
    with pytest.raises(gl.JobCancelledError):
        job.result()
    assert not is_there(pid)
    assert wait.run(0) != pid


def test_with_gpus_nothing_waits(client: gl.Client) -> None:
    with pytest.raises(gl.ConfigurationError, match="reuse=True with gpus"):
        gl.remote(lambda: None, gpus=1, reuse=True)
    with pytest.raises(gl.RefusedError) as caught:
        client.submit(gl.function("a:b", gpus=1, reuse=True))
    assert [fault.pointer for fault in caught.value.errors] == ["/workload/function/reuse"]
