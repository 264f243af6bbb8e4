"""What the device rules read off a GPU frame: who is meant, which states are theirs, and which are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from schemas.findings import Subject
from streams.core.keyed import SubjectState

if TYPE_CHECKING:
    from schemas.frames import GpuFrame
    from streams.core.keyed import KeyedRows, Rows
    from streams.core.roster import Roster

__all__ = [
    "APPLICATION_CLOCKS",
    "IDLE",
    "LOAD",
    "are_busy",
    "gpu_key",
    "gpu_rows",
    "gpu_subject",
    "is_busy",
    "load_of",
    "peer_group",
    "skus",
    "value",
]

IDLE = 0x1
APPLICATION_CLOCKS = 0x2
BUSY_UTIL_PCT = 50
BUSY_ACTIVE_RATIO = 0.3

LOAD = "load"
"""What rules read that ask which GPUs are at work: `load_of` and the column of masks."""

S = TypeVar("S", bound=SubjectState)


def value(column: tuple[int | None, ...] | tuple[float | None, ...] | None, index: int) -> int | float | None:
    """An entry of a column, null when the column was not carried."""
    return column[index] if column is not None else None


def gpu_key(frame: GpuFrame, index: int) -> str:
    """A name of a GPU within its node that survives agent restarts: UUID, else PCI address, else position."""
    return (
        frame.gpu_uuid[index]
        or (frame.pci_bus_id[index] if frame.pci_bus_id is not None else None)
        or f"position-{index}"
    )


def gpu_rows(states: KeyedRows[S], frame: GpuFrame, *kind: str) -> Rows[S]:
    """A rule's states of a frame's GPUs, in the frame's order.

    Args:
        states: of all nodes.
        frame: whose GPUs are meant.
        kind: what of a GPU is meant, where the rule keeps a state for each of several things.
    """
    return states.of(
        (frame.node_id, *kind),
        (frame.gpu_uuid, frame.pci_bus_id),
        lambda: ["/".join((frame.node_id, gpu_key(frame, index), *kind)) for index in range(len(frame.gpu_uuid))],
    )


def skus(frame: GpuFrame) -> tuple[str | None, ...]:
    """The parts, one per GPU; null where they are not known."""
    return frame.sku if frame.sku is not None else (None,) * len(frame.gpu_uuid)


def gpu_subject(frame: GpuFrame, index: int) -> Subject:
    """The GPU as the subject of a finding."""
    return Subject(
        level="gpu",
        node_id=frame.node_id,
        gpu_uuid=frame.gpu_uuid[index],
        pci_bus_id=frame.pci_bus_id[index] if frame.pci_bus_id is not None else None,
    )


def peer_group(frame: GpuFrame, index: int, roster: Roster) -> tuple[str | None, str | None]:
    """Part and job of a GPU: its peers share both."""
    sku = frame.sku[index] if frame.sku is not None else None
    pci_bus_id = frame.pci_bus_id[index] if frame.pci_bus_id is not None else None
    seat = roster.rank_of(frame.node_id, frame.gpu_uuid[index], pci_bus_id)
    return sku, seat[0] if seat is not None else None


def is_busy(frame: GpuFrame, index: int) -> bool:
    """Whether the GPU is at work; unknown is no.

    The idle bit settles it; then utilisation of at least 50 %, or an SM activity of at least 0.3 where the node
    publishes profiling ratios (utilisation is absent under MIG).
    """
    mask = value(frame.clock_event_reasons_mask, index)
    if mask is not None and int(mask) & IDLE:
        return False
    util = value(frame.gpu_util_pct, index)
    if util is not None:
        return util >= BUSY_UTIL_PCT
    active = value(frame.sm_active_ratio, index)
    return active is not None and active >= BUSY_ACTIVE_RATIO


def are_busy(frame: GpuFrame) -> list[bool]:
    """`is_busy` of every GPU."""
    masks, utils = frame.clock_event_reasons_mask, frame.gpu_util_pct
    if masks is None or utils is None or None in masks or None in utils:
        return [is_busy(frame, index) for index in range(len(frame.gpu_uuid))]
    # What nearly every frame carries, read in one go.
    return [not mask & IDLE and util >= BUSY_UTIL_PCT for mask, util in zip(masks, utils, strict=True)]  # type: ignore[operator]


def load_of(frame: GpuFrame) -> object:
    """What `are_busy` depends on besides the masks: a load of 98 or 99 % is the same to all who ask."""
    utils = frame.gpu_util_pct
    if utils and None not in utils:
        if min(utils) >= BUSY_UTIL_PCT:  # type: ignore[type-var, operator]
            return True
        if max(utils) < BUSY_UTIL_PCT:  # type: ignore[type-var, operator]
            return False
    return are_busy(frame)
