"""MaxText's line: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.9, Tokens/s/device: 8670.1, loss: 11.3`.

Devices are GPUs here. Evaluation lines have another opening and are no step.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer
from agents.decode.steps_sample import Reading, measurements, step_record

START: Final = re.compile(r"\bcompleted step: {0,8}(?P<step>\d{1,18})\b")
HINT: Final = "completed step:"

_PAIR = re.compile(r"(?P<name>[A-Za-z][\w/ ]{0,60}):\s{0,8}(?P<value>[^\s,]{1,60}(?:,\d{3}(?!\d)[^\s,]{0,20})*)")


def read(start: re.Match[str], rest: str) -> Record | None:
    """The step of the line that `start` opens; None when no reading follows."""
    fields = measurements(Reading(match["name"], match["value"]) for match in _PAIR.finditer(rest))
    return step_record("maxtext", integer(start["step"]), fields) if fields else None
