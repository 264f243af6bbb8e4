"""One thing that a pre-flight looked at, and what all of them come to for the node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CHECKS", "Fitness", "PreflightCheck", "Status", "confirmed", "fitness"]

CHECKS = {
    "gpu": "every GPU answers, and there are as many as there should be",
    "pcie_width": "each GPU's link has all its lanes",
    "pcie_speed": "each GPU's link has its full speed while the GPU works",
    "nic_pcie_width": "each network card's link has all its lanes",
    "row_remap": "no row waits to be remapped, and none could not be",
    "ecc": "no uncorrectable memory error since the driver was loaded",
    "gemm": "no GPU multiplies more slowly than the others here, or than its part should",
    "nccl": "nccl-tests' all-reduce of this node's GPUs is right and as fast as it should be",
    "pairs": "no node is slower than the others in all-reduces of pairs",
}
"""The names of all checks, in the order in which they are told."""

Status = Literal["passed", "failed", "not_measured"]


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """One thing looked at.

    Attributes:
        name: of `CHECKS`.
        subject: what was looked at: a GPU's UUID, a port, a node, a link as `A - B`.
        status: `not_measured` is neither good nor bad.
        note: what was found, and where it helps what to do.
        values: the numbers behind it; units are in their names.
        bears_on: `node`: this node is unfit if it failed; `link`: a way of this node to another; `other`: told alone.
    """

    name: str
    subject: str
    status: Status
    note: str
    values: Mapping[str, float | int | str | None] = field(default_factory=dict)
    bears_on: Literal["node", "link", "other"] = "node"


@dataclass(frozen=True, slots=True)
class Fitness:
    """What the checks come to for this node.

    Attributes:
        status: 0 fit, 1 not fit, 2 it cannot be said.
        summary: why, in one line.
        failed: names of checks that failed.
        not_measured: names of required checks that were not measured, in whole or in part.
        links: ways of this node that are slow or broken.
    """

    status: Literal[0, 1, 2]
    summary: str
    failed: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def fitness(checks: Iterable[PreflightCheck], required: Collection[str]) -> Fitness:
    """Whether the node is fit.

    Args:
        checks: all that were made.
        required: names of checks without which it cannot be called fit; each with all its subjects.
    """
    checks = list(checks)
    own = [check for check in checks if check.bears_on == "node"]
    failed = [check for check in own if check.status == "failed"]
    open_names = tuple(
        name for name in CHECKS if name in required and not _is_measured([c for c in own if c.name == name])
    )
    links = tuple(check.subject for check in checks if check.bears_on == "link" and check.status != "passed")
    names = tuple(dict.fromkeys(check.name for check in failed))
    if failed:
        told = "; ".join(f"{check.name} {check.subject}: {check.note}" for check in failed)
        return Fitness(1, f"not fit: {told}", names, open_names, links)
    if open_names:
        return Fitness(2, f"cannot be called fit: not measured: {', '.join(open_names)}", (), open_names, links)
    if links:
        return Fitness(2, f"cannot be called fit: link {', '.join(links)}, and no end of it is to blame", links=links)
    if not any(check.status == "passed" for check in own):
        return Fitness(2, "cannot be called fit: nothing was measured")
    return Fitness(0, "fit")


def confirmed(first: Sequence[PreflightCheck], second: Sequence[PreflightCheck]) -> list[PreflightCheck]:
    """The checks of the second of two readings, with a failure only where the first one has it too: one misread fails nobody.

    What failed once is not measured: the next run will tell.
    """
    failed_before = {(check.name, check.subject) for check in first if check.status == "failed"}
    known_before = {(check.name, check.subject): check for check in first}
    checks = []
    for check in second:
        key = (check.name, check.subject)
        if check.status == "failed" and key in known_before and key not in failed_before:
            note = f"two readings differ; the second: {check.note}"
            checks.append(PreflightCheck(check.name, check.subject, "not_measured", note, check.values, check.bears_on))
        else:
            checks.append(check)
    return checks


def _is_measured(checks: Sequence[PreflightCheck]) -> bool:
    return bool(checks) and all(check.status != "not_measured" for check in checks)
