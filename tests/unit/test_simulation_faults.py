"""Faults in the records: each one is where the truth says, from its onset on, and not before."""

from __future__ import annotations

import io
import statistics
from functools import cache
from itertools import pairwise
from typing import TypeVar

import pytest

from agents.decode import kernel_log
from agents.decode.record import Tally
from agents.simulation import Truth, default_scenario, simulate, truth
from schemas.base import Record
from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import RankProgress, StepTiming

START = 1_760_000_000_000_000_000
SKEW_NS = 100_000_000
"""Ten sigma of a node's clock."""
STEP_NS = 1_000_000_000
"""A step under way at a fault's onset or end, and more."""

R = TypeVar("R", bound=Record)
SIZES = [(8, 0), (4, 1), (9, 2)]


@cache
def run(nodes: int, seed: int, name: str = "mixed") -> tuple[Record, ...]:
    return tuple(record for _, record in simulate(default_scenario(nodes=nodes, seed=seed, scenario=name), START))


@cache
def truths(nodes: int, seed: int, name: str = "mixed") -> dict[str, Truth]:
    found = truth(default_scenario(nodes=nodes, seed=seed, scenario=name), START)
    return {item.cause_class: item for item in found}


def of(records: tuple[Record, ...], family: type[R]) -> list[R]:
    return [record for record in records if isinstance(record, family)]


def frames_of(records: tuple[Record, ...], node_id: str) -> list[GpuFrame]:
    return [frame for frame in of(records, GpuFrame) if frame.node_id == node_id]


def ports_of(records: tuple[Record, ...], publisher: str) -> list[FabricFrame]:
    return [frame for frame in of(records, FabricFrame) if frame.publisher_id == publisher]


def inside(item: Truth, at_ns: int, settle_ns: int = 3 * STEP_NS) -> bool:
    return item.onset_ns + settle_ns < at_ns < item.end_ns - SKEW_NS


def outside(item: Truth, at_ns: int) -> bool:
    return at_ns < item.onset_ns - SKEW_NS or at_ns > item.end_ns + 2 * STEP_NS


def own_over_peers(records: tuple[Record, ...], job_id: str, rank: int) -> dict[int, float]:
    """By end of a step: the rank's own time over the median of its stage, in steps that train."""
    stage_of = {
        r: s
        for placement in of(records, RankPlacement)
        if placement.job_id == job_id and placement.stage is not None
        for r, s in zip(placement.rank, placement.stage, strict=True)
    }
    steps: dict[int, dict[int, int]] = {}
    ends: dict[int, int] = {}
    for timing in of(records, StepTiming):
        if timing.job_id == job_id and timing.phase == "train":
            assert timing.own_us is not None
            for r, own in zip(timing.rank, timing.own_us, strict=True):
                assert own is not None
                if stage_of[r] == stage_of[rank]:
                    steps.setdefault(timing.step, {})[r] = own
            ends[timing.step] = max(ends.get(timing.step, 0), timing.event_time_ns)
    return {
        ends[step]: own[rank] / statistics.median(value for r, value in own.items() if r != rank)
        for step, own in steps.items()
    }


@pytest.mark.parametrize(("nodes", "seed"), SIZES)
def test_a_hot_gpu_slows_down_with_all_its_signs_and_heals(nodes: int, seed: int) -> None:
    records, item = run(nodes, seed), truths(nodes, seed)["thermal"]
    [culprit] = item.culprits
    frames = frames_of(records, culprit["node_id"])
    gpu = frames[0].gpu_uuid.index(culprit["gpu_uuid"])
    hot = [frame for frame in frames if inside(item, frame.event_time_ns)]
    cool = [frame for frame in frames if outside(item, frame.event_time_ns)]
    assert len(hot) >= 5
    for frame in hot:
        assert frame.clock_event_reasons_mask is not None
        assert frame.sm_clock_mhz is not None
        assert frame.gpu_temp_c is not None
        assert (frame.clock_event_reasons_mask[gpu] or 0) & 0x60 == 0x60
        assert 1000 <= (frame.sm_clock_mhz[gpu] or 0) <= 1200
        assert (frame.gpu_temp_c[gpu] or 0) > 75
    for frame in cool:
        assert frame.clock_event_reasons_mask is not None
        assert not (frame.clock_event_reasons_mask[gpu] or 0) & 0x60
    for before, after in pairwise(hot):
        assert before.thermal_violation_ns is not None
        assert after.thermal_violation_ns is not None
        grown = (after.thermal_violation_ns[gpu] or 0) - (before.thermal_violation_ns[gpu] or 0)
        assert grown / (after.event_time_ns - before.event_time_ns) == pytest.approx(0.6, abs=0.01)
    ratios = own_over_peers(records, item.job_id, culprit["rank"])
    assert all(1.5 < ratio < 1.85 for end, ratio in ratios.items() if inside(item, end, 4 * STEP_NS))
    quiet = [ratio for end, ratio in ratios.items() if outside(item, end)]
    assert statistics.median(quiet) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("nodes", "seed"), SIZES)
