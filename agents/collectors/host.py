"""How busy the node itself is: processors, pressure, memory, disks, load average, and processors that throttle.

Guarantees: what the kernel does not tell is null (pressure before Linux 4.20 or without `psi=1`, throttle counts outside
x86); shares of processor time are of a span of some ten seconds, not of the moment. Read every other second only,
because a heartbeat tells it. It names no process and judges nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.attribute_files import AttributeFiles
from agents.collectors.base import CollectorError, Readings
from agents.collectors.host_throttle import ThrottleCounts
from agents.decode.quantity import Unreadable, integer, number

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["HostCollector"]

_EVERY_NS = 1_900_000_000
"""A little under two ticks of a second: what a heartbeat tells is then two seconds old at most."""

_SPAN_NS = 10_000_000_000
_KIB = 1024
_RESOURCES = ("cpu", "memory", "io")
_STATES = ("some", "full")
_MEMORY = {"MemTotal": "memory_total_bytes", "MemAvailable": "memory_available_bytes"}

# Fields of the line `cpu` of /proc/stat; what guests used is in `user` and `nice` already (proc_stat(5)).
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_BUSY = ("user", "nice", "system", "irq", "softirq")

_CpuTicks = dict[str, int]


class HostCollector:
    """Reads the load of this node.

    Args:
        procfs_root: where procfs is mounted.
        sysfs_root: where sysfs is mounted.
        disk_paths: places whose disks are looked at.
    """

    name = "host"
    precedence = 70

    def __init__(
        self, procfs_root: str | Path = "/proc", sysfs_root: str | Path = "/sys", disk_paths: Sequence[str] = ("/",)
    ) -> None:
        self._procfs = Path(procfs_root)
        self._disk_paths = tuple(dict.fromkeys(disk_paths))
        self._files = AttributeFiles(self._list)
        self._throttles = ThrottleCounts(sysfs_root)
        self._ticks: deque[tuple[int, _CpuTicks]] = deque()
        self._last: dict[str, Any] | None = None

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> HostCollector:  # noqa: ARG003 - the same for every node
        """The collector of this node."""
        disk_paths = [path for path in ("/", settings.state_dir) if path]
        return cls(settings.procfs_root, settings.sysfs_root, disk_paths)

    def is_supported(self) -> str | None:
        """None if procfs is here, else why not."""
        path = self._procfs / "stat"
        return None if path.is_file() else f"{path} is not here: no procfs is mounted at {self._procfs}"

    def collect(self, now_ns: int) -> Readings:
        """Read the load, or give the last reading again if it is young.

        Raises:
            CollectorError: procfs tells nothing.
        """
        if self._last is not None and 0 <= now_ns - self._last["observed_ns"] < _EVERY_NS:
            return Readings(host=self._last)
        files = {Path(path).relative_to(self._procfs).as_posix(): content for path, content in self._files.read()}
        if not files:
            raise CollectorError(f"nothing can be read under {self._procfs}")
        self._last = {
            "observed_ns": now_ns,
            **self._cpu(files.get("stat", ""), now_ns),
            **_load(files.get("loadavg", "")),
            **_pressure(files),
            **_memory(files.get("meminfo", "")),
            "disk_free_ratio": self._disks(),
            **self._throttles.read(),
        }
        return Readings(host=self._last)

    def _list(self) -> Iterator[Path]:
        yield from (self._procfs / name for name in ("stat", "loadavg", "meminfo"))
        yield from (self._procfs / "pressure" / resource for resource in _RESOURCES)

    def _cpu(self, text: str, now_ns: int) -> dict[str, Any]:
        ticks = _ticks(text)
        if ticks is None:
            return {}
        while self._ticks and not 0 < now_ns - self._ticks[0][0] <= _SPAN_NS:
            self._ticks.popleft()
        first_ns, first = self._ticks[0] if self._ticks else (now_ns, ticks)
        self._ticks.append((now_ns, ticks))
        # Waiting for a disk may count backwards (proc_stat(5)).
        spent = {name: max(0, ticks[name] - first[name]) for name in _CPU_FIELDS}
        total = sum(spent.values())
        if not total or now_ns <= first_ns:
            return {"cpu_count": os.cpu_count()}
        return {
            "cpu_count": os.cpu_count(),
            "cpu_span_s": (now_ns - first_ns) / 1e9,
            "cpu_busy_ratio": round(sum(spent[name] for name in _BUSY) / total, 4),
            "cpu_iowait_ratio": round(spent["iowait"] / total, 4),
            "cpu_steal_ratio": round(spent["steal"] / total, 4),
        }

    def _disks(self) -> dict[str, float]:
        """Free share by path; a path that does not exist yet has none."""
        free = {}
        for path in self._disk_paths:
            try:
                disk = os.statvfs(path)
            except OSError:
                continue
            if disk.f_blocks:
                free[path] = round(disk.f_bavail / disk.f_blocks, 4)
        return free


def _ticks(text: str) -> _CpuTicks | None:
    """The processors' time so far, in the kernel's ticks; fields that an old kernel lacks are 0."""
    name, *cells = text.partition("\n")[0].split() or [""]
    values = [_count(cell) for cell in cells[: len(_CPU_FIELDS)]]
    if name != "cpu" or len(values) < 4 or None in values:
        return None
    known = [value for value in values if value is not None]
    return dict(zip(_CPU_FIELDS, known + [0] * (len(_CPU_FIELDS) - len(known)), strict=True))


def _load(text: str) -> dict[str, float | None]:
    averages = [_real(cell) for cell in text.split()[:3]]
    return dict(zip(("load_1min", "load_5min", "load_15min"), averages, strict=False))


def _pressure(files: dict[str, str]) -> dict[str, float | None]:
    """Percentages of `some avg10=0.12 avg60=...` and the line `full`."""
    found: dict[str, float | None] = {}
    for resource in _RESOURCES:
        for line in files.get(f"pressure/{resource}", "").splitlines():
            state, *averages = line.split() or [""]
            for average in averages:
                span, _, value = average.partition("=")
                if state in _STATES and span == "avg10":
                    share = _real(value)
                    found[f"{resource}_pressure_{state}_pct"] = share if share is not None and share <= 100 else None
    return found


def _memory(text: str) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in _MEMORY:
            size, _, unit = value.strip().partition(" ")
            count = _count(size)
            found[_MEMORY[name]] = count * _KIB if count is not None and unit == "kB" else None
    return found


def _count(text: str) -> int | None:
    try:
        value = integer(text)
    except Unreadable:
        return None
    return value if value is None or value >= 0 else None


def _real(text: str) -> float | None:
    try:
        value = number(text)
    except Unreadable:
        return None
    return float(value) if value is not None and value >= 0 else None
