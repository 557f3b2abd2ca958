"""Folders of this machine as inputs and as the source of a job: the same bundles as the command line's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import warnings
from pathlib import Path

import gpulayer as gl
import pytest
from conftest import Server, lines, until
from gpulayer import folders


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with what travels and what does not."""
    root = tmp_path / "tree"
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "pkg" / "__init__.py").write_text("WORD = 'travelled'\n")
    (root / "pkg" / "__pycache__" / "x.pyc").write_bytes(b"no")
    (root / "run.sh").write_text("#!/bin/sh\npython3 -c 'import pkg; print(pkg.WORD)'\n")
    (root / "run.sh").chmod(0o700)
    (root / ".gitignore").write_text("data/\n")
    (root / "data" / "big").write_bytes(b"x" * 1000)
    (root / ("long-" + "ä" * 90)).touch()
    (root / "link").symlink_to("pkg/__init__.py")
    return root


def test_a_folder_is_an_input_that_is_unpacked(client: gl.Client, tree: Path) -> None:
    spec = gl.command(shell="cd in; ./run.sh; ls -A | wc -l; readlink link; test ! -e data", inputs={"in": tree})
    job = client.submit(spec)
    job.result()
    assert [text.strip() for text in lines(job)] == ["travelled", "5", "pkg/__init__.py"]
    address = job.record.spec["inputs"][0]["artifact"]
    assert client.put(tree) == address
    # Times are none of its business, contents are.
    os.utime(tree / "run.sh", (1, 1))
    assert client.put(tree) == address
    (tree / "run.sh").write_text("else")
    assert client.put(tree) != address


def test_it_has_the_digest_of_the_command_line(client: gl.Client, binary: str, tree: Path) -> None:
    command = [binary, "artifact", "put", "--server", "local", str(tree)]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    assert client.put(tree) == asked.stdout.strip()


def test_a_source_is_the_workspace(client: gl.Client, tree: Path) -> None:
    job = client.submit(gl.command(["./run.sh"], source=tree))
    job.result()
    assert lines(job) == ["travelled"]
    again = gl.command(["./run.sh"], source=job.record.spec["source"])
    assert client.submit(again).result().reason == "completed"
    spec = gl.command(["x"], source=tree)
    assert (spec | {"name": "n"}).source == str(tree)
    assert (spec | {"source": "artifact://sha256/0"}).source is None, "what was said last counts"


