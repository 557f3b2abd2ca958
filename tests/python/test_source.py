"""What goes along with a function: which project, which of its folders, and what its interpreter may lack."""

from __future__ import annotations

import base64
import importlib
import io
import pickle
import shutil
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from gpulayer import folders, library, source
from gpulayer.function_call import Submission
from gpulayer.records import End
from gpulayer.results import error_of
from gpulayer.source import Source, found, root_above


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, file: Path) -> None:
    """A module that was imported from a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    module = types.ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder beside the home, and the current one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(source, "_starts", lambda: [tmp_path / "project"])
    return tmp_path / "project"


def test_the_nearest_marker_wins_and_never_home_nor_what_holds_it(tmp_path: Path) -> None:
    home = tmp_path / "ann"
    for folder in (home / "repo" / "pkg" / "deep", home / "work"):
        folder.mkdir(parents=True)
    for marker in (home / "repo" / ".git", home / "repo" / "pkg" / "pyproject.toml", home / ".git", tmp_path / ".git"):
        marker.touch()
    assert root_above(home / "repo" / "pkg" / "deep", home) == home / "repo" / "pkg"
    assert root_above(home / "repo", home) == home / "repo"
    assert (
        root_above(home / "work", home) is None
        and root_above(home, home) is None
        and root_above(tmp_path, home) is None
    )
    assert root_above(Path("/"), None) is None


def test_nothing_goes_along_without_a_module_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    assert found() is None
    named = found(is_named=True)
    assert named is not None and named.root == project, "save for its files"
    loaded(monkeypatch, "installed_there", project / ".venv" / "lib" / "site-packages" / "installed_there.py")
    assert found() is None
    loaded(monkeypatch, "mine", project / "mine.py")
    here = found()
    assert here is not None and here.root == project and here.paths == (".",)
    assert found("none") is None
    (project / "mine.py").unlink()
    there = found()
    assert there is not None and there.root == project and not there.seen, "its file is gone, and it is loaded"


def test_the_program_is_none_of_its_modules_under_any_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    loaded(monkeypatch, "__main__", project / "program.py")
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])  # as `import multiprocessing` does
    assert found() is None


def test_where_modules_were_found_is_searched_there_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").touch()
    loaded(monkeypatch, "pkg", project / "src" / "pkg" / "__init__.py")
    loaded(monkeypatch, "pkg.sub", project / "src" / "pkg" / "sub" / "__init__.py")
    loaded(monkeypatch, "pkg.sub.deep", project / "src" / "pkg" / "sub" / "deep.py")
    loaded(monkeypatch, "tool", project / "tools" / "tool.py")
    monkeypatch.setattr("sys.path", [str(project / "tools"), *sys.path, str(project / "src")])
    here = found()
    assert here is not None and here.paths == ("tools", "src")


def test_an_unmarked_folder_counts_when_modules_lie_in_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "deep_one", project / "some" / "checkout" / "deep_one.py")
    assert found() is None and found(is_named=True) is None
    loaded(monkeypatch, "mine", project / "mine.py")
    here = found()
    assert here is not None and here.root == project


def test_the_project_of_the_module_that_is_called_goes_before_the_current_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for root, name in ((project, "helper"), (other, "pk.job"), (other, "pk")):
        loaded(monkeypatch, name, root / "src" / f"{'pk/__init__' if name == 'pk' else name.replace('.', '/')}.py")
        (root / ".git").mkdir(exist_ok=True)
    (project / "src" / "pk").mkdir()
    (project / "src" / "pk" / "job.py").write_text("other = True")
    here, there = found(called="pk.job"), found()
    assert here is not None and (here.root, here.paths, here.others) == (other, ("src",), ())
    # What a function of the program imports by itself is told of.
    assert there is not None and there.root == project
    assert there.others == (("pk.job", f"{other}/src/pk/job.py", f"{project}/src/pk/job.py"),)
    (project / "src" / "pk" / "job.py").write_text("")
    copy = found()
    assert copy is not None and not copy.others
    # A module that lies in no project is not sent for it.
    shutil.rmtree(other / ".git")
    assert found(called="pk.job") == copy


def test_a_project_that_holds_that_of_the_module_goes_whole_unless_it_has_another_copy(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = project / "packages" / "one"
    loaded(monkeypatch, "one", inner / "one.py")
    loaded(monkeypatch, "two", project / "packages" / "two" / "two.py")
    (inner / "pyproject.toml").touch()
    (project / ".git").mkdir()
    here = found(called="one")
    assert here is not None and here.root == project and set(here.paths) == {"packages/one", "packages/two"}
    (project / "one.py").touch()
    here = found(called="one")
    assert here is not None and here.root == inner


def test_what_would_call_another_function_than_the_one_here_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".git").mkdir()
    loaded(monkeypatch, "mine", project / "mine.py")
    (project / "twin.py").write_text("def which(): return 'other'\n")
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "twin.py").write_text("class K:\n    def which(self): pass\ndef which(): return 'this'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "aside"))
    which = importlib.import_module("twin").which
    monkeypatch.setitem(sys.modules, "twin", sys.modules["twin"])
    client = gl.connect("http://127.0.0.1:9")
    for by_name in (which, sys.modules["twin"].K().which):
        with pytest.raises(gl.ConfigurationError, match=f"source='{tmp_path}/aside' the first one does"):
            Submission(gl.remote(client=client)(by_name), lambda _: {"workload": {"function": {}}})

    def uses() -> Any:
        return which()

    with pytest.warns(gl.GPUlayerWarning, match=f"another one, {project}/twin.py, which is imported there"):
        Submission(gl.remote(client=client)(uses), lambda _: {"workload": {"function": {}}})


def test_a_module_is_where_its_path_leads_now(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("v1", "v2"):
        loaded(monkeypatch, "mine", tmp_path / version / "mine.py")
        (tmp_path / version / "pyproject.toml").touch()
        (tmp_path / version / "linked.py").symlink_to(f"{version}_linked.py")
        (tmp_path / version / f"{version}_linked.py").touch()
    current = tmp_path / "current"
    current.symlink_to("v1")
    loaded(monkeypatch, "mine", current / "mine.py")
    loaded(monkeypatch, "linked", current / "linked.py")
    monkeypatch.setattr(source, "_starts", lambda: [current.resolve()])
    before = found(called="mine")
    current.unlink()
    current.symlink_to("v2")
    after = found(called="mine")
    assert before is not None and before.root == tmp_path / "v1" and after is not None and after.root == tmp_path / "v2"
    assert [Path(file).name for file, *_ in after.seen] == ["v2_linked.py", "mine.py"]
    shutil.rmtree(tmp_path / "v2")
    assert dict(source._own())["mine"] == str(tmp_path / "v2" / "mine.py")


def test_the_folder_of_the_workers_own_programs_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    programs = tmp_path / "runner" / "0f"
    for name, file in (("", "_gpulayer_runner/__init__.py"), (".work", "_gpulayer_runner/work.py")):
        loaded(monkeypatch, f"_gpulayer_runner{name}", programs / file)
    for name in ("_gpulayer_main", "__main__"):
        loaded(monkeypatch, name, programs / "run.py")
    assert programs not in source._starts() and found() is None
    loaded(monkeypatch, "mine", tmp_path / "project" / "mine.py")
    here = found()
    assert here is not None and here.root == tmp_path / "project"


def test_an_edit_is_seen_and_nothing_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "mine", project / "mine.py")
    before = found()
    (project / "data.csv").write_text("1")
    assert found() == before and isinstance(before, Source)
    (project / "mine.py").write_text("x = 1")
    assert found() != before


def test_a_module_that_did_not_travel_is_told_with_why(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(monkeypatch, "aside", tmp_path / "aside" / "aside.py")
    told = {"type": "ModuleNotFoundError", "module": "builtins", "message": "No module named 'aside'"}
    lost = error_of({**told, "stage": "load", "advice": "add it", "traceback": ""}, "…abc")
    assert f"aside is {tmp_path}/aside/aside.py here, and no project travels" in str(lost) and "add it" not in str(lost)
    monkeypatch.setitem(folders._sent, "artifact://sha256/1", str(project))
    told = {**told, "stage": "load", "advice": "add it", "traceback": ""}
    lost = error_of(told, "…abc", spec={"source": "artifact://sha256/1"})
    assert f"not below the project that travels, {project}" in str(lost)
    lost = error_of(told, "…abc", spec={"source": "artifact://sha256/2"})
    assert "try: add it" in str(lost), "what another process sent is not known here"
    # A namespace has no file; and what is said of projects is true.
    (project / ".git").mkdir()
    (tmp_path / "aside" / "pyproject.toml").touch()
    loaded(monkeypatch, "space.inner", tmp_path / "aside" / "src" / "space" / "inner.py")
    monkeypatch.setitem(sys.modules, "space", types.ModuleType("space"))
    lost = error_of({**told, "message": "No module named 'space'"}, "…abc")
    assert f"space is {tmp_path}/aside/src/space here, and no project travels: no module was imported" in str(lost)
    assert f"source='{tmp_path}/aside'" in str(lost) and "add it" not in str(lost)
    other = error_of({**told, "message": "No module named 'numpy'", "stage": "load", "advice": "add it"}, "…abc")
    assert "try: add it" in str(other)


def test_a_module_that_was_left_out_of_the_project_is_told_with_how_to_bring_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "mine.util"):
        loaded(monkeypatch, name, project / "mine" / f"{name.partition('.')[2] or '__init__'}.py")
    (project / ".git").mkdir(exist_ok=True)
    words = {"module": "builtins", "stage": "load", "advice": None, "traceback": ""}
    monkeypatch.setitem(folders._sent, "artifact://sha256/1", str(project))
    spec = {"source": "artifact://sha256/1"}
    for kind, message in (
        ("ImportError", "cannot import name 'util' from 'mine' (/w/mine/__init__.py)"),
        ("ModuleNotFoundError", "No module named 'mine.util'"),
    ):
        lost = error_of({**words, "type": kind, "message": message}, "…abc", spec=spec)
        assert f"mine.util is {project}/mine/util.py here" in str(lost) and "!/mine/util.py in" in str(lost)
    lost = error_of({**words, "type": "ImportError", "message": "cannot import name 'f' from 'mine'"}, "…abc", spec=spec)
    assert "try:" not in str(lost)
    lost = error_of({**words, "type": kind, "message": message}, "…abc")
    assert f"no project travelled with this job: name the folder that holds it, source='{project}'" in str(lost), 'source="none"'


def test_a_module_of_another_name_than_its_file_is_told_that(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".gpulayerignore").touch()
    monkeypatch.setitem(folders._sent, "artifact://sha256/1", str(project))
    words = {"type": "ModuleNotFoundError", "module": "builtins", "stage": "load", "advice": None, "traceback": ""}
    for name, file, do in (
        ("other", "loose.py", "load it as loose, or name the file other.py"),
        ("parts.other", "parts/__init__.py", "load it as parts, or name the file parts/other.py"),
        ("parts.mine", "mine.py", "load it as mine, or name the file parts/mine.py"),
        ("loose_1", "loose-1.py", "by the names of their files: name the file loose_1.py"),
    ):
        loaded(monkeypatch, name, project / file)
        for spec in ({"source": "artifact://sha256/1"}, {}):
            lost = str(error_of({**words, "message": f"No module named '{name}'"}, "…abc", spec=spec))
            assert f"{name} is {project}/{file} here, which was loaded under another name" in lost and do in lost
            assert ".gpulayerignore" not in lost and "source=" not in lost


def test_a_module_that_a_call_by_name_lacks_is_not_looked_for_in_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(monkeypatch, "aside", tmp_path / "aside.py")
    told = {"type": "ModuleNotFoundError", "module": "builtins", "message": "No module named 'aside'", "stage": "load"}
    lost = error_of(told, "…abc", spec={"workload": {"function": {"serializer": "json"}}})
    assert "no project travelled with this job: name the folder" in str(lost) and ".gitignore" not in str(lost)
    loaded(monkeypatch, "aside", tmp_path / "src" / "aside.py")
    monkeypatch.setitem(folders._sent, "artifact://sha256/1", str(tmp_path))
    spec = {"source": "artifact://sha256/1", "workload": {"function": {"serializer": "json"}}}
    lost = error_of(told, "…abc", spec=spec)
    assert f"looked for at the top of its source, {tmp_path}: source='{tmp_path}/src'" in str(lost)
    loaded(monkeypatch, "aside", tmp_path / "aside.py")
    assert "left out of it, most likely by" in str(error_of(told, "…abc", spec=spec))
    itself = error_of({**told, "message": "No module named 'gpulayer'", "advice": "install it"}, "…abc", spec=spec)
    assert "try: install it" in str(itself), "this package is no module of the project"


def test_what_is_known_of_the_end_beyond_the_exception_comes_with_it() -> None:
    told = {"type": "BrokenProcessPool", "module": "concurrent.futures.process", "message": "a process died"}
    told["pickle"] = base64.b64encode(pickle.dumps(OSError("a process died"))).decode("ascii")
    end = End(reason="oom_killed", owner="user", detail="peak 200 MiB of 200 MiB", advice='memory="400MiB"')
    failure = error_of({**told, "traceback": "Traceback …"}, "…abc", end)
    assert type(failure) is OSError
    lines = str(failure.__cause__).split("\n")
    assert lines[2:6] == ["Traceback …", "[in job …abc]", "[job: oom_killed: peak 200 MiB of 200 MiB]", '[memory="400MiB"]']
    plain = error_of({**told, "traceback": "Traceback …"}, "…abc", End("exit_nonzero", "user", 1, detail="exited with status 1"))
    assert str(plain.__cause__) == '\n"""\nTraceback …\n[in job …abc]\n"""'


def test_a_source_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    for name in ("absent", "x" * 300, "y/" * 3000, "a\0b", "\ud800"):
        with pytest.raises(gl.ConfigurationError, match="is no folder"):
            found(str(tmp_path / name))
    assert found(str(tmp_path)) == Source(tmp_path.resolve())


def test_what_is_sent_for_an_interpreter_that_has_nothing(tmp_path: Path) -> None:
    digest, data = library.bundle(True)
    library.bundle.cache_clear()
    assert library.bundle(True) == (digest, data) and library.bundle(False)[0] != digest
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        entries = tar.getmembers()
        assert [each.name for each in entries] == sorted(each.name for each in entries)
        assert {(each.mtime, each.uid, each.uname, each.mode) for each in entries} == {(0, 0, "", 0o644)}
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    script = """
        import sys
        sys.path.append(sys.argv[1])
        import cloudpickle, gpulayer
        assert cloudpickle.__file__.startswith(sys.argv[1]) and gpulayer.__file__.startswith(sys.argv[1])
        assert cloudpickle.cloudpickle.__spec__.loader.get_code("cloudpickle.cloudpickle")
        @gpulayer.remote(memory="1GiB")
        def add(x): return x + 1
        assert add(1) == 2 and "httpx" not in sys.modules and "asyncio" not in sys.modules
        print(cloudpickle.loads(cloudpickle.dumps(lambda: 42))())
        """
    code = "\n".join(line[8:] for line in script.splitlines())
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code, str(tmp_path)]
    env = {"GPULAYER_FUNCTION": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr) == ("42\n", "")
