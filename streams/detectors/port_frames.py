"""What the port rules read off a fabric frame: whose states its rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from streams.core.keyed import SubjectState

if TYPE_CHECKING:
    from schemas.frames import FabricFrame
    from streams.core.keyed import KeyedRows, Rows

__all__ = ["port_key", "port_rows"]

S = TypeVar("S", bound=SubjectState)


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
