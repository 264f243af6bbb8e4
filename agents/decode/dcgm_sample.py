"""One `gpu_sample` record, put together from an identity and readings in whatever words a source has for them.

Guarantees: a blank, a fault or an impossible value never comes out as a number; what has no field of its own
is kept in `other` under the source's name; a measured 0 stays 0. It parses no lines and reads no tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from agents.decode import pci_address
from agents.decode.dcgm_fields import Field, Scale, is_blank
from agents.decode.quantity import Number, Unreadable, integer, is_unknown, number
from agents.decode.record import Record

Cell = str | int | float | bool | list[Any] | dict[str, Any] | None
"""A value as a source has it: text of a cell, or whatever JSON holds."""

_FAULT = re.compile(r"\b(?:error|lost|requires? (?:a )?reset)\b|^err!?$", re.IGNORECASE)
_UNIT = re.compile(r"(?<=[0-9])\s*(?:MHz|MiB|mJ|W|C|%|\u00b0C)$", re.IGNORECASE)
_PSTATE = re.compile(r"P(?=[0-9]{1,2}$)", re.IGNORECASE)
_PSTATE_UNKNOWN = 32
"""NVML_PSTATE_UNKNOWN."""

_ENTITIES: Final = {
    "gpu": "gpu",
    "gpu-i": "gpu_instance",
    "gpuinstance": "gpu_instance",
    "gpu-ci": "compute_instance",
    "computeinstance": "compute_instance",
    "gpucomputeinstance": "compute_instance",
    "switch": "switch",
    "nvswitch": "switch",
    "cpu": "cpu",
    "cpucore": "cpu",
    "cpu-core": "cpu",
    "vgpu": "vgpu",
    "link": "link",
    "cx": "connectx",
}

# The numbers of dcgm_field_entity_group_t.
_ENTITY_GROUPS: Final = {
    1: "gpu",
    2: "vgpu",
    3: "switch",
    4: "gpu_instance",
    5: "compute_instance",
    6: "link",
    7: "cpu",
    8: "cpu",
}

# Our field to the label names that state it, spelled without case and underscores, best first. A label that
# Prometheus had to rename (`exported_`) or that the old exporters spelled out (`pod_name`) is the workload's, and
# the plain one beside it is then that of the exporter's own pod.
_WORKLOAD: Final = {
    "hostname": ("exportedhostname", "hostname"),
    "namespace": ("exportednamespace", "podnamespace", "namespace"),
    "pod": ("exportedpod", "exportedpodname", "podname", "pod"),
    "container": ("exportedcontainer", "exportedcontainername", "containername", "container"),
}


@lru_cache(maxsize=256)
def entity_named(word: str | int) -> str:
    """Our word for a DCGM entity: `GPU-I` is `gpu_instance`; a number is an entity group; others in lower case."""
    if isinstance(word, int):
        return _ENTITY_GROUPS.get(word, "unknown")
    bare = re.sub(r"[\s_]", "", word).lower().removeprefix("dcgmfe")
    if bare.isdecimal() and len(bare) < 3:
        return _ENTITY_GROUPS.get(int(bare), "unknown")
    return _ENTITIES.get(bare) or _ENTITIES.get(bare.replace("-", "")) or bare


def new_sample(entity: str, entity_id: int | None) -> Record:
    """A record without readings for an entity of DCGM; the number lands where its meaning is."""
    record: Record = {
        "kind": "gpu_sample",
        "entity": entity,
        "gpu_index": entity_id if entity == "gpu" else None,
        "gpu_uuid": None,
        "pci_bus_id": None,
    }
    if entity in {"gpu_instance", "compute_instance"}:
        record["dcgm_entity_id"] = entity_id
    elif entity != "gpu":
        record[f"{entity}_index"] = entity_id
    return record


@lru_cache(maxsize=4096)
def canonical(label: str) -> str:
    """A label name without what dialects differ in: case and underscores."""
    return label.replace("_", "").replace("-", "").lower()


def identify(record: Record, labels: Mapping[str, str]) -> None:
    """Fills in what labels say about the GPU and its workload, in any dialect. An empty label is null.

    Args:
        record: Is changed.
        labels: Values by `canonical` name.
    """
    for key in ("uuid", "gpuuuid"):
        if key in labels:
            record["gpu_uuid"] = stated(labels[key])
    for key in ("pcibusid", "busid"):
        if key in labels:
            record["pci_bus_id"] = pci_address.normalise(labels[key])
    for name, dialects in _WORKLOAD.items():
        label = next((dialect for dialect in dialects if dialect in labels), None)
        if label is not None:
            record[name] = stated(labels[label])
    for key in ("gpuiid", "gpuinstanceid"):
        if stated(labels.get(key)) is not None:
            record["gpu_instance_id"] = whole(labels[key])


def stated(text: str | None) -> str | None:
    """`text`, or None where it is empty or says that the value is not known."""
    return None if text is None or is_unknown(text) else text.strip()


def whole(text: str | None) -> int | None:
    """The integer that `text` states, None for anything else."""
    if text is None:
        return None
    try:
        return integer(text)
    except Unreadable:
        return None


def put(record: Record, field: Field | None, source_name: str, cell: Cell) -> None:
    """Adds one reading to a sample.

    Null, with the field's name in `implausible`, is what no GPU can have; null, with the text in `read_error`, is a
    fault that the cell reports instead of a value. The first statement of a field wins over later ones.

    Args:
        record: Is changed.
        field: What the reading is; None puts it into `other`.
        source_name: The source's name for it.
        cell: The value as the source has it.
    """
    if isinstance(cell, dict):
        cell = cell.get("value")
    if isinstance(cell, str) and not cell[:1].isdecimal():
        fault = _fault_in(cell)
        if fault is not None:
            record.setdefault("read_error", fault)
            cell = None
    if field is None or _is_true_ratio(source_name, cell):
        record.setdefault("other", {})[source_name] = _other(cell)
        return
    value = _reading(field, cell)
    if value is not None and not field.can_be(value):
        if value != -1 or field.name.endswith(("_pct", "_ratio")):
            _note(record, "implausible", field.name)
        value = None
    if record.get(field.name) is None:
        record[field.name] = value


def _is_true_ratio(source_name: str, cell: Cell) -> bool:
    """Whether this is the GPU_UTIL_RATIO of DCGM 4.7, a double of 0 to 1; in 4.6 the name means a percentage."""
    if not source_name.upper().endswith("GPU_UTIL_RATIO"):
        return False
    return isinstance(cell, float) or (isinstance(cell, str) and "." in cell)


def _reading(field: Field, cell: Cell) -> Number | None:
    if isinstance(cell, str):
        bare = cell.strip()
        text = _PSTATE.sub("", bare) if field.name == "pstate" else _UNIT.sub("", bare)
        try:
            value = number(text)
        except Unreadable:
            return None
    elif isinstance(cell, (int, float)) and not isinstance(cell, bool):
        value = cell
    else:
        return None
    if value is None or is_blank(value, field.scale):
        return None
    if field.scale is Scale.WHOLE and isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if field.name == "pstate" and value == _PSTATE_UNKNOWN else value


def _other(cell: Cell) -> Cell:
    if isinstance(cell, str):
        try:
            value = number(cell)
        except Unreadable:
            return cell.strip()
        return None if value is None or is_blank(value, Scale.OPEN) else value
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return None if is_blank(cell, Scale.OPEN) else cell
    return cell


def _fault_in(cell: str) -> str | None:
    bare = cell.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1].strip()
    return bare if len(bare) < 100 and _FAULT.search(bare) else None


def _note(record: Record, key: str, name: str) -> None:
    names: list[str] = record.setdefault(key, [])
    if name not in names:
        names.append(name)
