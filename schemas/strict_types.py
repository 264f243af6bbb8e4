"""The record families as types of msgspec, made from the very schemas that pydantic validates them by.

Every bound is the same one, or a tighter one, so that msgspec takes no value that pydantic refuses, and makes of it what
pydantic makes. What this module does not know exactly has no types: `Inexact` is raised, and pydantic is left to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from pydantic import BaseModel

from schemas.base import Record

__all__ = ["FamilyTypes", "Inexact", "Lift", "Told", "family_types", "filled"]

_INT64 = (-(2**63), 2**63 - 1)
"""Whole numbers beyond these are left to pydantic, behind the check for the 64 bits that any number may have."""

_FLOAT_LIMIT = 1e19
"""A whole number of 20 digits is at least this; one of more than 64 bits is refused also where a fraction could stand."""

Lift = Callable[[Any], Any]
"""From what msgspec makes of a value to what stands in a record: of nested fields a nested record."""


_new = object.__new__
# A quarter quicker than `object.__setattr__`, which looks each of them up.
_put_fields, _put_given, _put_extra, _put_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Inexact(Exception):  # noqa: N818 (nothing is wrong)
    """A schema holds something for which there is no type that takes no more than pydantic does."""


@dataclass(frozen=True, slots=True)
class Told:
    """A schema as it is told to msgspec.

    Attributes:
        open: the type of its values. Records are TypedDicts, and unknown fields are passed over.
        closed: the same. Records are Structs, and an unknown field is refused.
        lift: makes what stands in a record of a value of either; null where that is the value itself.
        entry: of a column, the type of its entries.
    """

    open: Any
    closed: Any
    lift: Lift | None = None
    entry: Any = None


@dataclass(frozen=True, slots=True)
class FamilyTypes:
    """What a family's records are made of.

    Attributes:
        model: the family.
        fields: by name, in the order of the model.
        defaults: what a record holds where nothing is given; null for fields that are always given.
        factories: of the fields whose default is made anew for each record.
        checks: the family's own checks, run on the finished record in this order.
    """

    model: type[Record]
    fields: dict[str, Told]
    required: frozenset[str]
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]
    checks: tuple[Lift, ...] = ()

    def open(self) -> Any:
        """The fields as a TypedDict."""
        types = {
            name: told.open if name in self.required else NotRequired[told.open] for name, told in self.fields.items()
        }
        return TypedDict(self.model.__name__, types)  # type: ignore[operator]

    def closed(self) -> Any:
        """The fields as a Struct, in which `UNSET` is what was not given."""
        fields = [
            (name, told.closed) if name in self.required else (name, told.closed | msgspec.UnsetType, msgspec.UNSET)
            for name, told in self.fields.items()
        ]
        return msgspec.defstruct(self.model.__name__, fields, kw_only=True, forbid_unknown_fields=True)

    def lift(self) -> Lift:
        """What makes a record, as pydantic fills it, of a dictionary of what was given, or of a Struct."""
        model, defaults, factories, checks = self.model, self.defaults, self.factories, self.checks
        values_of, unset = msgspec.structs.astuple, msgspec.UNSET
        lifts = tuple((name, told.lift) for name, told in self.fields.items() if told.lift is not None)

        def record_of(given: Any) -> Any:
            if type(given) is not dict:
                given = {name: v for name, v in zip(defaults, values_of(given), strict=True) if v is not unset}
            for name, lift in lifts:
                if name in given:
                    given[name] = lift(given[name])
            fields = defaults | given
            for name, factory in factories:
                if name not in given:
                    fields[name] = factory()
            record = filled(model, fields, set(given))
            for check in checks:
                record = check(record)
            return record

        return record_of


def filled(model: type[Record], fields: dict[str, Any], given: set[str]) -> Any:
    """A record of validated fields, as pydantic fills it.

    Args:
        model: the family.
        fields: all of them, in the order of the model; the record keeps the dictionary.
        given: names of those that were given; kept, and never changed.
    """
    record = _new(model)
    _put_fields(record, fields)
    _put_given(record, given)
    _put_extra(record, None)
    _put_private(record, None)
    return record


def family_types(family: type[Record]) -> FamilyTypes:
    """The types of a family.

    Raises:
        Inexact: there are none.
    """
    return _family(dict(family.__pydantic_core_schema__))


def _family(schema: dict[str, Any]) -> FamilyTypes:
    if schema["type"] != "function-after":
        return _fields(schema)
    # A check of the family's own, which is run on the record as pydantic runs it.
    _only(schema, "function", "schema")
    if schema["function"]["type"] != "no-info":
        raise Inexact("a check of another kind")
    inner = _family(schema["schema"])
    return replace(inner, checks=(*inner.checks, schema["function"]["function"]))


def _fields(schema: dict[str, Any]) -> FamilyTypes:
    if schema["type"] != "model":
        raise Inexact(schema["type"])
    _only(schema, "cls", "config", "custom_init", "root_model", "schema")
    # Whether with infinities and NaN or without them: a float within bounds is neither.
    config = {"extra_fields_behavior": "ignore"} | schema.get("config", {})
    if (
        config.keys() - {"title", "allow_inf_nan", "extra_fields_behavior"}
        or config["extra_fields_behavior"] != "ignore"
    ):
        raise Inexact("a model that is read in another way")
    model, inner = schema["cls"], schema["schema"]
    if schema.get("custom_init") or schema.get("root_model") or model.__private_attributes__:
        raise Inexact("a model of another kind")
    if inner["type"] != "model-fields" or inner.get("computed_fields"):
        raise Inexact("fields of another kind")
    _only(inner, "fields", "model_name", "computed_fields")
    fields: dict[str, Told] = {}
    defaults: dict[str, Any] = {}
    required: set[str] = set()
    factories: list[tuple[str, Callable[[], Any]]] = []
    for name, field in inner["fields"].items():
        _only(field, "schema")
        value, defaults[name] = field["schema"], None
        if value["type"] != "default":
            required.add(name)
            fields[name] = _told(value)
            continue
        _only(value, "schema", "default", "default_factory", "default_factory_takes_data")
        if value.get("default_factory_takes_data"):
            raise Inexact("a default of another kind")
        defaults[name] = value.get("default")
        if "default_factory" in value:
            factories.append((name, value["default_factory"]))
        fields[name] = _told(value["schema"])
    return FamilyTypes(model, fields, frozenset(required), defaults, tuple(factories))


def _told(schema: dict[str, Any]) -> Told:
    tell = _TELL.get(schema["type"])
    if tell is None:
        raise Inexact(schema["type"])
    return tell(schema)


def _only(schema: dict[str, Any], *known: str) -> None:
    """Hold a schema against the keys that are taken account of."""
    if unknown := schema.keys() - {"type", "metadata", "ref", *known}:
        raise Inexact(f"{schema['type']}: {sorted(unknown)}")


def _int(schema: dict[str, Any]) -> Told:
    _only(schema, "ge", "gt", "le", "lt")
    least = max(_INT64[0], schema.get("ge", _INT64[0]), schema.get("gt", _INT64[0] - 1) + 1)
    most = min(_INT64[1], schema.get("le", _INT64[1]), schema.get("lt", _INT64[1] + 1) - 1)
    return _alike(Annotated[int, msgspec.Meta(ge=least, le=most)])


def _float(schema: dict[str, Any]) -> Told:
    _only(schema, "ge", "gt", "le", "lt")
    bounds: dict[str, Any] = {name: float(schema[name]) for name in ("ge", "gt", "le", "lt") if name in schema}
    if not bounds.keys() & {"ge", "gt"}:
        bounds["gt"] = -_FLOAT_LIMIT
    if not bounds.keys() & {"le", "lt"}:
        bounds["lt"] = _FLOAT_LIMIT
    if len(bounds) != 2 or any(abs(bound) > _FLOAT_LIMIT for bound in bounds.values()):
        raise Inexact("bounds of a float")
    return _alike(Annotated[float, msgspec.Meta(**bounds)])


def _str(schema: dict[str, Any]) -> Told:
    # A pattern is another language in Rust than in Python.
    _only(schema, "min_length", "max_length")
    return _alike(_of_length(str, schema))


def _bool(schema: dict[str, Any]) -> Told:
    _only(schema)
    return _alike(bool)


def _literal(schema: dict[str, Any]) -> Told:
    _only(schema, "expected")
    if not all(isinstance(word, str) for word in schema["expected"]):
        raise Inexact("a literal that is no text")
    return _alike(Literal[tuple(schema["expected"])])


def _nullable(schema: dict[str, Any]) -> Told:
    _only(schema, "schema")
    inner = _told(schema["schema"])
    lift = inner.lift
    lifted = None if lift is None else lambda value: None if value is None else lift(value)
    return Told(inner.open | None, inner.closed | None, lifted, inner.entry)


def _union(schema: dict[str, Any]) -> Told:
    # pydantic prefers the type that a value has; of these two no value has both.
    _only(schema, "choices")
    if sorted(choice["type"] for choice in schema["choices"]) != ["int", "str"]:
        raise Inexact("a union")
    first, second = (_told(choice).open for choice in schema["choices"])
    return _alike(first | second)


def _tuple(schema: dict[str, Any]) -> Told:
    _only(schema, "items_schema", "variadic_item_index", "min_length", "max_length")
    items = [_told(item) for item in schema["items_schema"]]
    if "variadic_item_index" not in schema:
        if any(item.lift for item in items):
            raise Inexact("records at fixed places")
        return _alike(tuple[tuple(item.open for item in items)])  # type: ignore[misc]
    if len(items) != 1:
        raise Inexact("fixed places before others")
    (item,) = items
    lift = item.lift
    return Told(
        _of_length(tuple[item.open, ...], schema),  # type: ignore[name-defined]
        _of_length(tuple[item.closed, ...], schema),  # type: ignore[name-defined]
        None if lift is None else lambda values: tuple(map(lift, values)),
        item.closed,
    )


def _dict(schema: dict[str, Any]) -> Told:
    _only(schema, "keys_schema", "values_schema")
    values = _told(schema["values_schema"])
    if schema["keys_schema"] != {"type": "str"} or values.lift is not None:
        raise Inexact("a map of another kind")
    return _alike(dict[str, values.open])  # type: ignore[name-defined]


def _nested(schema: dict[str, Any]) -> Told:
    family = _family(schema)
    return Told(family.open(), family.closed(), family.lift())


def _alike(inner: Any) -> Told:
    """What stands in a record as msgspec makes it, and holds no field that could be unknown."""
    return Told(inner, inner)


def _of_length(inner: Any, schema: dict[str, Any]) -> Any:
    bounds = {name: schema[name] for name in ("min_length", "max_length") if name in schema}
    return Annotated[inner, msgspec.Meta(**bounds)] if bounds else inner


_TELL: dict[str, Callable[[dict[str, Any]], Told]] = {
    "int": _int,
    "float": _float,
    "str": _str,
    "bool": _bool,
    "literal": _literal,
    "nullable": _nullable,
    "union": _union,
    "tuple": _tuple,
    "dict": _dict,
    "model": _nested,
    "function-after": _nested,
}
