"""torchtitan's line: `step:  4  loss:  7.62585  grad_norm: 26.62  memory: 66.91GiB(37.51%)  tps: 10,050  mfu: 13.99%`.

It prints throughput and no duration, so `step_time_ms` is null; `tps` (older: `wps`) is tokens per second and device.
Validation lines (`validate step:`) are no step. A line of this form without any reading of torchtitan's own is a step
of an undecided tool.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer
from agents.decode.steps_sample import Reading, measurements, step_record

START: Final = re.compile(
    r"(?<![\w/-])(?<!validate )step:\s{0,8}(?P<step>\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(?=\s{1,8}[a-z][\w/ ]{0,40}:)"
)
HINT: Final = "step:"

_PAIR = re.compile(r"(?P<name>[A-Za-z][\w/()%-]{0,60}):\s{0,8}(?P<value>\S{1,60})")
_OWN = frozenset({"tps", "wps", "memory", "mfu", "grad_norm", "tflops"})


def read(start: re.Match[str], rest: str) -> Record | None:
    """The step of the line that `start` opens; None when no loss and no throughput follows."""
    readings = [Reading(match["name"], match["value"]) for match in _PAIR.finditer(rest)]
    names = {reading.name for reading in readings}
    fields = measurements(readings)
    if "loss" not in fields and not names & {"tps", "wps"}:
        return None
    return step_record("torchtitan" if names & _OWN else None, integer(start["step"]), fields)
