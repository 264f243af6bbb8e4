"""Which cable, node or switch explains slow transfers, and which place explains several suspects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.findings import Finding, Subject
from schemas.fleet import Job, Node, RankPlacement
from streams.core.roster import Roster
from streams.decisions.network import NetworkJudge
from streams.decisions.places import place_of_heat, shared_place

SECOND = 1_000_000_000
START = 1_760_000_000 * SECOND
TOLERANCE = 5 * SECOND


def roster(nodes: int = 8) -> Roster:
    made = Roster()
    made.take(Job(job_id="job", effective_from_ns=START, world_size=nodes * 8))
    for node in range(nodes):
        made.take(
            RankPlacement(
                job_id="job",
                effective_from_ns=START,
                node_id=f"n{node}",
                rank=tuple(range(node * 8, node * 8 + 8)),
                gpu_uuid=tuple(f"GPU-{node}-{gpu}" for gpu in range(8)),
            )
        )
    return made


def slow_job(ring: int = 2, at_s: int = 30, state: str = "open", nodes: int = 8) -> Finding:
    return Finding(
        finding_id=f"slow-{ring}",
        site_id="site",
        rule="job_pace",
        kind="network_slowdown",
        severity="warning",
        state=state,
        job_id="job",
        epoch=0,
        subject=Subject(level="job", job_id="job"),
        event_time_ns=START + at_s * SECOND,
        onset_ns=START + at_s * SECOND - 15 * SECOND,
        values={"slow_ranks": [",".join(str(node * 8 + ring) for node in range(nodes))]},
        explanation="transfers in the dp groups take 2 times their reference",
    )


def trouble(
    kind: str,
    node: str | None = "n3",
    device: str | None = "mlx5_2",
    *,
    at_s: int = 25,
    switch: str | None = None,
    port: str = "1",
    peer: str | None = None,
    **values: Any,
) -> Finding:
    who = f"{kind}-{node or switch}-{device or port}"
    return Finding(
        finding_id=who,
        site_id="site",
        rule="port_errors",
        kind=kind,
        severity="info",
        state="open",
        subject=Subject(level="port", node_id=node, switch_id=switch, device=device, port=port),
        event_time_ns=START + at_s * SECOND,
        onset_ns=START + at_s * SECOND,
        values={"peer": peer, **values},
    )


def judged(*findings: Finding, at_s: int = 60) -> list[tuple[str, str | None, str | None]]:
    judge = NetworkJudge(TOLERANCE)
    for finding in findings:
        judge.take(finding)
    verdicts = judge.decide(START + at_s * SECOND, roster())
    return [(v.cause_class, v.culprit.node_id or v.culprit.switch_id, v.culprit.device) for v in verdicts]


def test_a_port_below_its_speed_explains_the_ring_that_runs_over_its_node() -> None:
    assert judged(trouble("port_speed", peer="leaf-1/Ethernet3"), slow_job()) == [("nic", "n3", "mlx5_2")]


def test_both_ends_of_one_cable_are_one_trouble() -> None:
    host = trouble("rx_crc_errors_phy", peer="leaf-1/Ethernet3")
    switch = trouble("SAI_PORT_STAT_IF_IN_ERRORS", None, None, switch="leaf-1", port="Ethernet3", peer="n3/mlx5_2/1")
    assert judged(host, switch, slow_job()) == [("link", "n3", "mlx5_2")]


def test_without_device_evidence_nobody_is_named() -> None:
    assert judged(slow_job()) == []


def test_trouble_on_a_node_that_no_slow_ring_runs_over_explains_nothing() -> None:
    assert judged(trouble("port_speed", "elsewhere"), slow_job()) == []


def test_trouble_that_leaves_one_of_two_slow_rings_unexplained_names_nobody() -> None:
    job = slow_job()
    two = job.model_copy(update={"values": {"slow_ranks": ["0,8", "18,26"]}})
    assert judged(trouble("port_speed", "n3"), two) == []


def test_a_port_that_was_always_slower_is_no_trouble() -> None:
    assert judged(trouble("port_speed", found_at_start=True), slow_job()) == []


def test_loss_on_links_of_several_nodes_to_one_switch_names_the_switch() -> None:
    losses = [trouble("out_of_sequence", f"n{n}", peer=f"rail-2/Ethernet{n}") for n in range(6)]
    assert judged(*losses, slow_job()) == [("switch", "rail-2", None)]


def test_loss_on_links_to_many_switches_names_nobody() -> None:
    losses = [trouble("out_of_sequence", f"n{n}", peer=f"leaf-{n}/Ethernet1") for n in range(6)]
    assert judged(*losses, slow_job()) == []


def test_a_broken_cable_outweighs_what_its_peers_had_to_send_again() -> None:
    losses = [trouble("out_of_sequence", f"n{n}", peer=f"rail-2/Ethernet{n}") for n in range(6)]
    broken = trouble("symbol_error", "n3", peer="rail-2/Ethernet3")
    assert judged(*losses, broken, slow_job()) == [("link", "n3", "mlx5_2")]


def test_several_links_of_one_node_name_the_node() -> None:
    links = [trouble("port_speed", "n3", f"mlx5_{nic}", peer=f"rail-{nic}/Ethernet3") for nic in range(4)]
    assert judged(*links, slow_job()) == [("nic", "n3", None)]


def test_evidence_that_comes_late_still_names_the_port() -> None:
    judge = NetworkJudge(TOLERANCE)
    judge.take(slow_job())
    assert judge.decide(START + 40 * SECOND, roster()) == []
    judge.take(trouble("port_speed", at_s=70))
    assert [v.culprit.device for v in judge.decide(START + 80 * SECOND, roster())] == ["mlx5_2"]


def test_a_place_is_well_again_when_its_last_slow_job_is() -> None:
    judge = NetworkJudge(TOLERANCE)
    judge.take(trouble("port_speed"))
    judge.take(slow_job())
    (verdict,) = judge.decide(START + 60 * SECOND, roster())
    judge.take(slow_job(at_s=90, state="cleared"))
    assert judge.take_resolved() == [(verdict.component, START + 90 * SECOND)]


def apart(*groups: str) -> Finding:
    """Slow communicators that have no node in common, unless said otherwise: two of four nodes each."""
    return slow_job().model_copy(update={"values": {"slow_ranks": list(groups or ("5,13,21,29", "37,45,53,61"))}})


def loss(node: int, **values: Any) -> Finding:
    return trouble("out_of_sequence", f"n{node}", "mlx5_5", peer=f"rail-5/Ethernet{node}", **values)


def test_loss_towards_one_switch_explains_slow_rings_without_a_common_node() -> None:
    assert judged(*(loss(n) for n in range(8)), apart()) == [("switch", "rail-5", None)]


def test_one_node_of_each_slow_ring_on_the_lossy_switch_is_enough() -> None:
    assert judged(*(loss(n) for n in range(4)), apart("5,37", "13,45", "21,53")) == [("switch", "rail-5", None)]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([loss(n) for n in range(4)], id="one of the rings is unexplained"),
        pytest.param([loss(0), loss(4)], id="two cables that went bad at one switch"),
        pytest.param(
            [
                *(trouble("out_of_sequence", f"n{n}", peer=f"leaf-{n}/Ethernet1") for n in range(4, 8)),
                *map(loss, range(4)),
            ],
            id="half of them end elsewhere",
        ),
        pytest.param(
            [*map(loss, range(8)), trouble("symbol_error", "n3", "mlx5_5", peer="rail-5/Ethernet3")],
            id="a cable among them is broken itself",
        ),
        pytest.param([*map(loss, range(7)), loss(7, at_s=-300)], id="one of them has lost for long"),
        pytest.param(
            [trouble("port_speed", f"n{n}", "mlx5_5", peer=f"rail-5/Ethernet{n}") for n in range(8)],
            id="ports at a lower speed, each of its own",
        ),
    ],
)
def test_slow_rings_without_a_common_node_have_nobody_to_blame_for(told: list[Finding]) -> None:
    assert judged(*told, apart()) == []


@given(order=st.permutations(range(7)), split=st.integers(0, 7))
def test_neither_order_nor_a_restart_changes_the_verdict(order: list[int], split: int) -> None:
    losses = [trouble("out_of_sequence", f"n{n}", peer=f"rail-2/Ethernet{n}") for n in range(6)]
    records = [*losses, slow_job()]
    judge = NetworkJudge(TOLERANCE)
    for count, index in enumerate(order):
        if count == split:
            again = NetworkJudge(TOLERANCE)
            again.restore(judge.snapshot())
            judge = again
        judge.take(records[index])
    (verdict,) = judge.decide(START + 60 * SECOND, roster())
    assert (verdict.cause_class, verdict.culprit.switch_id, len(verdict.because)) == ("switch", "rail-2", 6)


def nodes(count: int, per_rack: int = 4, racks_per_zone: int = 4) -> dict[str, Node]:
    return {
        f"n{index}": Node(
            node_id=f"n{index}",
            effective_from_ns=START,
            gpu_uuid=tuple(f"GPU-{index}-{gpu}" for gpu in range(8)),
            rack=f"rack-{index // per_rack}",
            zone=f"zone-{index // (per_rack * racks_per_zone)}",
        )
        for index in range(count)
    }


def test_devices_of_one_rack_are_the_racks_matter() -> None:
    found = shared_place(["n4", "n5", "n5", "n6", "n7"], nodes(64))
    assert found is not None
    assert (found.kind, found.name, found.suspects) == ("rack", "rack-1", 5)
    assert found.probability < 1e-3


def test_devices_over_the_racks_of_one_zone_are_the_zones_matter() -> None:
    found = shared_place([f"n{index}" for index in range(0, 16, 2)], nodes(64))
    assert found is not None
    assert (found.kind, found.name) == ("zone", "zone-0")


@pytest.mark.parametrize(
    "suspects",
    [
        pytest.param(["n1", "n2"], id="two devices"),
        pytest.param(["n1"] * 8, id="one node"),
        pytest.param(["n1", "n20", "n40", "n60"], id="all over the fleet"),
    ],
)
def test_no_place_is_blamed_for(suspects: list[str]) -> None:
    assert shared_place(suspects, nodes(64)) is None


def test_a_fleet_of_one_zone_has_no_other_place_to_blame() -> None:
    found = shared_place(["n1", "n5", "n6"], nodes(8))
    assert found is not None
    assert (found.kind, found.name, found.probability) == ("zone", "zone-0", 1.0)


def test_nodes_without_a_known_place_are_grouped_by_none() -> None:
    bare = {f"n{i}": Node(node_id=f"n{i}", effective_from_ns=START) for i in range(8)}
    assert shared_place(["n1", "n2", "n3"], bare) is None


def test_heat_is_a_matter_of_the_cooling_zone_and_not_of_the_rack() -> None:
    found = place_of_heat(["n4", "n5", "n5", "n6", "n7"], nodes(64))
    assert found is not None
    assert (found.kind, found.name) == ("zone", "zone-0")


@pytest.mark.parametrize(
    ("hot", "kind"),
    [
        pytest.param(3, "node", id="some"),
        pytest.param(8, None, id="all: its own fans"),
        pytest.param(2, None, id="two"),
    ],
)
def test_several_hot_gpus_of_one_node_are_its_place_unless_all_are(hot: int, kind: str | None) -> None:
    found = place_of_heat(["n4"] * hot, nodes(64))
    assert (found.kind if found is not None else None) == kind
