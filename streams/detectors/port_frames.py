"""What the port rules read off a fabric frame: whose states its rows are, who is meant, and which ports are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from schemas.findings import Subject
from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.keyed import SubjectState
from streams.core.trailing import TrailingHits

if TYPE_CHECKING:
    from schemas.frames import FabricFrame
    from streams.core.keyed import KeyedRows, Rows

__all__ = [
    "ROCE_COUNTERS",
    "CounterRate",
    "is_active",
    "link_layers",
    "peer_of",
    "port_key",
    "port_rows",
    "port_subject",
]

S = TypeVar("S", bound=SubjectState)

_ACTIVE = frozenset({"active", "up"})
ROCE_COUNTERS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
"""Counters that only RoCE devices have."""


class CounterRate(SubjectState):
    """A counter of one port, how often its rate was above a limit, and what is said of it."""

    __slots__ = ("edge", "hits", "increase")

    def __init__(self) -> None:
        self.increase = CounterIncrease()
        self.hits = TrailingHits(3, 5_000_000_000)
        self.edge = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        """Whether one more reading that stands still changes nothing."""
        return self.hits.is_quiet and self.edge.is_quiet(now_ns)


def port_key(frame: FabricFrame, index: int) -> str:
    """A name of a port among all publishers' ports."""
    return f"{frame.publisher_id}/{frame.device[index]}/{frame.port[index]}"


def port_rows(states: KeyedRows[S], frame: FabricFrame, *kinds: str) -> Rows[S]:
    """A rule's states of a frame's ports, in the frame's order.

    Args:
        states: of all publishers.
        frame: whose ports are meant.
        kinds: where the rule keeps states of several things about a port, what is meant: first the rows of all ports for
            the first kind, then those for the next.
    """

    def keys() -> list[str]:
        ports = [port_key(frame, index) for index in range(len(frame.device))]
        return [f"{port}/{kind}" for kind in kinds for port in ports] if kinds else ports

    return states.of((frame.publisher_id, *kinds), (frame.device, frame.port), keys)


def port_subject(frame: FabricFrame, index: int) -> Subject:
    """The port as the subject of a finding."""
    return Subject(
        level="port",
        node_id=frame.node_id,
        switch_id=frame.switch_id,
        device=frame.device[index],
        port=frame.port[index],
    )


def peer_of(frame: FabricFrame, index: int) -> str | None:
    """What is at the other end of the port's link, as the publisher names it; None where it does not say."""
    return frame.peer[index] if frame.peer is not None else None


def is_active(frame: FabricFrame, index: int) -> bool | None:
    """Whether the port's link is up; None where the publisher does not say."""
    word = frame.link_state[index] if frame.link_state is not None else None
    return word.lower() in _ACTIVE if word is not None else None


def link_layers(frame: FabricFrame) -> tuple[str, ...]:
    """What each port is, so that like is compared with like: `switch`, `interface`, `roce` or `infiniband`.

    A host's network interface is not its RDMA device, though both may be of one card: counted together, one card would
    have two votes. An RDMA device with a RoCE counter runs over Ethernet, any other over InfiniBand.
    """
    if frame.view == "switch":
        return ("switch",) * len(frame.device)
    ports, roce = frame.port, None
    for name in ROCE_COUNTERS:
        roce = frame.counters.get(name)
        if roce is not None:
            break
    if None not in ports and (roce is None or None not in roce):  # all alike: what most frames are
        return ("infiniband" if roce is None else "roce",) * len(ports)
    return tuple(
        "interface" if port is None else "infiniband" if count is None else "roce"
        for port, count in zip(ports, roce or (None,) * len(ports), strict=True)
    )
