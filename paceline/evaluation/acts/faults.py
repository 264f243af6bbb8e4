"""The faults and look-alikes of one run, drawn from published rates by a seed.

Each draw is a hash of (seed, what, number): another rate or decider changes nobody else's. Nothing of what a decider does
is known here. Times are hours since the start of the run.
"""

from __future__ import annotations

import math
import random
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Fault", "FleetShape", "Plan", "Sign", "faults_of", "model", "shape_of"]

_SIGMA_OF_LENGTH = math.sqrt(2 * math.log(2.1))
"""Log-normal with a mean of 2.1 medians: ten minutes to an hour mostly, with a long tail, as fail-slows are told."""

_SHORTEST_H, _LONGEST_H = 20 / 3600, 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Which run.

    Attributes:
        seed: of all draws.
        arrival: factor on all rates of faults; look-alikes keep theirs.
        severity: factor on the excess of slowdowns, and on how many bad parts fail the next job too.
    """

    seed: int
    arrival: float = 1.0
    severity: float = 1.0


@dataclass(frozen=True, slots=True)
class Sign:
    """What is seen of a fault or of a look-alike.

    Attributes:
        name: `xid_N`, `node_silent`, `thermal_violation`, `straggler`, `hang`.
        delay_h: from its cause to the finding.
    """

    name: str
    delay_h: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, or a look-alike.

    Attributes:
        name: unique in its run.
        row: of the model, or `look-alike`.
        at_h: when it begins.
        seat: number of the node's place in the fleet.
        gpu: position of the GPU in its node.
        signs: what is seen of it, each time it strikes.
        interrupts: whether it ends the job of its node.
        hangs: whether that job stands until its watchdog ends it.
        stays: whether it ends the restarted job too, until it is mended.
        is_reset_cured: whether a reset or reboot mends it.
        is_hardware: whether taking the node out is right.
        excess: by how much steps take longer; 0 for what is not slow.
        lasts_h: how long it is slow, or until a look-alike's finding is cleared; 0 for what has no end of its own.
    """

    name: str
    row: str
    at_h: float
    seat: int
    gpu: int
    signs: tuple[Sign, ...]
    interrupts: bool = False
    hangs: bool = False
    stays: bool = False
    is_reset_cured: bool = False
    is_hardware: bool = False
    excess: float = 0.0
    lasts_h: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Sizes, and which seats each job has.

    Attributes:
        gpus_per_node: of every node.
        job_gpus: GPUs of each job.
        hours: length of a run.
        job_of: number of the job by seat.
    """

    gpus_per_node: int
    job_gpus: tuple[int, ...]
    hours: float
    job_of: tuple[int, ...] = field(repr=False)

    @property
    def seats(self) -> int:
        """How many nodes the fleet has."""
        return len(self.job_of)

    @property
    def gpu_days(self) -> float:
        """What one run watches."""
        return self.seats * self.gpus_per_node * self.hours / 24


@cache
def model() -> dict[str, Any]:
    """Rates, costs and shape: `failure_rates.toml`, where every figure names its source."""
    text = resources.files("paceline.evaluation.acts").joinpath("failure_rates.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def shape_of() -> FleetShape:
    """The fleet of the model."""
    fleet = model()["fleet"]
    per_node, jobs = int(fleet["gpus_per_node"]), tuple(fleet["jobs"])
    job_of = tuple(number for number, gpus in enumerate(jobs) for _ in range(gpus // per_node))
    return FleetShape(per_node, jobs, 24.0 * fleet["days"], job_of)


def faults_of(plan: Plan) -> list[Fault]:
    """All faults and look-alikes of a run, in order of their beginning."""
    told, shape = model(), shape_of()
    seats = _Seats(plan.seed, shape)
    found: list[Fault] = []
    for row, known in told["interruptions"].items():
        found += [_interruption(plan, row, known, *drawn) for drawn in seats.draw(row, known["rate"] * plan.arrival)]
    slow = told["slowdowns"]["fail_slow"]
    found += [_slow(plan, *drawn, slow) for drawn in seats.draw("fail_slow", slow["rate"] * plan.arrival)]
    found += _slow_machines(plan, shape)
    for name, rate in told["look_alikes"].items():
        found += [_look_alike(plan, name, *drawn) for drawn in seats.draw(name, rate, is_of_parts=False)]
    return sorted(found + _rollouts(plan, shape), key=lambda fault: (fault.at_h, fault.name))


class _Seats:
    """Moments and seats: Poisson in time, over seats in proportion to how prone each is."""

    def __init__(self, seed: int, shape: FleetShape) -> None:
        fleet = model()["fleet"]
        self._seed, self._shape = seed, shape
        self._weights = [
            fleet["lemon_factor"] if _u(seed, "lemon", seat) < fleet["lemon_share"] else 1.0
            for seat in range(shape.seats)
        ]

    def draw(self, what: str, rate: float, is_of_parts: bool = True) -> list[tuple[int, float, int]]:
        """Number, time and seat of each event of a kind; `rate` per 1,000 GPU-days. What is no part's comes to all alike."""
        rng = random.Random(f"{self._seed} {what}")
        mean_gap_h = self._shape.hours / (rate * self._shape.gpu_days / 1000) if rate > 0 else math.inf
        events: list[tuple[int, float, int]] = []
        at_h = rng.expovariate(1.0) * mean_gap_h
        while at_h < self._shape.hours:
            seat = rng.choices(range(self._shape.seats), self._weights if is_of_parts else None)[0]
            events.append((len(events), at_h, seat))
            at_h += rng.expovariate(1.0) * mean_gap_h
        return events


