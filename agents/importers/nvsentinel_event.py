"""The form of NVSentinel's health event, however it is wrapped: `data-models/protobufs/health_event.proto`, version 1.

Taken are JSON of the protocol buffer, a CloudEvent of type `com.nvidia.nvsentinel.health.v1` as the event exporter sends it, a batch
(`events`), and a document of NVSentinel's store (`healthevent`, names in lower case). Fields that are not known are passed over.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

__all__ = ["Entity", "HealthEvent", "HealthEventError", "events_in"]

_CLOUD_EVENT: Final = "com.nvidia.nvsentinel.health.v1"
_VERSIONS: Final = frozenset({0, 1})
_MOST_EVENTS: Final = 10_000
"""Events of one batch."""

_ACTIONS: Final = {
    0: "NONE",
    2: "COMPONENT_RESET",
    5: "CONTACT_SUPPORT",
    6: "RUN_FIELDDIAG",
    15: "RESTART_VM",
    24: "RESTART_BM",
    25: "REPLACE_VM",
    26: "RUN_DCGMEUD",
    39: "RESTART_APP",
    99: "UNKNOWN",
}
"""Numbers of `RecommendedAction`; one that is not here stays a number."""

_STORE_ONLY: Final = frozenset({2, "2", "STORE_ONLY"})
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


class HealthEventError(ValueError):
    """What is no health event, or none that can be taken; the text says why, in one line."""


def _lowered(value: Any) -> Any:
    """Names in lower case, as NVSentinel's store has them."""
    if not isinstance(value, dict):
        return value
    return {str(name).lower(): part for name, part in value.items()}


def _none_is_default(value: Any) -> Any:
    return () if value is None else value


class Entity(BaseModel):
    """One thing that an event is about: `GPU` and an index, `GPU_UUID`, `PCI`, `NVSWITCH`, `NVLINK`, ..."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=lambda name: name.replace("_", ""))

    entity_type: str = Field(default="", max_length=64)
    entity_value: str = Field(default="", max_length=253)


class HealthEvent(BaseModel):
    """One health event, as far as it is read here.

    `time_ns` is `generatedTimestamp`; `recommended_action` is a name, or a number that has none here.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=lambda name: name.replace("_", ""))

    agent: str = Field(default="", max_length=253)
    component_class: str = Field(default="", max_length=64)
    check_name: str = Field(min_length=1, max_length=128)
    is_fatal: Annotated[bool, Field(strict=True)] = False
    is_healthy: Annotated[bool, Field(strict=True)] = False
    message: str = ""
    recommended_action: str = "NONE"
    error_code: Annotated[tuple[Annotated[str, Field(max_length=128)], ...], BeforeValidator(_none_is_default)] = Field(
        default=(), max_length=64
    )
    entities_impacted: Annotated[tuple[Entity, ...], BeforeValidator(_none_is_default)] = Field(
        default=(), max_length=256
    )
    metadata: dict[str, str] = Field(default_factory=dict)
    node_name: str = Field(min_length=1, max_length=253)
    time_ns: int = Field(ge=0, lt=2**63)
    is_for_the_record: bool = False
    """NVSentinel is told to do nothing for it: `STORE_ONLY`, or a quarantine that is skipped."""

    @classmethod
    def read(cls, value: Any) -> Self:
        """The event in a parsed JSON value.

        Raises:
            HealthEventError: a field is missing or of another kind, or the version is not known.
        """
        if not isinstance(value, dict):
            raise HealthEventError("no object")
        fields = _lowered(value)
        for name in ("checkName", "nodeName"):
            if not fields.get(name.lower()):
                raise HealthEventError(f"no {name}")
        if not isinstance(version := fields.get("version", 0), int) or version not in _VERSIONS:
            raise HealthEventError(f"version {str(version)[:20]!r} of the health event is not known")
        fields["timens"] = _time_ns(fields.get("generatedtimestamp"))
        fields["recommendedaction"] = _action(fields.get("recommendedaction"))
        fields["isfortherecord"] = fields.get("processingstrategy") in _STORE_ONLY or _is_skipped(fields)
        fields["metadata"] = _texts(fields.get("metadata"))
        entities = fields.get("entitiesimpacted")
        if isinstance(entities, list):
            fields["entitiesimpacted"] = [_lowered(entity) for entity in entities]
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise HealthEventError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def events_in(value: Any) -> list[Any]:
    """The health events in a parsed line, not yet read.

    Raises:
        HealthEventError: there are none, or too many.
    """
    if not isinstance(value, dict):
        raise HealthEventError("no object")
    if "specversion" in value:
        if value.get("type") != _CLOUD_EVENT:
            raise HealthEventError(f"a CloudEvent of type {str(value.get('type'))[:80]!r}, not {_CLOUD_EVENT}")
        data = value.get("data")
        if not isinstance(data, dict) or "healthEvent" not in data:
            raise HealthEventError("a CloudEvent without data.healthEvent")
        return [data["healthEvent"]]
    if isinstance(value.get("events"), list):
        if len(value["events"]) > _MOST_EVENTS:
            raise HealthEventError(f"a batch of {len(value['events'])} events; at most {_MOST_EVENTS}")
        return list(value["events"])
    if "healthevent" in value:
        return [value["healthevent"]]
    return [value]


def _time_ns(value: Any) -> int:
    """Nanoseconds of a timestamp: as RFC 3339 writes it, or its seconds and nanoseconds."""
    if isinstance(value, dict):
        parts = _lowered(value)
        seconds, nanos = parts.get("seconds", 0), parts.get("nanos", 0)
        # JSON of protocol buffers writes numbers of 64 bits as text.
        if isinstance(seconds, str) and re.fullmatch(r"\d{1,10}", seconds, re.ASCII):
            seconds = int(seconds)
        if type(seconds) is int and type(nanos) is int and 0 < seconds < 2**33 and 0 <= nanos < 10**9:
            return seconds * 10**9 + nanos
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        try:
            moment = datetime.fromisoformat(found[1] + found[3].upper().replace("Z", "+00:00"))
        except ValueError:
            moment = None
        if moment is not None and moment.year >= 1971:
            whole_s = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
            return int(whole_s) * 10**9 + int((found[2] or "0").ljust(9, "0"))
    raise HealthEventError(f"generatedTimestamp: {str(value)[:60]!r} is no time")


def _action(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise HealthEventError("recommendedAction: neither a name nor a number")
    if value is None:
        return "NONE"
    return _ACTIONS.get(value, str(value)) if isinstance(value, int) else value[:64]


def _is_skipped(fields: dict[str, Any]) -> bool:
    overrides = fields.get("quarantineoverrides")
    return isinstance(overrides, dict) and _lowered(overrides).get("skip") is True


def _texts(value: Any) -> dict[str, str]:
    """The texts of a mapping; it is the emitter's, and what else is in it is nobody's business here."""
    if not isinstance(value, dict):
        return {}
    return {str(name): text for name, text in value.items() if isinstance(text, str)}
