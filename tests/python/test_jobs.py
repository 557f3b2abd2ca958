"""Jobs on a real daemon, over its Unix socket: what a user relies on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Iterator

import gpulayer as gl
import pytest
from conftest import kill_own_daemon, lines, until
from gpulayer.own_daemon import find_binary
from gpulayer.spec import in_numbers, with_recorded


def test_a_command_runs_and_brings_back_its_log_its_files_and_its_end(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell="echo one; echo two >&2; mkdir d; echo file > d/x", outputs="d", name="first"))
    assert [(line.stream, line.text) for line in job.logs(follow=True)] == [("stdout", "one"), ("stderr", "two")]
    assert job.result().reason == "completed"
    assert job.succeeded and job.exit_code == 0 and job.ended
    assert lines(job) == ["one", "two"] and lines(job, tail=1) == ["two"] and lines(job, stream="stdout") == ["one"]
    written = job.outputs.download(tmp_path / "out")
    assert tmp_path / "out" / "d" / "x" in written
    assert (tmp_path / "out" / "d" / "x").read_text() == "file\n"
    assert [event.type for event in job.events()][0] == "job_queued"
    assert [event.seq for event in job.events(follow=True)] == [event.seq for event in job.events()]
    assert [task.state for task in job.tasks()] == ["succeeded"]
    for said in (job.id, job.id[-6:], str(job).split()[0], "first", "@last"):
        assert client.attach(said) == job, said
    with pytest.raises(gl.NotFoundError, match="no job is named 'nope', and no id ends like that"):
        client.attach("nope")
    assert client.jobs(name="first") == [job]
    assert "succeeded" in job._repr_html_() and "d/x" in job._repr_html_()
    assert client.submit(gl.command(["true"])).outputs._repr_html_() == "<p>no outputs</p>"


def test_a_download_overwrites_nothing_unless_told(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell="echo new > a; chmod +x a; echo b > b; ln -s a link", outputs=["a", "link"]))
    job.result()
    (tmp_path / "a").write_text("mine")
    with pytest.raises(gl.FileInTheWayError, match="force=True"):
        job.outputs.download(tmp_path)
    assert (tmp_path / "a").read_text() == "mine" and not (tmp_path / "link").exists()
    job.outputs.download(tmp_path, force=True)
    assert (tmp_path / "a").read_text() == "new\n" and os.access(tmp_path / "a", os.X_OK)
    assert os.readlink(tmp_path / "link") == "a"
    assert len(job.outputs.download(tmp_path)) == 2, "what is the same stays"
    assert job.fetch(tmp_path, undeclared=True) == [tmp_path / "b"]
    assert not [each for each in os.listdir(tmp_path) if each.endswith(".part")]


def test_a_link_in_the_folder_is_not_followed(client: gl.Client, tmp_path: Path) -> None:
    job = client.submit(gl.command(shell="mkdir d; echo x > d/x", outputs="d/x"))
    job.result()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(gl.FileInTheWayError, match="link"):
        job.outputs.download(tmp_path / "out")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_failure_says_why_with_the_end_of_its_log(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="echo the cause; exit 3"))
    assert job.wait().state == "failed", "waiting is no failure"
    with pytest.raises(gl.JobFailedError) as failed:
        job.result()
    assert failed.value.end.exit_code == 3 and failed.value.job is job
    assert "exited with status 3" in str(failed.value) and "the cause" in str(failed.value)
    assert job.why == "exited with status 3"


def test_what_to_do_comes_before_what_shows_it(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="exit 3")).wait()
    kernel = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)," + "cpuset=/," * 40
    evidence = (kernel, "epoch 3")
    end = gl.End("oom_killed", "user", detail="peak 64 MiB", evidence=evidence, advice='memory="128MiB"')
    told = str(gl.JobFailedError(job, end, ("epoch 3",))).splitlines()
    assert told[1:3] == ["  peak 64 MiB", '  try: memory="128MiB"']
    assert told[3] == "  evidence:" and told[4].startswith("    oom-kill:") and told[4].endswith("…")
    assert len(told[4]) <= 104 and told[5:] == ["  the end of its log:", "    epoch 3"]


def test_a_warning_is_in_the_words_of_this_package(client: gl.Client) -> None:
    with pytest.warns(gl.GPUlayerWarning, match=r"\(`retries=`\): nothing is retried"):
        job = client.submit(gl.command(["true"], retry_on=["oom_killed"]))
    assert "retries=" in job.record.warnings[0].detail


def test_a_timeout_is_told_apart_from_the_end_of_the_patience(client: gl.Client) -> None:
    job = client.submit(gl.command(["sleep", "60"], timeout=0.2, grace=0))
    with pytest.raises(gl.JobTimedOutError) as late:
        job.result()
    assert str(late.value).startswith(f"job {job} timed out\n")
    slow = client.submit(gl.command(["sleep", "60"]))
    with pytest.raises(gl.WaitTimeoutError, match="has not ended within 0.1 s"):
        slow.wait(0.1)
    with pytest.raises(gl.WaitTimeoutError, match="has not ended within 0.2 s"):
        slow.wait("200ms")
    with pytest.raises(gl.WaitTimeoutError, match="has not ended within 0.3 s"):
        slow.result(timedelta(milliseconds=300))
    wrong: Any
    for wrong in ("soon", [1], True):
        with pytest.raises(gl.ConfigurationError, match="timeout=.* is not a duration"):
            slow.wait(wrong)
    with pytest.raises(TimeoutError):
        slow.result(timeout=0)
    slow.cancel(now=True)
    with pytest.raises(gl.JobCancelledError):
        slow.result()


def test_cancel_stops_with_grace(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    stream = job.logs(follow=True, stream="stdout")
    assert next(stream).text == "up"
    assert job.cancel().record.cancel_requested_at is not None
    assert [line.text for line in stream] == ["bye"]
    assert job.wait().state == "cancelled"
    again = job.retry()
    assert again.record.retry_of == job.id
    again.cancel(now=True).wait()


def test_inputs_go_along_and_are_sent_once(client: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * (5 << 20))
    spec = gl.command(shell="wc -c < in/data", inputs={"in/data": tmp_path / "data"})
    job = client.submit(spec)
    job.result()
    assert lines(job)[0].strip() == str(5 << 20)
    assert client.put(tmp_path / "data") == job.record.spec["inputs"][0]["artifact"]
    with pytest.raises(gl.ConfigurationError, match="cannot read the input"):
        client.submit(gl.command(["x"], inputs={"in": tmp_path / "absent"}))


def test_a_job_waits_for_another_and_takes_its_output(client: gl.Client) -> None:
    first = client.submit(gl.command(shell="sleep 0.3; echo 42 > answer", outputs="answer"))
    second = client.submit(gl.command(["cat", "in"], inputs={"in": (first, "answer")}, after=first))
    assert "waits for job" in second.why
    second.result()
    assert lines(second) == ["42"]
    failed = client.submit(gl.command(["false"]))
    after_end = client.submit(gl.command(["true"], after=(failed, "ended")))
    after_success = client.submit(gl.command(["true"], after=failed))
    assert after_end.result().reason == "completed"
    assert after_success.wait().record.end is not None and after_success.why
    assert after_success.end is not None and after_success.end.reason == "dependency_failed"


def test_an_array_is_many_jobs(client: gl.Client) -> None:
    items = ["a", 2, {"lr": 0.1}]
    parent = client.submit(gl.command(shell="echo $GPULAYER_ARRAY_ITEM; test $GPULAYER_ARRAY_INDEX != 1", array=items))
    with pytest.raises(gl.JobFailedError):
        parent.result()
    children = parent.children()
    assert [lines(child) for child in children] == [["a"], ["2"], ['{"lr":0.1}']]
    assert [child.state for child in children] == ["succeeded", "failed", "succeeded"]
    again = parent.retry(failed=True)
    again.wait()
    assert [child.record.array_index for child in again.children()] == [1]


def test_a_batch_goes_in_whole_or_not_at_all(client: gl.Client) -> None:
    specs = [gl.command(["echo", "a"]), gl.command(["echo", "b"], after="#0")]
    jobs = client.submit_all(specs)
    assert [job.result().reason for job in jobs] == ["completed", "completed"]
    with pytest.raises(gl.InvalidSpecError) as fault:
        client.submit_all([gl.command(["echo"]), gl.command([])])
    assert [each.pointer for each in fault.value.errors] == ["/jobs/1/workload/command/argv"]
    assert len(client.jobs()) == 2


def test_all_faults_come_at_once_with_their_pointers(client: gl.Client) -> None:
    with pytest.raises(gl.InvalidSpecError) as fault:
        client.submit({"workload": {"command": {"argv": []}}, "resources": {"cpus": -1}, "nmae": "x"})
    error = fault.value
    assert {each.pointer for each in error.errors} == {"/nmae", "/workload/command/argv", "/resources/cpus"}
    assert error.code == "invalid_spec" and error.status == 422 and error.request_id.startswith("req_")
    assert "did you mean `name`" in str(error)


def test_what_is_not_built_is_refused_by_name(client: gl.Client) -> None:
    with pytest.raises(gl.NotSupportedError) as fault:
        client.submit(gl.distributed(["x"], nodes=2, launcher="torchrun"))
    assert fault.value.errors[0].pointer == "/distributed/launcher"


def test_a_gang_of_one_knows_its_place(client: gl.Client) -> None:
    job = client.submit(gl.distributed(shell="echo $GPULAYER_RANK of $GPULAYER_NODES", nodes=1))
    job.result()
    assert lines(job) == ["0 of 1"]


def test_what_cannot_run_is_explained(client: gl.Client) -> None:
    until(lambda: client.explain(gl.command(["true"])).verdict == "fits")
    spec = gl.command(["true"], cpus=100_000)
    told = client.explain(spec)
    assert told.verdict == "never" and told.suggestions and "cpus" in told.suggestions[0].pointer
    with pytest.raises(gl.NoWorkerFitsError):
        client.submit(spec, refuse_impossible=True)
    with pytest.raises(gl.GPUlayerWarning, match="no worker"):
        client.submit(spec)
    assert client.jobs()[0].wait().state == "cancelled", "a warning that is an error leaves nothing behind"
    with pytest.warns(gl.GPUlayerWarning, match="no worker") as warned:
        job = client.submit(spec)
    assert warned[0].filename == __file__ and job.state == "queued" and job.record.warnings
    with pytest.warns(gl.GPUlayerWarning, match="/retry/retry_on"):
        client.submit_all([gl.command(["true"], retry_on=["any"])])
    explained = job.explain()
    assert isinstance(explained, gl.Explanation) and explained.verdict == "never"
    job.cancel().wait()
    assert isinstance(job.explain(), gl.PastExplanation)


def test_what_runs_waits_for_nothing_and_says_so(client: gl.Client, tmp_path: Path) -> None:
    wait = f"while ! [ -e {tmp_path}/go ]; do sleep 0.01; done"
    spec = gl.command(shell=wait, cpus=0.1, memory="64MiB")
    job, array = client.submit(spec), client.submit(spec | {"array": {"count": 2, "max_running": 1}})
    until(lambda: job.refresh().state == array.refresh().state == "running")
    told = job.explain()
    assert isinstance(told, gl.PastExplanation) and told.summary.startswith("it does not wait: it is running since ")
    assert [each.worker for each in told.placements] == [job.record.worker] and told._repr_html_()
    assert "1 running" in array.explain().summary and "1 queued" in array.explain().summary
    (tmp_path / "go").touch()
    job.result()
    array.result()


def test_one_key_is_one_job(client: gl.Client) -> None:
    spec = gl.command(["true"])
    first, second = client.submit(spec, key="tonight"), client.submit(spec, key="tonight")
    assert first == second and len(client.jobs()) == 1
    with pytest.raises(gl.RefusedError) as fault:
        client.submit(gl.command(["false"]), key="tonight")
    assert fault.value.code == "idempotency_key_reused" and "key='tonight'" in str(fault.value)


def test_conflicts_and_absences_are_errors_of_their_own(client: gl.Client) -> None:
    job = client.submit(gl.command(["sleep", "30"]))
    with pytest.raises(gl.ConflictError):
        job.purge()
    job.cancel(now=True).wait()
    job.purge()
    with pytest.raises(gl.NotFoundError):
        job.refresh()


def test_everything_has_a_form_for_asyncio(client: gl.Client, tmp_path: Path) -> None:
    async def work() -> None:
        job = await client.submit.aio(gl.command(shell="echo a; echo b > b", outputs="b"))
        assert [line.text async for line in job.logs(follow=True)] == ["a"]
        assert (await job).reason == "completed"
        assert await job.outputs.download.aio(tmp_path) == [tmp_path / "b"]
        jobs = await asyncio.gather(*(client.submit.aio(gl.command(["sleep", "60"])) for _ in range(3)))
        waiting = asyncio.ensure_future(jobs[0].wait.aio())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(gl.JobCancelledError):
            await asyncio.gather(*(job.cancel.aio(now=True) for job in jobs))
            await jobs[2]
        failed = await client.submit.aio(gl.command(["false"]))
        with pytest.raises(gl.JobFailedError):
            await failed

    asyncio.run(work())
    # Another loop, the same client.
    assert asyncio.run(client.whoami.aio()).role == "admin"


def test_a_long_log_comes_whole_by_pages_and_by_stream(client: gl.Client) -> None:
    job = client.submit(gl.command(["seq", "3000"]))
    job.result()
    expected = [str(number) for number in range(1, 3001)]
    assert lines(job) == expected == lines(job, follow=True)
    assert lines(job, after=2990) == expected[2990:] == lines(job, follow=True, after=2990)
    assert lines(job, follow=True, tail=3) == expected[-3:] == lines(job, tail=3)


def test_what_is_no_json_is_refused_before_it_is_sent(client: gl.Client) -> None:
    with pytest.raises(gl.ConfigurationError, match=r"^array\['items'\]\[0\]=\{1, 2\} cannot be sent: set is neither"):
        gl.command(["x"], array=[{1, 2}])
    with pytest.raises(gl.ConfigurationError, match=r"^workload\['command'\]\['argv'\]\[0\]=b'x' cannot be sent: bytes is neither"):
        client.submit({"workload": {"command": {"argv": [b"x"]}}})


def test_a_stream_left_early_can_be_closed(client: gl.Client) -> None:
    job = client.submit(gl.command(shell="echo a; sleep 60"))
    with job.logs(follow=True) as stream:
        assert next(stream).text == "a"
    assert list(stream) == []
    job.cancel(now=True).wait()


def test_a_killed_daemon_loses_no_line_and_doubles_none(client: gl.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        f"for i in 1 2 3; do echo $i; done; while [ ! -e {go} ]; do sleep 0.02; done; for i in 4 5 6; do echo $i; done"
    )
    job = client.submit(gl.command(shell=script))
    seen = []
    for line in job.logs(follow=True):
        seen.append(line.text)
        if len(seen) == 3:
            kill_own_daemon(client)
            go.touch()
    assert seen == ["1", "2", "3", "4", "5", "6"]
    assert job.result().reason == "completed"


def test_a_wait_outlives_the_daemon(client: gl.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = client.submit(gl.command(shell=f"while [ ! -e {go} ]; do sleep 0.02; done"))
    until(lambda: job.refresh().state == "running")

    async def work() -> None:
        waiting = asyncio.ensure_future(job.wait.aio())
        await asyncio.get_running_loop().run_in_executor(None, kill_own_daemon, client)
        go.touch()
        assert (await waiting).state == "succeeded"

    asyncio.run(work())


def test_a_daemon_that_was_stopped_on_purpose_stays_stopped_for_who_waits(client: gl.Client, binary: str) -> None:

    job = client.submit(gl.command(["sleep", "60"]))
    until(lambda: job.refresh().state == "running")

    async def work() -> None:
        waiting = asyncio.ensure_future(job.events(follow=True)._batches.next())
        stream = job.logs(follow=True)
        following = asyncio.ensure_future(stream.__anext__())
        await asyncio.wait_for(asyncio.shield(waiting), 30)
        down = [binary, "down", "--keep", "--server", "local"]
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: subprocess.run(down, check=True, capture_output=True)
        )
        with pytest.raises(gl.DaemonError, match="gpulayer down"):
            await following

    asyncio.run(work())
    assert client.attach(job.id).state == "running", "the next call starts it again"
    job.cancel(now=True).wait()


def test_a_daemon_that_cannot_start_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gl.local(binary="/no/such/gpulayer") as client, pytest.raises(gl.DaemonError, match="/no/such/gpulayer"):
        client.whoami()
    (home / "state").write_text("in the way")
    with gl.local() as client, pytest.raises(gl.DaemonError, match="could not be started"):
        client.whoami()
    (home / "state").unlink()


def counted(binary: str, folder: Path) -> Path:
    """A `gpulayer` that writes down its runs."""
    program = folder / "gpulayer"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/runs\nexec {binary} "$@"\n')
    program.chmod(0o755)
    return program


def test_a_daemon_that_refuses_to_start_is_asked_once(home: Path, binary: str, tmp_path: Path) -> None:
    (home / "state" / "gpulayer.db").mkdir(parents=True)
    (home / "state").chmod(0o700)
    with gl.local(binary=str(counted(binary, tmp_path))) as client:
        with pytest.raises(gl.DaemonError, match="cannot open the database"):
            client.whoami()
    assert (tmp_path / "runs").read_text().splitlines() == ["whoami --server local"]


@contextlib.contextmanager
def killed_while_it_starts(home: Path, times: int) -> Iterator[None]:
    """Daemons of this home do not get beyond their database, and so many of them are killed there."""

    def is_starting(process: Path) -> bool:
        try:
            begins = b"\0--tell-ready\0" in (process / "cmdline").read_bytes()
            return begins and f"GPULAYER_HOME={home}\0".encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    with contextlib.closing(sqlite3.connect(home / "state" / "gpulayer.db", isolation_level=None)) as held:
        held.execute("PRAGMA locking_mode=EXCLUSIVE")
        held.execute("BEGIN EXCLUSIVE")
        yield
        for _ in range(times):
            starting = until(lambda: next(filter(is_starting, Path("/proc").glob("[0-9]*")), None))
            os.kill(int(starting.name), signal.SIGKILL)
            until(lambda: not starting.exists())


def test_a_daemon_that_is_killed_while_it_starts_is_started_again(
    client: gl.Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long it takes here to kill some.
    monkeypatch.setattr(client.session, "_reconnect_s", 300.0)
    job = client.submit(gl.command(shell="echo a; sleep 60"))
    stream = job.logs(follow=True)
    assert next(stream).text == "a"
    calls: list[Callable[[], object]] = [lambda: job.cancel(now=True), lambda: list(stream)]
    for call in calls:
        kill_own_daemon(client)
        with ThreadPoolExecutor() as pool:
            with killed_while_it_starts(home, 2):
                called = pool.submit(call)
            called.result()
    assert job.wait().state == "cancelled"


def test_the_program_comes_with_the_package_or_is_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "bin"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(gl.DaemonError, match="neither beside this Python nor in PATH"):
        find_binary()
    for folder in ("path", "bin"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gpulayer").touch(mode=0o755)
        assert find_binary() == str(tmp_path / folder / "gpulayer")


def test_the_default_server_is_the_command_lines(home: Path) -> None:
    with gl.connect() as client:
        gl.use(client)
        job = gl.submit(gl.command(["true"]))
        assert job.result().reason == "completed" and gl.attach(job.id) == job and gl.jobs() == [job]
        assert gl.command(["true"]).submit().wait().succeeded
        assert gl.explain(gl.command(["true"])).verdict == "fits" == gl.command(["true"]).explain().verdict


def test_the_same_words_give_the_command_lines_spec(client: gl.Client, binary: str, tmp_path: Path) -> None:
    def by_flags(flags: str) -> object:
        command = [binary, "run", "--server", "local", "--source", "none", "--dry-run", *flags.split()]
        asked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert asked.returncode == 0, asked.stderr
        return json.JSONDecoder().raw_decode(asked.stdout, asked.stdout.index("{"))[0]

    first = client.submit(gl.command(["true"]))
    spec = gl.command(
        ["python", "train.py"],
        gpus="H100:2",
        gpu_memory="40GB",
        cpus=4,
        memory="16GiB",
        outputs="model.pt",
        timeout="1h30m",
        grace="2s",
        queue_timeout="1d",
        retries=2,
        retry_on=["any"],
        array=range(5, 10),
        frameworks={"torch": ">=2.3"},
        secrets={"HF": "name:HF"},
        on={"zone": "attic"},
        labels={"a": "b"},
        env={"X": "1"},
        name="n",
        priority=3,
        stop_signal="INT",
        target="local",
        after=(first, "ended"),
    )
    assert with_recorded(in_numbers(spec.fields), os.environ) == by_flags(
        "--gpus H100:2 --gpu-memory 40GB --cpus 4 --memory 16GiB --output model.pt --timeout 1h30m --grace 2s "
        "--queue-timeout 1d --retries 2 --retry-on any --array 5-9 --framework torch>=2.3 --secret HF=name:HF "
        "--on zone=attic --label a=b --env X=1 --name n --priority 3 --stop-signal INT --target local "
        f"--after {first.id}:ended -- python train.py"
    )
    gang = gl.distributed(shell="true", nodes=2, processes_per_node="gpu")
    assert with_recorded(in_numbers(gang.fields), os.environ) == by_flags(
        "--distributed=env --nodes 2 --nproc-per-node gpu --shell true"
    )


def test_jobs_are_found_by_their_labels(client: gl.Client) -> None:
    def labelled(**labels: str) -> gl.Job:
        return client.submit(gl.command(["true"], labels=labels, cpus=0.1, memory="64MiB"))

    both, one, other = labelled(team="a", kind="x=y&z"), labelled(team="a"), labelled(team="b")
    assert client.jobs(label={"team": "a"}) == client.jobs(label="team=a") == [one, both]
    assert client.jobs(label={"team": "a", "kind": "x=y&z"}) == client.jobs(label="kind") == [both]
    assert client.jobs(label={}) == client.jobs() == [other, one, both]
    wrong: Any
    for wrong in (["team=a"], 5, {"team": 5}):
        with pytest.raises(gl.ConfigurationError, match=r'label=.* cannot be used: .* label=\{"team": "vision"\}'):
            client.jobs(label=wrong)
