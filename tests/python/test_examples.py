"""The examples as their READMEs say: each `sh` block is run, and prints what stands below it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT, SOURCES

EXAMPLES = ROOT / "examples"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
STEPS = [
    pytest.param(readme.parent.name, commands, expected, id=f"{readme.parent.name}-{number}")
    for readme in sorted(EXAMPLES.glob("*/README.md"))
    for number, (commands, expected) in enumerate(BLOCK.findall(readme.read_text()))
]
TOUR = "examples/notebook/tour.ipynb"


def test_every_example_says_how_it_is_run() -> None:
    folders = sorted(each.name for each in EXAMPLES.iterdir() if each.is_dir())
    assert sorted({str(step.values[0]) for step in STEPS}) == folders


@pytest.mark.parametrize("example, commands, expected", STEPS)
def test_an_example_does_what_its_readme_says(
    example: str, commands: str, expected: str, home: Path, tmp_path: Path
) -> None:
    if "--installed" in commands and importlib.util.find_spec("sklearn") is None:
        pytest.skip("examples/sweep: scikit-learn is not installed here")
    if example == "sweep" and "--installed" not in commands:
        skip_unless_it_can_be_built("scikit-learn>=1.5,<2", tmp_path)
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=tmp_path, env=surroundings(home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # `…` stands for what differs from run to run, and for lines that are left out.
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    if expected:
        assert re.fullmatch(pattern, done.stdout, re.DOTALL), done.stdout
        assert done.stderr == ""
    if TOUR in commands:
        assert shown(tmp_path / TOUR) == shown(ROOT / TOUR)


def surroundings(home: Path) -> dict[str, str]:
    """What the commands of a README find: this interpreter as `python`, its programs, and this package."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": SOURCES,
        # A warning is a fault of the example, except of Jupyter and what it brings along.
        "PYTHONWARNINGS": "error::ResourceWarning",
        "IPYTHONDIR": str(home / "ipython"),
    }


def skip_unless_it_can_be_built(requirement: str, folder: Path) -> None:
    """The worker needs `uv` and an index for it."""
    uv = shutil.which("uv", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if uv is None:
        pytest.skip(f"examples/sweep: no uv here, which builds the environment with {requirement}")
    ask = [uv, "pip", "install", "--dry-run", "--no-cache", "--python", sys.executable]
    asked = subprocess.run(
        [*ask, "--target", str(folder / "none"), requirement], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        pytest.skip(f"examples/sweep: {requirement} cannot be had here: {asked.stderr.strip()[-300:]}")


def shown(path: Path) -> list[list[Any]]:
    """What stands below each cell that a reader would compare: text and values, and of tables that they are there
    (they hold times)."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    below = []
    for cell in notebook.cells:
        outputs = [each for each in cell.get("outputs", ()) if each["output_type"] != "display_data"]
        texts = [each.get("text") or each.get("data", {}) for each in outputs]
        below.append([sorted(each) if "text/html" in each else each for each in texts])
    return below