def test_a_starved_rank_is_slow_in_host_and_data_time_with_a_healthy_gpu(nodes: int, seed: int) -> None:
    records, item = run(nodes, seed), truths(nodes, seed)["host"]
    [culprit] = item.culprits
    ratios = own_over_peers(records, item.job_id, culprit["rank"])
    during = [ratio for end, ratio in ratios.items() if inside(item, end)]
    assert len(during) >= 8
    assert 1.35 < statistics.median(during) < 1.65
    assert statistics.median(r for end, r in ratios.items() if outside(item, end)) == pytest.approx(1.0, abs=0.02)
    frames = frames_of(records, culprit["node_id"])
    gpu = frames[0].gpu_uuid.index(culprit["gpu_uuid"])
    for frame in frames:
        if inside(item, frame.event_time_ns):
            assert frame.sm_clock_mhz is not None
            assert frame.gpu_temp_c is not None
            assert frame.gpu_util_pct is not None
            assert (frame.sm_clock_mhz[gpu] or 0) > 1900
            assert (frame.gpu_temp_c[gpu] or 0) < 72
            others = [value for index, value in enumerate(frame.gpu_util_pct) if index != gpu and value is not None]
            assert (frame.gpu_util_pct[gpu] or 0) < min(others)


@pytest.mark.parametrize(("nodes", "seed"), SIZES)
def test_a_storm_is_paused_frames_from_one_port_and_slow_transfers_for_everyone(nodes: int, seed: int) -> None:
    records, item = run(nodes, seed), truths(nodes, seed)["pause_storm"]
    [culprit] = item.culprits
    frames = ports_of(records, culprit["node_id"])
    port = frames[0].device.index(culprit["device"])
    victims = {(v["node_id"], v["device"]) for v in item.victims if v["level"] == "port"}
    assert culprit["node_id"] not in {node for node, _ in victims}
    seen = 0
    for before, after in pairwise(frames):
        seconds = (after.event_time_ns - before.event_time_ns) * 1e-9
        sent = ((after.tx_pause_frames[port] or 0) - (before.tx_pause_frames[port] or 0)) / seconds
        received = ((after.rx_pause_frames[port] or 0) - (before.rx_pause_frames[port] or 0)) / seconds
        assert received < 1
        if inside(item, before.event_time_ns, SKEW_NS) and inside(item, after.event_time_ns, SKEW_NS):
            assert 1_800 <= sent <= 22_000
            seen += 1
        elif outside(item, before.event_time_ns) and outside(item, after.event_time_ns):
            assert sent < 50
    assert seen >= 8
    for node_id in {node for node, _ in victims}:
        paused = ports_of(records, node_id)
        for before, after in pairwise(paused):
            if inside(item, before.event_time_ns, SKEW_NS) and inside(item, after.event_time_ns, SKEW_NS):
                seconds = (after.event_time_ns - before.event_time_ns) * 1e-9
                rates = [
                    ((y or 0) - (x or 0)) / seconds
                    for x, y in zip(before.rx_pause_frames, after.rx_pause_frames, strict=True)
                ]
                assert all(145 <= rate <= 1_505 for rate in rates)


