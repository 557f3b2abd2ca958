"""The package as a guest in a process: threads, sockets, forks, interrupts, the end."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gpulayer as gl
import httpx
import pytest
from conftest import SOURCES, until


def started(script: str, **words: Any) -> "subprocess.Popen[str]":
    """A script in a Python that makes every warning an error and says what it forgot to close."""
    env = dict(os.environ, PYTHONPATH=SOURCES)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", **words
    )


def ran(script: str) -> str:
    process = started(script)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == "", err
    return out


def sockets() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            pass
    return found


def test_a_closed_client_leaves_no_thread_and_no_socket(client: gl.Client, binary: str) -> None:
    client.whoami()
    client.close()
    threads, before = threading.active_count(), sockets()
    for _ in range(5):
        with gl.local(binary=binary) as other:
            job = other.submit(gl.command(["echo", "a"]))
            assert [line.text for line in job.logs(follow=True)] == ["a"]
            stream = job.logs(follow=True)
            next(stream)
        with pytest.raises(RuntimeError, match="closed"):
            other.whoami()
    assert (threading.active_count(), sockets()) == (threads, before)


def test_a_forgotten_client_leaves_none_either(client: gl.Client, binary: str) -> None:
    client.whoami()
    client.close()
    threads, before = threading.active_count(), sockets()
    for _ in range(3):
        gl.local(binary=binary).whoami()
    until(lambda: (threading.active_count(), sockets()) == (threads, before))


def test_a_forgotten_stream_lets_go_of_its_connection(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="echo a; sleep 60"))
    before = sockets()
    streams = [job.logs(follow=True) for _ in range(3)]
    assert [next(stream).text for stream in streams] == ["a"] * 3
    assert sockets() >= before + 2
    del streams
    until(lambda: sockets() <= before)
    job.cancel(now=True).wait()


def test_no_room_for_what_is_sent_is_told_with_the_place(home: Path, tmp_path: Path) -> None:
    out = ran(
        f"""
        import os, resource, tempfile
        import gpulayer as gl

        tempfile.tempdir = {str(tmp_path)!r}
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        far = gl.connect("http://127.0.0.1:9")
        size = gl.remote(len, client=far)
        data = os.urandom(1 << 20)
        most = gl.remote(max, client=far)
        held = [os.urandom(50_000) for _ in range(4)]
        for call in (lambda: size.submit(data), lambda: size.map([data, data]), lambda: most.submit(*held)):
            try:
                call()
            except gl.DiskError as fault:
                print(fault.filename, fault, flush=True)
        """
    )
    assert len(out.splitlines()) == 3
    for line in out.splitlines():
        assert line.startswith(f"{tmp_path} [Errno 27] File too large: what is sent is put into temporary files there")
        assert "make room there, or name another folder for temporary files in the environment: TMPDIR=/PATH" in line
    assert not list(tmp_path.iterdir())


class Interrupting:
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_a_call_that_is_interrupted_while_it_is_pickled_leaves_no_file_open(client: gl.Client) -> None:
    size = gl.remote(len, client=client)
    with pytest.raises(KeyboardInterrupt):
        size.submit([bytes(1 << 20), Interrupting()])
    opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert [each for each in opened if "gpulayer-call-" in each] == []


def test_no_room_for_what_is_brought_is_told_with_the_place(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell="head -c 1000000 /dev/zero > zeros", outputs="zeros"))
    job.result()
    (tmp_path / "out").mkdir()
    out = ran(
        f"""
        import resource, tempfile
        import gpulayer as gl

        @gl.remote
        def zeros():
            return bytes(1 << 20)

        called = zeros.submit().wait()
        tempfile.tempdir = {str(tmp_path)!r}
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for call in (called.result, lambda: gl.attach({job.id!r}).fetch({str(tmp_path / "out")!r})):
            try:
                call()
            except gl.DiskError as fault:
                print(fault, flush=True)
        """
    )
    result, fetched = out.splitlines()
    assert "File too large" in result and "TMPDIR=/PATH" in result and f"'{tmp_path}'" in result
    assert "zeros cannot be brought there; make room there: " in fetched and f"'{tmp_path}/out'" in fetched
    assert [each.name for each in tmp_path.rglob("*")] == ["out"]


def test_a_process_without_descriptors_starts_no_daemon(client: gl.Client, binary: str) -> None:
    client.server()
    said = ran(f"""
        import os, resource
        import gpulayer as gl

        first = gl.local(binary={binary!r})
        first.server()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        other = gl.local(binary="/is/not/needed")
        files = []
        try:
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        try:
            other.server()
        except gl.GPUlayerError as error:
            said = str(error)
        os.close(files.pop())
        print(said)
        print(other.server().pid)
    """).splitlines()
    assert "too many open files" in said[0] and "ulimit -n" in said[0] and "cannot start" not in said[0]
    assert said[1:] == [str(client.server().pid)]


def test_an_error_reads_like_one_of_python(home: Path) -> None:
    process = started("import gpulayer as gl\ngl.connect('http://127.0.0.1:9').whoami()")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("Traceback") == 1 and len(err.splitlines()) < 15, err
    assert "gpulayer.errors.UnreachableError: no answer from http://127.0.0.1:9: " in err


def test_requests_of_this_package_are_not_told_to_the_programs_log(
    client: gl.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client.submit(gl.command(["true"])).result()
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(204))) as own:
        own.get("http://own/")
    client.whoami()
    assert caplog.messages == ['HTTP Request: GET http://own/ "HTTP/1.1 204 No Content"']


def test_many_threads_share_a_client(client: gl.Client) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(client.whoami().name)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 20 and len(set(names)) == 1


def test_the_end_of_the_process_is_silent_whatever_was_left_open(client: gl.Client) -> None:
    client.whoami()
    out = ran(
        """
        import asyncio, gpulayer as gl
        client = gl.local()
        job = client.submit(gl.command(shell="echo a; sleep 60"))
        stream = job.logs(follow=True)
        print(next(stream))
        gl.submit(gl.command(["true"]))
        async def half():
            asyncio.ensure_future(job.wait.aio())
            await asyncio.sleep(0)
            await client.whoami.aio()
        asyncio.run(half())
        """
    )
    assert out == "a\n"
    for job in client.jobs():
        job.cancel(now=True)


def test_ctrl_c_ends_the_waiting_and_leaves_the_job(client: gl.Client) -> None:
    job = client.submit(gl.command(["sleep", "60"]))
    until(lambda: job.refresh().state == "running")
    for call in ("job.wait()", "job.result()", "list(job.logs(follow=True))"):
        process = started(
            f"""
            import gpulayer as gl
            job = gl.attach("{job.id}")
            print("waits", flush=True)
            try:
                {call}
            except KeyboardInterrupt:
                print(job.refresh().state)
            """
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        until(functools.partial(is_parked, process.pid))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        told = f'gpulayer: job {job} goes on · gpulayer show {job.id[-6:]} · gl.attach("{job.id}")\n'
        assert (out, err, process.returncode) == ("running\n", told, 0)
    job.cancel(now=True).wait()


def is_parked(pid: int) -> bool:
    """Whether it waits in the kernel for a lock, as the main thread of a call does."""
    return "futex" in Path(f"/proc/{pid}/wchan").read_text() or _in_a_lock(pid)


def _in_a_lock(pid: int) -> bool:
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return number == "202"


def test_no_room_for_a_connection_is_told_with_what_helps(client: gl.Client) -> None:
    client.whoami()
    out = ran(
        f"""
        import resource, gpulayer as gl
        near, other, held = gl.local(), gl.connect("{client.endpoint}"), []
        near.whoami()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                held.append(open("/dev/null"))
        except OSError:
            pass
        try:
            other.whoami()
        except gl.GPUlayerError as fault:
            print(type(fault).__name__, fault)
        while held:
            held.pop().close()
        print(other.whoami().role)
        """
    )
    told, role = out.splitlines()
    assert told.startswith("GPUlayerError this process has too many open files ") and "`ulimit -n`" in told
    assert role == "admin"


def test_a_start_of_the_daemon_that_hangs_does_not_hold_the_end_up(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "hangs"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600\n")
    program.chmod(0o755)
    out = ran(
        f"""
        import asyncio, os, gpulayer as gl
        async def main():
            asking = asyncio.ensure_future(gl.local(binary={str(program)!r}).whoami.aio())
            while not os.path.exists("{tmp_path}/pid"):
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])
            print(asking.cancelled())
        asyncio.run(main())
        """
    )
    assert out == "True\n"
    until(lambda: not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_in_the_middle_of_choosing_a_server_does_not_wait_for_its_parent(client: gl.Client) -> None:
    out = ran(
        """
        import os, pickle, signal, warnings, gpulayer as gl
        from gpulayer import copies, default
        with default._lock, copies._lock:
            child = os.fork()
            if child == 0:
                # Else it would wait for ever.
                signal.alarm(60)
                print(pickle.loads(pickle.dumps(gl.default_client())) is gl.default_client(), flush=True)
                os._exit(0)
        print(os.waitpid(child, 0)[1])
        """
    )
    assert out == "True\n0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_speaks_over_connections_of_its_own(client: gl.Client) -> None:
    client.whoami()
    out = ran(
        """
        import os, warnings, gpulayer as gl
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads at all
        client = gl.local()
        job = client.submit(gl.command(shell="echo a; sleep 0.5; echo b"))
        stream = job.logs(follow=True)
        print(next(stream), flush=True)
        child = os.fork()
        if child == 0:
            print("child", client.whoami().role, job.result().reason, flush=True)
            raise SystemExit
        _, status = os.waitpid(child, 0)
        print([line.text for line in stream], status, client.whoami().role)
        client.close()
        """
    )
    assert out.splitlines() == ["a", "child admin completed", "['b'] 0 admin"]


def test_a_sync_call_works_within_a_running_loop(client: gl.Client) -> None:
    out = ran(
        """
        import asyncio, gpulayer as gl
        async def cell():
            with gl.local() as client:
                job = client.submit(gl.command(["echo", "from a notebook"]))
                job.wait()
                print([line.text for line in job.logs()], (await job).reason)
        asyncio.run(cell())
        """
    )
    assert out == "['from a notebook'] completed\n"


def test_a_line_of_progress_is_shown_on_terminals_alone(client: gl.Client) -> None:
    client.whoami()
    import pty

    near, far = pty.openpty()
    script = """
        import sys, gpulayer as gl
        with gl.local() as client:
            client.submit(gl.command(["sleep", "1.5"], name="red")).wait()
        print("over", file=sys.stderr)
    """
    env = dict(os.environ, PYTHONPATH=SOURCES)
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=env, stderr=far, cwd="/")
    os.close(far)
    shown = b""
    while b"over" not in shown:
        shown += os.read(near, 1000)
    process.wait(timeout=60)
    os.close(near)
    assert b"(red)" in shown and shown.rstrip().endswith(b"\r\x1b[2Kover")
