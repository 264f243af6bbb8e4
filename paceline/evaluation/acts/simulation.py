"""One fleet, its faults and one decider: what is lost, to what, and whom it cost a node.

Guarantees: the same faults meet every decider; what is lost is charged to the fault that caused it, or that an act was
about. Losses are GPU-hours of jobs and of nodes that are missing. Simplified on purpose: slowdowns of one job add up,
jobs restart by themselves once they have ended, spares never run out, and a node that was taken out comes back sound as another one.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from paceline.evaluation.acts.faults import model, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.evaluation.acts.faults import Fault, FleetShape

__all__ = ["RESETS", "TAKES_OUT", "Act", "Decider", "Ledger", "Seen", "simulate"]

TAKES_OUT = frozenset({"cordon_node", "drain_node", "swap_spare", "replace_hardware"})
"""Kinds after which the node is missing for a repair."""

RESETS = frozenset({"reset_gpu", "reboot_node"})
"""Kinds after which it is missing for a moment."""

_JUST_HEALED_H = 1.0
"""An act on what healed within this was late and not wrong."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A sign as a decider gets it.

    Attributes:
        name: of the sign.
        state: `open` or `cleared`.
        at_h: when.
        onset_h: when what it tells of began.
        seat: place of the node in the fleet.
        node_id: the node that is there now.
        gpu: position of the GPU.
        job: number of the job that runs there.
        excess: by how much its steps take longer.
    """

    name: str
    state: str
    at_h: float
    onset_h: float
    seat: int
    node_id: str
    gpu: int
    job: int
    excess: float = 0.0


@dataclass(frozen=True, slots=True)
class Act:
    """What a decider has done.

    Attributes:
        kind: of command.
        node_id: the node; None for an act on a job.
        job: the job; None for an act on a node.
        after_checkpoint: whether the job leaves the node at its next checkpoint.
    """

    kind: str
    node_id: str | None = None
    job: int | None = None
    after_checkpoint: bool = False


class Decider(Protocol):
    """Answers signs with acts."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def waits_h(self, seen: Seen) -> Sequence[float]:
        """How long after a sign it is asked again."""
        ...

    @property
    def every_h(self) -> float:
        """How often it is asked besides; infinite for never."""
        ...

    def see(self, seen: Seen) -> list[Act]:
        """A sign came."""
        ...

    def wait(self, at_h: float) -> list[Act]:
        """Time has passed."""
        ...

    def replaced(self, seat: int, node_id: str, at_h: float) -> None:
        """Another node has taken a seat."""
        ...


@dataclass
class Ledger:
    """What one decider lost.

    Attributes:
        by_fault: GPU-hours by fault, look-alikes too; acts on who had none under `nobody`.
        by_way: the same by `interrupted`, `slow`, `missing` and `moved`.
        acts: acts that were carried out, by kind.
        wrong: nodes that were taken out though nothing of theirs was broken or slow.
        wrong_resets: nodes that were reset or rebooted though nothing was.
        vain: those whose fault had healed within the hour before.
        by_people: nodes that a person took out.
    """

    by_fault: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_way: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    acts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)
    wrong_resets: list[str] = field(default_factory=list)
    vain: int = 0
    by_people: int = 0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.by_way.values())

    def charge(self, fault: Fault | None, way: str, gpu_hours: float) -> None:
        """Write a loss down."""
        self.by_fault[fault.name if fault is not None else "nobody"] += gpu_hours
        self.by_way[way] += gpu_hours


def simulate(faults: Iterable[Fault], decider: Decider, seed: int, costs: dict[str, float] | None = None) -> Ledger:
    """Run a fleet to its end.

    Args:
        faults: what goes wrong, as `faults_of` draws it.
        decider: who answers.
        seed: of what the faults leave open, as when a person comes.
        costs: the model's unless others are given.
    """
    run = _Run(decider, seed, costs or model()["costs"], shape_of())
    for fault in faults:
        run.at(fault.at_h, "strike", fault, 0)
    run.at(decider.every_h, "round")
    run.go()
    return run.ledger


