"""Clients, jobs and errors in pickles, copies and other processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import gpulayer as gl
import pytest
from conftest import SOURCES, Server

PIN = "sha256:" + "ab" * 32


def in_another_process(script: str, *pickled: object, **env: str) -> str:
    """Runs a script in a Python of its own; `given` is what was pickled."""
    begin = "import gpulayer as gl, pickle, sys; given = pickle.load(sys.stdin.buffer)\n"
    asked = subprocess.run(
        [sys.executable, "-W", "error", "-c", begin + script],
        input=pickle.dumps(pickled),
        env=dict(os.environ, PYTHONPATH=SOURCES, **env),
        capture_output=True,
        check=False,
    )
    assert asked.returncode == 0 and asked.stderr == b"", asked.stderr.decode()
    return asked.stdout.decode()


def same(value: Any) -> list[Any]:
    return [pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)]


def test_copies_of_a_job_are_that_job(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="echo x > a", outputs="a", name="n"))
    job.result()
    for other in same(job):
        assert other is not job and other == job and other.client is client
        assert other.record == job.record and other.refresh().succeeded
    for outputs in same(job.outputs):
        assert list(outputs) == list(job.outputs)
    assert same(client) == [client] * 3


def test_a_job_is_found_again_in_another_process(client: gl.Client) -> None:
    job = client.submit(gl.command(["echo", "a"]))
    script = """
job, again = given
assert job == again and job.client is again.client
print(job.result().reason, *job.logs())
"""
    assert in_another_process(script, job, client.attach(job.id)) == "completed a\n"


def test_a_pickle_carries_the_pin_and_no_token(server: Server) -> None:
    with gl.connect(server.url, token=server.token, pin=server.pin, follow_s=7) as client:
        job = client.submit(gl.command(["true"]))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            whole = pickle.dumps(job, protocol)
            assert server.token.encode() not in whole and server.pin.encode() in whole
        script = """
try:
    print(given[0].wait().state, given[0].client.session.patience(True)._span_s)
except gl.AuthenticationError as fault:
    print(fault.code)
"""
        assert in_another_process(script, job, GPULAYER_TOKEN=server.token) == "succeeded 7\n"
        assert in_another_process(script, job) == "unauthenticated\n"
        saved = f'[connections.box]\nurl = "{server.url}"\ntoken = "{server.token}"\npins = ["{server.pin}"]\n'
        (server.home / "connections.toml").write_text(saved)
        assert in_another_process(script, job) == "succeeded 7\n"


def test_clients_of_one_server_with_two_tokens_stay_apart() -> None:
    with gl.connect("https://box", token="glc_1", pin=PIN) as one, gl.connect("https://box", token="glc_2") as two:
        assert same(one) == [one] * 3 and same(two) == [two] * 3


ALL = [getattr(gl, name) for name in gl.__all__]
ERRORS = [kind for kind in ALL if isinstance(kind, type) and issubclass(kind, gl.GPUlayerError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_survive_a_pickle_with_all_they_say(kind: type[gl.GPUlayerError]) -> None:
    with gl.connect("http://127.0.0.1:9") as client:
        fault: Exception
        if issubclass(kind, gl.RefusedError):
            faults = [{"pointer": "/a", "code": "x", "detail": "not so"}]
            fault = kind({"code": "c", "status": 409, "detail": "d", "request_id": "r", "errors": faults})
        elif issubclass(kind, gl.JobFailedError):
            raw = {"id": "job_abcdef0", "project": "p", "submitted_by": "me", "state": "failed", "attempt": 1}
            job = gl.Job(client, {**raw, "submitted_at": "2026-11-30T00:00:00Z", "spec": {}})
            fault = kind(job, gl.End("exit_nonzero", "user", exit_code=3), ("the cause",))
        elif kind is gl.UntrustedError:
            fault = kind("no", seen="sha256:0")
        else:
            fault = kind("it went wrong")
        for other in same(fault):
            assert type(other) is kind and str(other) == str(fault) and vars(other) == vars(fault)
