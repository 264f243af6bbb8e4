"""What a collector is: it says whether it can work here, and reads its source once when asked.

Both calls may take long or hang: the agent runs each collector in a thread of its own. Nothing here reads a clock;
the time comes with the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.events import KernelEvent

__all__ = ["Collector", "CollectorError", "Readings", "Row"]

Row = Mapping[str, Any]
"""Readings of one GPU or port under the names of the decoded records (`gpu_sample`, `port`, `pfc`)."""


class CollectorError(Exception):
    """A source could not be read this time; the text says which, why, and what would help, in one line."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What one reading of one source gave.

    Attributes:
        gpus: a row per GPU: identity (`gpu_uuid`, `gpu_index`, `pci_bus_id`) and columns of a GPU frame; None for a
            source that carries no GPUs.
        ports: `port` and `pfc` rows as decoded; None for a source that carries none.
        events: kernel events that were new.
        driver_version: the GPU driver's, where the source tells.
    """

    gpus: tuple[Row, ...] | None = None
    ports: tuple[Row, ...] | None = None
    events: tuple[KernelEvent, ...] = ()
    driver_version: str | None = None


class Collector(Protocol):
    """One source of telemetry."""

    @property
    def name(self) -> str:
        """The source's name in settings, counters and node status: lower case, with hyphens."""
        ...

    def is_supported(self) -> str | None:
        """None if the source is here, else the reason why not, in one line."""
        ...

    def collect(self, now_ns: int) -> Readings:
        """Read the source once.

        Args:
            now_ns: wall time of the tick.

        Raises:
            CollectorError: the source cannot be read this time.
        """
        ...
