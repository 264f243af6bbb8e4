"""GPU readings from one round of `dcgmi dmon`, for nodes with DCGM and without an exporter.

Guarantees: the command runs as a list without a shell and is killed when it takes too long; rows of whole GPUs only.
Its rows name GPUs by DCGM's index: another source must tell the UUIDs. A start of the command costs tens of
milliseconds of CPU, so an exporter or NVML is the better source where there is one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from agents.collectors.base import CollectorError, Readings
from agents.decode.dcgm_dmon import samples

__all__ = ["FIELD_IDS", "DcgmiDmonCollector"]

FIELD_IDS = (100, 101, 140, 150, 155, 156, 203, 204, 230, 237, 238, 240, 241, 1001, 1002, 1003, 1004, 1005)
"""Clocks, temperatures, power, energy, utilisation, last Xid, link, violations, profiling ratios.

Not 190 and 191, which circulate as violations and are the performance state and the fan.
"""


class DcgmiDmonCollector:
    """Runs `dcgmi dmon` once a reading.

    Args:
        command: the program, and what stands before `dmon`.
        field_ids: DCGM field numbers.
        timeout_s: when the command is killed.
    """

    name = "dcgmi-dmon"

    def __init__(
        self, command: Sequence[str] = ("dcgmi",), field_ids: Sequence[int] = FIELD_IDS, timeout_s: float = 5.0
    ) -> None:
        self._program = command[0]
        self._command = [*command, "dmon", "-c", "1", "-e", ",".join(map(str, field_ids))]
        self._timeout_s = timeout_s

    def is_supported(self) -> str | None:
        """None if the command is on PATH, else why not."""
        if shutil.which(self._program) is None:
            return f"{self._program} is not on PATH: install DCGM or use another source"
        return None

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - rows are of the moment at which the command runs
        """Run the command and read its rows.

        Raises:
            CollectorError: it failed, took too long, or printed no row of a GPU.
        """
        try:
            done = subprocess.run(
                self._command, capture_output=True, timeout=self._timeout_s, check=False, stdin=subprocess.DEVNULL
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
            raise CollectorError(
                f"{self._program} dmon gave no row, status {done.returncode}: {said[-1] if said else '-'}"
            )
        return Readings(gpus=gpus)
