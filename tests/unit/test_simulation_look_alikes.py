"""A healthy fleet: nothing is wrong, and everything that resembles a fault is there."""

from __future__ import annotations

import statistics
from functools import cache
from itertools import pairwise

import pytest

from agents.simulation import default_scenario, simulate, truth
from schemas.base import Record
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import StepTiming

START = 1_760_000_000_000_000_000
NODES = [f"node-{index:04d}" for index in range(8)]


@cache
def healthy() -> tuple[Record, ...]:
    return tuple(record for _, record in simulate(default_scenario(scenario="healthy", seed=5), START))


def frames() -> list[GpuFrame]:
    return [record for record in healthy() if isinstance(record, GpuFrame)]


def frames_of(node_id: str) -> list[GpuFrame]:
    return [frame for frame in frames() if frame.node_id == node_id]


def timings(job_id: str) -> list[StepTiming]:
    return [record for record in healthy() if isinstance(record, StepTiming) and record.job_id == job_id]


def masks(bit: int) -> set[tuple[str, int]]:
    return {
        (frame.node_id, gpu)
        for frame in frames()
        for gpu, mask in enumerate(frame.clock_event_reasons_mask or ())
        if (mask or 0) & bit
    }


def test_a_healthy_fleet_has_no_truth() -> None:
    assert truth(default_scenario(scenario="healthy"), START) == []


def test_gpus_idle_before_their_job_at_low_clock_with_a_slow_link() -> None:
    first = frames()[0]
    assert set(first.sm_clock_mhz or ()) == {345}
    assert set(first.clock_event_reasons_mask or ()) == {0x1}
    assert set(first.pcie_link_gen or ()) == {1}
    last = frames()[-1]
    assert set(last.pcie_link_gen or ()) == {5}


def test_many_gpus_run_at_their_power_limit_under_load() -> None:
    assert 10 <= len(masks(0x4)) <= 40
    for node_id, gpu in masks(0x4):
        # Power is near its limit in those frames, and the counter grows.
        for frame in frames_of(node_id):
            if (frame.clock_event_reasons_mask or ())[gpu] == 0x4:
                assert frame.power_w is not None
                assert (frame.power_w[gpu] or 0) > 690


def test_one_gpu_has_application_clocks_and_loses_little() -> None:
    [(node_id, gpu)] = masks(0x2)
    last = frames_of(node_id)[-1]
    assert last.sm_clock_mhz is not None
    assert last.sm_clock_mhz[gpu] == 1845


def test_nothing_throttles_on_heat_but_one_counter_moves_by_30_milliseconds() -> None:
    assert masks(0x68) == set()
    moved = []
    for node_id in NODES:
        for before, after in pairwise(frames_of(node_id)):
            for gpu, (x, y) in enumerate(
                zip(before.thermal_violation_ns or (), after.thermal_violation_ns or (), strict=True)
            ):
                if (y or 0) > (x or 0):
                    moved.append((node_id, gpu, (y or 0) - (x or 0)))
    assert [grown for _, _, grown in moved] == [30_000_000]


def test_corrected_errors_rise_slowly_on_one_gpu_and_uncorrected_ones_never() -> None:
    risen = []
    for node_id in NODES:
        first, last = frames_of(node_id)[0], frames_of(node_id)[-1]
        before, after = first.ecc_sbe_volatile_count or (), last.ecc_sbe_volatile_count or ()
        risen += [(y or 0) - (x or 0) for x, y in zip(before, after, strict=True) if x != y]
        assert set(last.ecc_dbe_volatile_count or ()) == {0}
    assert len(risen) == 1
    assert 3 <= risen[0] <= 40


def test_an_application_xid_and_an_unknown_code_and_nothing_else() -> None:
    events = [record for record in healthy() if isinstance(record, KernelEvent)]
    assert [(event.code, event.severity) for event in events] == [(43, "app"), (221, "unknown")]
    assert events[0].node_id in ("node-0006", "node-0007")


def test_one_port_trickles_pause_frames() -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    for node_id in NODES:
        ports = [r for r in healthy() if isinstance(r, FabricFrame) and r.node_id == node_id]
        for before, after in pairwise(ports):
            if after.agent_session == before.agent_session:
                for nic, (x, y) in enumerate(zip(before.tx_pause_frames, after.tx_pause_frames, strict=True)):
                    if y != x:
                        seconds = (after.event_time_ns - before.event_time_ns) * 1e-9
                        rates.setdefault((node_id, nic), []).append(((y or 0) - (x or 0)) / seconds)
    [trickle] = rates.values()
    assert statistics.mean(trickle) == pytest.approx(20, abs=1)


