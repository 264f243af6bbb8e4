"""GPU readings from one round of `dcgmi dmon`, for nodes with DCGM and without an exporter.

Guarantees: the command runs as a list without a shell and is killed when it takes too long; rows of whole GPUs only;
where profiling is refused (a part without it, or a profiler that holds it) the other fields still come. Its rows name GPUs by DCGM's index: another source must tell the UUIDs. A start of the command costs tens of
milliseconds of CPU, so an exporter or NVML is the better source where there is one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Readings, Row
from agents.decode.dcgm_dmon import samples
from agents.step_join import is_due

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["FIELD_IDS", "DcgmiDmonCollector"]

FIELD_IDS = (
    *(100, 101, 112, 140, 150, 155, 156, 203, 204, 230, 237, 238, 240, 241, 310, 311, 313),
    *(1001, 1002, 1003, 1004, 1005, 1009, 1010, 1011, 1012),
)
"""Clocks and why they are held, temperatures, power, energy, utilisation, last Xid, link, violations, ECC; profiling
ratios and bytes a second of PCIe and NVLink.

Not 190 and 191, which circulate as violations and are the performance state and the fan.
"""


_FIRST_PROFILING_ID = 1001
_TRY_PROFILING_AGAIN_NS = 600 * 10**9


class DcgmiDmonCollector:
    """Runs `dcgmi dmon` once a reading.

    Args:
        command: the program, and what stands before `dmon`.
        field_ids: DCGM field numbers.
        timeout_s: when the command is killed.
    """

    name = "dcgmi-dmon"
    precedence = 40
    only_if_named = True  # a start of the command costs tens of milliseconds

    def __init__(
        self, command: Sequence[str] = ("dcgmi",), field_ids: Sequence[int] = FIELD_IDS, timeout_s: float = 5.0
    ) -> None:
        self._program = command[0]
        self._command = tuple(command)
        self._field_ids = tuple(field_ids)
        self._timeout_s = timeout_s
        self._refused_ns: int | None = None

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> DcgmiDmonCollector:  # noqa: ARG003 - the same for every node
        """The collector that runs the command that the settings name."""
        return cls((settings.dcgmi,))

    def is_supported(self) -> str | None:
        """None if the command is on PATH, else why not."""
        if shutil.which(self._program) is None:
            return f"{self._program} is not on PATH: install DCGM or use another source"
        return None

    def collect(self, now_ns: int) -> Readings:
        """Run the command and read its rows.

        Args:
            now_ns: wall time of the tick; profiling that was refused is tried again after ten minutes.

        Raises:
            CollectorError: it failed, took too long, or printed no row of a GPU.
        """
        plain = tuple(field_id for field_id in self._field_ids if field_id < _FIRST_PROFILING_ID)
        if plain == self._field_ids or not plain:
            return Readings(gpus=self._rows(self._field_ids))
        if not is_due(self._refused_ns, now_ns, _TRY_PROFILING_AGAIN_NS):
            return Readings(gpus=self._rows(plain))
        try:
            rows, self._refused_ns = self._rows(self._field_ids), None
        except _DmonRefusalError:
            # One field that is refused costs the whole command.
            rows = self._rows(plain)
            self._refused_ns = now_ns
        return Readings(gpus=rows)

    def _rows(self, field_ids: Sequence[int]) -> tuple[Row, ...]:
        command = [*self._command, "dmon", "-c", "1", "-e", ",".join(map(str, field_ids))]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=self._timeout_s, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise CollectorError(f"{self._program} dmon did not end within {self._timeout_s:g} s") from None
        except OSError as error:
            raise CollectorError(f"{self._program} cannot be run: {error.strerror or error}") from None
        text = done.stdout.decode("utf-8", "replace")
        gpus = tuple(row for row in samples(text) if row["entity"] == "gpu" and "link_index" not in row)
        if not gpus:
            # dcgmi writes its errors to standard output.
            said = (text.strip() or done.stderr.decode("utf-8", "replace").strip()).splitlines()
            raise _DmonRefusalError(
                f"{self._program} dmon gave no row, status {done.returncode}: {said[-1] if said else '-'}"
            )
        return gpus


class _DmonRefusalError(CollectorError):
    """The command ended without a row."""
