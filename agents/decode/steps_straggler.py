"""The report of Megatron-LM's straggler detector: `MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: ..`.

One record per metric, least and greatest value with the rank that measured it, in the report's order. Power is
printed with a `W` but in milliwatts. The lists of slowest and fastest ranks that may follow repeat what it says and
give nothing.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.record import Record
from agents.decode.steps_quantity import number

HINT: Final = "/Rnk:"

_VALUE = re.compile(
    r"\bM(?P<end>[nx])(?P<metric>Rtt|Pwr|Tmp|Utl|Clk|DRtt|Etpt)/Rnk:\s{0,4}"
    r"(?P<value>[^\s|/A-Za-z%]{1,40}|nan|inf|N/A)(?P<unit>[A-Za-z%]{0,8})/(?P<rank>\d{1,9})"
)
_NAMES: Final = {
    "Rtt": "elapsed_ms",
    "Pwr": "power_w",
    "Tmp": "temp_c",
    "Utl": "util_pct",
    "Clk": "sm_clock_mhz",
    "DRtt": "data_ms",
    "Etpt": "throughput_tflops",
}


def read(text: str) -> list[Record]:
    """The extremes of a report; empty when `text` holds none."""
    records: dict[str, Record] = {}
    for match in _VALUE.finditer(text):
        metric = _NAMES[match["metric"]]
        record = records.setdefault(
            metric,
            {"kind": "rank_extreme", "metric": metric, "min": None, "min_rank": None, "max": None, "max_rank": None},
        )
        value = number(match["value"])
        if value is not None and metric == "power_w":
            value /= 1000
        end = "min" if match["end"] == "n" else "max"
        record[end] = value
        record[end + "_rank"] = int(match["rank"])
    return list(records.values())
