"""Device peers: nodes of a job without step timings against each other, and what looks like an odd node and is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import JOB, SITE, at, gpu_frame, job, placement, policy, uuid_of, xid_event

from schemas.events import HostLoad, NodeStatus
from schemas.fleet import Node, RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.device_peers import DevicePeers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schemas.findings import Finding

TICK_S = 5
HEALTHY = {"gpu_util_pct": 99, "sm_clock_mhz": 1980, "thermal_violation_ns": 0, "nvlink_crc_errors": 0}
LINK = {"pcie_link_gen": 5, "pcie_link_width": 16, "pcie_max_link_gen": 5, "pcie_max_link_width": 16}
ODD = "node-2"


def roster_of(nodes: int = 5, *, step_timings: bool = False, state: str = "running") -> Roster:
    roster = Roster()
    roster.take(job(2 * nodes, step_timings=step_timings, state=state))
    for node in range(nodes):
        roster.take(placement([2 * node, 2 * node + 1], node_id=f"node-{node}"))
    return roster


def gpus(rule: DevicePeers, roster: Roster, tick: int, node_id: str, columns: Mapping[str, Any]) -> None:
    rule.on_gpus(gpu_frame(TICK_S * tick + 1, node_id=node_id, gpus=2, **{**HEALTHY, **LINK, **columns}), roster)


def heard(
    odd: Callable[[int], Mapping[str, Any]],
    *,
    roster: Roster | None = None,
    ticks: int = 40,
    nodes: int = 5,
    alike: int = 1,
    code_at: int | None = None,
    code: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Findings where GPU columns of the first `alike` odd nodes are `odd(tick)`, all others healthy, a frame every 5 s."""
    rule, known, found = DevicePeers(SITE), roster or roster_of(nodes), []
    odd_ones = {f"node-{2 + number}" for number in range(alike)}
    for tick in range(ticks):
        for node in range(nodes):
            node_id = f"node-{node}"
            gpus(rule, known, tick, node_id, odd(tick) if node_id in odd_ones else {})
        if tick == code_at:
            rule.on_event(xid_event(TICK_S * tick, 31, node_id=ODD, **(code or {})), known)
        found += list(rule.on_time(at(TICK_S * tick + 4), known))
    return found


def stalled_from(first: int) -> Callable[[int], Mapping[str, Any]]:
    return lambda tick: {"gpu_util_pct": [0, 99]} if tick >= first else {}


def test_a_gpu_that_stands_still_alone_is_told_after_two_minutes_and_about_its_node() -> None:
    (finding,) = heard(stalled_from(4))
    assert (finding.kind, finding.severity, finding.state) == ("device_peers", "warning", "open")
    assert (finding.subject.level, finding.subject.node_id, finding.job_id) == ("node", ODD, JOB)
    assert (finding.onset_ns, finding.event_time_ns) == (at(20), at(140))
    assert (finding.values["cause_class"], finding.values["metric"]) == ("gpu_stalled", "gpu_util_pct")
    assert (finding.values["figure"], finding.values["peer_median"], finding.values["nodes"]) == (0, 99, 5)


def test_a_code_of_the_kernel_and_a_stall_are_two_witnesses_and_need_ten_seconds() -> None:
    (finding,) = heard(stalled_from(4), code_at=4)
    assert (finding.event_time_ns, finding.values["code"]) == (at(30), 31)
    assert "after Xid 31" in finding.explanation


@pytest.mark.parametrize(
    ("code_at", "code"),
    [(4, {"trusted": False}), (4, {"gpu_uuid": uuid_of(ODD, 7), "pci_bus_id": None}), (30, {})],
    ids=["a line that a user process may have written", "a GPU that is not the job's", "a code that comes later"],
)
def test_another_code_shortens_nothing(code_at: int, code: dict[str, Any]) -> None:
    (finding,) = heard(stalled_from(4), code_at=code_at, code=code)
    assert (finding.event_time_ns, finding.values["code"]) == (at(140), None)


def test_a_code_without_a_stall_and_a_stall_of_under_two_minutes_say_nothing() -> None:
    assert heard(lambda _: {}, code_at=4) == []
    assert heard(lambda tick: {"gpu_util_pct": [0, 99]} if 4 <= tick < 26 else {}) == []
    assert heard(lambda tick: {"gpu_util_pct": [0, 99]} if tick % 20 else {}, ticks=80) == []


