"""nanotron's iteration line: `iteration: 21 / 4000 | consumed_tokens: 88.1M | elapsed_time_per_iteration_ms: 11.5K |`.

Every number is rounded to three digits and a suffix by the trainer, which is resolved but cannot be undone: step
times of above a second are too coarse to compare ranks by.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer
from agents.decode.steps_sample import cells, measurements, step_record

START: Final = re.compile(
    r"\biteration:\s{0,16}(?P<step>\d[\d.,]{0,20}[KMBGT]?)\s{0,8}/\s{0,8}[\d.,]{1,20}[KMBGT]?\s{0,8}\|"
)
HINT: Final = "iteration:"


def read(start: re.Match[str], rest: str) -> Record:
    """The step of the line that `start` opens; `rest` is what follows it."""
    return step_record("nanotron", integer(start["step"]), measurements(cells(rest)))
