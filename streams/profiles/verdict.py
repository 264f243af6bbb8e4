"""What bounds a profiled step: communication, input, launches, memory or computation, and the figures that say so.

Guarantees: shares of the step's time that add up to one; a verdict names the figure that led to it and the limit that it
passed; `undecided` where there is no time, or where most of the kernel time is of kernels that no family knows. A verdict
is a description: none of them is an alarm, and a step bound by memory is as it should be where its work is
element-wise or a decode.

Deliberately not: a cause. Exposed communication holds the wait for the slowest rank as well as the transfer;
`ranks.py` compares ranks for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from streams.profiles.figures import StepFigures, sum_of
from streams.profiles.kernel_family import MEMORY_FAMILIES, TENSOR_FAMILIES

__all__ = ["Bound", "Limits", "Shares", "Verdict", "shares_of", "verdict"]

Bound = Literal["compute", "memory", "launch", "input", "communication", "undecided"]

_TRANSFERS: Final = frozenset({"copy_to_device", "copy_to_host", "set"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a verdict, all ratios, and all judgements: no published limit was found.

    Attributes:
        lost_share: Of the step's time that communication, input or launches must leave uncovered to be what bounds it.
        tensor_share: Of the kernels' time that families on tensor cores must have for the step to be bound by compute.
        unknown_share: Of the kernels' time above which kernels of no known family make the verdict undecided.
    """

    lost_share: float = 0.2
    tensor_share: float = 0.5
    unknown_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time went, as shares of it. The first five add up to one.

    `input` is idle time in the data loader and uncovered copies to the device, `launch` the other idle time, `transfer`
    uncovered copies to the host and copies and sets on the device. `tensor`, `memory` and `unknown` are shares of the
    kernels' durations.
    """

    kernels: float
    communication: float
    input: float
    launch: float
    transfer: float
    tensor: float
    memory: float
    unknown: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds a step, or several of them.

    Attributes:
        bound: The verdict.
        reason: The figures that led to it, in a sentence.
        shares: All of them; None where there is no time.
        limits: Those that it was held against.
    """

    bound: Bound
    reason: str
    shares: Shares | None
    limits: Limits


def verdict(steps: Iterable[StepFigures], limits: Limits | None = None) -> Verdict:
    """What bounds these steps together.

    The largest of uncovered communication, input and idle time decides when it reaches `lost_share`; else what the
    kernels' time is made of.

    Args:
        steps: Of one trace, any number of steps and devices.
        limits: Other limits than the usual ones.
    """
    held = limits or Limits()
    total = sum_of(steps)
    if total is None or total.window_us <= 0:
        return Verdict("undecided", "the trace holds no GPU work", None, held)
    shares = shares_of(total)
    bound, reason = _lost(total, shares, held) or _kept(shares, held)
    return Verdict(bound, reason, shares, held)


def shares_of(figures: StepFigures) -> Shares:
    """The shares of a step, or of a sum of steps, whose window has a length."""
    window = figures.window_us
    input_us = figures.idle_input_us + figures.exposed_to_device_us
    launch_us = max(0.0, figures.idle_us - figures.idle_input_us)
    known = figures.kernel_us + figures.exposed_comm_us + input_us + launch_us
    kernel_time = {name: work.total_us for name, work in figures.families.items() if name not in _TRANSFERS}
    all_kernels = sum(kernel_time.values())

    def part(names: frozenset[str]) -> float:
        return sum(time for name, time in kernel_time.items() if name in names) / all_kernels if all_kernels else 0.0

    tensor, memory = part(TENSOR_FAMILIES), part(MEMORY_FAMILIES)
    return Shares(
        kernels=figures.kernel_us / window,
        communication=figures.exposed_comm_us / window,
        input=input_us / window,
        launch=launch_us / window,
        transfer=max(0.0, window - known) / window,
        tensor=tensor,
        memory=memory,
        unknown=max(0.0, 1.0 - tensor - memory) if all_kernels else 0.0,
    )


def _lost(total: StepFigures, shares: Shares, limits: Limits) -> tuple[Bound, str] | None:
    lost: list[tuple[float, Bound]] = [
        (shares.communication, "communication"),
        (shares.input, "input"),
        (shares.launch, "launch"),
    ]
    share, bound = max(lost, key=lambda entry: entry[0])
    if share < limits.lost_share:
        return None
    limit = f"limit {limits.lost_share:.0%}"
    if bound == "communication":
        hidden = total.comm_us - total.exposed_comm_us
        return bound, (
            f"{share:.0%} of the time is communication that no computation covers ({limit}); {hidden:,.0f} of "
            f"{total.comm_us:,.0f} us are hidden. It includes the wait for the slowest rank."
        )
    if bound == "input":
        return bound, (
            f"{share:.0%} of the time the GPU waits for input ({limit}): {total.idle_input_us:,.0f} us idle while the host is "
            f"in its data loader, {total.exposed_to_device_us:,.0f} us of copies to the device that nothing covers"
        )
    told = ""
    if total.idle_unlaunched_us is not None and total.idle_us > 0:
        told = (
            f"; in {min(1.0, total.idle_unlaunched_us / total.idle_us):.0%} of it the next kernel was not yet launched"
        )
    return (
        bound,
        f"{share:.0%} of the time nothing is on the GPU and the host is not in its data loader ({limit}){told}",
    )


def _kept(shares: Shares, limits: Limits) -> tuple[Bound, str]:
    if shares.unknown > limits.unknown_share:
        return "undecided", (
            f"{shares.unknown:.0%} of the kernels' time is of no known family (limit {limits.unknown_share:.0%})"
        )
    limit = f"limit {limits.tensor_share:.0%}"
    if shares.tensor >= limits.tensor_share:
        return "compute", f"{shares.tensor:.0%} of the kernels' time is on tensor cores ({limit})"
    if shares.memory >= shares.tensor:
        return "memory", (
            f"{shares.memory:.0%} of the kernels' time is of element-wise, reducing and copying kernels, {shares.tensor:.0%} on "
            f"tensor cores ({limit})"
        )
    return (
        "undecided",
        f"{shares.tensor:.0%} of the kernels' time is on tensor cores, {shares.memory:.0%} waits for memory",
    )
