"""Traces to figures and verdicts: joins the decoder of profiler traces with the pure logic that judges them.

Guarantees: one trace that cannot be read costs the others nothing; two traces of one rank are told, and the second is not
compared. Deliberately not: printing, which is `profile_command`'s, and the page, which is `profile_page`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from agents.decode.kineto_profile import profile
from agents.decode.record import Damaged, Record, Tally, UnknownFormat
from schemas.gpu_parts import find
from streams.profiles.figures import StepFigures, Work
from streams.profiles.kernel_family import family_of
from streams.profiles.ranks import RankComparison, compare_ranks
from streams.profiles.roofline import WorkRegime, roof_of, work_regime
from streams.profiles.verdict import Verdict, verdict

__all__ = ["ProductRegime", "RankProfile", "UnreadableTraceError", "compare", "rank_in_name", "read_profile"]

_RANK_IN_NAME: Final = re.compile(r"rank[-_.=]?(\d{1,7})", re.IGNORECASE)
_PRECISION_BY_DTYPE: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "tf32",
    "signed char": "int8",
}
"""A product of 32-bit values runs on tensor cores in TF32 where that is allowed, and PyTorch's trace does not say whether
it was: its roof is the higher of the two."""

_FIGURES: Final = frozenset(field.name for field in fields(StepFigures)) - {"families", "collectives"}


class UnreadableTraceError(Exception):
    """A file is no trace, or one that breaks off; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ProductRegime:
    """Matrix products of one data type under the part's roof."""

    dtype: str
    precision: str
    count: int
    kernel_us: float
    regime: WorkRegime


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One trace: its records as the decoder gives them, its figures and its verdict.

    Attributes:
        path: The file.
        rank: As the trace says, else as the file's name does, else None.
        malformed: Events that could not be read.
        step_records: A `trace_step` per step and device.
        record: The `trace_profile`.
        steps: The figures of `step_records`.
        verdict: Over all of them.
        products: Per data type; empty where shapes were not recorded.
        part: The GPU's model in the table of parts; None where it is not known.
    """

    path: Path
    rank: int | None
    malformed: int
    step_records: tuple[Record, ...]
    record: Record
    steps: tuple[StepFigures, ...]
    verdict: Verdict
    products: tuple[ProductRegime, ...]
    part: str | None

    @property
    def label(self) -> str:
        """What people call it: the rank, else the file's name."""
        return self.path.name if self.rank is None else f"rank {self.rank}"


def read_profile(path: Path, gpu: str | None = None) -> RankProfile:
    """Reads and judges one trace.

    Args:
        path: The trace, plain or gzip.
        gpu: The GPU's name, where the trace's own is missing or to be overruled.

    Raises:
        UnreadableTraceError: The file cannot be opened, is no trace, or breaks off.
    """
    malformed = 0
    step_records: list[Record] = []
    record: Record | None = None
    try:
        with path.open("rb") as stream:
            for found in profile(stream, Tally(), family_of):
                if found["kind"] == "malformed":
                    malformed += 1
                elif found["kind"] == "trace_step":
                    step_records.append(found)
                else:
                    record = found
    except OSError as error:
        raise UnreadableTraceError(f"cannot read {path}: {error.strerror or error}") from None
    except UnknownFormat as error:
        raise UnreadableTraceError(f"{path} is no profiler trace: {error}") from None
    except Damaged as error:
        raise UnreadableTraceError(f"{path} is damaged: {error.reason}") from None
    assert record is not None, "a trace that was read to its end has a profile"
    steps = tuple(_figures(found) for found in step_records)
    part, products = _products(record, gpu)
    rank = record["rank"] if record["rank"] is not None else rank_in_name(path)
    return RankProfile(path, rank, malformed, tuple(step_records), record, steps, verdict(steps), products, part)


def compare(profiles: Sequence[RankProfile]) -> tuple[RankComparison | None, list[str]]:
    """The ranks side by side, None for fewer than two, and what of the traces was left out of it."""
    by_rank: dict[int, tuple[StepFigures, ...]] = {}
    left_out: list[str] = []
    for found in profiles:
        if found.rank is None:
            if len(profiles) > 1:
                left_out.append(f"{found.path} names no rank, and neither does its name: it is not compared")
        elif found.rank in by_rank:
            left_out.append(f"{found.path} is a second trace of rank {found.rank}: it is not compared")
        else:
            by_rank[found.rank] = found.steps
    return (compare_ranks(by_rank) if len(by_rank) > 1 else None), left_out


def _figures(record: Mapping[str, Any]) -> StepFigures:
    return StepFigures(
        **{name: record[name] for name in _FIGURES},
        families={name: Work(**work) for name, work in record["families"].items()},
        collectives={name: Work(**work) for name, work in record["collectives"].items()},
    )


def _products(record: Mapping[str, Any], gpu: str | None) -> tuple[str | None, tuple[ProductRegime, ...]]:
    names: Iterable[str] = [gpu] if gpu is not None else record["gpu_names"]
    parts = {part.model: part for part in map(find, names) if part is not None}
    part = next(iter(parts.values())) if len(parts) == 1 else None
    regimes = []
    for product in record["matrix_products"]:
        precision = _PRECISION_BY_DTYPE.get(
            product["dtype"], "fp8" if "Float8" in product["dtype"] else product["dtype"]
        )
        regime = work_regime(product["flops"], product["bytes"], product["kernel_us"], roof_of(part, precision))
        regimes.append(ProductRegime(product["dtype"], precision, product["count"], product["kernel_us"], regime))
    return (part.model if part is not None else None), tuple(regimes)


def rank_in_name(path: Path) -> int | None:
    """The rank that a trace's file name gives, the last one of several; None if it gives none."""
    found = _RANK_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None
