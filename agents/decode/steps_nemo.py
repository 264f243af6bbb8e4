"""NeMo 2's line: `Training epoch 0, iteration 120/149 | lr: 3e-05 | global_step: 120 | train_step_timing in s: 0.03`.

The step is `global_step`, which goes on over epochs, and the iteration within the epoch where that is missing; both
count from 0. NeMo 1 reports in a progress bar instead (see `steps_bar`). Validation lines are no step.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer
from agents.decode.steps_sample import cells, measurements, plain, step_record

START: Final = re.compile(r"\bTraining epoch \d{1,18}, iteration (?P<step>\d{1,18})/\d{1,18}\b")
HINT: Final = "Training epoch"


def read(start: re.Match[str], rest: str) -> Record:
    """The step of the line that `start` opens; `rest` is what follows it."""
    readings = list(cells(rest))
    steps = [integer(value) for name, value in readings if plain(name) == "global step"]
    step = steps[0] if steps and steps[0] is not None else integer(start["step"])
    return step_record("nemo", step, measurements(readings))
