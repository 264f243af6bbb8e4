"""Progress bars of tqdm: `  8%|██  | 1999/24128 [1:52:09<20:27:23,  3.33s/it]`.

The rate is an exponential average and goes to `smoothed_step_time_ms`, never to `step_time_ms`. NeMo 1 and Lightning
put readings (`reduced_train_loss=2.31, global_step=794.0, train_step_timing in s=4.69`) into the brackets. Bars that
count something else (files, checkpoint shards, evaluation) are told by their description or unit and give nothing; a
bar that shows no step done yet gives nothing either.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_prefix import message
from agents.decode.steps_quantity import integer, number
from agents.decode.steps_sample import Reading, measurements, plain, step_record

START: Final = re.compile(
    r"(?:\d{1,3}%\|[^|\n]{0,600}\| {0,4}(?P<done>\d{1,18})/\d{1,18}|(?<![\w.])(?P<count>\d{1,18})it)"
    r" \[(?P<inside>(?:\d+ days?, )?[\d:]{4,12}(?:<[^\],]{0,24})?(?:,[^\[\]]{0,2000})?)\]"
)
HINTS: Final = ("%|", "it [")

_DESCRIPTION_LIMIT: Final = 80
_TRAINING = re.compile(r"(?:train(?:ing)?|epochs?|(?:global )?steps?|iter(?:ation)?s?)\b", re.IGNORECASE)
_OTHER = re.compile(r"valid|eval|test|predict|sanity", re.IGNORECASE)
_RATE = re.compile(r"(?P<rate>\?|\d[\d.]{0,20})(?P<form>s/(?:it|step|iter|batch)|(?:it|step|iter|batch)(?:es|s)?/s)")


def read(start: re.Match[str], described: str) -> Record | None:
    """The step that a bar reports; `described` is what stands in front of it. None for bars of other work."""
    description = message(described[-_DESCRIPTION_LIMIT:]).strip(" \t:") if described.strip() else ""
    if description and (not _TRAINING.match(description) or _OTHER.search(description)):
        return None
    readings, rate_text = _inside(start["inside"])
    fields = measurements(readings)
    rate = _RATE.fullmatch(rate_text) if rate_text else None
    if rate_text and rate is None:
        return None  # counts examples, bytes or tokens
    steps = [integer(value) for name, value in readings if plain(name) == "global step"]
    step = steps[0] if steps and steps[0] is not None else integer(start["done"] or start["count"])
    if not fields and (rate is None or rate["rate"] == "?") and step == 0:
        return None
    if rate is not None:
        fields["smoothed_step_time_ms"] = smoothed_ms(rate["rate"], rate["form"])
    names = {plain(name) for name, _ in readings}
    of_nemo = "reduced train loss" in names or any(name.startswith("train step timing") for name in names)
    return step_record("nemo" if of_nemo else None, step, fields)


def smoothed_ms(rate: str, form: str) -> float | None:
    """A bar's rate, `s/it` or `it/s`, as milliseconds per step; None while it is not known."""
    if form.startswith("s/"):
        return number(rate, 1000)
    per_second = number(rate)
    return 1000 / per_second if per_second else None


def _inside(text: str) -> tuple[list[Reading], str | None]:
    readings: list[Reading] = []
    rate = None
    for item in text.split(",")[1:]:
        name, sign, value = item.strip().partition("=")
        if sign:
            readings.append(Reading(name.strip(), value.strip()))
        elif rate is None and name:
            rate = name
    return readings, rate