@pytest.mark.parametrize(("nodes", "seed"), SIZES)
def test_a_storm_leaves_own_times_flat_and_lengthens_every_all_reduce(nodes: int, seed: int) -> None:
    records, item = run(nodes, seed), truths(nodes, seed)["pause_storm"]
    shortest: dict[int, int] = {}
    owns: dict[int, list[int]] = {}
    ends: dict[int, int] = {}
    for timing in of(records, StepTiming):
        if timing.job_id == item.job_id and timing.phase == "train":
            [reduce] = [timed for timed in timing.collectives if timed.group == "dp"]
            least = min(value for value in reduce.duration_us if value is not None)
            shortest[timing.step] = min(shortest.get(timing.step, least), least)
            owns.setdefault(timing.step, []).extend(value for value in timing.own_us or () if value is not None)
            ends[timing.step] = timing.event_time_ns
    during = [step for step, end in ends.items() if inside(item, end)]
    quiet = [step for step, end in ends.items() if outside(item, end)]
    assert min(shortest[step] for step in during) > 2.5 * max(shortest[step] for step in quiet)
    # The lower quartile lies inside the first stage; the median would lie between the two.
    own_during = statistics.median(statistics.quantiles(owns[step])[0] for step in during)
    own_quiet = statistics.median(statistics.quantiles(owns[step])[0] for step in quiet)
    assert own_during == pytest.approx(own_quiet, rel=0.01)


def test_both_ends_of_a_cable_count_the_same_frames() -> None:
    records, item = run(8, 0), truths(8, 0)["pause_storm"]
    [culprit] = item.culprits
    leaf_port = next(place for place in item.acceptable if place.get("switch_id"))
    host = ports_of(records, culprit["node_id"])
    switch = ports_of(records, leaf_port["switch_id"])
    nic, port = host[0].device.index(culprit["device"]), switch[0].port.index(leaf_port["port"])
    assert switch[0].peer is not None
    assert switch[0].peer[port] == f"{culprit['node_id']}/{culprit['device']}/{culprit['port']}"
    assert host[0].peer is not None
    assert host[0].peer[nic] == f"{leaf_port['switch_id']}/{leaf_port['port']}"
    sent = (host[-1].tx_pause_frames[nic] or 0) - (host[0].tx_pause_frames[nic] or 0)
    received = (switch[-1].rx_pause_frames[port] or 0) - (switch[0].rx_pause_frames[port] or 0)
    assert received == pytest.approx(sent, rel=0.01)


@pytest.mark.parametrize(("nodes", "seed"), SIZES)
def test_a_lost_gpu_prints_its_lines_reads_null_and_stops_its_job(nodes: int, seed: int) -> None:
    records, item = run(nodes, seed), truths(nodes, seed)["gpu_lost"]
    [culprit] = item.culprits
    events = [event for event in of(records, KernelEvent) if event.event_time_ns >= item.onset_ns - SKEW_NS]
    [lost] = [event for event in events if event.code == 79]
    assert (lost.node_id, lost.gpu_uuid, lost.pci_bus_id) == (
        culprit["node_id"],
        culprit["gpu_uuid"],
        culprit["pci_bus_id"],
    )
    assert abs(lost.event_time_ns - item.onset_ns) < SKEW_NS
    companions = [event for event in events if event.code in (45, 154)]
    assert {event.node_id for event in companions} == {culprit["node_id"]}
    assert all(event.gpu_uuid != culprit["gpu_uuid"] for event in companions if event.code == 45)
    assert [event.recovery_action for event in companions if event.code == 154] == ["node_reboot"]

    frames = frames_of(records, culprit["node_id"])
    gpu = frames[0].gpu_uuid.index(culprit["gpu_uuid"])
    for frame in frames:
        assert frame.sm_clock_mhz is not None
        gone = frame.sm_clock_mhz[gpu] is None
        if abs(frame.event_time_ns - item.onset_ns) > SKEW_NS:
            assert gone == (frame.event_time_ns > item.onset_ns)
        if gone:
            assert frame.power_w is not None
            assert frame.power_w[gpu] is None
            assert frame.read_error is not None
            assert frame.read_error[gpu] == "GPU is lost"
            assert [text for index, text in enumerate(frame.read_error) if index != gpu and text] == []

    last_step = max(t.event_time_ns for t in of(records, StepTiming) if t.job_id == item.job_id)
    assert item.onset_ns - 2 * STEP_NS < last_step < item.onset_ns + SKEW_NS
    others = [t for t in of(records, StepTiming) if t.job_id != item.job_id]
    assert max(t.event_time_ns for t in others) > item.end_ns - 2 * STEP_NS
    progress = [p for p in of(records, RankProgress) if p.job_id == item.job_id and p.event_time_ns > item.onset_ns]
    assert len(progress) >= 4
    assert len({value for p in progress for value in p.last_step}) == 1
    beats = [s for s in of(records, NodeStatus) if s.node_id == culprit["node_id"] and s.event_time_ns > item.onset_ns]
    assert len(beats) >= 4


