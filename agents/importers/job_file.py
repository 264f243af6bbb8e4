"""A job described in a TOML file, turned into the records that register it: the job, and its ranks' devices by node.

Every key is checked, and a key that is not known is refused, so that a misspelt one is not silently without effect.
Devices are named by UUID or PCI address only: a CUDA index means another device on each rank. Deliberately not: no
look at a machine, no guess at a device that is not named, no check of the model against its convention (the step
results say what is wrong with a description). The format is in docs/job-file.md.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from agents.decode.pci_address import normalise
from schemas.fleet import Job, Layout, Model, RankPlacement

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from schemas.base import Record

__all__ = ["JobFileError", "load_job_file"]

_LARGEST_FILE: Final = 16 << 20
"""Bytes; a million ranks with their UUIDs would need more, no job has them."""
_RANKS_AT_MOST: Final = 1_000_000

_INDEX_KEYS: Final = frozenset(
    {
        "cuda_visible_devices",
        "device",
        "devices",
        "device_index",
        "gpu",
        "gpu_id",
        "gpu_ids",
        "gpu_index",
        "gpus",
        "index",
    }
)
_INDEX_REASON: Final = (
    "devices are named by gpu_uuid or pci_bus_id, never by index: CUDA_VISIBLE_DEVICES renumbers them, so that an index "
    "means another device in each process"
)
_JOB_KEYS: Final = frozenset(Job.model_fields) - {"record"}
_NODE_KEYS: Final = ("node_id", "ranks", "gpu_uuid", "pci_bus_id", "stage", "sku", "role")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


class JobFileError(Exception):
    """The file is no job; the text names the file, the key and what is wrong with it."""


def load_job_file(path: Path, now_ns: int) -> list[Record]:
    """The records of a job file: the job first, then one placement for each node that it lists.

    Args:
        path: TOML file.
        now_ns: wall time; the records hold from it unless the file says from when, and it makes the version.

    Returns:
        One `Job`, then `RankPlacement`s in the file's order.

    Raises:
        JobFileError: the file cannot be read or says what cannot be.
    """
    fields = _read(path)
    try:
        return _records(fields, now_ns)
    except JobFileError as error:
        raise JobFileError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise JobFileError(f"{path}: {error.strerror or error}") from None
    if len(text) > _LARGEST_FILE:
        raise JobFileError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB, which no job file is")
    try:
        return tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise JobFileError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise JobFileError(f"{path}: no TOML: {error}") from None
    except RecursionError:
        raise JobFileError(f"{path}: nested too deep") from None


def _records(fields: dict[str, Any], now_ns: int) -> list[Record]:
    nodes = fields.pop("nodes", [])
    _check_keys(fields, _JOB_KEYS, "")
    for key, model in (("model", Model), ("layout", Layout)):
        if isinstance(fields.get(key), dict):
            _check_keys(fields[key], frozenset(model.model_fields), f"{key}.")
    fields.setdefault("version", max(1, now_ns // 10**9))
    fields.setdefault("effective_from_ns", now_ns)
    _fill_data_degree(fields)
    job: Job = _validated(Job, fields, "")
    _check_layout(job)
    if job.reporting_ranks is not None and job.reporting_ranks > job.world_size:
        raise JobFileError(f"reporting_ranks: {job.reporting_ranks} of {job.world_size} ranks cannot report")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise JobFileError("nodes: is to be a list of tables, each headed [[nodes]]")
    placements = [_placement(node, f"nodes[{number}].", job) for number, node in enumerate(nodes, 1)]
    _refuse_repeats(placements)
    return [job, *placements]


def _fill_data_degree(fields: dict[str, Any]) -> None:
    """Data parallelism is what the other degrees leave of the world, unless the file gives it."""
    layout, world_size = fields.get("layout"), fields.get("world_size")
    if not isinstance(layout, dict) or "data" in layout or type(world_size) is not int:
        return
    others = 1
    for name in ("tensor", "context", "pipeline"):
        degree = layout.get(name, 1)
        if type(degree) is not int or degree < 1:
            return
        others *= degree
    if world_size > 0 and world_size % others == 0:
        fields["layout"] = {**layout, "data": world_size // others}


def _check_layout(job: Job) -> None:
    layout = job.layout
    ranks = layout.tensor * layout.context * layout.data * layout.pipeline
    if "layout" in job.model_fields_set and ranks != job.world_size:
        raise JobFileError(
            f"layout: tensor x context x data x pipeline is {layout.tensor} x {layout.context} x {layout.data} x "
            f"{layout.pipeline} = {ranks} ranks, but world_size is {job.world_size}"
        )


def _placement(node: dict[str, Any], place: str, job: Job) -> RankPlacement:
    for key in node:
        if key.lower() in _INDEX_KEYS:
            raise JobFileError(f"{place}{key}: {_INDEX_REASON}")
    _check_keys(node, frozenset(_NODE_KEYS), place)
    for key in ("node_id", "ranks"):
        if key not in node:
            raise JobFileError(f"{place}{key}: is missing")
    ranks = _ranks(node["ranks"], f"{place}ranks")
    outside = [rank for rank in ranks if not 0 <= rank < job.world_size]
    if outside:
        raise JobFileError(f"{place}ranks: rank {outside[0]} is none of 0 to {job.world_size - 1} (world_size)")
    if len(set(ranks)) != len(ranks):
        raise JobFileError(f"{place}ranks: names a rank twice")
    uuids = _devices(node, "gpu_uuid", len(ranks), place)
    addresses = _devices(node, "pci_bus_id", len(ranks), place)
    fields: dict[str, Any] = {
        "job_id": job.job_id,
        "version": job.version,
        "effective_from_ns": job.effective_from_ns,
        "epoch": job.epoch,
        "node_id": node["node_id"],
        "rank": ranks,
        "gpu_uuid": uuids or [None] * len(ranks),
        "pci_bus_id": addresses,
        "stage": _column(node, "stage", int, len(ranks), place),
        "sku": _column(node, "sku", str, len(ranks), place),
        "role": _column(node, "role", str, len(ranks), place),
    }
    stages = fields["stage"] or []
    if any(not 0 <= stage < job.layout.pipeline for stage in stages) and "layout" in job.model_fields_set:
        raise JobFileError(f"{place}stage: is none of 0 to {job.layout.pipeline - 1} (layout.pipeline)")
    placement: RankPlacement = _validated(RankPlacement, fields, place)
    return placement


def _ranks(value: object, place: str) -> list[int]:
    """Ranks from a list of numbers, or from a text as `0-7,16-23`."""
    if isinstance(value, list):
        if not value or not all(type(rank) is int for rank in value):
            raise JobFileError(f"{place}: is to be a list of whole numbers, at least one")
        return value
    if not isinstance(value, str):
        raise JobFileError(f'{place}: is to be a list of whole numbers, or a text as "0-7"')
    ranks: list[int] = []
    for part in value.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise JobFileError(f"{place}: {part.strip()[:40]!r} is no rank and no range as 0-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first + len(ranks) >= _RANKS_AT_MOST:
            raise JobFileError(f"{place}: {part.strip()!r} counts down or is too long")
        ranks += range(first, last + 1)
    return ranks


def _devices(node: dict[str, Any], key: str, count: int, place: str) -> list[str | None] | None:
    if key not in node:
        return None
    values = node[key]
    if not isinstance(values, list) or len(values) != count:
        given = f"has {len(values)} entries" if isinstance(values, list) else "is no list"
        raise JobFileError(f"{place}{key}: {given}; it is to name one device for each of {count} ranks")
    return [_device(value, key, f"{place}{key}[{index}]") for index, value in enumerate(values, 1)]


def _device(value: object, key: str, place: str) -> str | None:
    if type(value) is int or (isinstance(value, str) and value.strip().isdecimal()):
        raise JobFileError(f"{place}: {_INDEX_REASON}")
    if not isinstance(value, str):
        raise JobFileError(f'{place}: is to be a text; "" stands for a device that is not known')
    text = value.strip()
    if not text:
        return None
    if key == "gpu_uuid":
        if _UUID.fullmatch(text) is None:
            raise JobFileError(f"{place}: {text[:60]!r} is no UUID as nvidia-smi -L prints it (GPU-... or MIG-...)")
        return text
    address = normalise(text)
    if address is None:
        raise JobFileError(f"{place}: {text[:60]!r} is no PCI address as 0000:3b:00.0")
    return address


def _column(node: dict[str, Any], key: str, kind: type, count: int, place: str) -> list[Any] | None:
    """One value for all ranks of a node, or one for each."""
    if key not in node:
        return None
    values = node[key] if isinstance(node[key], list) else [node[key]] * count
    if len(values) != count:
        raise JobFileError(f"{place}{key}: has {len(values)} entries for {count} ranks")
    if not all(type(value) is kind for value in values):
        word = "whole number" if kind is int else "text"
        raise JobFileError(f"{place}{key}: is to be a {word}, or a list of one for each rank")
    return values


def _refuse_repeats(placements: list[RankPlacement]) -> None:
    by_node: set[str] = set()
    by_rank: dict[int, str] = {}
    by_device: dict[tuple[str, str], int] = {}
    for number, placement in enumerate(placements, 1):
        place = f"nodes[{number}]."
        if placement.node_id in by_node:
            raise JobFileError(
                f"{place}node_id: {placement.node_id!r} is listed twice; give all its ranks in one table"
            )
        by_node.add(placement.node_id)
        devices: list[str | None] = [None] * len(placement.rank)
        for key, column in (("gpu_uuid", placement.gpu_uuid), ("pci_bus_id", placement.pci_bus_id or devices)):
            for rank, device in zip(placement.rank, column, strict=True):
                # A UUID is one device everywhere, an address one of its node.
                name = (device or "", "" if key == "gpu_uuid" else placement.node_id)
                # Instances of one partitioned GPU share its address.
                partitioned = key == "pci_bus_id" and any(uuid and uuid[:4] == "MIG-" for uuid in placement.gpu_uuid)
                if device is None or partitioned:
                    continue
                if name in by_device:
                    raise JobFileError(f"{place}{key}: {device} is given to rank {by_device[name]} and to rank {rank}")
                by_device[name] = rank
        for rank in placement.rank:
            if rank in by_rank:
                raise JobFileError(f"{place}ranks: rank {rank} runs on {by_rank[rank]!r} already")
            by_rank[rank] = placement.node_id


def _check_keys(fields: dict[str, Any], known: frozenset[str], place: str) -> None:
    for key, value in fields.items():
        if key not in known:
            raise JobFileError(f"{place}{key[:60]}: is no key of a job file; known here: {', '.join(sorted(known))}")
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise JobFileError(f"{place}{key}: is too large a number")


def _validated(family: type[BaseModel], fields: dict[str, Any], place: str) -> Any:
    # As JSON and strict, so that a text is no number and true is not 1, but a list is a column and 70 a float.
    try:
        return family.model_validate_json(json.dumps(fields, default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "record"
        raise JobFileError(f"{place}{key}: {_plainly(first['msg'])}") from None
    except (ValueError, RecursionError):
        raise JobFileError(
            f"{place.rstrip('.') or 'job'}: holds a number too large or a table nested too deep"
        ) from None


def _plainly(message: str) -> str:
    return message.removeprefix("Value error, ").removeprefix("Input ")
