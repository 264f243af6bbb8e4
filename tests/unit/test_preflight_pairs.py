"""Pairs measured over sockets, with every rank a thread of this process: who is slow, gone, late or a stranger."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from free_ports import free_ports
from hypothesis import given
from hypothesis import settings as settings_of_law
from hypothesis import strategies as st
from nvml_node import wait_until

from agents.preflight.bisection import BisectionLimits
from agents.preflight.member import take_part
from agents.preflight.pairs import MeterError, PairsError, PairsOutcome, PairsSettings, Peer, RoundOrder
from agents.preflight.ring import Ring, RingError, Throttle, all_reduce, expected_sums, measure, own_words, size_of
from agents.preflight.sealed import Doorkeeper, NotSealedError, SealedConnection, SealedError, connect_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agents.preflight.pairs import Meter

TOKEN = b"0123456789abcdef"
WAIT_S = 90.0


def settings(nodes: int, rank: int = 0, **changes: Any) -> PairsSettings:
    (port,) = free_ports(1)
    made = PairsSettings(rank, nodes, "127.0.0.1", port, TOKEN, f"node-{rank}", backend="sockets", total_bytes=1 << 16)
    return replace(made, repeats=1, **changes)


class Told:
    """A meter that tells what it is given: by rank the pace of each node."""

    def __init__(self, pace: Mapping[int, float]) -> None:
        self.pace = pace

    def measure(self, order: RoundOrder, own: int) -> float | None:
        return min(self.pace.get(peer.rank, 40.0) for peer in order.members) if own == 0 else None


def outcomes(every: Mapping[int, tuple[PairsSettings, Mapping[str, Meter]]]) -> dict[int, PairsOutcome | Exception]:
    """What each rank learns, or what it raises."""
    found: dict[int, PairsOutcome | Exception] = {}

    def run(rank: int, own: PairsSettings, meters: Mapping[str, Meter]) -> None:
        try:
            found[rank] = take_part(own, meters)
        except PairsError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank, *given), daemon=True) for rank, given in every.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return found


def ranks_of(base: PairsSettings, **changes: Any) -> dict[int, PairsSettings]:
    return {rank: replace(base, rank=rank, name=f"node-{rank}", **changes) for rank in range(base.nodes)}


# --- The ring -------------------------------------------------------------------------------------------------------


def rings(size: int) -> list[Ring]:
    ways = [socket.socketpair() for _ in range(size)]
    return [Ring(place, size, ways[place][0], ways[place - 1][1]) for place in range(size)]


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * count

    def run(place: int) -> None:
        try:
            results[place] = work(place)
        except RingError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return results


def soon() -> float:
    return time.monotonic() + WAIT_S


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_member_of_a_ring_comes_to_the_same_sums(size: int) -> None:
    words = size_of(300_000, size)
    buffers = [own_words(place, words) for place in range(size)]
    ring = rings(size)
    together(size, lambda place: all_reduce(buffers[place], ring[place], soon()))
    total = sum(own_words(place, words).astype(object) for place in range(size)) % (1 << 32)
    for buffer in buffers:
        assert np.array_equal(buffer, expected_sums(size, words))
        assert buffer[:: words // 7].tolist() == total[:: words // 7].tolist()


def test_a_slow_member_sets_the_figure_of_all() -> None:
    ring = rings(3)
    throttle = Throttle(2_000_000)
    figures = together(3, lambda place: measure(ring[place], 300_000, 1, soon(), throttle if place == 1 else None))
    # Nobody was faster than the one that was held, however slow this machine is.
    assert all(figure <= 0.0025 for figure in figures)


def test_a_member_that_would_need_all_the_time_is_slow_and_not_unknown() -> None:
    ring = rings(2)
    throttle = Throttle(1_000_000)
    # A thousand repeats would take more than the time; what was done by half of it counts.
    figures = together(
        2, lambda place: measure(ring[place], 100_000, 100_000, time.monotonic() + 6.0, throttle if place else None)
    )
    assert all(0 < figure <= 0.00125 for figure in figures)


def test_changed_bytes_are_no_figure() -> None:
    ring = rings(2)

    def work(place: int) -> Any:
        if place == 0:
            return measure(ring[0], 8_000, 1, soon())
        ring[1].to_next.sendall(bytes(1))
        ring[1].from_previous.recv(1)
        received = 0
        ring[1].to_next.sendall(bytes(4_000))
        while received < 4_000:
            received += len(ring[1].from_previous.recv(4_000 - received))
        ring[1].to_next.sendall(bytes(4_000))
        while received < 8_000:
            received += len(ring[1].from_previous.recv(8_000 - received))
        return None

    error, _ = together(2, work)
    assert "the sums are wrong" in str(error)


def test_a_neighbour_that_is_gone_or_silent_ends_the_measurement() -> None:
    ring = rings(2)
    ring[1].to_next.close()
    with pytest.raises(RingError, match="hung up"):
        measure(ring[0], 8_000, 1, soon())
    ring = rings(2)
    with pytest.raises(RingError, match="not done in time"):
        measure(ring[0], 8_000, 1, 0.0)


# --- Frames with seals ----------------------------------------------------------------------------------------------


@pytest.fixture
def door() -> Iterator[Doorkeeper]:
    keeper = Doorkeeper(socket.create_server(("127.0.0.1", 0)), TOKEN)
    yield keeper
    keeper.close()


def test_who_holds_the_token_is_heard_and_hears(door: Doorkeeper) -> None:
    with connect_sealed("127.0.0.1", door.port, TOKEN, {"a": 1}, soon()) as caller:
        taken = door.next_caller(WAIT_S)
        assert taken is not None
        connection, said = taken
        assert said == {"a": 1}
        connection.send({"b": 2})
        assert caller.receive(WAIT_S) == {"b": 2}
        connection.close()
        with pytest.raises(SealedError, match=r"hung up|is gone"):
            caller.receive(WAIT_S)


def test_strangers_are_sent_away_and_hold_nobody_up(door: Doorkeeper) -> None:
    silent = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(5)]
    stranger = connect_sealed("127.0.0.1", door.port, b"another token 16", {"a": 1}, soon())
    with pytest.raises(SealedError):
        stranger.receive(WAIT_S)
    stranger.close()
    talks = socket.create_connection(("127.0.0.1", door.port))
    talks.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
    friend = connect_sealed("127.0.0.1", door.port, TOKEN, {"a": 2}, soon())
    taken = door.next_caller(WAIT_S)
    assert taken is not None
    assert taken[1] == {"a": 2}
    talks.settimeout(WAIT_S)
    with suppress(ConnectionResetError):  # or the end, as the kernel likes
        while talks.recv(1 << 16):
            pass
    wait_until(lambda: door.refused == 2, WAIT_S)
    for connection in (*silent, talks, friend):
        connection.close()


def test_a_changed_or_repeated_frame_is_refused(door: Doorkeeper) -> None:
    with connect_sealed("127.0.0.1", door.port, TOKEN, {"a": 1}, soon()) as caller:
        taken = door.next_caller(WAIT_S)
        assert taken is not None
        connection, _ = taken
        caller.send({"n": 1})
        raw = connection.socket.recv(1 << 16)
        for wire in (raw[:-2] + b"2}", raw):
            first, second = socket.socketpair()
            connection.socket, kept = first, connection.socket
            second.sendall(wire)
            # The second time the frame is whole, but its turn is over.
            with pytest.raises(NotSealedError):
                connection.receive(WAIT_S)
            connection.socket = kept
            first.close()
            second.close()


def test_a_caller_says_when_what_listens_is_no_preflight_or_nobody_does() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"SSH-2.0-OpenSSH_9.2 and some more that fills a greeting\r\n")
        connection.recv(100)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(NotSealedError, match="no pre-flight"):
        connect_sealed("127.0.0.1", listener.getsockname()[1], TOKEN, {}, soon())
    thread.join(WAIT_S)
    listener.close()
    with pytest.raises(SealedError, match="refused"):
        connect_sealed("127.0.0.1", free_ports(1)[0], TOKEN, {}, soon() - WAIT_S + 0.2)


@settings_of_law(max_examples=40, deadline=None)
@given(
    wire=st.one_of(
        st.binary(max_size=200), st.binary(min_size=32, max_size=32).map(lambda seal: b"\0\0\0\2" + seal + b"{}")
    )
)
def test_any_bytes_are_refused_and_nothing_else(wire: bytes) -> None:
    one, other = socket.socketpair()
    # Greetings cross, so one end has to be a thread's.
    made = together(
        2, lambda place: SealedConnection((one, other)[place], TOKEN, is_caller=place == 0, timeout_s=WAIT_S)
    )
    one.sendall(wire)
    one.close()
    with pytest.raises(SealedError):
        made[1].receive(WAIT_S)
    other.close()


# --- All ranks ------------------------------------------------------------------------------------------------------


def test_all_ranks_learn_the_same_and_the_slow_one_by_name() -> None:
    base = settings(8)
    meters = {"nccl": Told({5: 9.0})}
    found = outcomes({rank: (own, meters) for rank, own in ranks_of(base, backend="auto").items()})
    first = found[0]
    assert isinstance(first, PairsOutcome)
    assert all(outcome == first for outcome in found.values())
    assert [first.names[rank] for rank in first.verdict.slow] == ["node-5"]
    assert first.verdict.at_pace == (0, 1, 2, 3, 4, 6, 7)
    assert (first.backend, first.verdict.pace_gb_s, first.verdict.gb_s[5]) == ("nccl", 40.0, 9.0)


def test_pairs_over_sockets_are_measured() -> None:
    # Two threads of one interpreter say nothing of pace, so everything passes as fast enough.
    base = settings(3, limits=BisectionLimits(slow_below=1e-6))
    found = outcomes({rank: (own, {}) for rank, own in ranks_of(base).items()})
    first = found[0]
    assert isinstance(first, PairsOutcome)
    assert (first.backend, first.verdict.at_pace, first.verdict.rounds) == ("sockets", (0, 1, 2), 2)
    assert all(outcome == first for outcome in found.values())


def test_a_rank_that_does_not_join_is_said_and_the_others_are_measured() -> None:
    base = settings(4, join_s=3.0)
    meters = {"nccl": Told({})}
    found = outcomes({rank: (own, meters) for rank, own in ranks_of(base, backend="nccl").items() if rank != 2})
    first = found[0]
    assert isinstance(first, PairsOutcome)
    assert first.verdict.unmeasured == (2,)
    assert first.names == ("node-0", "node-1", "rank 2", "node-3")
    assert first.reasons[2] == "did not join within 3 s"
    assert first.verdict.at_pace == (0, 1, 3)


def test_a_rank_whose_measurements_fail_is_unmeasured_with_its_reason() -> None:
    class Fails:
        def measure(self, order: RoundOrder, own: int) -> float | None:
            raise MeterError("no CUDA device")

    base = settings(6)
    found = outcomes(
        {
            rank: (own, {"nccl": Fails() if rank == 4 else Told({})})
            for rank, own in ranks_of(base, backend="nccl").items()
        }
    )
    first = found[0]
    assert isinstance(first, PairsOutcome)
    assert (first.verdict.slow, first.verdict.unmeasured) == ((), (4,))
    assert first.reasons[4] == "no CUDA device"
    assert first.verdict.at_pace == (0, 1, 2, 3, 5)


def test_a_rank_that_dies_costs_its_own_figures_and_hangs_nobody() -> None:
    base = settings(4)

    class Dies:
        """Joins, and is gone when it is first told to measure."""

        def measure(self, order: RoundOrder, own: int) -> float | None:
            raise ConnectionAbortedError

    def dies() -> None:
        with pytest.raises(ConnectionAbortedError):
            take_part(replace(base, rank=3, name="node-3", backend="nccl"), {"nccl": Dies()})

    thread = threading.Thread(target=dies, daemon=True)
    thread.start()
    others = {rank: (own, {"nccl": Told({})}) for rank, own in ranks_of(base, backend="nccl").items() if rank != 3}
    found = outcomes(others)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    first = found[0]
    assert isinstance(first, PairsOutcome)
    assert first.verdict.unmeasured == (3,)
    assert "has hung up" in first.reasons[3]
    assert first.verdict.at_pace == (0, 1, 2)


def test_a_second_rank_of_a_number_and_one_of_another_size_are_turned_away() -> None:
    base = settings(2)
    coordinated = {0: (base, {})}
    found: dict[int, PairsOutcome | Exception] = {}
    rank_0 = threading.Thread(target=lambda: found.update(outcomes(coordinated)), daemon=True)
    rank_0.start()
    for wrong, why in (
        (replace(base, rank=1, nodes=3), "rank 1 of 3 does not fit 2 nodes"),
        (replace(base, rank=2), "rank 2 of 2 does not fit 2 nodes"),
    ):
        with pytest.raises(PairsError, match=why):
            take_part(wrong)
    assert isinstance(outcomes({1: (replace(base, rank=1), {})})[1], PairsOutcome)
    rank_0.join(WAIT_S)
    assert isinstance(found[0], PairsOutcome)


def test_a_wrong_token_is_refused_with_a_hint() -> None:
    base = settings(2, join_s=2.0)
    found = outcomes({0: (base, {}), 1: (replace(base, rank=1, token=b"f" * 16), {})})
    assert "is the token the same" in str(found[1])
    assert isinstance(found[0], PairsOutcome)
    assert found[0].verdict.unmeasured == (0, 1)


def test_without_rank_0_the_others_give_up() -> None:
    with pytest.raises(PairsError, match="is it running"):
        take_part(settings(2, rank=1, join_s=0.3))


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PairsError, match="cannot listen"):
            take_part(replace(settings(2), port=port))


def test_nccl_that_some_rank_does_not_have_is_refused_for_all() -> None:
    base = settings(2)
    ranks = ranks_of(base, backend="nccl")
    found = outcomes({0: (ranks[0], {"nccl": Told({})}), 1: (ranks[1], {})})
    assert all("take --backend sockets" in str(outcome) for outcome in found.values())


def test_orders_and_verdicts_survive_the_wire_and_others_are_refused() -> None:
    order = RoundOrder(1, (Peer(0, "a", "10.0.0.1", 5), Peer(1, "b", "10.0.0.2", 6)), 1 << 20, 3, 60.0)
    assert RoundOrder.from_message(json.loads(json.dumps(order.to_message()))) == order
    for wrong in ({}, order.to_message() | {"total_bytes": 1 << 50}, order.to_message() | {"members": [3]}):
        with pytest.raises(PairsError):
            RoundOrder.from_message(wrong)
    with pytest.raises(PairsError):
        PairsOutcome.from_message({"type": "verdict", "names": [], "backend": "sockets", "verdict": {}, "reasons": []})