class _Run:
    def __init__(self, decider: Decider, seed: int, costs: dict[str, float], shape: FleetShape) -> None:
        self._decider, self._seed, self._costs, self._shape = decider, seed, costs, shape
        self.ledger = Ledger()
        self._queue: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self._count = 0
        self._turn = [0] * shape.seats
        self._active: dict[int, dict[str, Fault]] = defaultdict(dict)
        self._healed_h: dict[int, float] = {}
        self._slow_since: dict[str, float] = {}
        self._hung: dict[int, tuple[Fault, float]] = {}
        self._down_until = [0.0] * len(shape.job_gpus)

    def at(self, at_h: float, what: str, *about: Any) -> None:
        """Have something happen."""
        if at_h < self._shape.hours:
            self._count += 1
            heapq.heappush(self._queue, (at_h, self._count, what, about))

    def go(self) -> None:
        """Let all of it happen."""
        while self._queue:
            at_h, _, what, about = heapq.heappop(self._queue)
            getattr(self, f"_on_{what}")(at_h, *about)
        for seat, active in self._active.items():
            for fault in list(active.values()):
                self._end(seat, fault, self._shape.hours)

    def _on_strike(self, at_h: float, fault: Fault, count: int) -> None:
        seat = fault.seat
        if count and fault.name not in self._active[seat]:
            return
        job = self._shape.job_of[seat]
        if fault.interrupts or fault.excess or fault.is_hardware:
            self._active[seat][fault.name] = fault
        if fault.excess and count == 0:
            self._slow_since[fault.name] = at_h
            self.at(at_h + fault.lasts_h, "heal", fault)
            self._person(at_h, fault, "person_slow")
        for sign in fault.signs:
            self.at(at_h + sign.delay_h, "sign", fault, sign.name, "open", at_h, self._node(seat))
            if fault.lasts_h and not fault.excess:
                self.at(at_h + fault.lasts_h, "sign", fault, sign.name, "cleared", at_h, self._node(seat))
        if fault.hangs:
            self._hung[job] = (fault, at_h)
            self.at(at_h + self._costs["watchdog"], "watchdog", job, fault)
        elif fault.interrupts:
            self._interrupt(at_h, job, fault, count)
        if count == 0 and fault.stays:
            self._person(at_h, fault, "person")
        elif not fault.stays and not fault.excess:
            # It is over with the job that it ended; who takes the node out soon after is not wrong.
            self._end(seat, fault, at_h)

    def _interrupt(self, at_h: float, job: int, fault: Fault, count: int) -> None:
        """A job ends, loses what it did since its checkpoint, and starts again."""
        restart_h = self._costs["restart"]
        lost_h = self._unsaved(at_h, job) + restart_h
        self.ledger.charge(fault, "interrupted", self._shape.job_gpus[job] * lost_h)
        self._down_until[job] = at_h + restart_h
        if fault.stays:
            self.at(self._down_until[job] + self._drawn(fault, f"again {count}", "again"), "strike", fault, count + 1)

    def _on_sign(self, at_h: float, fault: Fault, name: str, state: str, onset_h: float, node_id: str) -> None:
        seat = fault.seat
        if self._node(seat) != node_id:
            return
        if state == "open" and fault.excess and fault.name not in self._active[seat]:
            return
        job = self._shape.job_of[seat]
        seen = Seen(name, state, at_h, onset_h, seat, node_id, fault.gpu, job, fault.excess)
        self._do(at_h, self._decider.see(seen))
        for wait_h in self._decider.waits_h(seen):
            self.at(at_h + wait_h, "time")

    def _on_time(self, at_h: float) -> None:
        self._do(at_h, self._decider.wait(at_h))

    def _on_round(self, at_h: float) -> None:
        self._on_time(at_h)
        self.at(at_h + self._decider.every_h, "round")

    def _on_heal(self, at_h: float, fault: Fault) -> None:
        if fault.name in self._active[fault.seat]:
            self._end(fault.seat, fault, at_h)

    def _on_person(self, at_h: float, fault: Fault) -> None:
        if fault.name not in self._active[fault.seat]:
            return
        if fault.is_hardware:
            self.ledger.by_people += 1
            self._take_out(at_h, fault.seat)
        else:
            self._end(fault.seat, fault, at_h)

    def _on_watchdog(self, at_h: float, job: int, fault: Fault) -> None:
        if self._hung.get(job, (None,))[0] is fault:
            self._end_hang(at_h, job)

    def _end_hang(self, at_h: float, job: int) -> None:
        fault, since_h = self._hung.pop(job)
        self.ledger.charge(fault, "interrupted", self._shape.job_gpus[job] * (at_h - since_h))
        self._interrupt(at_h, job, fault, 0)

    def _on_leave(self, at_h: float, node_id: str) -> None:
        """A job has come to its checkpoint and leaves a node."""
        seat = int(node_id[1:5])
        if self._node(seat) == node_id:
            self._take_out(at_h, seat)

    def _do(self, at_h: float, acts: Iterable[Act]) -> None:
        for act in acts:
            if act.job is not None:
                self._restart(at_h, act)
            elif act.node_id is not None and self._node(int(act.node_id[1:5])) == act.node_id:
                self._act_on_node(at_h, act, int(act.node_id[1:5]))

    def _restart(self, at_h: float, act: Act) -> None:
        job = act.job
        assert job is not None
        if act.kind != "restart_job":
            return
        self.ledger.acts[act.kind] += 1
        if job in self._hung:
            self._end_hang(at_h, job)
        elif at_h >= self._down_until[job]:
            lost_h = self._unsaved(at_h, job) + self._costs["restart"]
            self.ledger.charge(self._culprit_of_job(job), "moved", self._shape.job_gpus[job] * lost_h)
            self._down_until[job] = at_h + self._costs["restart"]

    def _act_on_node(self, at_h: float, act: Act, seat: int) -> None:
        if act.kind not in TAKES_OUT | RESETS:
            return
        self.ledger.acts[act.kind] += 1
        self._judge(at_h, act, seat)
        job = self._shape.job_of[seat]
        is_running = at_h >= self._down_until[job]
        if act.kind in RESETS:
            self.ledger.charge(self._culprit(seat), "missing", self._shape.gpus_per_node * self._costs["reset"])
            if is_running:
                lost_h = self._unsaved(at_h, job) + self._costs["restart"]
                self.ledger.charge(self._culprit(seat), "moved", self._shape.job_gpus[job] * lost_h)
                self._down_until[job] = at_h + self._costs["restart"]
            for fault in list(self._active[seat].values()):
                if fault.is_reset_cured:
                    self._end(seat, fault, at_h)
        elif act.after_checkpoint and is_running:
            next_h = at_h + self._costs["checkpoint_every"] - self._since_checkpoint(at_h, job)
            gpu_hours = self._shape.job_gpus[job] * self._costs["restart"]
            self.ledger.charge(self._culprit(seat), "moved", gpu_hours)
            self.at(next_h, "leave", self._node(seat))
        else:
            self._take_out(at_h, seat)

    def _judge(self, at_h: float, act: Act, seat: int) -> None:
        """Whether a node that is acted on has something that is to be taken out."""
        if any(fault.is_hardware for fault in self._active[seat].values()):
            return
        if at_h - self._healed_h.get(seat, -1e9) <= _JUST_HEALED_H:
            self.ledger.vain += 1
        else:
            wrong = self.ledger.wrong_resets if act.kind in RESETS else self.ledger.wrong
            wrong.append(f"{act.kind} {self._node(seat)} at {at_h:.3f} h")

    def _take_out(self, at_h: float, seat: int) -> None:
        self.ledger.charge(self._culprit(seat), "missing", self._shape.gpus_per_node * self._costs["repair"])
        for fault in list(self._active[seat].values()):
            self._end(seat, fault, at_h)
        self._healed_h.pop(seat, None)
        self._turn[seat] += 1
        self._decider.replaced(seat, self._node(seat), at_h)

    def _end(self, seat: int, fault: Fault, at_h: float) -> None:
        """A fault is over: healed, mended, or gone with its node."""
        self._active[seat].pop(fault.name, None)
        if fault.is_hardware:
            self._healed_h[seat] = at_h
        since_h = self._slow_since.pop(fault.name, None)
        if since_h is None:
            return
        gpus = self._shape.job_gpus[self._shape.job_of[seat]]
        self.ledger.charge(fault, "slow", gpus * (at_h - since_h) * fault.excess / (1 + fault.excess))
        for sign in fault.signs:
            if at_h >= since_h + sign.delay_h:
                self.at(at_h + 1 / 3600, "sign", fault, sign.name, "cleared", since_h, self._node(seat))

    def _person(self, at_h: float, fault: Fault, cost: str) -> None:
        self.at(at_h + self._drawn(fault, "person", cost), "person", fault)

    def _drawn(self, fault: Fault, what: str, cost: str) -> float:
        return random.Random(f"{self._seed} {fault.name} {what}").expovariate(1.0) * self._costs[cost]

    def _since_checkpoint(self, at_h: float, job: int) -> float:
        every_h = self._costs["checkpoint_every"]
        return (at_h + every_h * job / len(self._shape.job_gpus)) % every_h

    def _unsaved(self, at_h: float, job: int) -> float:
        """Hours of work that an end now loses: since the checkpoint, or since the restart after it."""
        return max(0.0, min(self._since_checkpoint(at_h, job), at_h - self._down_until[job]))

    def _culprit(self, seat: int) -> Fault | None:
        return next(iter(self._active[seat].values()), None)

    def _culprit_of_job(self, job: int) -> Fault | None:
        seats = (seat for seat, active in self._active.items() if active and self._shape.job_of[seat] == job)
        return next((self._culprit(seat) for seat in seats), None)

    def _node(self, seat: int) -> str:
        return f"n{seat:04d}" + (f"-{self._turn[seat]}" if self._turn[seat] else "")
