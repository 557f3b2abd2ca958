"""What the command line prints for Python, pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gpulayer as gl
from conftest import SOURCES


def python(*words: str) -> "subprocess.CompletedProcess[str]":
    env = dict(os.environ, PYTHONPATH=SOURCES)
    return subprocess.run([sys.executable, "-W", "error", *words], env=env, capture_output=True, text=True, check=False)


def test_what_a_dry_run_prints_works_when_it_is_pasted(client: gl.Client, binary: str, tmp_path: Path) -> None:
    client.whoami()  # the daemon must run, as it says
    (tmp_path / "data").write_text("it's \"there\"\n")
    words = ["--env", "WORD=ä'\"\\", "--gpus", "0", "--retries", "2", "-i", "data", "--source", "none"]
    command = [binary, "run", "--dry-run", *words, "--", "sh", "-c", "cat data; echo $WORD"]
    asked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    code = asked.stdout.split("# Python\n")[1]
    early = python("-c", code)
    assert early.returncode == 1 and "gpulayer.errors.InvalidSpecError: " in early.stderr
    assert "artifact not uploaded" in early.stderr
    client.put(tmp_path / "data")
    submitted = python("-c", code)
    assert submitted.stderr == ""
    job = client.attach(submitted.stdout.strip())
    job.result()
    assert [line.text for line in job.logs()] == ["it's \"there\"", "ä'\"\\"]


def test_what_up_prints_works_when_it_is_pasted(home: Path, binary: str) -> None:
    up = [binary, "up", "--host", "127.0.0.1", "--port", "0", "--no-worker"]
    page = subprocess.run(up, capture_output=True, text=True, check=True).stdout
    line = re.search("^  python3 (-c .*)$", page, re.MULTILINE)
    assert line is not None, page
    env = dict(os.environ, PYTHONPATH=SOURCES)
    ran = subprocess.run(["sh", "-c", f"{sys.executable} {line[1]}"], env=env, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
