"""What the device rules read off a GPU frame: who is meant, and whether it is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.findings import Subject

if TYPE_CHECKING:
    from schemas.frames import GpuFrame

__all__ = ["APPLICATION_CLOCKS", "IDLE", "gpu_key", "gpu_subject", "is_busy", "value"]

IDLE = 0x1
APPLICATION_CLOCKS = 0x2
BUSY_UTIL_PCT = 50
BUSY_ACTIVE_RATIO = 0.3


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


def gpu_subject(frame: GpuFrame, index: int) -> Subject:
    """The GPU as the subject of a finding."""
    return Subject(
        level="gpu",
        node_id=frame.node_id,
        gpu_uuid=frame.gpu_uuid[index],
        pci_bus_id=frame.pci_bus_id[index] if frame.pci_bus_id is not None else None,
    )


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
