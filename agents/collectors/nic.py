"""Port counters of a node's NICs: the files under `/sys/class/infiniband` and the output of `ethtool -S`.

Guarantees: both sources are read through the decoders, so a counter that a driver does not have stays unknown; one
interface that cannot be read does not cost the others. Pause counters come from ethtool alone; without the command
there are none, which is not zero pauses.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agents.collectors.base import CollectorError, Readings, Row
from agents.decode import fabric_ethtool, fabric_sysfs

__all__ = ["NicCollector", "run_ethtool"]

EthtoolRunner = Callable[[str], str]
"""Standard output of `ethtool -S` for an interface; raises OSError or subprocess.SubprocessError."""

_STATE_FILES = ("state", "phys_state", "rate", "link_layer")
_COUNTER_DIRECTORIES = ("counters", "hw_counters")
_KINDS = ("port", "pfc")


def run_ethtool(interface: str, timeout_s: float = 2.0) -> str:
    """Standard output of `ethtool -S`.

    Raises:
        OSError: the command cannot be run.
        subprocess.SubprocessError: it failed or took too long.
    """
    done = subprocess.run(
        ["ethtool", "-S", interface],
        capture_output=True,
        timeout=timeout_s,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.decode("utf-8", "replace")


class NicCollector:
    """Reads ports and their counters.

    Args:
        sysfs_root: where sysfs is mounted.
        interfaces: network interfaces to ask ethtool about; None takes those with a device behind them.
        ethtool: runs the command.
    """

    name = "nic"

    def __init__(
        self,
        sysfs_root: str | Path = "/sys",
        interfaces: Sequence[str] | None = None,
        ethtool: EthtoolRunner = run_ethtool,
    ) -> None:
        self.failed: dict[str, str] = {}
        """Interfaces that could not be read the last time, and why."""
        self._root = Path(sysfs_root)
        self._chosen = None if interfaces is None else tuple(interfaces)
        self._ethtool = ethtool

    def is_supported(self) -> str | None:
        """None if there is a port to read, else why not."""
        if any(self._ports()):
            return None
        if not self._interfaces():
            return f"neither an InfiniBand device nor a network card under {self._root}/class"
        if self._ethtool is run_ethtool and shutil.which("ethtool") is None:
            return "ethtool is not on PATH and there is no InfiniBand device"
        return None

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - counters are of the moment at which they are read
        """Read all ports.

        Raises:
            CollectorError: not one could be read.
        """
        self.failed = {}
        rows: list[Row] = list(fabric_sysfs.parse(self._attributes()))
        for interface in self._interfaces():
            try:
                text = self._ethtool(interface)
            except (OSError, subprocess.SubprocessError) as error:
                self.failed[interface] = str(error)
                continue
            rows += fabric_ethtool.parse(text, interface)
        ports = tuple(row for row in rows if row["kind"] in _KINDS)
        if not ports and self.failed:
            interface, reason = next(iter(self.failed.items()))
            raise CollectorError(f"no port could be read; {interface}: {reason}")
        return Readings(ports=ports)

    def _ports(self) -> Iterator[Path]:
        return iter(sorted(self._root.glob("class/infiniband/*/ports/*")))

    def _interfaces(self) -> tuple[str, ...]:
        if self._chosen is not None:
            return self._chosen
        # Only what has hardware behind it: bridges, tunnels and loopback have no such link.
        return tuple(sorted(path.parent.name for path in self._root.glob("class/net/*/device")))

    def _attributes(self) -> Iterator[tuple[str, str]]:
        for port in self._ports():
            files = [port / name for name in _STATE_FILES]
            for directory in _COUNTER_DIRECTORIES:
                files += sorted((port / directory).glob("*"))
            for file in files:
                # Some counters exist and refuse to be read; that is how the driver says that it does not know.
                try:
                    yield str(file), file.read_text("utf-8", "replace")
                except OSError:
                    continue
