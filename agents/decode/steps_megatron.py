"""The iteration line of Megatron-LM and its forks: Megatron-DeepSpeed, GPT-NeoX, Primus, Megatron Bridge, MindSpeed.

`iteration N/ M |` followed by readings between bars, in any order and number: fields come and go with options, so
they are read by name. Of `current/average` pairs the current value counts. The elapsed time is what the line prints,
a mean over the logging interval. Validation lines name an iteration without a total and are no step.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer
from agents.decode.steps_sample import cells, measurements, step_record

# GPT-NeoX prints its throughput in front of the iteration.
START: Final = re.compile(
    r"(?:samples/sec:\s{0,8}(?P<samples>[\d.]{1,24})\s{0,8}\|\s{0,8})?"
    r"\biteration[ =]\s{0,16}(?P<step>\d{1,18})\s{0,16}/\s{0,16}\d{1,18}\s{0,8}\|"
)
BROKEN: Final = re.compile(r"\biteration[ =]\s{0,16}(?P<step>[^\s|/]{1,40})\s{0,16}/\s{0,16}[^\s|/]{1,40}\s{0,8}\|")
"""An iteration line whose counters are no numbers."""

HINT: Final = "iteration"


def read(start: re.Match[str], rest: str) -> Record:
    """The step of the line that `start` opens; `rest` is what follows it."""
    fields = measurements(cells(rest))
    if start["samples"]:
        fields.update(measurements(cells("samples/sec: " + start["samples"])))
    return step_record("megatron", integer(start["step"]), fields)
