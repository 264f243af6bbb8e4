"""One rank of a pairwise pre-flight: it joins, measures what it is told to, and learns what came out.

Guarantees: every wait is bounded; whatever goes wrong is one line that says who is gone or what to look at; a stranger who
calls is sent away and costs no measurement more than its place in the line.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agents.preflight.coordinator import Coordinator
from agents.preflight.pairs import Meter, MeterError, PairsError, PairsOutcome, PairsSettings, RoundOrder
from agents.preflight.ring import Ring, RingError, Throttle, measure
from agents.preflight.sealed import Doorkeeper, NotSealedError, SealedConnection, SealedError, connect_sealed

if TYPE_CHECKING:
    from agents.preflight.pairs import Peer

__all__ = ["SocketMeter", "take_part"]

_GRACE_S = 60.0
"""Beyond what joining or a round may take, before rank 0 is held to be gone."""

_LOOK_EVERY_S = 0.2
_BACKLOG = 1024

_LOCAL = ("127.", "localhost", "::1")


class SocketMeter:
    """Measures by a ring all-reduce over TCP.

    Args:
        rank: this one's.
        door: where the others of a group call.
        token: the secret that all share.
        throttle: holds this rank's sending.
    """

    def __init__(self, rank: int, door: Doorkeeper, token: bytes, throttle: Throttle | None = None) -> None:
        self._rank, self._door, self._token, self._throttle = rank, door, token, throttle

    def measure(self, order: RoundOrder, own: int) -> float:
        """This member's figure; see `Meter`."""
        deadline_s = time.monotonic() + order.within_s
        size = len(order.members)
        following, previous = order.members[(own + 1) % size], order.members[own - 1]
        hello = {"type": "ring", "number": order.number, "rank": self._rank}
        opened: list[SealedConnection] = []
        try:
            to = following.host, following.port
            opened.append(connect_sealed(*to, self._token, hello, deadline_s, is_patient=False))
            opened.append(self._called_by(previous, order.number, deadline_s, opened[0]))
            opened[1].send(hello)
            opened[0].receive(max(0.001, deadline_s - time.monotonic()))
            ring = Ring(own, size, opened[0].socket, opened[1].socket)
            return measure(ring, order.total_bytes, order.repeats, deadline_s, self._throttle)
        except (SealedError, RingError, OSError) as error:
            raise MeterError(f"with {following.name}: {error}") from None
        finally:
            for connection in opened:
                connection.close()

    def _called_by(self, peer: Peer, number: int, deadline_s: float, to_next: SealedConnection) -> SealedConnection:
        while (left_s := deadline_s - time.monotonic()) > 0:
            caller = self._door.next_caller(min(left_s, _LOOK_EVERY_S))
            if caller is None:
                # Of a pair the next member is also the previous one: if it is gone it will not call.
                if to_next.has_hung_up():
                    raise SealedError("the other end has hung up")
                continue
            connection, said = caller
            if (said.get("type"), said.get("number"), said.get("rank")) == ("ring", number, peer.rank):
                return connection
            connection.close()  # of a round that is over
        raise SealedError(f"{peer.name} did not call")


def take_part(
    settings: PairsSettings,
    others: Mapping[str, Meter] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> PairsOutcome:
    """Join, measure and learn; rank 0 also coordinates.

    Args:
        settings: this rank's.
        others: meters that this node has beside that of sockets, by name.
        say: is told by rank 0 how far they are.

    Raises:
        PairsError: rank 0 cannot be reached or is gone, it refuses this rank, or the port is taken.
    """
    coordinator, is_told = None, False
    door = Doorkeeper(_open_to_all(0), settings.token)
    try:
        if settings.rank == 0:
            coordinator = Coordinator(settings, _listener(settings), say)
            coordinator.start()
        throttle = Throttle(settings.throttle_bytes_per_s) if settings.throttle_bytes_per_s else None
        meters = {**(others or {}), "sockets": SocketMeter(settings.rank, door, settings.token, throttle)}
        outcome = _taken_part(settings, door.port, meters)
        is_told = True
        return outcome
    finally:
        door.close()
        if coordinator is not None:
            # Rank 0 is told first; the others must be told before it goes.
            coordinator.close(_GRACE_S if is_told else 0.0)


def _taken_part(settings: PairsSettings, port: int, meters: Mapping[str, Meter]) -> PairsOutcome:
    join = {
        "type": "join",
        "rank": settings.rank,
        "nodes": settings.nodes,
        "name": settings.name,
        "address": settings.address,
        "port": port,
        "backends": sorted(meters),
    }
    has_heard = False
    try:
        with connect_sealed(
            settings.host, settings.port, settings.token, join, time.monotonic() + settings.join_s
        ) as rank_0:
            while True:
                said = rank_0.receive(max(settings.join_s, settings.measure_s) + _GRACE_S)
                has_heard = True
                if said.get("type") == "verdict":
                    return PairsOutcome.from_message(said)
                if said.get("type") == "end":
                    raise PairsError(str(said.get("why")))
                rank_0.send(_result(settings.rank, said, meters))
    except NotSealedError as error:
        raise PairsError(f"rank 0 at {settings.host}:{settings.port}: {error}") from None
    except SealedError as error:
        hint = "it ended, or its node is gone" if has_heard else "is it running, and is the token the same there?"
        raise PairsError(f"rank 0 at {settings.host}:{settings.port}: {error}; {hint}") from None


def _result(rank: int, said: Mapping[str, Any], meters: Mapping[str, Meter]) -> dict[str, Any]:
    order = RoundOrder.from_message(said)
    result: dict[str, Any] = {"type": "result", "number": order.number}
    own = next((place for place, peer in enumerate(order.members) if peer.rank == rank), None)
    meter = meters.get(str(said.get("backend")))
    if own is None or meter is None:
        return result | {"why": f"asked for what it cannot measure: {said.get('backend')!r}"}
    try:
        figure = meter.measure(order, own)
    except MeterError as error:
        return result | {"why": str(error)}
    return result | ({"follows": True} if figure is None else {"gb_s": figure})


def _listener(settings: PairsSettings) -> socket.socket:
    """Where rank 0 is called: its own name may stand for loopback here, so on all addresses unless loopback is meant."""
    try:
        if settings.host.startswith(_LOCAL):
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
        return _open_to_all(settings.port)
    except OSError as error:
        raise PairsError(f"rank 0 cannot listen at {settings.host}:{settings.port}: {error.strerror}") from None


def _open_to_all(port: int) -> socket.socket:
    """A socket on all addresses of both families, or of IPv4 where there is no other."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)
