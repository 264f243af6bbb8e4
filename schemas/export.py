"""JSON Schemas of all record families, and the rule by which they may change.

Inside a major version only optional fields are added. `incompatibilities` compares an old schema with a new one and says
what old readers or old archives would not survive. `python -m schemas.export` writes the schemas beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas.base import Record
from schemas.codec import schema_name
from schemas.topics import TOPICS

__all__ = ["SCHEMA_DIRECTORY", "current_schemas", "incompatibilities", "write_schemas"]

SCHEMA_DIRECTORY = Path(__file__).parent / "json"


def current_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema by file name (`gpu-frame.v1.json`), as the models stand."""
    families: list[type[Record]] = [family for topic in TOPICS for family in topic.records]
    schemas = {}
    for family in families:
        name = schema_name(family)
        schema = family.model_json_schema(mode="validation")
        schema["$id"] = name
        schemas[name.removeprefix("paceline.") + ".json"] = schema
    return schemas


def write_schemas(directory: Path = SCHEMA_DIRECTORY) -> list[Path]:
    """Write every schema, and return what was written."""
    directory.mkdir(exist_ok=True)
    written = []
    for name, schema in sorted(current_schemas().items()):
        path = directory / name
        path.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
        written.append(path)
    return written


def incompatibilities(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a change from `old` to `new` would break, one line each; empty when it is compatible.

    Refused: a field removed, a field that became required, a type or a bound that now admits less, an enumeration that
    lost a value. Allowed: optional fields added, descriptions changed, more values admitted.
    """
    found: list[str] = []
    _compare(old, new, old.get("$defs", {}), new.get("$defs", {}), "", found)
    return found


def _resolve(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


_LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")


def _compare(
    old: dict[str, Any],
    new: dict[str, Any],
    old_definitions: dict[str, Any],
    new_definitions: dict[str, Any],
    place: str,
    found: list[str],
) -> None:
    old, new = _resolve(old, old_definitions), _resolve(new, new_definitions)
    where = place or "record"
    for bound in _LOWER_BOUNDS:
        if bound in new and (bound not in old or new[bound] > old[bound]):
            found.append(f"{where}: {bound} was {old.get(bound)} and is {new[bound]}")
    for bound in _UPPER_BOUNDS:
        if bound in new and (bound not in old or new[bound] < old[bound]):
            found.append(f"{where}: {bound} was {old.get(bound)} and is {new[bound]}")
    if new.get("pattern") != old.get("pattern") and "pattern" in new:
        found.append(f"{where}: pattern was {old.get('pattern')} and is {new['pattern']}")
    if "const" in old or "const" in new:
        if old.get("const") != new.get("const") and old.get("const") not in new.get("enum", []):
            found.append(f"{where}: constant was {old.get('const')} and is {new.get('const')}")
    elif "enum" in new:
        lost = set(old.get("enum", [])) - set(new["enum"])
        if lost or "enum" not in old:
            found.append(f"{where}: no longer admits {', '.join(map(str, sorted(lost))) or 'any text'}")
    if old.get("type") != new.get("type") and "type" in new:
        found.append(f"{where}: type was {old.get('type')} and is {new['type']}")
    _compare_alternatives(old, new, old_definitions, new_definitions, place, found)
    _compare_properties(old, new, old_definitions, new_definitions, place, found)
    for inner in ("items", "additionalProperties"):
        if isinstance(old.get(inner), dict) and isinstance(new.get(inner), dict):
            _compare(old[inner], new[inner], old_definitions, new_definitions, f"{where}[]", found)


def _compare_alternatives(
    old: dict[str, Any],
    new: dict[str, Any],
    old_definitions: dict[str, Any],
    new_definitions: dict[str, Any],
    place: str,
    found: list[str],
) -> None:
    if "anyOf" not in old and "anyOf" not in new:
        return
    candidates = new.get("anyOf", [new])
    for alternative in old.get("anyOf", [old]):
        attempts = []
        for candidate in candidates:
            trial: list[str] = []
            _compare(alternative, candidate, old_definitions, new_definitions, place, trial)
            attempts.append(trial)
        best = min(attempts, key=len)
        found.extend(best)


def _compare_properties(
    old: dict[str, Any],
    new: dict[str, Any],
    old_definitions: dict[str, Any],
    new_definitions: dict[str, Any],
    place: str,
    found: list[str],
) -> None:
    old_properties, new_properties = old.get("properties"), new.get("properties")
    if old_properties is None or new_properties is None:
        return
    prefix = f"{place}." if place else ""
    found.extend(f"{prefix}{name}: was removed" for name in sorted(set(old_properties) - set(new_properties)))
    newly_required = set(new.get("required", [])) - set(old.get("required", []))
    found.extend(f"{prefix}{name}: became required" for name in sorted(newly_required))
    for name in sorted(set(old_properties) & set(new_properties)):
        _compare(
            old_properties[name],
            new_properties[name],
            old_definitions,
            new_definitions,
            f"{prefix}{name}",
            found,
        )


if __name__ == "__main__":
    write_schemas()