def test_one_agent_restarts_with_a_new_session_and_its_counters_begin_anew() -> None:
    sessions = {node_id: {frame.agent_session for frame in frames_of(node_id)} for node_id in NODES}
    [restarted] = [node_id for node_id, seen in sessions.items() if len(seen) == 2]
    states = [r for r in healthy() if isinstance(r, NodeStatus) and r.node_id == restarted and r.state != "heartbeat"]
    assert [status.state for status in states] == ["start", "stop", "start"]
    assert states[1].agent_session != states[2].agent_session
    assert states[2].seq == 0
    assert len({status.boot_id for status in states}) == 1
    own = frames_of(restarted)
    reset = [(x, y) for x, y in pairwise(own) if x.agent_session != y.agent_session]
    [(before, after)] = reset
    assert after.seq == 0
    assert after.event_time_ns - before.event_time_ns > 1_900_000_000
    assert all(
        (y or 0) < (x or 0)
        for x, y in zip(before.power_violation_ns or (), after.power_violation_ns or (), strict=True)
    )
    # Steps of that time are late, not lost.
    steps = [t.step for t in timings(_job_of(restarted)) if t.node_id == restarted]
    assert steps == list(range(len(steps)))


def _job_of(node_id: str) -> str:
    return "finetune-8b" if node_id in NODES[6:] else "pretrain-70b"


def test_sequences_count_up_without_gaps_in_every_session() -> None:
    expected: dict[tuple[str, str], int] = {}
    for record in healthy():
        if isinstance(record, GpuFrame | NodeStatus | FabricFrame):
            key = type(record).__name__, record.agent_session
            assert record.seq == expected.get(key, 0)
            expected[key] = record.seq + 1


def test_the_first_five_steps_warm_up_and_a_checkpoint_comes_every_25_seconds() -> None:
    steps = {t.step: t for t in timings("pretrain-70b")}
    assert [step for step, t in steps.items() if t.phase == "warmup"] == [0, 1, 2, 3, 4]
    checkpoints = [step for step, t in steps.items() if t.phase == "checkpoint"]
    assert checkpoints == [50, 100][: len(checkpoints)]
    assert checkpoints
    typical = statistics.median(t.step_us[0] or 0 for t in steps.values() if t.phase == "train")
    assert typical == pytest.approx(500_000, rel=0.03)
    for step in (0, 1, *checkpoints):
        assert (steps[step].step_us[0] or 0) > 1.5 * typical


def test_the_last_stage_is_eight_percent_heavier() -> None:
    steps = [t for t in timings("pretrain-70b") if t.phase == "train"]
    by_node = {
        node_id: statistics.median(c or 0 for t in steps if t.node_id == node_id for c in t.compute_us or ())
        for node_id in NODES[:6]
    }
    first, last = statistics.mean(list(by_node.values())[:3]), statistics.mean(list(by_node.values())[3:])
    assert last / first == pytest.approx(1.08, abs=0.01)


def test_some_steps_have_one_rank_held_up_for_once_by_its_host() -> None:
    spikes = []
    for job_id in ("pretrain-70b", "finetune-8b"):
        spikes += [
            (t.step, rank)
            for t in timings(job_id)
            if t.phase == "train"
            for rank, host in zip(t.rank, t.host_us or (), strict=True)
            if (host or 0) > 60_000
        ]
    assert 2 <= len(spikes) <= 10


def test_own_time_scatters_by_four_tenths_of_a_percent_around_its_device() -> None:
    ratios: dict[int, list[float]] = {}
    for timing in timings("finetune-8b"):
        if timing.phase != "train":
            continue
        both = [t for t in timings("finetune-8b") if t.step == timing.step]
        median = statistics.median(own or 0 for t in both for own in t.own_us or ())
        for rank, own in zip(timing.rank, timing.own_us or (), strict=True):
            ratios.setdefault(rank, []).append((own or 0) / median)
    spread = [
        statistics.median(abs(r - statistics.median(values)) for r in values) * 1.4826 for values in ratios.values()
    ]
    assert statistics.mean(spread) == pytest.approx(0.004, abs=0.001)
    offsets = [statistics.median(values) for values in ratios.values()]
    assert 0.001 < statistics.stdev(offsets) < 0.006


def test_own_compute_host_and_data_add_up_and_waits_are_what_collectives_took() -> None:
    for timing in timings("pretrain-70b"):
        columns = (timing.own_us, timing.compute_us, timing.host_us, timing.data_us, timing.wait_us, timing.step_us)
        assert [group.group for group in timing.collectives] == ["tp", "pp", "dp"]
        for index in range(len(timing.rank)):
            own, compute, host, data, wait, step = (column[index] or 0 for column in columns if column is not None)
            assert own == compute + host + data
            assert step == own + wait
            inside = sum(group.duration_us[index] or 0 for group in timing.collectives)
            assert abs(inside - wait) <= 10
