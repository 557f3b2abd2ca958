"""The package against docs/openapi.json: every call it makes and every field it reads is there, and none is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from conftest import ROOT
from gpulayer import errors, records, routes

DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]

RECORDS = [
    each
    for each in vars(records).values()
    if dataclasses.is_dataclass(each) and isinstance(each, type) and each.__module__ == records.__name__
]


def schema_of(kind: type) -> Any:
    return SCHEMAS[{"JobRecord": "Job", "JobWarning": "Warning"}.get(kind.__name__, kind.__name__)]


@pytest.mark.parametrize("route", routes.ALL, ids=lambda route: f"{route.method} {route.path}")
def test_a_call_is_in_the_document_with_all_that_it_takes(route: routes.Route) -> None:
    call = DOCUMENT["paths"][route.path][route.method.lower()]
    taken = {kind: {each["name"] for each in call.get("parameters", ()) if each["in"] == kind} for kind in KINDS}
    assert route.query <= taken["query"]
    assert route.keyed == ("Idempotency-Key" in taken["header"])
    assert set(re.findall(r"\{(\w+)\}", route.path)) == taken["path"]
    assert route.repeatable or route.method == "PUT"
    assert route.answers != ("204" in call["responses"])


KINDS = ("query", "header", "path")


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_has_the_fields_of_its_schema_and_no_others(kind: type) -> None:
    schema = schema_of(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert set(fields) == set(schema["properties"])
    for name, field in fields.items():
        may_be_absent = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        assert may_be_absent or name in schema["required"], f"{name} may be absent and has no default"
        shape = schema["properties"][name]
        texts = json.dumps([shape.get("type"), shape.get("oneOf"), shape.get("anyOf")])
        if '"null"' in texts:
            assert "Optional" in str(field.type) or field.type == "Any", f"{name} may be null"


def test_the_ended_states_are_the_documents() -> None:
    assert records.ENDED < set(SCHEMAS["JobState"]["enum"])


def test_every_error_code_becomes_an_error_and_the_special_ones_exist() -> None:
    codes = set(SCHEMAS["ErrorCode"]["enum"])
    assert set(errors._BY_CODE) <= codes
    for code in codes:
        told = errors.refusal({"code": code, "status": 409, "detail": "x", "request_id": "r"})
        assert told.code == code and "x" in str(told)


def test_fields_that_the_builders_write_are_those_of_a_spec() -> None:
    import gpulayer as gl

    spec = gl.distributed(
        ["x"], nodes=2, processes_per_node="gpu", backend="gloo", name="n", labels={"a": "b"}, project="p",
        priority=1, cpus=1, memory=1, disk=1, gpus="A:1", gpu_memory=1, frameworks={"torch": ""}, profile="cpu",
        on="w", target="any", source="s", inputs={"a": "/x", "b": ("j", "o")}, outputs="o", env={"A": "b"},
        secrets={"S": "name:S"}, after="j", array=2, timeout=1, queue_timeout=1, grace=1, stop_signal="INT",
        retries=1, retry_on=["any"], cwd="x", python="3.12", requirements=["a"],
    )  # fmt: skip
    assert set(spec.fields) <= set(SCHEMAS["JobSpec"]["properties"])
    from gpulayer.spec import FIELDS

    # The others are of the contract, and refused by this version.
    assert set(SCHEMAS["JobSpec"]["properties"]) <= FIELDS
    assert set(spec.fields["resources"]) <= set(SCHEMAS["Resources"]["properties"])
    assert set(spec.fields["resources"]["gpus"]) <= set(SCHEMAS["GpuRequest"]["properties"])
    assert set(spec.fields["distributed"]) <= set(SCHEMAS["Distributed"]["properties"])
    assert set(spec.fields["python"]) <= set(SCHEMAS["Python"]["properties"])
    assert set(spec.fields["retry"]) <= set(SCHEMAS["Retry"]["properties"])
    assert set(spec.fields["depends_on"][0]) <= set(SCHEMAS["Dependency"]["properties"])
