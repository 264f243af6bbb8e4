"""How often the node's processors were too hot: `/sys/devices/system/cpu/cpu*/thermal_throttle`.

Guarantees: hyper-threads of one core report one count for each of them, so one of each core is taken, and one of each
package; processors that are off are passed over. Without these files, as outside x86, the counts are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agents.decode.quantity import Unreadable, integer

__all__ = ["ThrottleCounts"]

_LIST_EVERY = 120


class ThrottleCounts:
    """Reads the counts. The files are opened for each reading: a big node has hundreds of them.

    Args:
        sysfs_root: where sysfs is mounted.
    """

    def __init__(self, sysfs_root: str | Path = "/sys") -> None:
        self._directory = Path(sysfs_root) / "devices/system/cpu"
        self._cores: tuple[Path, ...] = ()
        self._packages: tuple[Path, ...] = ()
        self._readings = 0

    def read(self) -> dict[str, int | None]:
        """`core_throttle_count` and `package_throttle_count`, cumulative since boot."""
        if self._readings % _LIST_EVERY == 0:
            self._list()
        self._readings += 1
        return {"core_throttle_count": _sum(self._cores), "package_throttle_count": _sum(self._packages)}

    def _list(self) -> None:
        cores: dict[tuple[int | None, int | None], Path] = {}
        packages: dict[int | None, Path] = {}
        for processor in sorted(self._directory.glob("cpu[0-9]*")):
            directory = processor / "thermal_throttle"
            if not directory.is_dir():
                continue
            package = _count(processor / "topology/physical_package_id")
            core = _count(processor / "topology/core_id")
            # Where the topology is not told, each processor counts for itself.
            key = (package, core if core is not None else -1 - len(cores))
            cores.setdefault(key, directory / "core_throttle_count")
            packages.setdefault(package, directory / "package_throttle_count")
        self._cores, self._packages = tuple(cores.values()), tuple(packages.values())


def _sum(paths: Iterable[Path]) -> int | None:
    counts = [count for path in paths if (count := _count(path)) is not None]
    return sum(counts) if counts else None


def _count(path: Path) -> int | None:
    try:
        value = integer(path.read_text("utf-8", "replace"))
    except (OSError, Unreadable):
        return None
    return value if value is None or value >= 0 else None