def test_in_a_standing_job_the_lost_rank_alone_has_not_entered_the_all_reduce() -> None:
    records, item = run(8, 0), truths(8, 0)["gpu_lost"]
    absent = set()
    for progress in of(records, RankProgress):
        if progress.job_id == item.job_id and progress.event_time_ns > item.onset_ns + SKEW_NS:
            for rank, (enqueued, started, completed) in zip(progress.rank, progress.groups["dp"], strict=True):
                if enqueued == completed:
                    absent.add(rank)
                else:
                    assert enqueued == started
    assert absent == {item.culprits[0]["rank"]}


def test_raw_kernel_lines_read_back_as_the_events_made_of_them() -> None:
    for event in of(run(8, 0), KernelEvent):
        [read] = list(kernel_log.decode(io.BytesIO(event.raw.encode()), Tally()))
        for field in ("code", "severity", "pci_bus_id", "pid", "process", "text"):
            assert read[field] == getattr(event, field), field


def test_truths_name_places_that_the_records_know_and_right_commands() -> None:
    records, found = run(8, 0), truths(8, 0)
    assert {name: item.right_commands for name, item in found.items()} == {
        "thermal": ("drain_node",),
        "gpu_lost": ("cordon_node",),
        "pause_storm": ("network_action",),
        "host": ("collect_evidence", "run_preflight"),
    }
    for item in found.values():
        [culprit] = item.culprits
        frame = frames_of(records, culprit["node_id"])[0]
        if culprit["level"] != "port":
            gpu = frame.gpu_uuid.index(culprit["gpu_uuid"])
            assert frame.pci_bus_id is not None
            assert frame.pci_bus_id[gpu] == culprit["pci_bus_id"]
            [placement] = [
                p for p in of(records, RankPlacement) if p.job_id == culprit["job_id"] and culprit["rank"] in p.rank
            ]
            assert placement.node_id == culprit["node_id"]
            assert placement.gpu_uuid[placement.rank.index(culprit["rank"])] == culprit["gpu_uuid"]
        assert item.identifiable
        assert {"level": "node", "node_id": culprit["node_id"]} in item.acceptable
        assert item.forbidden_actions[0]["except_node_ids"] == (culprit["node_id"],)
        assert "drain_node" in item.forbidden_actions[0]["kinds"]
    order = [found[name].onset_ns for name in ("thermal", "host", "pause_storm")]
    assert order == sorted(order)
    assert found["thermal"].end_ns <= found["host"].onset_ns
    assert found["host"].end_ns <= found["pause_storm"].onset_ns


@pytest.mark.parametrize(
    ("name", "cause"),
    [("thermal", "thermal"), ("xid79", "gpu_lost"), ("pause-storm", "pause_storm"), ("cpu-contention", "host")],
)
def test_a_scenario_of_one_fault_has_that_one_alone(name: str, cause: str) -> None:
    assert set(truths(8, 0, name)) == {cause}


def test_the_slow_rank_waits_least_and_everyone_elses_wait_rises() -> None:
    records, item = run(8, 0, "thermal"), truths(8, 0, "thermal")["thermal"]
    rank = item.culprits[0]["rank"]
    during: dict[int, list[int]] = {}
    quiet: dict[int, list[int]] = {}
    for timing in of(records, StepTiming):
        if timing.job_id != item.job_id or timing.phase != "train":
            continue
        settled = inside(item, timing.event_time_ns, 6 * STEP_NS)
        waits = during if settled else quiet if outside(item, timing.event_time_ns) else None
        for r, wait in zip(timing.rank, timing.wait_us or (), strict=True):
            if waits is not None and wait is not None:
                waits.setdefault(r, []).append(wait)
    after = {r: statistics.median(values) for r, values in during.items()}
    before = {r: statistics.median(values) for r, values in quiet.items()}
    assert min(after, key=after.__getitem__) == rank
    assert all(after[r] > before[r] + 100_000 for r in after if r != rank)
    assert after[rank] <= before[rank]
