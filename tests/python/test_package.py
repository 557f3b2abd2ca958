"""The package as it is imported: cheap, and the same to people, programs and type checkers."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import gpulayer as gl
import pytest
from conftest import SOURCES

INIT = Path(gl.__file__)


def loaded_by(script: str) -> set[str]:
    """The modules that a script loads beyond those of a bare Python."""
    whole = f"import sys; sys.path.insert(0, {SOURCES!r}); before = set(sys.modules)\n{script}\n"
    whole += "print(*sorted(set(sys.modules) - before))"
    asked = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return set(asked.stdout.split())


def test_importing_brings_nothing_along() -> None:
    loaded = loaded_by("import gpulayer")
    assert {each for each in loaded if each.startswith("gpulayer")} == {"gpulayer"}
    assert len(loaded) < 60, "what `typing` needs, and little else"


def test_building_a_spec_brings_no_network_along() -> None:
    loaded = loaded_by("import gpulayer as gl; gl.command(['x'], memory='1GiB', timeout='1h'); gl.GPUlayerError")
    assert loaded.isdisjoint({"httpx", "ssl", "socket", "asyncio", "threading", "logging", "gpulayer.client"})
    # A class with methods in both forms is no reason either.
    assert "asyncio" not in loaded_by("from gpulayer.both import both\nclass A:\n @both\n async def f(self): ...")


def test_a_job_that_imports_a_module_with_remote_functions_pays_for_no_client() -> None:
    loaded = loaded_by(
        "import os; os.environ['GPULAYER_FUNCTION'] = '/x'\nimport gpulayer as gl\n"
        "@gl.remote(gpus=1, memory='8GiB')\ndef f(x): return x\nassert f(1) == 1"
    )
    assert loaded.isdisjoint({"httpx", "ssl", "socket", "asyncio", "cloudpickle", "gpulayer.client"})


def test_checkers_and_programs_see_the_same_names() -> None:
    block = next(node for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If))
    seen = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom) and line.level == 1
        for each in line.names:
            assert each.asname == each.name, "else it is not exported"
            seen[each.name] = line.module
    assert seen == gl._home_of
    for name in gl.__all__:
        assert getattr(gl, name) is not None and name in dir(gl)


def test_no_module_stands_in_the_place_of_a_name() -> None:
    modules = {each.name for each in pkgutil.iter_modules(gl.__path__)}
    assert modules.isdisjoint(gl.__all__), "importing it would put the module there"
    assert set(gl._HOMES) <= modules


def test_what_is_not_there_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'gpulayer' has no attribute 'comand'"):
        gl.comand  # type: ignore[attr-defined]
    assert not hasattr(gl, "__wrapped__")
