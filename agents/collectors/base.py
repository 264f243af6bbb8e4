"""What a collector is: it says whether it can work here, and reads its source once when asked.

A collector is made by `from_settings`; that must be cheap and must not touch its source. The other two calls may take
long or hang: the agent runs each collector in a thread of its own and calls them from there alone. Nothing here reads a
clock; the time comes with the call. A class that has all of `CollectorType` in a module of `agents.collectors` is found
by itself (`agents.source_registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings
    from schemas.base import Record
    from schemas.events import KernelEvent

__all__ = ["Collector", "CollectorError", "CollectorType", "Dump", "Readings", "Row"]

Row = Mapping[str, Any]
"""Readings of one GPU or port under the names of the decoded records (`gpu_sample`, `port`, `pfc`)."""


class CollectorError(Exception):
    """A source could not be read this time; the text says which, why, and what would help, in one line."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A file of a flight recorder, as it stood on the disk.

    Attributes:
        path: where it is.
        rank: from its name; None if that has none.
        size_bytes: its size.
        modified_ns: when it was last written, by the file system's clock.
        sha256: of its bytes, in hexadecimal digits.
        encoding: `pickle`, `json` or `unknown`.
        complete: whether its document ends where the file does; None for one that is too large to look.
    """

    path: str
    rank: int | None
    size_bytes: int
    modified_ns: int
    sha256: str
    encoding: str
    complete: bool | None


@dataclass(frozen=True, slots=True)
class Readings:
    """What one reading of one source gave.

    Attributes:
        gpus: a row per GPU: identity (`gpu_uuid`, `gpu_index`, `pci_bus_id`) and columns of a GPU frame; None for a
            source that carries no GPUs.
        ports: `port` and `pfc` rows as decoded; None for a source that carries none.
        events: kernel events that were new.
        driver_version: the GPU driver's, where the source tells.
        records: finished records of other families, published as they are; the collector numbers them itself where
            their family has a `seq`.
        host: load of the node under the names of `HostLoad`; the next heartbeat tells it.
        cursor: what the collector's `acknowledge` takes once events and records were handed on; None for nothing to
            keep. Only of a collector that has that method.
        dumps: files of a flight recorder that have come to stand still.
    """

    gpus: tuple[Row, ...] | None = None
    ports: tuple[Row, ...] | None = None
    events: tuple[KernelEvent, ...] = ()
    driver_version: str | None = None
    records: tuple[Record, ...] = ()
    host: Mapping[str, Any] | None = None
    cursor: object | None = None
    dumps: tuple[Dump, ...] = ()


class Collector(Protocol):
    """One source of telemetry."""

    @property
    def name(self) -> str:
        """The source's name in settings, counters and node status: lower case, with hyphens."""
        ...

    def is_supported(self) -> str | None:
        """None if the source is here, else why not and what would help, in one line."""
        ...

    def collect(self, now_ns: int) -> Readings:
        """Read the source once.

        Args:
            now_ns: wall time of the tick.

        Raises:
            CollectorError: the source cannot be read this time.
        """
        ...


class CollectorType(Protocol):
    """A class of collectors, as the registry takes it.

    Two class attributes are read where a class has them: `precedence` (int, 50 by default; of two sources that know a
    value the one with the lower number states it) and `only_if_named` (bool, False by default; True for a source that
    costs too much to be read without being asked for by name).

    A collector that goes on where it was after a restart has `acknowledge(cursor)`: it keeps the place that a reading
    gave, and is called from the collector's thread once what the reading gave was handed to the publisher. Before that
    the place must not be kept: a crash in between repeats, and loses nothing.

    One that needs to know which ranks run here has `know_ranks(places)`; it is called once, before the first reading, with
    a function that gives them and may be called from any thread.

    Three members of an instance are read for metrics where it has them: `lost_records` (int; records of the kernel's
    ring that were overwritten unread), `malformed` (int; entries that could not be read) and `failed` (a mapping;
    parts that could not be read the last time, by name).
    """

    name: str
    """The source's name in settings, counters and node status: lower case, with hyphens."""

    def from_settings(self, settings: AgentSettings, identity: AgentIdentity) -> Collector:
        """A collector for one run of the agent; a classmethod. It must not touch the source."""
        ...
