"""The committed schemas are those of the models, and a change that old readers would not survive is refused."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from schemas.export import SCHEMA_DIRECTORY, current_schemas, incompatibilities, write_schemas

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = sorted(current_schemas())


def committed(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMA_DIRECTORY / name).read_text(encoding="utf-8"))
    return schema


def test_every_family_has_a_committed_schema_and_there_are_no_others() -> None:
    assert sorted(path.name for path in SCHEMA_DIRECTORY.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_schema_is_that_of_the_model(name: str) -> None:
    assert committed(name) == json.loads(json.dumps(current_schemas()[name])), "run: python -m schemas.export"


def test_what_is_written_is_what_is_committed(tmp_path: Path) -> None:
    written = write_schemas(tmp_path / "json")
    assert [path.name for path in written] == NAMES
    for path in written:
        assert path.read_bytes() == (SCHEMA_DIRECTORY / path.name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_compatible_with_itself(name: str) -> None:
    assert incompatibilities(committed(name), committed(name)) == []


def finding() -> dict[str, Any]:
    return committed("finding.v1.json")


def change(mutate: Callable[[dict[str, Any]], object], schema: dict[str, Any] | None = None) -> list[str]:
    """What a mutated copy of a schema would break."""
    old = schema if schema is not None else finding()
    new = copy.deepcopy(old)
    mutate(new)
    assert new != old
    return incompatibilities(old, new)


def test_a_removed_field_is_refused() -> None:
    assert change(lambda s: s["properties"].pop("explanation")) == ["explanation: was removed"]


def test_a_field_that_becomes_required_is_refused() -> None:
    assert change(lambda s: s["required"].append("explanation")) == ["explanation: became required"]


def test_a_new_required_field_is_refused_and_a_new_optional_one_is_not() -> None:
    def add(schema: dict[str, Any]) -> None:
        schema["properties"]["origin"] = {"type": "string"}

    def add_required(schema: dict[str, Any]) -> None:
        add(schema)
        schema["required"].append("origin")

    assert change(add) == []
    assert change(add_required) == ["origin: became required"]


def test_another_type_is_refused() -> None:
    assert change(lambda s: s["properties"]["urgent"].update(type="string")) == [
        "urgent: type was boolean and is string"
    ]


def test_a_field_that_may_no_longer_be_null_is_refused() -> None:
    def narrow(schema: dict[str, Any]) -> None:
        schema["properties"]["slowdown"] = {"type": "number"}

    assert "slowdown: type was null and is number" in change(narrow)


def test_a_field_that_may_now_be_null_is_compatible() -> None:
    def widen(schema: dict[str, Any]) -> None:
        schema["properties"]["urgent"] = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}

    assert change(widen) == []


def test_a_lost_value_of_an_enumeration_is_refused_and_a_new_one_is_not() -> None:
    assert change(lambda s: s["properties"]["severity"]["enum"].remove("info")) == ["severity: no longer admits info"]
    assert change(lambda s: s["properties"]["severity"]["enum"].append("fatal")) == []


def test_free_text_that_becomes_an_enumeration_is_refused() -> None:
    assert change(lambda s: s["properties"]["explanation"].update(enum=["a"])) == [
        "explanation: no longer admits any text"
    ]


def test_another_record_name_is_refused() -> None:
    assert change(lambda s: s["properties"]["record"].update(const="statement")) == [
        "record: constant was finding and is statement"
    ]


@pytest.mark.parametrize(
    ("bound", "value", "refused"),
    [("maxLength", 10, True), ("maxLength", 10_000, False), ("minLength", 2, True), ("minLength", 0, False)],
)
def test_a_bound_that_admits_less_is_refused_and_one_that_admits_more_is_not(
    bound: str, value: int, refused: bool
) -> None:
    found = change(lambda s: s["properties"]["site_id"].update({bound: value}))
    assert bool(found) is refused


def test_a_bound_that_is_dropped_is_compatible() -> None:
    assert change(lambda s: s["properties"]["site_id"].pop("maxLength")) == []


def test_another_pattern_is_refused() -> None:
    old = committed("collective-digest.v1.json")
    assert change(lambda s: s["properties"]["dump_sha256"].update(pattern="^[0-9]+$"), old)
    assert change(lambda s: s["properties"]["dump_sha256"].pop("pattern"), old) == []


def test_what_is_inside_a_field_is_compared_as_well() -> None:
    assert change(lambda s: s["$defs"]["Subject"]["properties"].pop("rank")) == ["subject.rank: was removed"]
    assert change(lambda s: s["$defs"]["Subject"]["properties"]["level"]["enum"].remove("zone")) == [
        "subject.level: no longer admits zone"
    ]


def test_what_is_inside_a_list_is_compared_as_well() -> None:
    found = change(lambda s: s["$defs"]["Evidence"]["required"].append("sha256"))
    assert found == ["evidence[].sha256: became required"]
    old = committed("gpu-frame.v1.json")
    column = old["properties"]["sm_clock_mhz"]
    assert column["anyOf"][0]["items"]["anyOf"][0] == {"type": "integer"}
    narrowed = change(
        lambda s: s["properties"]["sm_clock_mhz"]["anyOf"][0].update(items={"type": "integer"}),
        old,
    )
    assert narrowed


def test_values_of_an_open_map_are_compared_as_well() -> None:
    old = committed("fabric-frame.v1.json")
    assert change(lambda s: s["properties"]["counters"].update(additionalProperties={"type": "string"}), old)


def test_words_for_people_may_change() -> None:
    assert change(lambda s: s.update(description="other words", title="Other")) == []
    assert change(lambda s: s["properties"]["urgent"].update(default=True, title="U")) == []