@pytest.mark.parametrize(
    ("odd", "cause_class"),
    [
        (lambda tick: {"thermal_violation_ns": [0, tick * 500_000_000]}, "thermal"),
        (lambda tick: {"nvlink_crc_errors": [tick * 50, 0]}, "nvlink"),
        (lambda tick: {"pcie_link_width": [16, 8]}, "pcie"),
        (lambda tick: {"pcie_link_gen": [4, 5]}, "pcie"),
        (lambda tick: {"sm_clock_mhz": [1980, 1700]}, "clock"),
    ],
)
def test_each_metric_of_gpus_names_its_class(odd: Callable[[int], Mapping[str, Any]], cause_class: str) -> None:
    (finding,) = heard(odd)
    assert (finding.subject.node_id, finding.values["cause_class"]) == (ODD, cause_class)


@pytest.mark.parametrize(
    "odd",
    [
        {"gpu_util_pct": [50, 99]},
        {"sm_clock_mhz": [1980, 1800]},
        {"pcie_link_gen": 1, "gpu_util_pct": [60, 60], "clock_event_reasons_mask": 1},
        {"gpu_util_pct": None, "sm_clock_mhz": None},
    ],
)
def test_small_differences_links_of_idle_gpus_and_unknown_figures_are_nothing(odd: dict[str, Any]) -> None:
    columns = {name: value for name, value in odd.items() if value is not None}
    assert heard(lambda _: columns) == []


def test_three_nodes_that_go_out_together_are_nobodys_fault_and_two_may_be() -> None:
    assert heard(stalled_from(4), nodes=20, alike=3) == []
    assert len(heard(stalled_from(4), nodes=20, alike=2)) == 2


def test_nodes_that_go_out_one_after_the_other_are_each_at_fault() -> None:
    starts = {"node-2": 0, "node-3": 15, "node-4": 30}
    rule, roster, found = DevicePeers(SITE), roster_of(20), []
    for tick in range(70):
        for node in range(20):
            node_id = f"node-{node}"
            stalls = tick >= starts.get(node_id, 1000)
            gpus(rule, roster, tick, node_id, {"gpu_util_pct": [0, 99]} if stalls else {})
        found += list(rule.on_time(at(TICK_S * tick), roster))
    assert [finding.subject.node_id for finding in found] == list(starts)


@pytest.mark.parametrize(("place", "named"), [("leaf", 0), ("rack", 0), ("zone", 2)])
def test_two_nodes_of_one_leaf_or_rack_share_their_cause(place: str, named: int) -> None:
    roster = roster_of(20)
    for node in range(20):
        own = {place: "shared" if node in (2, 3) else f"other-{node}"}
        roster.take(Node(node_id=f"node-{node}", effective_from_ns=at(0), **own))
    assert len(heard(stalled_from(4), roster=roster, nodes=20, alike=2)) == named


def test_all_nodes_idle_alike_say_nothing() -> None:
    assert heard(stalled_from(0), alike=3, nodes=5) == []
    rule, roster = DevicePeers(SITE), roster_of()
    for tick in range(40):
        for node in range(5):
            gpus(rule, roster, tick, f"node-{node}", {"gpu_util_pct": 0})
    assert list(rule.flush(roster)) == []


def test_three_nodes_are_too_few_and_a_wide_spread_hides_nobody_who_is_far_off() -> None:
    assert heard(stalled_from(0), nodes=3) == []
    four = [{"gpu_util_pct": util} for util in (99, 90, 80, 70)]
    rule, roster, found = DevicePeers(SITE), roster_of(), []
    for tick in range(40):
        for node, columns in enumerate([*four, {"gpu_util_pct": 30}]):
            gpus(rule, roster, tick, f"node-{node}", columns)
        found += list(rule.on_time(at(TICK_S * tick), roster))
    assert found == []  # 50 points below the median of 80 would be out, were the others alike


