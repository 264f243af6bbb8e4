"""The GEMM rate of this node's GPUs: measured by PyTorch in a process of its own, judged here.

A GPU is held against the others of the node, against the part's datasheet, and against a floor where one is given. Without
PyTorch or a GPU nothing is measured: a CPU's figure says nothing of a GPU. The process is bounded in time and killed with
all that it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from agents.preflight.check import PreflightCheck
from schemas.gpu_parts import find

__all__ = ["GemmLimits", "GemmRun", "judged_gemm"]

_PROGRAM = Path(__file__).with_name("gemm_program.py")
_SIZE = 8192
_START_S = 180.0
"""To import PyTorch from a cold file system and to start CUDA on all GPUs."""

_END_S = 5.0
"""For the pipes of what was killed to run dry."""

_MOST_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class GemmLimits:
    """When a GPU multiplies too slowly.

    Attributes:
        slow_below: share of the median of the node's GPUs (ratio); FALCON suspects what is over 10 % off the median.
        least_of_peak: share of the datasheet's dense bf16 peak (ratio). Judgement: sound parts at a lowered power limit
            reach more than half of it, and a clock that has fallen to its floor gives a quarter.
        floor_tflops: what each must reach (TFLOP/s); it takes the place of `least_of_peak`.
    """

    slow_below: float = 0.9
    least_of_peak: float = 0.4
    floor_tflops: float | None = None


class GemmRun:
    """The program at work; a context manager that ends it.

    Args:
        python: the interpreter that has PyTorch.
        seconds: how long it measures.
    """

    def __init__(self, python: str, seconds: float) -> None:
        self._command = [python, str(_PROGRAM), str(seconds), str(_SIZE)]
        self._within_s = _START_S + 4 * seconds
        self._deadline_s = 0.0
        self._said: list[dict[str, Any]] = []
        self._errors = ""
        self._first = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._deadline_s = time.monotonic() + self._within_s
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._errors = f"{self._command[0]} cannot be run: {error.strerror or error}"
            self._first.set()
            return self
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        with suppress(OSError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(_END_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not any(reader.is_alive() for reader in self._readers):
                pipe.close()

    def is_working(self) -> bool:
        """Wait until the GPUs are at work; False if it comes to nothing."""
        self._first.wait(self._within_s)
        return any(said.get("working") for said in self._said)

    def figures(self) -> tuple[list[dict[str, Any]], str]:
        """Wait for the end: a row for each GPU, or why there is none."""
        if self._process is not None:
            for reader in self._readers:
                reader.join(max(0.0, self._deadline_s - time.monotonic()))
            if any(reader.is_alive() for reader in self._readers):
                return [], f"no result within {self._within_s:g} s"
        rows = [said for said in self._said if isinstance(said.get("tflops"), int | float)]
        if rows:
            return rows, ""
        why = next((str(said["why"]) for said in self._said if said.get("why")), None)
        last = self._errors.strip().splitlines()[-1:]
        return [], why or (last[0] if last else "it ended without a figure")

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                with suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict):
                        self._said.append(said)
                        self._first.set()
        finally:
            self._first.set()

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = (self._errors + line)[-_MOST_CHARACTERS:]


def judged_gemm(rows: Sequence[dict[str, Any]], node: str, why: str, limits: GemmLimits) -> list[PreflightCheck]:
    """The check `gemm`.

    Args:
        rows: of `GemmRun.figures`.
        node: its name.
        why: there are none.
        limits: when one is too slow.
    """
    if not rows:
        return [PreflightCheck("gemm", node, "not_measured", why)]
    checks = []
    for index, row in enumerate(rows):
        alike = [other["tflops"] for other in rows if other.get("name") == row.get("name")]
        middle = median(alike)
        tflops, part = float(row["tflops"]), find(str(row.get("name") or ""))
        peak = None if part is None else part.device_peak_tflops("bf16")
        least = limits.floor_tflops or (None if peak is None else limits.least_of_peak * peak)
        name = str(row.get("gpu_uuid") or row.get("pci_bus_id") or f"GPU {index}")
        values = {
            "tflops": round(tflops, 1),
            "median_tflops": round(middle, 1),
            "least_tflops": least,
            "peak_tflops": peak,
        }
        if least is not None and tflops < least:
            checks.append(PreflightCheck("gemm", name, "failed", f"{tflops:.0f} TFLOP/s, least {least:.0f}", values))
        elif len(alike) > 2 and tflops < limits.slow_below * middle:
            note = f"{tflops:.0f} TFLOP/s, where the node's median is {middle:.0f}"
            checks.append(PreflightCheck("gemm", name, "failed", note, values))
        elif least is None and len(alike) <= 2:
            note = f"{tflops:.0f} TFLOP/s, and nothing to hold it against; give --gemm-floor-tflops"
            checks.append(PreflightCheck("gemm", name, "not_measured", note, values))
        else:
            checks.append(PreflightCheck("gemm", name, "passed", f"{tflops:.0f} TFLOP/s", values))
    return checks
