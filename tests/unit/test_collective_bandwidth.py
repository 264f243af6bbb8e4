"""Bandwidth of communicators from sizes and durations: formulas, transfer apart from waiting, and what stands out."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli import app
from streams.profiles.bandwidth import bandwidth, bytes_of, operation_of
from streams.profiles.communicators import (
    CollectiveFigures,
    Communicator,
    Share,
    figures_of,
    link_limit_gb_s,
    rails_of,
    span_of,
)
from streams.profiles.slow_communicators import history_key, observations, with_figures
from tests.recorder_dumps import entry, table

MB = 1 << 20


def shares(
    ranks: tuple[int, ...],
    transfer_us: float,
    desc: str = "DP",
    count: int = 3,
    size_bytes: int = 64 * MB,
    operation: str = "all_reduce",
) -> list[Share]:
    """Collectives to which each member comes a little later than the one before it."""
    communicator = Communicator(desc, ranks, len(ranks))
    return [
        Share(communicator, operation, number, rank, size_bytes, transfer_us + 100.0 * (len(ranks) - 1 - place))
        for number in range(count)
        for place, rank in enumerate(ranks)
    ]


def figures(*parts: list[Share], ranks_per_node: int = 4) -> list[CollectiveFigures]:
    found, left_out = figures_of([share for part in parts for share in part], ranks_per_node)
    assert left_out == 0
    return found


# --- Formulas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "bus", "tree"),
    [
        ("all_reduce", 175.0, 200.0),  # 100 GB/s times 2 * 7 / 8
        ("all_gather", 87.5, None),
        ("reduce_scatter", 87.5, None),
        ("all_to_all", 87.5, None),
        ("broadcast", 100.0, None),
        ("reduce", 100.0, None),
    ],
)
def test_bus_bandwidth_is_by_the_share_that_each_link_must_carry(
    operation: str, bus: float, tree: float | None
) -> None:
    found = bandwidth(operation, 8, 1_000_000_000, 10_000)
    assert found is not None
    assert (found.algorithm_gb_s, found.bus_gb_s, found.tree_gb_s) == pytest.approx((100.0, bus, tree))


def test_one_rank_no_time_and_no_size_have_no_bandwidth() -> None:
    assert (
        bandwidth("all_reduce", 1, 8, 1.0) is bandwidth("all_reduce", 2, 0, 1.0) is bandwidth("reduce", 2, 8, 0) is None
    )


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("all_reduce", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("_all_gather_base", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("barrier", None),
        ("coalesced", None),
        (None, None),
    ],
)
def test_names_of_recorder_and_profiler_are_one_word(name: str | None, operation: str | None) -> None:
    assert operation_of(name) == operation


def test_the_larger_buffer_counts() -> None:
    assert bytes_of(10, 80, "BFloat16") == bytes_of(80, 10, "BFloat16") == 160
    assert bytes_of(10, None, "Float") == 40
    assert bytes_of(10, 10, "QInt8") is bytes_of(None, None, "Float") is bytes_of(0, 0, "Float") is None


# --- Transfer and waiting -----------------------------------------------------------------------------------------


@given(
    st.integers(2, 16),
    st.lists(st.floats(100, 1e6), min_size=1, max_size=8),
    st.data(),
)
def test_transfer_is_the_time_from_the_last_arrival_whoever_is_late(
    size: int, transfers_us: list[float], data: st.DataObject
) -> None:
    communicator = Communicator("TP", tuple(range(size)), size)
    found, waiting, total = [], 0.0, 0.0
    for number, transfer_us in enumerate(transfers_us):
        arrivals = data.draw(st.lists(st.floats(0, 1e6), min_size=size, max_size=size))
        durations = [max(arrivals) - arrival + transfer_us for arrival in arrivals]
        found += [Share(communicator, "all_gather", number, rank, 4 * MB, one) for rank, one in enumerate(durations)]
        waiting += sum(max(arrivals) - arrival for arrival in arrivals)
        total += sum(durations)
    (one,), left_out = figures_of(data.draw(st.permutations(found)), 8)
    expected = sorted(transfers_us)
    assert expected[0] - 1e-6 <= one.transfer_us <= expected[-1] + 1e-6
    assert one.wait_share == pytest.approx(waiting / total, abs=1e-6)
    assert (one.count, one.is_complete, left_out) == (len(transfers_us), True, 0)


def test_with_members_missing_bandwidth_is_a_lower_bound() -> None:
    (one,) = figures([share for share in shares((0, 1, 2, 3), 1000.0) if share.rank != 3])
    assert (one.ranks_seen, one.is_complete, one.transfer_us) == (3, False, 1100.0)
    (whole,) = figures(shares((0, 1, 2, 3), 1000.0))
    assert one.bus_gb_s < whole.bus_gb_s


def test_collectives_that_differ_between_members_are_left_out() -> None:
    odd = [
        share._replace(size_bytes=5) if (share.rank, share.number) == (1, 0) else share for share in shares((0, 1), 9.0)
    ]
    (one,), left_out = figures_of(odd, 8)
    assert (one.count, left_out) == (2, 1)


def test_sizes_are_kept_apart_and_a_root_does_not_wait() -> None:
    found = figures(shares((0, 1), 9.0), shares((0, 1), 9.0, desc="TP", size_bytes=4096, operation="broadcast"))
    assert [(one.operation, one.size_class, one.wait_share is None) for one in found] == [
        ("all_reduce", 26, False),
        ("broadcast", 12, True),
    ]


# --- What stands out ----------------------------------------------------------------------------------------------


def test_a_slow_communicator_stands_out_among_its_peers_and_its_rail_among_the_rails() -> None:
    found = figures(*(shares((local, local + 4, local + 8), 2000.0 if local == 2 else 1000.0) for local in range(4)))
    told = observations(found, 4)
    assert [(one.kind, one.figures.communicator.ranks if one.figures else None, one.rail) for one in told] == [
        ("slow_communicator", (2, 6, 10), None),
        ("slow_rail", None, 2),
    ]
    assert all(one.share == pytest.approx(0.5) for one in told)
    assert next(iter(rails_of(found, 4).values()))[2] == pytest.approx(found[0].bus_gb_s / 2)


def test_small_collectives_and_few_peers_are_not_judged() -> None:
    small = [shares((local, local + 4), 50.0 if local else 500.0, size_bytes=4096) for local in range(4)]
    assert observations(figures(*small), 4) == []
    pair = [shares((local, local + 4), 500.0 * (local + 1)) for local in range(2)]
    assert observations(figures(*pair), 4) == []


def test_a_run_is_held_against_earlier_ones_of_the_fleet() -> None:
    history: dict[str, list[float]] = {}
    sound = figures(shares((0, 1, 2, 3), 1000.0))
    for _ in range(4):
        history = with_figures(history, sound)
    slow = figures(shares((4, 5, 6, 7), 1300.0, desc="other job"))
    assert observations(slow, 4, history) == []  # too few runs
    history = with_figures(history, sound)
    (told,) = observations(slow, 4, history)
    assert (told.kind, round(told.share, 2)) == ("below_history", 0.77)
    assert observations(sound, 4, history) == []
    for _ in range(100):
        history = with_figures(history, slow)
    assert len(history[history_key(slow[0])]) == 64
    assert with_figures({}, figures([share for share in shares((0, 1), 9.0) if share.rank])) == {}


def test_links_limit_by_where_the_members_are() -> None:
    node, rail, mixed = (
        figures(shares(ranks, 1000.0))[0] for ranks in ((0, 1, 2, 3), (1, 5), (0, 1, 2, 3, 4, 5, 6, 7))
    )
    assert [one.span for one in (node, rail, mixed)] == ["node", "rail", "mixed"]
    assert span_of(None, 4) == "unknown"
    assert [link_limit_gb_s(one, 4, 450.0, 50.0) for one in (node, rail, mixed)] == [450.0, 50.0, 200.0]
    assert link_limit_gb_s(mixed, 4, 150.0, 50.0) == 150.0
    assert link_limit_gb_s(rail, 4, 450.0, None) is None
    (told,) = observations([node], 4, limit_of=lambda _: 90.0)
    assert told.kind == "above_link"


# --- The command --------------------------------------------------------------------------------------------------


def diagnose(*arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(app, ["diagnose", "collectives", *map(str, arguments), "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def dump(rank: int, duration_ms: float | None) -> dict[str, Any]:
    entries = [
        entry(
            seq,
            "_all_gather_base",
            state="completed",
            sizes=[[4 * MB]],
            output_sizes=[[8 * MB]],
            duration_ms=duration_ms,
        )
        for seq in range(1, 6)
    ]
    return table([("0", "default_pg", [0, 1])], {"0": (5, 5)}, entries)


def test_dumps_with_timing_give_bandwidth(tmp_path: Path) -> None:
    for rank, duration_ms in enumerate((2.0, 1.0)):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank, duration_ms), 2))
    (tmp_path / "notes.md").write_text("nothing")
    status, (one,), err = diagnose(tmp_path, "--nvlink", "450")
    assert status == 0
    expected = 32 * MB / 1000.0 / 1000 * 0.5  # 8 Mi floats in a millisecond between two ranks
    assert (one["op"], one["count"], one["size_bytes"], one["transfer_us"]) == ("all_gather", 5, 32 * MB, 1000.0)
    assert one["bus_gb_s"] == pytest.approx(expected)
    assert (one["wait_share"], one["link_gb_s"]) == (pytest.approx(1 / 3), 450.0)
    assert "ranks=2 unreadable=1" in err


def test_dumps_without_timing_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps(dump(0, None), 2))
    status, records, err = diagnose(tmp_path)
    assert (status, records) == (2, [])
    assert "TORCH_NCCL_ENABLE_TIMING=1" in err


def trace(rank: int, late_us: float, *, with_seq: bool) -> dict[str, Any]:
    events = []
    for number in range(4):
        args: dict[str, Any] = {
            "device": rank,
            "stream": 7,
            "Collective name": "allreduce",
            "In msg nelems": 16 * MB,
            "Out msg nelems": 16 * MB,
            "Group size": 2,
            "dtype": "BFloat16",
            "Process Group Name": "3",
            "Process Group Description": "DP",
            "Process Group Ranks": "[0, 1]",
        }
        if with_seq:
            args["Seq"] = number + 10
        start = 1000.0 * number + late_us
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "ts": start,
                "dur": 500.0 - late_us,
                "args": args,
            }
        )
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events[::-1]}


@pytest.mark.parametrize("with_seq", [True, False])
def test_traces_of_both_ranks_give_bandwidth(tmp_path: Path, with_seq: bool) -> None:
    for rank, late_us in enumerate((0.0, 100.0)):
        data = json.dumps(trace(rank, late_us, with_seq=with_seq)).encode()
        (tmp_path / f"{rank}.pt.trace.json.gz").write_bytes(gzip.compress(data))
    status, (one,), _ = diagnose(tmp_path)
    assert (status, one["count"], one["transfer_us"], one["is_complete"]) == (0, 4, 400.0, True)
    assert one["bus_gb_s"] == pytest.approx(32 * MB / 400 / 1000)
    assert one["wait_share"] == pytest.approx(100 / 900)


def test_the_history_grows_only_when_asked_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    source, history = tmp_path / "in", tmp_path / "history.json"
    source.mkdir()
    for rank in range(2):
        (source / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank, 1.0), 2))
    for _ in range(5):
        assert diagnose(source, "--history", history, "--remember")[0] == 0
    kept = history.read_bytes()
    for rank in range(2):
        (source / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank, 2.0), 2))
    status, records, _ = diagnose(source, "--history", history)
    assert (status, [record.get("observation") for record in records]) == (0, [None, "below_history"])
    assert history.read_bytes() == kept
    history.write_text('{"bus_gb_s": {"x": [0, "a"]}}')
    status, _, err = diagnose(source, "--history", history)
    assert (status, "no history" in err) == (2, True)


@pytest.mark.parametrize("options", [("--nvlink", "0"), ("--network", "nan"), ("--remember",)])
def test_what_cannot_be_meant_is_bad_usage(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, told, err = diagnose(tmp_path, *options)
    assert (status, told, err.count("\n"), options[0] in err) == (2, [], 1, True)


def test_people_read_sentences(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank, 1.0), 2))
    result = CliRunner().invoke(app, ["diagnose", "collectives", str(tmp_path), "--nvlink", "33.5"])
    assert result.stdout == (
        "default_pg (2 ranks 0..1) all_gather: 5 of 33.554 MB, transfer 1,000 us, bus 16.8 GB/s, algorithm 33.6 GB/s, "
        "waiting 0%, 50% of its links\n"
    )
