"""The log entry of the Hugging Face Trainer: `{'loss': 6.2645, 'learning_rate': 0.001, 'epoch': 0.02}`.

A Python repr, not JSON, with `nan` in it; newer versions print the values as strings. It has no step unless a fork
adds one, and no duration. A progress bar on the same line belongs to it (see `steps`). Entries of an evaluation and
the closing summary have no `loss` and are no step; a dictionary whose loss is a word is some configuration, and
JSON is some other tool's.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer, number
from agents.decode.steps_repr import Cut, Printed, dictionary
from agents.decode.steps_sample import Reading, measurements, step_record

START: Final = re.compile(r"\{\s{0,4}'[^'\"{}]{1,80}'\s{0,4}:")
HINT: Final = "loss"

_ENTRY_KEYS = frozenset({"epoch", "learning_rate", "grad_norm", "lr", "step", "global_step", "global_step/max_steps"})
_STEP_KEYS = ("global_step", "step", "global_step/max_steps")
_SUMMARY_KEYS = ("train_runtime", "eval_loss", "eval_runtime")
_UNKNOWN = frozenset({"nan", "inf", "-inf", "none", "null", "n/a"})


def entry(text: str, start: int) -> Printed | Cut | None:
    """The dictionary that begins at `start`, if it is a training entry or a cut one; else None."""
    found = dictionary(text, start)
    if isinstance(found, Printed):
        return found if _is_entry(found.values) else None
    if isinstance(found, Cut) and ("loss" in found.values or re.match(r"\{\s{0,4}'loss'", text[start : start + 20])):
        return found
    return None


def is_summary(text: str, start: int) -> bool:
    """Whether the dictionary at `start` is the Trainer's, but of an evaluation or of the end of training."""
    found = dictionary(text, start)
    return isinstance(found, Printed) and any(key in found.values for key in _SUMMARY_KEYS)


def read(values: dict[str, str]) -> Record:
    """The step of an entry."""
    step = None
    for key in _STEP_KEYS:
        if key in values:
            step = integer(values[key].partition("/")[0])
            break
    readings = (Reading(key, value) for key, value in values.items())
    return step_record("huggingface", step, measurements(readings))


def _is_entry(values: dict[str, str]) -> bool:
    if "loss" not in values or not _ENTRY_KEYS & values.keys():
        return False
    return number(values["loss"]) is not None or values["loss"].lower() in _UNKNOWN
