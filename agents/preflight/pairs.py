"""What the ranks of a pairwise pre-flight are told and what each of them learns in the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from agents.preflight.bisection import BisectionLimits, BisectionVerdict

__all__ = ["Meter", "MeterError", "PairsError", "PairsOutcome", "PairsSettings", "Peer", "RoundOrder", "figure_in"]

_MOST_BYTES = 4 << 30
_MOST_REPEATS = 1000


class PairsError(Exception):
    """The pre-flight of pairs could not be held, and why, in one line."""


class MeterError(Exception):
    """One pair could not be measured, and why, in one line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of a group.

    Attributes:
        rank: its number.
        name: its node's name.
        host: where it listens.
        port: likewise.
    """

    rank: int
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """What one group is to measure in one round.

    Attributes:
        number: of the round.
        members: in the order of the ring.
        total_bytes: about how large the buffer is.
        repeats: how many all-reduces are timed.
        within_s: how long it may take.
    """

    number: int
    members: tuple[Peer, ...]
    total_bytes: int
    repeats: int
    within_s: float

    def to_message(self) -> dict[str, Any]:
        """As it is sent."""
        return {"type": "measure", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RoundOrder:
        """As it was received.

        Raises:
            PairsError: it is no such order, or asks for more than there may be.
        """
        try:
            order = cls(
                int(message["number"]),
                tuple(
                    Peer(int(peer["rank"]), str(peer["name"]), str(peer["host"]), int(peer["port"]))
                    for peer in message["members"]
                ),
                int(message["total_bytes"]),
                int(message["repeats"]),
                float(message["within_s"]),
            )
        except (KeyError, TypeError, ValueError):
            raise PairsError("rank 0 sent an order that cannot be read: is it of the same version?") from None
        if not (1 <= order.total_bytes <= _MOST_BYTES and 1 <= order.repeats <= _MOST_REPEATS):
            raise PairsError(f"rank 0 asks for {order.repeats} times {order.total_bytes} bytes")
        return order


class Meter(Protocol):
    """Measures the all-reduce of a group."""

    def measure(self, order: RoundOrder, own: int) -> float | None:
        """The group's bus bandwidth as this member sees it (GB/s); None where another member measures for all.

        Args:
            order: what to measure.
            own: this member's place in the group.

        Raises:
            MeterError: it came to nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class PairsSettings:
    """How one rank takes part.

    Attributes:
        rank: this one's, from 0; rank 0 also coordinates.
        nodes: how many there are.
        host: where rank 0 listens, as the others can reach it.
        port: likewise.
        token: the secret that all share.
        name: this node's.
        address: where the others reach this node; None takes the address from which it came.
        backend: `auto`, `nccl` or `sockets`; rank 0's counts.
        total_bytes: about how large the buffer of an all-reduce is; rank 0's counts.
        repeats: how many all-reduces are timed, of which the median counts; likewise.
        join_s: how long to wait for all ranks.
        measure_s: how long a round may take.
        throttle_bytes_per_s: holds this rank's sending, for a drill.
        limits: when somebody is named.
    """

    rank: int
    nodes: int
    host: str
    port: int
    token: bytes = field(repr=False)
    name: str
    address: str | None = None
    backend: str = "auto"
    total_bytes: int = 64 << 20
    repeats: int = 5
    join_s: float = 120.0
    measure_s: float = 120.0
    throttle_bytes_per_s: float | None = None
    limits: BisectionLimits = field(default_factory=BisectionLimits)


@dataclass(frozen=True, slots=True)
class PairsOutcome:
    """What every rank learns.

    Attributes:
        names: of the nodes, by rank.
        backend: what measured.
        verdict: by rank.
        reasons: why a rank has no figure, or lost one.
    """

    names: tuple[str, ...]
    backend: str
    verdict: BisectionVerdict
    reasons: Mapping[int, str]

    def to_message(self) -> dict[str, Any]:
        """As it is sent; keys of JSON are texts, so mappings go as pairs."""
        verdict = asdict(self.verdict) | {"gb_s": list(self.verdict.gb_s.items())}
        return {
            "type": "verdict",
            "names": self.names,
            "backend": self.backend,
            "verdict": verdict,
            "reasons": list(self.reasons.items()),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> PairsOutcome:
        """As it was received.

        Raises:
            PairsError: it is no such message.
        """
        try:
            told = message["verdict"]
            verdict = BisectionVerdict(
                slow=tuple(told["slow"]),
                slow_links=_pairs(told["slow_links"]),
                broken_links=_pairs(told["broken_links"]),
                at_pace=tuple(told["at_pace"]),
                unsettled=tuple(told["unsettled"]),
                unmeasured=tuple(told["unmeasured"]),
                is_widespread=bool(told["is_widespread"]),
                pace_gb_s=told["pace_gb_s"],
                gb_s={int(rank): float(figure) for rank, figure in told["gb_s"]},
                rounds=int(told["rounds"]),
            )
            reasons = {int(rank): str(why) for rank, why in message["reasons"]}
            return cls(tuple(map(str, message["names"])), str(message["backend"]), verdict, reasons)
        except (KeyError, TypeError, ValueError):
            raise PairsError("rank 0 sent a verdict that cannot be read: is it of the same version?") from None


def figure_in(message: Mapping[str, Any]) -> float | None:
    """The bandwidth that a result tells; None for none, and for what is no positive number."""
    figure = message.get("gb_s")
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        return None
    return float(figure) if math.isfinite(figure) and figure > 0 else None


def _pairs(pairs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(low), int(high)) for low, high in pairs)
