"""nanoGPT's line: `iter 1631: loss 4.0863, time 561.94ms, mfu 14.20%`.

The utilisation is a running average that is printed as -100 % until it begins, which is unknown. Evaluation lines
(`step 1000: train loss ..., val loss ...`) are no step.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer, number, quantity
from agents.decode.steps_sample import step_record

START: Final = re.compile(r"(?<![\w.])iter (?P<step>\d{1,18}): (?=loss )")
HINT: Final = "iter "

_PAIR = re.compile(r"(?P<name>[a-z]{1,20}):? {1,4}(?P<value>[^\s,]{1,60})")
_MS: Final = {"ms": 1, "s": 1000}


def read(start: re.Match[str], rest: str) -> Record:
    """The step of the line that `start` opens; `rest` is what follows it."""
    fields: Record = {}
    for match in _PAIR.finditer(rest):
        name, value = match["name"], match["value"]
        if name == "loss":
            fields.setdefault("loss", number(value))
        elif name == "time":
            found = quantity(value)
            scale = _MS.get(found.rest) if found else None
            fields.setdefault("step_time_ms", number(value, scale) if scale else None)
        elif name == "mfu":
            percent = number(value)
            fields.setdefault("mfu_pct", percent if percent is not None and percent >= 0 else None)
    return step_record("nanogpt", integer(start["step"]), fields)
