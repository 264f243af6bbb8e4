"""Records of every family with every field filled, made from the JSON schema of the model.

Every text is one that the test chooses, every list has one entry and every figure is 1, so that columns of one record agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.codec import decode_value
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record

__all__ = ["filled"]


def filled(family: type[Record], text_of: Callable[[tuple[str, ...]], Any]) -> dict[str, Any]:
    """The value of a record that is read as one of the family.

    Args:
        family: which record.
        text_of: the text of a field, by its names from the outermost one; a key of a dictionary is asked for under the
            name of its field and `{}`, its value under `[]`. Something else than a text is taken as it is.
    """
    schema = family.model_json_schema(mode="validation")
    value: dict[str, Any] = _filled(schema, schema.get("$defs", {}), (), text_of)
    if "pfc_port" in value:
        value["pfc_port"] = [0]
    topic = next(topic for topic in TOPICS if family in topic.records)
    assert isinstance(decode_value(topic.name, value), family)
    return value


def _filled(
    schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...], text_of: Callable[..., Any]
) -> Any:
    if "$ref" in schema:
        return _filled(definitions[schema["$ref"].rpartition("/")[2]], definitions, path, text_of)
    if "anyOf" in schema:
        # Texts before figures: what may be either is what a test of texts is about.
        wanted = sorted(schema["anyOf"], key=lambda each: each.get("type") in {"null", "integer", "number", "boolean"})
        wanted = [each for each in wanted if each.get("type") != "null"]
        return _filled(wanted[0], definitions, path, text_of)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if "properties" in schema:
        names = schema["properties"].items()
        return {name: _filled(field, definitions, (*path, name), text_of) for name, field in names}
    if kind == "array" and "prefixItems" in schema:
        return [_filled(each, definitions, path, text_of) for each in schema["prefixItems"]]
    if kind == "array":
        return [_filled(schema.get("items", {}), definitions, path, text_of)]
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        values = schema["additionalProperties"]
        return {text_of((*path, "{}")): _filled(values, definitions, (*path, "[]"), text_of)}
    if kind == "boolean":
        return True
    if kind in {"integer", "number"}:
        return 1
    return "0" * 64 if "pattern" in schema else text_of(path)