def test_a_job_with_timings_one_that_ended_and_an_unknown_node_are_not_compared() -> None:
    assert heard(stalled_from(0), roster=roster_of(step_timings=True)) == []
    assert heard(stalled_from(0), roster=roster_of(state="ended")) == []
    assert heard(stalled_from(0), roster=Roster()) == []


def test_it_is_cleared_a_minute_after_the_node_is_like_its_peers_again() -> None:
    opened, cleared = heard(lambda tick: {"gpu_util_pct": [0, 99]} if tick < 30 else {}, ticks=60)
    assert (opened.state, cleared.state, opened.finding_id == cleared.finding_id) == ("open", "cleared", True)
    assert cleared.event_time_ns == at(5 * 30 + 60)


def test_a_site_sets_the_persistence() -> None:
    roster = roster_of()
    roster.policy = policy({"device_peers": RulePolicy(thresholds={"persist_ns": 30_000_000_000})})
    (finding,) = heard(stalled_from(4), roster=roster)
    assert finding.event_time_ns == at(50)


def ports_of(tick: int, node_id: str, rate_gbps: float, errors: int, pauses: int) -> FabricFrame:
    return FabricFrame(
        view="host",
        node_id=node_id,
        agent_session="s1",
        seq=tick,
        event_time_ns=at(TICK_S * tick + 1),
        device=("mlx5_0", "mlx5_1"),
        port=("1", "1"),
        link_state=("active", "active" if rate_gbps else "down"),
        rate_gbps=(400.0, rate_gbps),
        counters={"rx_crc_errors_phy": (0, errors)},
        pfc_port=(0,),
        pfc_priority=(3,),
        rx_pause_frames=(0,),
        tx_pause_frames=(pauses,),
    )


@pytest.mark.parametrize(
    ("rate_gbps", "errors", "pauses", "cause_class"),
    [
        (100.0, 0, 0, "nic"),
        (0.0, 0, 0, "nic"),
        (400.0, 60, 0, "link"),
        (400.0, 0, 5_000, "pause_storm"),
        (400.0, 40, 400, None),
    ],
)
def test_each_metric_of_ports_names_its_class(
    rate_gbps: float, errors: int, pauses: int, cause_class: str | None
) -> None:
    rule, roster, found = DevicePeers(SITE), roster_of(), []
    for tick in range(40):
        for node in range(5):
            told = (rate_gbps, errors * tick, pauses * tick) if f"node-{node}" == ODD else (400.0, 0, 0)
            rule.on_ports(ports_of(tick, f"node-{node}", *told), roster)
        found += list(rule.on_time(at(TICK_S * tick), roster))
    assert [finding.values["cause_class"] for finding in found] == ([cause_class] if cause_class else [])


@pytest.mark.parametrize(
    ("busy", "pressure", "cause_class"),
    [(0.97, 0.5, "host"), (0.24, 30.0, "data"), (0.97, 30.0, "host"), (0.5, 9.0, None)],
)
def test_a_busy_host_and_one_that_waits_for_disks_are_told_in_the_order_of_priority(
    busy: float, pressure: float, cause_class: str | None
) -> None:
    rule, roster, found = DevicePeers(SITE), roster_of(), []
    for tick in range(40):
        for node in range(5):
            odd = f"node-{node}" == ODD
            load = HostLoad(
                observed_ns=at(TICK_S * tick),
                cpu_busy_ratio=busy if odd else 0.24,
                io_pressure_some_pct=pressure if odd else 0.5,
            )
            rule.on_status(
                NodeStatus(
                    node_id=f"node-{node}",
                    agent_session="s1",
                    seq=tick,
                    event_time_ns=at(TICK_S * tick),
                    state="heartbeat",
                    host=load,
                ),
                roster,
            )
        found += list(rule.on_time(at(TICK_S * tick), roster))
    assert [finding.values["cause_class"] for finding in found] == ([cause_class] if cause_class else [])


@pytest.mark.parametrize("split", [1, 9, 29, 33])
def test_a_restart_at_any_time_changes_nothing(split: int) -> None:
    roster = roster_of()

    def run(restart_at: int | None) -> list[Finding]:
        rule, found = DevicePeers(SITE), []
        for tick in range(60):
            if tick == restart_at:
                snapshot, rule = rule.snapshot(), DevicePeers(SITE)
                rule.restore(snapshot)
            for node in range(5):
                odd = {"thermal_violation_ns": [0, min(tick, 35) * 500_000_000]} if f"node-{node}" == ODD else {}
                gpus(rule, roster, tick, f"node-{node}", odd)
            found += list(rule.on_time(at(TICK_S * tick + 4), roster))
        return found

    assert run(split) == run(None)
    assert [finding.state for finding in run(None)] == ["open", "cleared"]


