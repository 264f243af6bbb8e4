"""Telemetry of the benchmark's faults: each shows where its truth says, and nowhere else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from benchmark_readings import (
    END,
    ONSET,
    RAIL,
    faulty,
    frames,
    in_group,
    only,
    per_rank,
    port_values,
    published,
    timings,
)

from agents.simulation.benchmark import generate
from agents.simulation.benchmark.case import FaultKind
from agents.simulation.benchmark.shapes import SHAPES
from schemas.events import HostLoad, NodeStatus
from schemas.fleet import Node
from schemas.frames import GpuFrame


@pytest.mark.parametrize("shape", ["dp64", "tp8-dp8", "tp4-pp4-dp4"])
@pytest.mark.parametrize("severity", [0.1, 0.5])
def test_a_slow_gpu_waits_least_and_its_peers_pay(shape: str, severity: float) -> None:
    run = generate(faulty("gpu_compute", severity, shape), 3)
    truth = only(run)
    rank = truth.culprits[0].rank
    assert rank is not None
    durations, instances = in_group(run, "dp")
    held = slice(ONSET, END)
    peers = np.flatnonzero(instances == instances[rank])
    assert peers[np.median(durations[held], axis=0)[peers].argmin()] == rank
    own = per_rank(run, "own_us")
    ratio = np.median(own[held, rank]) / np.median(own[: ONSET - 1, rank][6:])
    assert ratio == pytest.approx(1 + severity, rel=0.05)
    assert truth.severity == severity
    without = generate(replace(run.case, faults=()), 3)
    paid = sum(run.step_seconds()[held]) / sum(without.step_seconds()[held])
    assert paid == pytest.approx(truth.impact_S, rel=1e-3)


def test_what_a_step_takes_is_own_time_and_waiting() -> None:
    for name in ("dp64", "tp8-dp8", "tp4-pp4-dp4", "tp4-pp2-ep4-dp8"):
        case = faulty("gpu_compute", 0.2, name)
        for record in timings(generate(case, 1)):
            if record.phase != "checkpoint":
                assert record.own_us is not None
                assert record.wait_us is not None
                for place, step_us in enumerate(record.step_us):
                    waits = sum(collective.duration_us[place] or 0 for collective in record.collectives)
                    assert record.wait_us[place] == waits
                    assert abs((step_us or 0) - (record.own_us[place] or 0) - waits) <= 1


def test_the_last_stage_waits_in_the_pipeline_for_a_slow_first_one() -> None:
    run = generate(faulty("gpu_compute", 0.5, "tp4-pp4-dp4", stage=0), 2)
    truth = only(run)
    assert truth.culprits[0].stage == 0
    waits, instances = in_group(run, "pp")
    rank = truth.culprits[0].rank
    assert rank is not None
    replica = np.flatnonzero(instances == instances[rank])
    more = np.median(waits[ONSET:END], axis=0) - np.median(waits[8:ONSET], axis=0)
    assert more[replica[-1]] > 0.2e6
    assert more[rank] < 0.1e6


@pytest.mark.parametrize("view", ["folded", "folded_recorded", "separated"])
def test_a_tensor_groups_members_look_equal_where_the_sync_is_inside(view: str) -> None:
    shape = SHAPES["tp8-dp8"]
    run = generate(faulty("gpu_compute", 0.3, jobs=(shape.job(tensor_view=view),)), 4)
    truth = only(run)
    culprit = truth.culprits[0]
    group = culprit.ranks or next(place.ranks for place in truth.acceptable if place.level == "tp_group")
    assert group is not None
    own = np.median(per_rank(run, "own_us")[ONSET:END], axis=0)
    assert (own.max() / own[list(group)].min() < 1.02) == (view != "separated")
    assert (culprit.level == "tp_group") == (view == "folded")
    groups = {collective.group for record in timings(run) for collective in record.collectives}
    assert ("tp" in groups) == (view != "folded")
    if view != "folded":
        durations, _ = in_group(run, "tp")
        waits = np.median(durations[ONSET:END], axis=0)[list(group)]
        assert group[int(waits.argmin())] == culprit.rank


def test_contention_takes_host_time_of_a_whole_node_and_fills_its_processors() -> None:
    run = generate(faulty("host_contention", 0.3), 5)
    truth = only(run)
    node_id = truth.culprits[0].id
    host = np.median(per_rank(run, "host_us")[ONSET:END], axis=0)
    slow = np.flatnonzero(host > 3 * np.median(host))
    assert sorted(slow) == sorted(place.rank or 0 for place in truth.acceptable if place.level == "rank")
    loads: dict[str, list[float]] = defaultdict(list)
    for record in frames(run, NodeStatus, True, truth):
        assert isinstance(record.host, HostLoad)
        loads[record.node_id].append(record.host.cpu_busy_ratio or 0.0)
    busy = {node: np.mean(values) for node, values in loads.items()}
    assert max(busy, key=lambda node: busy[node]) == node_id
    assert busy[node_id] > 0.9
    assert sorted(busy.values())[-2] < 0.4


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_a_nic_at_a_part_of_its_speed_says_so_at_both_ends_and_holds_up_its_ring(share: float) -> None:
    run = generate(faulty("nic_speed", 0.0, speed_share=share), 6)
    truth = only(run)
    for view, place in (("host", truth.culprits[0]), ("switch", truth.acceptable[0])):
        speeds = port_values(run, truth, "rate_gbps", view)
        assert [name for name, speed in speeds.items() if speed != 400.0] == [place.id]
        assert speeds[place.id] == 400.0 * share
    durations, instances = in_group(run, "dp")
    shortest = {number: np.median(durations[ONSET:END, instances == number].min(axis=1)) for number in set(instances)}
    nic = int((truth.culprits[0].device or "")[-1])
    slowest = max(shortest, key=lambda number: shortest[number])
    assert slowest == nic
    assert shortest[nic] / np.median(list(shortest.values())) == pytest.approx(1 / share, rel=0.1)


def test_a_lossy_link_counts_errors_where_it_is() -> None:
    for transport, counter in (("roce", "rx_crc_errors_phy"), ("infiniband", "symbol_error")):
        run = generate(faulty("link_loss", 0.3, fleet=RAIL.fleet(transport=transport)), 7)
        truth = only(run)
        grown = port_values(run, truth, counter)
        assert [name for name, growth in grown.items() if growth > 0] == [truth.culprits[0].id]
        switch = port_values(run, truth, "SAI_PORT_STAT_IF_IN_ERRORS", "switch")
        assert [name for name, growth in switch.items() if growth > 0] == [truth.acceptable[0].id]


def test_a_slow_link_without_counters_is_told_by_transfers_alone() -> None:
    run = generate(faulty("link_slow", 0.3, counters_visible=False), 7)
    truth = only(run)
    assert {place.level for place in truth.acceptable} >= {"job", "port"}
    assert not any(port_values(run, truth, "rx_crc_errors_phy").values())
    durations, instances = in_group(run, "dp")
    nic = int((truth.culprits[0].device or "")[-1])
    mine = np.median(durations[ONSET:END, instances == nic].min(axis=1))
    others = np.median(durations[ONSET:END, instances != nic].min(axis=1))
    # All members wait alike: nobody is late.
    assert mine > 3 * others


@pytest.mark.parametrize("fabric", ["rail", "lingjun"])
def test_a_degraded_switch_is_told_by_its_ports_and_those_of_its_nics(fabric: str) -> None:
    run = generate(faulty("switch_degraded", 0.3, fleet=RAIL.fleet(shape=fabric)), 8)
    truth = only(run)
    switch_id = truth.culprits[0].switch_id
    assert ("rail" in {place.level for place in truth.culprits}) == (fabric == "rail")
    grown = port_values(run, truth, "SAI_PORT_STAT_IF_OUT_DISCARDS", "switch")
    assert {name.split("/")[0] for name, growth in grown.items() if growth > 0} == {switch_id}
    nodes = [record for record in published(run) if isinstance(record, Node)]
    for node in nodes:
        assert (node.leaf is None, bool(node.rail)) == ((True, True) if fabric == "rail" else (False, False))
        assert None not in (node.rack, node.zone, node.pod)
    registered = {name for node in nodes for name in (*node.rail, *([node.leaf] if node.leaf else []))}
    assert switch_id in registered


def test_a_pcie_link_with_fewer_lanes_shows_at_the_gpu_and_in_its_copies() -> None:
    run = generate(faulty("pcie_downgrade", 0.0, speed_share=0.25), 9)
    truth = only(run)
    narrow = {
        f"{record.node_id}/{uuid}": width
        for record in frames(run, GpuFrame, True, truth)
        for uuid, width in zip(record.gpu_uuid, record.pcie_link_width, strict=True)
        if width != 16
    }
    assert narrow == {truth.culprits[0].id: 4}
    data = per_rank(run, "data_us")
    rank = truth.culprits[0].rank
    assert np.median(data[ONSET:END, rank]) > 2.5 * np.median(data[ONSET:END])


def test_heat_brings_bits_clocks_temperature_and_violation_time_together() -> None:
    run = generate(faulty("thermal", 0.5, pattern="ramp", ramp_steps=20), 10)
    truth = only(run)
    readings: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for record in frames(run, GpuFrame, True, truth):
        columns = (record.clock_event_reasons_mask, record.sm_clock_mhz, record.gpu_temp_c, record.thermal_violation_ns)
        for uuid, *values in zip(record.gpu_uuid, *columns, strict=True):
            readings[f"{record.node_id}/{uuid}"].append(tuple(values))
    hot = {name for name, values in readings.items() if any(mask & 0x60 for mask, *_ in values)}
    assert hot == {truth.culprits[0].id}
    mask, clock, temperature, violation = readings[truth.culprits[0].id][-1]
    assert mask & 0x60 == 0x60
    assert clock < 1500
    assert temperature > 80
    assert violation - readings[truth.culprits[0].id][0][3] > 10e9


def test_a_zones_storm_hits_the_count_asked_for_in_one_zone_and_no_node_is_to_pay() -> None:
    run = generate(faulty("zone_throttle", 0.3, count=12), 11)
    truth = only(run)
    hot = {
        f"{record.node_id}/{uuid}"
        for record in frames(run, GpuFrame, True, truth)
        for uuid, mask in zip(record.gpu_uuid, record.clock_event_reasons_mask, strict=True)
        if mask & 0x60
    }
    assert len(hot) == 12
    assert hot == {place.id for place in truth.acceptable if place.level == "gpu"}
    zones = {record.node_id: record.zone for record in published(run) if isinstance(record, Node)}
    assert {zones[name.split("/")[0]] for name in hot} == {truth.culprits[0].id}
    assert not truth.allows("drain_node", min(hot).split("/")[0])


@pytest.mark.parametrize("kind", ["pause_storm", "slow_receiver"])
def test_who_pauses_transmits_and_victims_receive(kind: FaultKind) -> None:
    run = generate(faulty(kind, 0.3, fleet=RAIL.fleet(shape="lingjun")), 12)
    truth = only(run)
    sent, received = port_values(run, truth, "tx_pause_us"), port_values(run, truth, "rx_pause_us")
    culprit = truth.culprits[0].id
    assert max(sent, key=lambda name: sent[name]) == culprit
    assert received[culprit] == 0
    assert sum(growth > 0 for growth in received.values()) == 24  # the other three nodes of the leaf
    other_end = port_values(run, truth, "rx_pause_us", "switch")
    assert max(other_end, key=lambda name: other_end[name]) == truth.acceptable[0].id
    bytes_in = port_values(run, truth, "rx_data_bytes")
    assert bytes_in[culprit] < 0.6 * np.median(list(bytes_in.values()))


def test_a_storm_reaches_as_many_victims_as_asked() -> None:
    run = generate(faulty("pause_storm", 0.3, count=40), 12)
    received = port_values(run, only(run), "rx_pause_us")
    assert sum(growth > 0 for growth in received.values()) == 40


def test_loaders_stall_on_one_host_or_on_all() -> None:
    stalls: tuple[tuple[FaultKind, int], ...] = (("loader_stall", 8), ("storage_stall", 64))
    for kind, ranks in stalls:
        run = generate(faulty(kind, 0.3), 13)
        data = per_rank(run, "data_us")
        slow = np.median(data[ONSET:END], axis=0) > 10 * np.median(data[8:ONSET])
        assert slow.sum() == ranks
        assert only(run).culprits[0].level == ("node" if ranks == 8 else "job")


def test_collections_come_to_all_ranks_at_times_of_their_own() -> None:
    run = generate(faulty("garbage_collection", 0.1, period_steps=10), 14)
    host = per_rank(run, "host_us")
    spikes = host[ONSET:END] > 1.8 * np.median(host)
    assert (spikes.sum(axis=0) == 3).mean() > 0.9
    assert spikes.any(axis=1).sum() > 25


def test_a_fleets_power_cap_shows_everywhere_and_slower_code_nowhere() -> None:
    capped, code = (generate(faulty(kind, 0.05), 15) for kind in ("fleet_power_cap", "fleet_code"))
    for run, share in ((capped, 1.0), (code, 0.0)):
        truth = only(run)
        bits = [
            bool(mask & 0x4)
            for record in frames(run, GpuFrame, True, truth)
            for mask, util in zip(record.clock_event_reasons_mask, record.gpu_util_pct, strict=True)
            if util
        ]
        before = np.mean(
            [
                bool(mask & 4)
                for record in frames(run, GpuFrame, False, truth)
                for mask in record.clock_event_reasons_mask
            ]
        )
        assert np.mean(bits) == pytest.approx(max(share, before), abs=0.06)
        assert truth.culprits[0].level == "job"
        assert truth.impact_S == pytest.approx(1.05, abs=0.015)
        assert not any(truth.allows(kind, "node-0000") for kind in ("drain_node", "cordon_node"))
    assert only(capped).identifiable
    assert not only(code).identifiable


def test_a_rack_holds_most_of_its_peers() -> None:
    run = generate(faulty("rack_slow", 0.3, fleet=RAIL.fleet(nodes_per_rack=5)), 16)
    own = np.median(per_rank(run, "own_us")[ONSET:END], axis=0)
    assert (own > 1.2 * own.min()).sum() == 40
    assert only(run).culprits[0].rack == "rack-000"
