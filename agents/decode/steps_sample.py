"""The step record, and how named readings of a log line become its fields.

Guarantees: the mandatory fields are always there; a reading is a field only under a name that states what it is; one
that the source marks as unknown is null. Deliberately leaves out totals over the job (`tokens_per_sec`) and hardware
FLOPs, which are not what the fields of that name mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from agents.decode.record import Record
from agents.decode.steps_quantity import integer, number, quantity


class Reading(NamedTuple):
    """One `name: value` of a line, both as printed."""

    name: str
    value: str


LOSS_NAMES: Final = ("lm loss", "reduced train loss", "loss", "total loss", "train loss")
"""Names of the training loss, most telling first."""

_CELL_LIMIT: Final = 400
"""Characters of a cell; a longer one is no reading."""

_SIDE_LOSS = re.compile(r"balanc|aux|\bz loss|mtp|\bval|eval|test|sop|max")
_TIME = re.compile(
    r"(?:elapsed )?time per iteration \(?(?P<unit>ms|s)\)?|train step timing in (?P<nemo>s)|(?P<bare>seconds|step time)"
)
_SAMPLES = re.compile(r"(?:^|\s)samples?(?:/| per )s(?:ec(?:ond)?)?$")
_TOKENS = re.compile(r"(?=.*tok)(?=.*(?:gpu|device))(?=.*(?:/s|/g?pu/s|\bsec|per second|tgs))")
_MS: Final = {"ms": 1, "s": 1000, "sec": 1000, "seconds": 1000}


def step_record(tool: str | None, step: int | None, fields: Record) -> Record:
    """A step record; `fields` may hold any of its stated fields and `step_time_ms`."""
    return {"kind": "step", "tool": tool, "step": step, "step_time_ms": fields.pop("step_time_ms", None), **fields}


def plain(name: str) -> str:
    """A reading's name for comparison: lower case, blanks for underscores."""
    return " ".join(name.replace("_", " ").lower().split())


def cells(text: str) -> Iterator[Reading]:
    """The readings of `name: value | name: value`, also with `=`, without any sign, or several in one cell."""
    for cell in text.split("|"):
        if len(cell) > _CELL_LIMIT:
            continue
        found = False
        for match in _PAIR.finditer(cell):
            found = True
            yield Reading(match["name"].strip(), match["value"])
        if not found and (bare := _BARE.fullmatch(cell.strip())):
            yield Reading(bare["name"], bare["value"])


_PAIR = re.compile(r"(?P<name>[^\s:=][^:=]{0,120}?)\s{0,20}[:=]\s*(?P<value>[^\s]{1,120}(?: (?:ms|s|sec|seconds)\b)?)")
_BARE = re.compile(r"(?P<name>[A-Za-z][A-Za-z ]{0,60}?) +(?P<value>[+-]?[\d.]+(?:[eE][+-]?\d+)?|nan)")


def measurements(readings: Iterable[Reading]) -> Record:
    """The stated fields that `readings` give; of two for one field the first counts.

    `step_time_ms` comes from a duration of the step only, in milliseconds whatever the line's unit.
    """
    fields: Record = {}
    losses: dict[str, float | None] = {}
    fallback_time = None
    for name, value in readings:
        field, detail = _meaning(name)
        if field in {"samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu"}:
            fields.setdefault(field, number(value))
        elif field == "loss":
            losses.setdefault(detail, number(value))
        elif field == "step_time_ms":
            fields.setdefault(field, number(value, _MS[detail]) if detail else _duration_ms(value, "s"))
        elif field == "iteration time":
            fallback_time = _duration_ms(value, "")
        elif field == "skipped_iterations":
            fields.setdefault(field, integer(value))
        elif field == "approximate flops" and "TFLOP" in value:
            fields.setdefault("tflops_per_gpu", number(value))
        elif field == "mfu_pct":
            _add_mfu(fields, detail, value)
    if fallback_time is not None:
        fields.setdefault("step_time_ms", fallback_time)
    _add_loss(fields, losses)
    return fields


@lru_cache(maxsize=1024)
def _meaning(name: str) -> tuple[str, str]:
    """What a reading's name states: a field and what its value needs, or two empty strings."""
    key = plain(name)
    if key in LOSS_NAMES or key.endswith(" loss"):
        return "loss", key
    if (timing := _TIME.fullmatch(key)) is not None:
        return "step_time_ms", timing["unit"] or timing["nemo"] or ""
    if _SAMPLES.search(key):
        return "samples_per_s", ""
    if key in {"tps", "wps", "tgs"} or _TOKENS.search(key):
        return "tokens_per_s_per_gpu", ""
    if "tflop" in key and "hardware" not in key:
        return "tflops_per_gpu", ""
    if key.startswith("mfu"):
        return "mfu_pct", key
    return _OTHER_NAMES.get(key, ("", ""))


_OTHER_NAMES: Final = {
    "iteration time": ("iteration time", ""),
    "approx flops per gpu": ("approximate flops", ""),
    "number of skipped iterations": ("skipped_iterations", ""),
    "skipped iterations": ("skipped_iterations", ""),
}


def _duration_ms(value: str, unit: str) -> float | None:
    """A duration with its unit, or in `unit` where it has none."""
    found = quantity(value)
    scale = _MS.get(found.rest or unit) if found else None
    return number(value, scale) if scale else None


def _add_mfu(fields: Record, key: str, value: str) -> None:
    reading = number(value)
    if reading is not None and "%" not in key + value:
        return  # a fraction or a percentage, and nothing says which
    # A running average that has not begun is printed as -100 %.
    fields.setdefault("mfu_pct", None if reading is None or reading < 0 else reading)


def _add_loss(fields: Record, losses: dict[str, float | None]) -> None:
    for key in LOSS_NAMES:
        if key in losses:
            fields["loss"] = losses[key]
            return
    others = [key for key in losses if not _SIDE_LOSS.search(key)]
    if len(others) == 1:
        fields["loss"] = losses[others[0]]
