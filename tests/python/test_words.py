"""What people write: sizes, durations, addresses, specs. No server is asked."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Iterator

import gpulayer as gl
import pytest
from gpulayer.advice import in_words
from gpulayer.endpoint import Endpoint, connection_string
from gpulayer.quantities import shown_size, shown_span, size_bytes, span_s
from gpulayer.server_choice import Choice, choose
from gpulayer.spec import _python_folder, in_numbers, own_python, with_recorded
from gpulayer.wire import read

PIN = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    "text, size",
    [("16GiB", 16 << 30), ("80GB", 80 * 10**9), ("512M", 512 * 10**6), ("1.5 kib", 1536), ("7", 7), ("3B", 3)],
)
def test_sizes_are_read_as_the_command_line_reads_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    "text, span", [("90m", 5400), ("1h30m", 5400), ("250ms", 0.25), ("2d", 172800), ("1.5", 1.5), ("0.5h", 1800)]
)
def test_durations_are_read_as_the_command_line_reads_them(text: str, span: float) -> None:
    assert span_s(text) == span


@pytest.mark.parametrize("text", ["", "GiB", "1iB", "1 2", "-1", "9000PB", "16 gigs"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(gl.ConfigurationError, match="memory="):
        gl.command(["x"], memory=text)


@pytest.mark.parametrize("text", ["", "h", "1m1h", "1h1h", "1h2", "soon"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(gl.ConfigurationError, match="duration"):
        in_numbers({"timeout_s": text})


def test_sizes_are_shown_in_the_unit_people_would_use() -> None:
    shown = [shown_size(size) for size in (0, 999, 1000, 999_949, 999_950, 10**9)]
    assert shown == ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.0 GB"]


def test_addresses_are_read_as_the_command_line_reads_them() -> None:
    for url in ["http://127.0.0.1:8470", "https://[::1]:9", "https://a.b:1", "unix:/run/x.sock"]:
        assert str(Endpoint.parse(url)) == url
    assert str(Endpoint.parse("https://box/")) == "https://box:8470"
    assert str(Endpoint.parse("unix:///run/x.sock")) == "unix:/run/x.sock"
    for bad in ["", "http://", "http://a b", "http://a:99999", "unix:x", "http://a/b", "ftp://a", "http://a:²"]:
        with pytest.raises(gl.ConfigurationError, match="not a server address"):
            Endpoint.parse(bad)
    with pytest.raises(gl.ConfigurationError, match=r"did you mean https://10\.88\.0\.2:8470"):
        Endpoint.parse("10.88.0.2:8470")
    assert Endpoint.parse("https://[::ffff:127.0.0.1]").is_loopback
    assert not Endpoint.parse("https://localhost.example").is_loopback


def test_a_connection_string_is_a_server_and_its_faults_show_no_token() -> None:
    target = connection_string(f"gpulayer://glc_0f@box?pin={PIN.upper().replace('SHA', 'sha')}")
    assert (str(target.endpoint), target.token, target.pins) == ("https://box:8470", "glc_0f", (PIN,))
    assert "glc_0f" not in repr(target)
    for text in [
        "gpulayer://box:8470",
        "gpulayer://gls_5ecret@box",
        "gpulayer://glj_5ecret@box",
        "gpulayer://glc_5ecret@",
        "gpulayer://glc_5ecret@box?pin=sha256:ab",
        "gpulayer://glc_5ecret@box?ca=x",
        "gpulayer://glc_5ecret@box?plain=1",
    ]:
        with pytest.raises(gl.ConfigurationError) as fault:
            connection_string(text)
        assert "5ecret" not in str(fault.value)


def chosen(home: Path, given: str | None = None, **env: str) -> Choice:
    return choose(given, env={"GPULAYER_HOME": str(home), **env}, machine_socket=str(home / "none"))


def test_the_server_is_chosen_as_the_command_line_chooses_it(tmp_path: Path) -> None:
    own = chosen(tmp_path)
    assert own.own and own.on_demand and own.target.endpoint.path == f"{tmp_path}/state/gpulayer.sock"
    machine = tmp_path / "machine.sock"
    machine.touch()
    mine = choose(None, env={"GPULAYER_HOME": str(tmp_path)}, machine_socket=str(machine))
    assert mine.own and not mine.on_demand and mine.target.endpoint.path == str(machine)
    saved = f'current = "box"\n[connections.box]\nurl = "https://box:8470"\ntoken = "glc_0f"\npins = ["{PIN}"]\n'
    (tmp_path / "connections.toml").write_text(saved)
    box = chosen(tmp_path).target
    assert (str(box.endpoint), box.token, box.pins) == ("https://box:8470", "glc_0f", (PIN,))
    assert chosen(tmp_path, "box").target == box
    assert chosen(tmp_path, "https://box").target == box, "by its address"
    assert chosen(tmp_path, "https://other").target.token is None
    assert chosen(tmp_path, "https://box", GPULAYER_TOKEN="glc_1").target.token == "glc_1"
    (tmp_path / "config.toml").write_text('url = "https://filed"\n')
    assert str(chosen(tmp_path).target.endpoint) == "https://filed:8470"
    assert str(chosen(tmp_path, GPULAYER_URL="http://localhost").target.endpoint) == "http://localhost:8470"
    assert str(chosen(tmp_path, GPULAYER_URL="").target.endpoint) == "https://filed:8470"
    assert chosen(tmp_path, "local", GPULAYER_URL="http://localhost").on_demand
    with pytest.raises(gl.ConfigurationError, match="no server is saved as `laptop`; there is box"):
        chosen(tmp_path, "laptop")


def test_a_fault_in_the_saved_servers_shows_no_token(tmp_path: Path) -> None:
    (tmp_path / "connections.toml").write_text('[connections.a]\nurl = "x"\ntoken = glc_5ecret\n')
    with pytest.raises(gl.ConfigurationError, match="line 3") as fault:
        chosen(tmp_path)
    assert "5ecret" not in str(fault.value)


def test_a_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("glc_0f\n")
    env = {"GPULAYER_HOME": str(tmp_path)}
    assert choose("https://box", tmp_path / "token", PIN, env=env).target.token == "glc_0f"
    (tmp_path / "token").write_text("glj_0f\n")
    with pytest.raises(gl.ConfigurationError, match="one client token"):
        choose("https://box", str(tmp_path / "token"), env=env)
    with pytest.raises(gl.ConfigurationError) as fault:
        choose("https://box", "5ecret", env=env)
    assert "5ecret" not in str(fault.value)


def test_state_of_a_home_with_a_long_name_lies_elsewhere(tmp_path: Path) -> None:
    path = chosen(Path("/tmp") / ("x" * 90)).target.endpoint.path
    assert path.startswith(f"/var/tmp/gpulayer-{os.getuid()}/") and len(path) < 107


def test_a_command_becomes_a_spec() -> None:
    spec = gl.command(
        ["python", Path("train.py")],
        gpus="H100:2",
        gpu_memory="40GB",
        cpus=4,
        memory="16GiB",
        outputs=["model.pt", {"path": "log/*", "optional": True}],
        inputs={"data": "artifact://sha256/" + "0" * 64, "base": ("job_a", "model")},
        after=[("job_b", "ended"), "job_c"],
        array=["a", 2],
        timeout="90m",
        retries=2,
        secrets={"HF_TOKEN": "name:HF_TOKEN"},
        on={"zone": "attic"},
        resources={"os": "linux"},
    )
    fields = in_numbers(spec.fields)
    assert json.loads(json.dumps(fields)) == {
        "workload": {"command": {"argv": ["python", "train.py"]}},
        "resources": {
            "cpus": 4,
            "memory_bytes": 16 << 30,
            "gpus": {"count": 2, "models": ["H100"], "memory_bytes": 40 * 10**9},
            "labels": {"zone": "attic"},
            "os": "linux",
        },
        "outputs": [{"path": "model.pt"}, {"path": "log/*", "optional": True}],
        "inputs": [
            {"artifact": "artifact://sha256/" + "0" * 64, "path": "data"},
            {"from": {"job": "job_a", "output": "model"}, "path": "base"},
        ],
        "depends_on": [{"job": "job_b", "when": "ended"}, {"job": "job_c", "when": "succeeded"}],
        "array": {"items": ["a", 2]},
        "timeout_s": 5400,
        "retry": {"max_attempts": 3},
        "secrets": [{"name": "HF_TOKEN", "ref": "name:HF_TOKEN"}],
    }


def test_the_words_of_a_python_environment(tmp_path: Path) -> None:
    def python(**words: Any) -> Any:
        return gl.command(["true"], **words).fields.get("python")

    assert python() is None
    assert python(python="3.12") == {"interpreter": "3.12"}
    assert python(python={"uv": "."}) == {"uv": "."}
    assert python(python="3.12", requirements=["torch==2.4"]) == {
        "interpreter": "3.12",
        "requirements": ["torch==2.4"],
    }
    (tmp_path / "more").mkdir()
    (tmp_path / "all.txt").write_text("# All\ntorch==2.4 \\\n    --hash=sha256:00\n-r more/base.txt  # the rest\n--pre\n")
    (tmp_path / "more" / "base.txt").write_text("numpy\n\n-c limits.txt\n")
    lines = ["torch==2.4 \\", "--hash=sha256:00", "numpy", "-c limits.txt", "--pre"]
    assert python(requirements=tmp_path / "all.txt") == {"requirements": lines}
    assert python(requirements=str(tmp_path / "all.txt")) == {"requirements": lines}
    with pytest.raises(gl.ConfigurationError, match="cannot be read"):
        python(requirements=tmp_path / "absent.txt")
    with pytest.raises(gl.ConfigurationError, match="given as a list"):
        python(requirements="torch==2.4")


def test_the_words_of_gpus_after_and_array() -> None:
    def field(name: str, **words: object) -> object:
        return gl.command(["x"], **words).fields[name]  # type: ignore[arg-type]

    def gpus(given: object) -> object:
        resources = field("resources", gpus=given)
        assert isinstance(resources, dict)
        return resources["gpus"]

    assert gpus(2) == gpus("2") == {"count": 2}
    assert gpus("all") == {"count": "all"} and gpus("A100:all") == {"count": "all", "models": ["A100"]}
    assert gpus("A100") == {"count": 1, "models": ["A100"]}
    assert field("depends_on", after=("job_a", "ended")) == [{"job": "job_a", "when": "ended"}]
    assert field("depends_on", after=("job_a", "job_b")) == [
        {"job": "job_a", "when": "succeeded"},
        {"job": "job_b", "when": "succeeded"},
    ]
    assert field("array", array=range(3, 5)) == {"start": 3, "count": 2}
    assert field("array", array=range(0, 6, 2)) == {"items": [0, 2, 4]}


def test_a_label_may_be_written_as_on_the_command_line() -> None:
    where = gl.command(["x"], on="zone=attic").fields["resources"]
    assert where == gl.command(["x"], on={"zone": "attic"}).fields["resources"] == {"labels": {"zone": "attic"}}
    assert gl.command(["x"], on="box").fields["resources"] == {"worker": "box"}


def test_what_belongs_to_the_user_is_sent_as_it_stands() -> None:
    fields = {"env": {"x_s": "90m"}, "labels": {"size_bytes": "1GB"}, "timeout_s": "2m"}
    assert in_numbers(fields) == {"env": {"x_s": "90m"}, "labels": {"size_bytes": "1GB"}, "timeout_s": 120}


def test_on_the_own_daemon_a_command_finds_this_environment_unless_told_otherwise() -> None:
    fields = dict(gl.command(["x"], env={"PATH": "/mine"}).fields)
    recorded = with_recorded(fields, {"PATH": "/bin", "VIRTUAL_ENV": "/venv", "HOME": "/root", "CONDA_PREFIX": ""})
    assert recorded["env"] == {"PATH": "/mine", "VIRTUAL_ENV": "/venv"}
    assert recorded["shell_env"] == ["VIRTUAL_ENV"], "what counts on this machine alone"


def test_of_a_variable_that_is_not_utf_8_the_other_paths_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PATH": "/caf\udce9:/bin", "LD_LIBRARY_PATH": "/caf\udce9", "CONDA_PREFIX": "/c\udce9"}
    fields = dict(gl.command(["x"]).fields)
    assert with_recorded(fields, environ)["env"] == {"PATH": "/bin"}
    called = with_recorded({"workload": {"function": {}}}, environ)["env"]
    assert called["PATH"].split(":")[1:] == ["/bin"] and called.keys() <= {"PATH", "VIRTUAL_ENV"}
    monkeypatch.setattr(sys, "executable", "/caf\udce9/python3")
    _python_folder.cache_clear()
    try:
        assert own_python(environ) == {}
    finally:
        _python_folder.cache_clear()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"env": {"A": "caf\udce9"}}, r"env['A']='caf\udce9' cannot be sent: it has bytes that are not UTF-8"),
        ({"env": {"caf\udce9": "1"}}, r"env has the key 'caf\udce9': it has bytes"),
        ({"argv": ["ls", "caf\udce9"]}, r"workload['command']['argv'][1]='caf\udce9' cannot be sent"),
        ({"name": "caf\udce9"}, r"name='caf\udce9' cannot be sent"),
        ({"labels": {"a": "caf\udce9"}}, r"labels['a']='caf\udce9' cannot be sent"),
        ({"inputs": {"caf\udce9": "."}}, r"inputs[0]='caf\udce9' cannot be sent"),
    ],
)
def test_what_is_not_utf_8_is_told_by_the_field_that_has_it(wrong: Any, named: str) -> None:
    with pytest.raises(gl.ConfigurationError, match=re.escape(named)):
        gl.command(**{"argv": ["true"], **wrong})


def test_a_line_of_shell_is_no_argv() -> None:
    with pytest.raises(gl.ConfigurationError, match="shell="):
        gl.command("python train.py")


@pytest.mark.parametrize(
    ("wrong", "written"),
    [
        ({"python": 3.11}, 'python="3.12"'),
        ({"secrets": ["HF_TOKEN"]}, 'secrets={"HF_TOKEN": "name:HF_TOKEN"}'),
        ({"env": ["A=1"]}, 'env={"NAME": "value"}'),
        ({"labels": "x"}, 'labels={"team": "vision"}'),
        ({"frameworks": ["torch"]}, 'frameworks={"torch": ">=2.3"}'),
        ({"inputs": ["x"]}, 'inputs={"data": "local/file"}'),
        ({"inputs": {"x": 5}}, 'inputs={"data": "local/file"}'),
        ({"retries": "x"}, "retries=2"),
        ({"retries": True}, "retries=2"),
        ({"retries": -1}, "retries=-1 cannot be used: so many further attempts, 0 or more"),
        ({"retry_on": 5}, 'retry_on=["worker_lost"]'),
        ({"outputs": 5}, 'outputs=["model.pt"]'),
        ({"outputs": [5]}, 'outputs=["model.pt"]'),
        ({"on": 5}, "on={"),
        ({"after": 5}, "after=job"),
        ({"array": 1.5}, "array=100"),
        ({"argv": 5}, "argv=["),
        ({"requirements": 5}, 'requirements=["torch==2.4"]'),
        ({"timeout": [1]}, 'timeout="90m"'),
        ({"grace": True}, 'grace="90m"'),
        ({"memory": b"1"}, 'memory="16GiB"'),
        ({"cpus": "2"}, "cpus='2' cannot be used: cpus is a number: cpus=2"),
        ({"gpus": 0.5}, 'gpus=0.5 cannot be used: gpus is a whole number, or which: gpus=1'),
        ({"name": Path("x")}, 'name="…"'),
        ({"priority": "high"}, "priority=5"),
        ({"retry": 3}, "did you mean `retries`?"),
        ({"labels": {"a": {1}}}, "labels['a']={1} cannot be sent: set is neither text nor a number"),
        ({"env": {"A": float("nan")}}, "env['A']=nan cannot be sent"),
        ({"workspace_ttl_s": object}, "workspace_ttl_s=<class 'object'> cannot be sent"),
        ({"requirements": "numpy"}, "requirements=['numpy']"),
        ({"requirements": "numpy<2"}, "requirements=['numpy<2']"),
    ],
)
def test_a_word_of_a_wrong_type_says_how_it_is_written(wrong: Any, written: str) -> None:
    [word] = wrong
    with pytest.raises(gl.ConfigurationError, match=re.escape(written)) as told:
        gl.command(**{"argv": ["true"], **wrong})
    assert str(told.value).startswith(word)
    if word not in ("argv", "array"):  # which are no words of functions
        with pytest.raises(gl.ConfigurationError, match=re.escape(written)):
            gl.remote(**wrong)(len)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_no_file_can_be_called_is_no_file(name: str) -> None:
    with pytest.raises(gl.ConfigurationError, match='source is a folder, or the address of a bundle: source="."'):
        gl.command(["true"], source=name)
    with pytest.raises(gl.ConfigurationError, match="inputs is a mapping of paths in the workspace to what comes there"):
        gl.command(["true"], inputs={"x": name})


class Whole:
    """As `numpy.int64`."""

    def __index__(self) -> int:
        return 3


def test_durations_paths_and_numbers_of_other_libraries_are_sent_as_what_they_are() -> None:
    count: Any = Whole()
    spec = gl.command(
        ["x"], timeout=timedelta(minutes=1.5), grace=timedelta(milliseconds=1, microseconds=600), gpus=count, cpus=count,
        env={"DATA": Path("a/b")}, array=[count], retries=count, labels={"a": count},  # type: ignore[dict-item]
        retry={"backoff_s": timedelta(seconds=5)},
    )  # fmt: skip
    fields = json.loads(json.dumps(in_numbers(spec.fields)))
    assert (fields["timeout_s"], fields["grace_s"]) == (90, 0.001)
    assert fields["resources"] == {"gpus": {"count": 3}, "cpus": 3} and fields["array"] == {"items": [3]}
    assert fields["retry"] == {"max_attempts": 4, "backoff_s": 5} and fields["env"] == {"DATA": "a/b"}
    assert in_numbers({"timeout_s": timedelta(hours=1)}) == {"timeout_s": 3600}
    with pytest.raises(gl.ConfigurationError, match=r"depends_on\[0\]\['job'\]=.* cannot be sent: object is neither"):
        in_numbers({"depends_on": [{"job": object()}]})
    assert "retry_on" not in gl.command(["x"], retries=0, retry_on=[]).fields["retry"], "which says nothing"


def test_a_word_that_is_nearly_one_is_told_at_once() -> None:
    near = {"gpu": "gpus", "cpu": "cpus", "mem": "memory", "memry": "memory", "requirement": "requirements"}
    near.update(environment="env", output="outputs", time_out="timeout", retrie="retries")
    wrong: dict[str, Any]
    for word, meant in near.items():
        wrong = {word: 1}
        with pytest.raises(gl.ConfigurationError, match=f"`{word}` is no word of a job; did you mean `{meant}`"):
            gl.command(["x"], **wrong)
        with pytest.raises(gl.ConfigurationError, match=f"did you mean `{meant}`"):
            gl.remote(**wrong)(len)
    assert gl.command(["x"], hold=True, of_a_newer_server=1).fields["of_a_newer_server"] == 1


def test_short_times_are_not_shown_as_none() -> None:
    shown = [shown_span(span) for span in (0, 0.0002, 0.023, 0.9994, 0.9996, 3.21, 130, 3900)]
    assert shown == ["0.0s", "1ms", "23ms", "999ms", "1.0s", "3.2s", "2m10s", "1h05m"]


@pytest.mark.parametrize(
    "advice, words",
    [
        ("--memory 128MiB", 'memory="128MiB"'),
        (".gitignore left data/ out: --input data/ or --here", '.gitignore left data/ out: inputs={"data/": "data/"}'),
        ("much is reserved, --env A_B=c:True", 'much is reserved, env={"A_B": "c:True"}'),
        ("a smaller batch: --env X_Y=false, or X_Z", 'a smaller batch: env={"X_Y": "false"}, or X_Z'),
        ("--env GLOO_SOCKET_IFNAME chooses the network", "env= with GLOO_SOCKET_IFNAME chooses the network"),
        ("--retries with --retry-on gpu_error tries", 'retries= with retry_on=["gpu_error"] tries'),
        ("a job sees only the GPUs it asks for: --gpus 1. If", "a job sees only the GPUs it asks for: gpus=1. If"),
        ("what is not in the folder comes with --input; a program", "what is not in the folder comes with inputs=; a program"),
        ("ask for more with --memory, or use less", "ask for more with memory=, or use less"),
        ("compiled code: `--env PYTHONFAULTHANDLER=1` shows", 'compiled code: `env={"PYTHONFAULTHANDLER": "1"}` shows'),
        ("only with `max_attempts` above 1 (`--retries`): nothing", "only with `max_attempts` above 1 (`retries=`): nothing"),
        ("`--retries 1 --retry-on operator` starts such jobs", '`retries=1, retry_on=["operator"]` starts such jobs'),
        ("with --source none, or single files with --input", 'with source="none", or single files with inputs='),
        ("--timeout 1h30m or less", 'timeout="1h30m" or less'),
        ("ask for more with `--cpus N`", "ask for more with `cpus=N`"),
        ("out of the log: --secret A_B=name:A_B, or", 'out of the log: secrets={"A_B": "name:A_B"}, or'),
        ("(`join --python PATH` there offers one)", "(`join --python PATH` there offers one)"),
        ("`python train.py --memory 3 --lr 1` is not there", "`python train.py --memory 3 --lr 1` is not there"),
        ("it knows no --lr, or choose another port with --port", "it knows no --lr, or choose another port with --port"),
    ],
)
def test_advice_is_in_the_words_of_this_package(advice: str, words: str) -> None:
    assert in_words(advice) == words


#: What a client is not told.
_OF_OTHERS = ("domain/support", "domain/log_budget", "domain/python/")


def _texts_of_the_server() -> Iterator[str]:
    """Those in its sources that name a flag, without what its tests, its comments and its tables of flags have."""
    sources = Path(__file__).parents[2] / "src"
    yield from re.findall(r'^advice = "(.*)"$', (sources / "domain/verdict/rules.toml").read_text(), re.MULTILINE)
    hints = sources / "cli/error/hint.rs"
    for file in [*sources.glob("domain/**/*.rs"), sources / "http/refusal.rs", hints]:
        if str(file.relative_to(sources)).startswith(_OF_OTHERS):
            continue
        text = re.sub(r"^\s*//.*$", "", file.read_text().partition("#[cfg(test)]")[0], flags=re.MULTILINE)
        for found in re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL):
            said = re.sub(r"\\\n\s*", "", found).replace('\\"', '"')
            of_bundles = file != hints or ".gpulayerignore" in said
            if re.search(r"(?<![\w-])--[a-z]", said) and " " in said and of_bundles:
                yield said


def test_no_text_of_the_server_names_flags_that_python_has_not() -> None:
    texts = list(_texts_of_the_server())
    assert len(texts) > 40
    words = {*inspect.signature(gl.command).parameters, *inspect.signature(gl.distributed).parameters}
    for text in texts:
        spoken = in_words(text)
        outside = re.sub(r"`join [^`]*`", "", spoken)
        assert "--" not in outside and "here=" not in outside, text
        assert outside.count("`") % 2 == 0 and outside.count('"') % 2 == 0 and '`"' not in outside, spoken
        assert set(re.findall(r"\b([a-z_]+)=", outside)) <= words, spoken


def test_what_a_server_says_is_in_the_words_of_this_package_wherever_it_is_shown() -> None:
    said, meant = "more with `--memory` (`--retries`)", "more with `memory=` (`retries=`)"
    fault = {"pointer": "/a", "code": "invalid", "detail": said}
    refused = gl.InvalidSpecError({"code": "invalid_spec", "detail": said, "errors": [fault, fault]})
    assert refused.detail == meant and refused.errors[0].detail == meant and "--" not in str(refused)
    end = {"reason": "oom_killed", "owner": "user", "detail": said, "advice": "--memory 128MiB"}
    assert read(gl.End, end) == gl.End("oom_killed", "user", detail=meant, advice='memory="128MiB"')
    change = {"change": said, "pointer": "/a", "value": None}
    told = read(gl.Explanation, {"verdict": "never", "summary": said, "suggestions": [change], "warnings": [fault]})
    assert [str(told), told.suggestions[0].change, told.warnings[0].detail] == [meant] * 3


def test_what_is_no_server_token_or_pin_is_told(home: Path) -> None:
    connect: Any = gl.connect
    for server in (5, b"gpulayer://glc_1@box", ["box"]):
        with pytest.raises(gl.ConfigurationError, match="a server is named by a text, .* of the type (int|bytes|list)") as no:
            connect(server)
        assert "glc_1" not in str(no.value)
    for words, said in (
        ({"token": b"glc_1"}, "^token= is neither a client token .* nor the path"),
        ({"token": 5}, "^token= is neither"),
        ({"pin": 5}, "pin=5 cannot be used: a pin is a text"),
        ({"pin": [b"sha256:1"]}, "pin=.* cannot be used"),
        ({"ca_file": 5}, "ca_file=5 cannot be used: the path of a file"),
    ):
        with pytest.raises(gl.ConfigurationError, match=said) as no:
            connect("https://127.0.0.1:9", **words)
        assert "glc_1" not in str(no.value)


def test_what_is_no_spec_says_what_is(client: gl.Client) -> None:
    def function() -> None: ...

    submit: Any = client.submit
    explain: Any = client.explain
    job = submit(gl.command(["true"], cpus=0.1, memory="64MiB"))
    for wrong, said in (
        (None, r"^None cannot be submitted: .* a spec, as gl.command\(\[…\]\) and gl.function\(…\) make it, or a mapping"),
        ("echo", r"'echo' cannot be submitted: .*: of a line of shell gl.command\(shell=…\)"),
        (function, r"cannot be submitted: a function is called elsewhere by what gl.remote makes of it: f.submit\(…\)"),
        (gl.remote(function), r"f.submit\(…\)"),
        (job, r"it is a job already, which job.retry\(\) submits once more"),
    ):
        for call in (submit, explain, lambda spec: client.submit_all([spec])):
            with pytest.raises(gl.ConfigurationError, match=said):
                call(wrong)
    submit_all: Any = client.submit_all
    single: Any
    for single in (gl.command(["true"]), {"workload": {}}, "echo", None):
        with pytest.raises(gl.ConfigurationError, match="submit_all takes a list of specs"):
            submit_all(single)
    assert client.jobs() == [job], "nothing was sent"


def test_no_path_is_not_the_current_folder(client: gl.Client) -> None:
    put: Any = client.put
    for wrong in ("", None, 5):
        with pytest.raises(gl.ConfigurationError, match=r'put\(.*\): the path of a file or a folder is expected; "\."'):
            put(wrong)
