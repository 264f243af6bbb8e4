"""DeepSpeed's step lines, which its log writes behind whatever stood on the line before.

The throughput timer of three generations (`epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=..,
CurrSamplesPerSec=..`, `0/17, RunningAvg..`, `0/40, SamplesPerSec=..`), the engine's progress (`step=40, skipped=2,
lr=[..]`) and the pipeline engine's `steps: 10 loss: 2.1 iter time (s): 0.2 samples/sec: 40`. Of current and running
throughput the current one counts; the oldest generation prints only one. Each line is a step of its own, so one step
of the job may give two records; only the pipeline engine prints a duration.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import integer, number
from agents.decode.steps_sample import step_record

START: Final = re.compile(
    r"(?:epoch=\d{1,18}/micro_step=\d{1,18}/global_step=(?P<global>\d{1,18})\b,?\s{0,4}"
    r"|(?<![\w./])\d{1,18}/(?P<local>\d{1,18}), (?=(?:RunningAvg)?SamplesPerSec=)"
    r"|(?=RunningAvgSamplesPerSec=))"
    r"(?:RunningAvgSamplesPerSec=(?P<running>[^\s,]{1,40}))?"
    r"|(?<![\w.])step=(?P<progress>\d{1,18}), skipped=(?P<skipped>\d{1,18}), (?=lr=)"
    r"|(?<![\w.])steps: (?P<pipe>\d{1,18}) (?=loss: \S{1,40} iter time \(s\): )"
)
HINTS: Final = ("global_step=", "SamplesPerSec=", "skipped=", "iter time (s):")

_CURRENT = re.compile(r"(?:Curr|(?<!\w))SamplesPerSec=([^\s,]{1,40})")
_PIPE = re.compile(r"loss: (\S{1,40}) iter time \(s\): (\S{1,40})(?: samples/sec: (\S{1,40}))?")


def read(start: re.Match[str], rest: str) -> Record:
    """The step of the line that `start` opens; `rest` is what follows it."""
    if start["progress"]:
        return step_record("deepspeed", integer(start["progress"]), {"skipped_iterations": integer(start["skipped"])})
    fields: Record = {}
    if start["pipe"]:
        if found := _PIPE.match(rest):
            fields = {"loss": number(found[1]), "step_time_ms": number(found[2], 1000)}
            if found[3]:
                fields["samples_per_s"] = number(found[3])
        return step_record("deepspeed", integer(start["pipe"]), fields)
    current = _CURRENT.search(rest)
    if current:
        fields["samples_per_s"] = number(current[1])
    elif start["running"]:
        fields["samples_per_s"] = number(start["running"])
    step = start["global"] or start["local"]
    return step_record("deepspeed", integer(step) if step else None, fields)