def test_nodes_that_arrive_in_another_order_within_a_piece_give_the_same() -> None:
    def run(order: list[int]) -> list[Finding]:
        rule, roster, found = DevicePeers(SITE), roster_of(), []
        for tick in range(40):
            for node in order:
                gpus(rule, roster, tick, f"node-{node}", stalled_from(4)(tick) if f"node-{node}" == ODD else {})
            found += list(rule.on_time(at(TICK_S * tick), roster))
        return found

    assert run([0, 1, 2, 3, 4]) == run([4, 2, 0, 3, 1]) != []


def heartbeat(tick: int, node_id: str, state: str = "heartbeat") -> NodeStatus:
    return NodeStatus(node_id=node_id, agent_session="s1", seq=tick, event_time_ns=at(TICK_S * tick), state=state)


def of_silence(
    gone: Callable[[int, str], bool], *, heartbeats_go_on: bool = False, last_word: str = "heartbeat", ticks: int = 30
) -> list[Finding]:
    """Findings where frames of a node stop once it is gone, and its heartbeats too unless they go on."""
    rule, roster, found = DevicePeers(SITE), roster_of(), []
    for tick in range(ticks):
        for node in range(5):
            node_id = f"node-{node}"
            is_gone = gone(tick, node_id)
            if not is_gone:
                gpus(rule, roster, tick, node_id, {})
            if not is_gone or heartbeats_go_on:
                says = last_word if gone(tick + 1, node_id) and not is_gone else "heartbeat"
                rule.on_status(heartbeat(tick, node_id, says), roster)
        found += list(rule.on_time(at(TICK_S * tick + 4), roster))
    return found


def test_a_node_that_is_not_heard_on_any_topic_for_half_a_minute_is_lost_until_it_is_heard_again() -> None:
    opened, cleared = of_silence(lambda tick, node: node == ODD and 5 <= tick < 15)
    assert (opened.values["cause_class"], opened.subject.node_id) == ("node_lost", ODD)
    assert (opened.onset_ns, opened.event_time_ns) == (at(21), at(55))
    assert (cleared.state, cleared.event_time_ns) == ("cleared", at(65 + 60))


def test_a_node_of_which_one_stream_comes_is_not_lost_nor_is_one_that_said_goodbye() -> None:
    assert of_silence(lambda tick, node: node == ODD and tick >= 5, heartbeats_go_on=True) == []
    for word in ("stop", "maintenance"):
        assert of_silence(lambda tick, node: node == ODD and tick >= 5, last_word=word) == []


def test_many_nodes_that_fall_silent_at_once_are_no_lost_nodes() -> None:
    assert of_silence(lambda tick, node: node in {"node-2", "node-3", "node-4"} and tick >= 5) == []
    assert of_silence(lambda tick, node: tick >= 5) == []


def test_what_went_out_together_stays_nobodys_fault_when_some_of_it_is_over_first() -> None:
    ends = {"node-2": 20, "node-3": 25, "node-4": 60}
    rule, roster, found = DevicePeers(SITE), roster_of(20), []
    for tick in range(60):
        for node in range(20):
            node_id = f"node-{node}"
            stalls = 4 <= tick < ends.get(node_id, 0)
            gpus(rule, roster, tick, node_id, {"gpu_util_pct": [0, 99]} if stalls else {})
        found += list(rule.on_time(at(TICK_S * tick), roster))
    assert found == []


def test_two_hot_nodes_of_one_cooling_zone_are_the_zones() -> None:
    roster = roster_of(20)
    for node in range(20):
        roster.take(Node(node_id=f"node-{node}", effective_from_ns=at(0), zone="hall"))
    assert heard(lambda tick: {"thermal_violation_ns": [0, tick * 500_000_000]}, roster=roster, nodes=20, alike=2) == []
