"""Rank 0's other half: it gathers the ranks, has them measure round by round, and tells all of them what came out.

Guarantees: it ends within the time for joining and that for each round, whoever is silent; a rank that is gone costs its
own figures and those of who was with it, and is said by name; a second rank of a number is turned away. It reads only from
those who hold the token, and only numbers and texts.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from agents.preflight.bisection import Bisection
from agents.preflight.pairs import PairsOutcome, Peer, RoundOrder, figure_in
from agents.preflight.sealed import Doorkeeper, SealedConnection, SealedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agents.preflight.matching import Pair
    from agents.preflight.pairs import PairsSettings

__all__ = ["Coordinator"]

_SILENCE_S = 24 * 3600.0
"""For the threads that listen to a rank: how long a round may take is watched elsewhere."""

_GRACE_S = 15.0
"""Beyond what a measurement may take, for starting it and telling of it."""

_MOST_TEXT = 300


class Coordinator:
    """Runs in a thread of rank 0's process.

    Args:
        settings: rank 0's.
        listener: where ranks call.
        say: is told how far they are.
    """

    def __init__(self, settings: PairsSettings, listener: socket.socket, say: Callable[[str], None]) -> None:
        self._settings, self._say = settings, say
        self._door = Doorkeeper(listener, settings.token)
        self._ranks: dict[int, SealedConnection] = {}
        self._peers: dict[int, Peer] = {}
        self._backends: dict[int, set[str]] = {}
        self._reasons: dict[int, str] = {}
        self._heard: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._bisection = Bisection(settings.nodes, settings.limits)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to gather."""
        self._thread.start()

    def close(self, within_s: float = 0.0) -> None:
        """Let go of everybody, once all have been told or the time is over."""
        self._thread.join(within_s)
        self._hang_up()
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        try:
            self._gather()
            backend = self._backend()
            if backend is None:
                why = "not every rank has all_reduce_perf, a launcher and GPUs; take --backend sockets"
                self._tell_all({"type": "end", "why": why})
                return
            for number in itertools.count():
                pairs = self._bisection.next_round()
                if not pairs:
                    break
                self._say(f"round {number + 1}: {len(pairs)} pairs, by {backend}")
                self._bisection.record(self._measured(number, pairs, backend))
            names = tuple(
                self._peers[rank].name if rank in self._peers else f"rank {rank}"
                for rank in range(self._settings.nodes)
            )
            self._tell_all(PairsOutcome(names, backend, self._bisection.verdict(), self._reasons).to_message())
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        self._door.close()
        for connection in tuple(self._ranks.values()):
            connection.close()

    def _gather(self) -> None:
        deadline_s = time.monotonic() + self._settings.join_s
        while len(self._ranks) < self._settings.nodes and (left_s := deadline_s - time.monotonic()) > 0:
            caller = self._door.next_caller(left_s)
            if caller is not None:
                self._take(*caller)
        self._say(f"{len(self._ranks)} of {self._settings.nodes} ranks are here")
        for rank in range(self._settings.nodes):
            if rank not in self._ranks:
                self._gone(rank, f"did not join within {self._settings.join_s:g} s")

    def _take(self, connection: SealedConnection, said: dict[str, Any]) -> None:
        rank, port = said.get("rank"), said.get("port")
        if said.get("type") != "join" or not isinstance(rank, int) or not isinstance(port, int):
            connection.close()
            return
        why = None
        if not 0 <= rank < self._settings.nodes or said.get("nodes") != self._settings.nodes:
            why = f"rank {rank} of {said.get('nodes')} does not fit {self._settings.nodes} nodes"
        elif rank in self._ranks:
            why = f"rank {rank} is taken by {self._peers[rank].name}"
        if why is not None:
            self._refuse(connection, why)
            return
        # Rank 0 comes from an address of this host that need not be one which others reach.
        try:
            came_from = self._settings.host if rank == 0 else connection.socket.getpeername()[0]
        except OSError:  # it is gone already
            connection.close()
            return
        host = str(said.get("address") or came_from).removeprefix(
            "::ffff:"
        )  # IPv4, as a socket of both families has it
        self._peers[rank] = Peer(rank, str(said.get("name") or f"rank {rank}")[:_MOST_TEXT], host, port)
        self._backends[rank] = {str(name) for name in said.get("backends") or ()}
        self._ranks[rank] = connection
        threading.Thread(target=self._listen, args=(rank, connection), daemon=True).start()

    @staticmethod
    def _refuse(connection: SealedConnection, why: str) -> None:
        try:
            connection.send({"type": "end", "why": why})
        except SealedError:
            return
        finally:
            connection.close()

    def _listen(self, rank: int, connection: SealedConnection) -> None:
        try:
            while True:
                self._heard.put((rank, connection.receive(_SILENCE_S)))
        except (SealedError, OSError):
            self._heard.put((rank, None))

    def _backend(self) -> str | None:
        """What measures: what rank 0 asks for, if every rank can; None if not."""
        wanted = self._settings.backend
        has_nccl = all("nccl" in backends for backends in self._backends.values())
        if wanted == "auto":
            return "nccl" if has_nccl else "sockets"
        return wanted if wanted != "nccl" or has_nccl else None

    def _measured(self, number: int, pairs: tuple[Pair, ...], backend: str) -> dict[Pair, float | None]:
        settings = self._settings
        results: dict[int, float | None] = {}
        waiting: set[int] = set()
        for pair in pairs:
            members = tuple(self._peers[rank] for rank in pair)
            order = RoundOrder(number, members, settings.total_bytes, settings.repeats, settings.measure_s)
            for rank in pair:
                if self._tell(rank, order.to_message() | {"backend": backend}):
                    waiting.add(rank)
        deadline_s = time.monotonic() + settings.measure_s + _GRACE_S
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                rank, said = self._heard.get(timeout=left_s)
            except queue.Empty:
                break
            if said is None:
                waiting.discard(rank)
                self._gone(rank, "has hung up: its process ended, or its node is gone")
            elif rank in waiting and said.get("number") == number:
                waiting.discard(rank)
                if said.get("why"):
                    self._reasons[rank] = str(said["why"])[:_MOST_TEXT]
                elif said.get("follows"):
                    results[rank] = None
                elif (figure := figure_in(said)) is not None:
                    results[rank] = figure
        for rank in waiting:
            self._gone(rank, f"gave no answer within {settings.measure_s + _GRACE_S:g} s")
        return {pair: _slowest(pair, results) for pair in pairs}

    def _tell(self, rank: int, message: dict[str, Any]) -> bool:
        connection = self._ranks.get(rank)
        if connection is None:
            return False
        try:
            connection.send(message)
        except SealedError as error:
            self._gone(rank, str(error))
            return False
        return True

    def _tell_all(self, message: dict[str, Any]) -> None:
        for rank in tuple(self._ranks):
            self._tell(rank, message)

    def _gone(self, rank: int, why: str) -> None:
        self._say(f"rank {rank}: {why}")
        self._reasons[rank] = why
        self._bisection.leave(rank)
        connection = self._ranks.pop(rank, None)
        if connection is not None:
            connection.close()


def _slowest(pair: Pair, results: Mapping[int, float | None]) -> float | None:
    """The figure of a pair: its slowest member's; None where one of them gave no result.

    Args:
        pair: its ranks.
        results: by rank that measured (GB/s), or that left it to the other (None).
    """
    if any(rank not in results for rank in pair):
        return None
    return min((figure for rank in pair if (figure := results[rank]) is not None), default=None)