def _u(seed: int, *what: object) -> float:
    return random.Random(f"{seed} {what}").random()


def _sign(name: str) -> Sign:
    delays_s = model()["finding_delays_s"]
    return Sign(name, delays_s["code" if name.startswith("xid_") else name] / 3600)


def _interruption(plan: Plan, row: str, known: dict[str, Any], number: int, at_h: float, seat: int) -> Fault:
    rng = random.Random(f"{plan.seed} {row} {number}")
    seen = known["seen"]
    name = rng.choices(list(seen), list(seen.values()))[0]
    return Fault(
        f"{row}-{number}",
        row,
        at_h,
        seat,
        rng.randrange(8),
        (_sign(name),) if name != "nothing" else (),
        interrupts=True,
        hangs=name == "hang",
        stays=rng.random() < known["stays"] * plan.severity,
        is_reset_cured=rng.random() < known["reset_cures"],
        is_hardware=known["hardware"],
    )


def _slow(plan: Plan, number: int, at_h: float, seat: int, known: dict[str, Any]) -> Fault:
    rng = random.Random(f"{plan.seed} fail_slow {number}")
    median_h = known["mean_h"] / math.exp(_SIGMA_OF_LENGTH**2 / 2)
    lasts_h = median_h * math.exp(_SIGMA_OF_LENGTH * rng.gauss(0.0, 1.0))
    return _slow_fault(
        f"fail_slow-{number}",
        at_h,
        seat,
        rng,
        known,
        plan.severity,
        min(max(lasts_h, _SHORTEST_H), _LONGEST_H),
    )


def _slow_fault(
    name: str, at_h: float, seat: int, rng: random.Random, known: dict[str, Any], severity: float, lasts_h: float
) -> Fault:
    has_reason = rng.random() < known["device"]
    signs = (_sign("thermal_violation"), _sign("straggler")) if has_reason else (_sign("straggler"),)
    row = f"{name.rpartition('-')[0]}, {'device' if has_reason else 'host'}"
    return Fault(
        name,
        row,
        at_h,
        seat,
        rng.randrange(8),
        signs if lasts_h > signs[-1].delay_h else (),
        is_hardware=has_reason,
        excess=known["excess"] * severity * rng.uniform(0.5, 1.5),
        lasts_h=lasts_h,
    )


def _slow_machines(plan: Plan, shape: FleetShape) -> list[Fault]:
    known = model()["slowdowns"]["slow_machine"]
    share = known["nodes_share"] * plan.arrival
    found = []
    for seat in range(shape.seats):
        rng = random.Random(f"{plan.seed} slow_machine {seat}")
        if rng.random() < share:
            at_h = rng.random()
            found.append(_slow_fault(f"slow_machine-{seat}", at_h, seat, rng, known, plan.severity, shape.hours - at_h))
    return found


def _look_alike(plan: Plan, name: str, number: int, at_h: float, seat: int) -> Fault:
    gpu = random.Random(f"{plan.seed} {name} {number}").randrange(8)
    sign = _sign("node_silent" if name == "restarting_agent" else name)
    # A row that waits for its remapping is worn memory: to take the node out for it is not wrong.
    lasts_h = 0.0 if name.startswith("xid_") else model()["finding_delays_s"]["look_alike_lasts"] / 3600
    return Fault(
        f"{name}-{number}",
        "look-alike",
        at_h,
        seat,
        gpu,
        (sign,),
        is_hardware=name == "xid_63",
        lasts_h=lasts_h,
    )


def _rollouts(plan: Plan, shape: FleetShape) -> list[Fault]:
    """Many nodes that say a fatal code within a minute, and are sound."""
    told = model()["rollouts"]
    found = []
    for number in range(told["count"]):
        rng = random.Random(f"{plan.seed} rollout {number}")
        at_h = rng.uniform(1.0, shape.hours - 1.0)
        found += [
            Fault(f"rollout-{number}-{seat}", "look-alike", at_h + rng.random() / 60, seat, 0, (_sign("xid_119"),))
            for seat in rng.sample(range(shape.seats), told["nodes"])
        ]
    return found