def test_folders_reach_a_far_server_with_its_token_and_key(
    server: Server, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_another")
    with gl.connect(server.url, token=server.token, pin=["sha256:" + "0" * 64, server.pin]) as client:
        job = client.submit(gl.command(["./run.sh"], source=tree))
        job.result()
        assert lines(job) == ["travelled"]
    with gl.connect(server.url, token="glc_wrong", pin=server.pin) as client:
        with pytest.raises(gl.AuthenticationError):
            client.put(tree)
    with gl.connect(f"https://localhost:{server.port}", token=server.token, ca_file=server.ca_file) as client:
        assert client.put(tree) == job.record.spec["source"]


def test_a_server_that_is_not_there_is_told_as_by_any_call(home: Path, tree: Path) -> None:
    with gl.connect("http://127.0.0.1:9") as client, pytest.raises(gl.UnreachableError):
        client.put(tree)


def test_a_folder_that_cannot_travel_says_why(client: gl.Client, tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(gl.ConfigurationError, match="is no path that a file could have"):
            client.put(name)
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(gl.ConfigurationError, match="its largest files: huge"):
        client.submit(gl.command(["x"], source=tmp_path))
    with pytest.raises(gl.ConfigurationError, match="cannot read"):
        client.submit(gl.command(["x"], source=tmp_path / "absent"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gl.ConfigurationError, match="neither a file nor a folder"):
        client.put(tmp_path / "pipe")


def test_without_the_program_it_says_what_is_missing(
    server: Server, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with gl.connect(server.url, token=server.token, pin=server.pin) as client:
        with pytest.raises(gl.ConfigurationError, match="the program `gpulayer`, which makes bundles"):
            client.put(tree)


def test_what_the_program_says_is_in_the_words_of_this_package(client: gl.Client, tree: Path, tmp_path: Path) -> None:
    client.whoami()
    full = tmp_path / "full"
    full.write_text("#!/bin/sh\necho 'gpulayer: too large: nothing with --source none, or single files with --input' >&2; exit 1\n")
    full.chmod(0o755)
    with gl.local(binary=str(full)) as other, pytest.raises(gl.ConfigurationError) as refused:
        other.put(tree)
    assert str(refused.value).endswith('too large: nothing with source="none", or single files with inputs=')


def test_who_stops_waiting_ends_the_program(server: Server, tree: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 60\n")
    slow.chmod(0o755)

    async def work() -> None:
        with pytest.MonkeyPatch.context() as patch, gl.connect(
            server.url, token=server.token, pin=server.pin
        ) as client:
            patch.setattr(folders, "find_binary", lambda: str(slow))
            putting = asyncio.ensure_future(client.put.aio(tree))
            while not pid.exists():
                await asyncio.sleep(0.01)
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting

    asyncio.run(work())
    number = pid.read_text().strip()
    until(lambda: not os.path.exists(f"/proc/{number}"))
def test_what_a_source_left_out_is_known_when_it_is_missed(client: gl.Client, tree: Path) -> None:
    job = client.submit(gl.command(["cat", "data/big"], source=tree))
    with pytest.raises(gl.JobFailedError, match="data/"):
        job.result()
    assert [warning.pointer for warning in job.record.warnings] == ["/source"]




def test_what_cannot_travel_of_an_input_is_told_where_it_was_asked_for(client: gl.Client, tree: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.put(tree)  # what is not meant to travel
    (tree / "away").symlink_to("/etc/hostname")
    (tree / "private").touch(mode=0)
    (tree / "closed").mkdir(mode=0)
    (tree / ".venv").mkdir()
    (tree / "bare").mkdir()
    (tree / "bare" / "pyvenv.cfg").touch()
    os.mkfifo(tree / "pipe")
    with open(os.fsencode(tree / "caf") + b"\xe9", "wb"):
        pass
    with pytest.warns(gl.GPUlayerWarning) as seen:
        address = client.put(tree)
    [told] = seen
    assert told.filename == __file__ and str(told.message).startswith(f"{tree} travels without ")
    named = "away (the link leads out", "private (not readable)", "closed/ (not", "pipe (neither", "caf\ufffd (the name"
    assert sum(each in str(told.message) for each in named) == 4 and str(told.message).endswith(" and 1 more")
    (tree / "pipe").unlink()
    (tree / "closed").rmdir()
    spec = gl.command(["ls", "in"], inputs={"in": tree})
    with pytest.warns(gl.GPUlayerWarning, match=r"travels without .*private \(not readable\)(?!.* more)") as seen:
        job = client.submit(spec)
    assert [each.filename for each in seen] == [__file__]
    assert job.result().reason == "completed" and "away" not in lines(job)
    with pytest.warns(gl.GPUlayerWarning, match="private"):
        client.submit_all([spec])[0].result()
    with pytest.warns(gl.GPUlayerWarning, match="private") as seen:
        assert "away" not in gl.remote(client=client, inputs={"in": tree})(lambda: os.listdir("in")).run()
    assert [each.filename for each in seen] == [__file__]
    many = [{"by": "the bundle", "path": f"{number}\ufffd"} for number in range(64)]
    assert str(folders.lacking("f", folders.Bundle("a", tuple(many)))).endswith(" and at least 60 more")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(gl.GPUlayerWarning):
            client.submit(spec | {"name": "never"})
    assert not client.jobs(name="never") and address
