"""Frames that say the same again: passed over or read in full, the rules say the same and end in the same state.

A rule that is restored before every frame knows of no frame before it, so it reads each in full. That holds for a rule
alone, and for all rules of an engine, which are asked together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from factories import A100, H100, SITE, at, gpu_frame, policy, uuid_of
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, stored

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.keyed import Rows
from streams.core.position import Position
from streams.core.roster import Roster
from streams.detectors.congestion import Congestion
from streams.detectors.congestion_own import CongestionOwn
from streams.detectors.ecc import UncorrectableEcc
from streams.detectors.gpu_frames import are_busy, is_busy
from streams.detectors.nic_pcie_link import NicPcieLink
from streams.detectors.nvlink import NvlinkErrors
from streams.detectors.pcie_link import PcieLink
from streams.detectors.pfc import PfcPause
from streams.detectors.port_errors import PortErrors
from streams.detectors.port_loss import PortLoss
from streams.detectors.port_speed import PortSpeed
from streams.detectors.power import Power
from streams.detectors.row_remap import RowRemap
from streams.detectors.sm_clock import SmClock
from streams.detectors.thermal import ThermalViolation
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from schemas.fleet import Policy
    from schemas.frames import GpuFrame

GPUS = 3
MS = 1_000_000

GAUGES: dict[str, list[Any]] = {
    "sm_clock_mhz": [1980, 1980, 1000, 345, None],
    "gpu_util_pct": [99, 99, 3, None],
    "clock_event_reasons_mask": [0, 0x4, 0x4, 0x1, 0x8, 0x84, None],
    "row_remap_pending": [0, 0, 1, None],
    "uncorrectable_remapped_rows": [0, 512, None],
    "pcie_link_gen": [5, 5, 1, 0, None],
    "pcie_link_width": [16, 16, 8, 63, None],
}
COUNTERS: dict[str, list[int]] = {
    "power_violation_ns": [30 * MS, 400 * MS],
    "thermal_violation_ns": [30 * MS, 90 * MS, 10**13],
    "ecc_dbe_volatile_count": [1],
    "nvlink_crc_errors": [3, 30],
    "nvlink_replay_errors": [4],
    "pcie_replay_count": [2, 40],
}
PORT_COUNTERS: dict[str, list[int]] = {
    "symbol_error": [3, 30, 65_535],
    "link_error_recovery": [1, 6],
    "port_xmit_wait": [1_000, 5_000_000],
    "np_cnp_sent": [10, 20_000],
    "rx_crc_errors": [3, 30],
    "rx_crc_errors_phy": [3, 30],
    "out_of_sequence": [30],
}
PORT_GAUGES: dict[str, list[Any]] = {
    "rate_gbps": [400.0, 400.0, 200.0, None],
    "pcie_link_width": [16, 16, 8, 63, None],
    "pcie_link_gen": [5, 5, 3, 0],
}
ODD_LIMITS: dict[str, dict[str, float]] = {
    "thermal_violation": {"violation_ns": -1},
    "power": {"hits": 0, "cap_busy_ns": 5e9, "cap_span_ns": 30e9},
    "nvlink_errors": {"crc_errors_per_s": -1},
    "pcie_link": {"generation_hits": 0, "replay_factor": 0},
    "row_remap": {"uncorrectable_rows": 0},
    "sm_clock": {"hits": 1, "ceiling_mhz": 2000},
    "pfc_pause": {"frames_per_s": -1},
    "port_errors": {"flaps": 0},
    "congestion": {"hits": 0, "packets_per_s": -1},
    "congestion_own": {"pieces": 1, "pieces_to_learn": 2, "packets_per_s": 1},
    "port_speed": {"hits": 0, "peers": 2},
    "port_loss": {"hits": 0, "crc_errors_per_s": -1},
    "nic_pcie_link": {"width_hits": 1},
}
POLICIES = [None, policy(), policy({name: RulePolicy(thresholds=limits) for name, limits in ODD_LIMITS.items()})]

Heard = Sequence[tuple["GpuFrame | FabricFrame", "Policy | None"]]


class _Steady:
    """Values of a publisher's rows that change now and then, and times at which they are read."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.seconds = 0.0
        self.session = 0
        self.policy: Policy | None = None
        self.columns: dict[str, list[Any]] = {}
        self.left_out: str | None = None

    def tick(self) -> None:
        """Let time pass; most ticks change nothing else, some change a value, and some all there is."""
        self.seconds += self.draw(st.sampled_from([1, 1, 1, 1, 1, 0.1, 0, 20, 61, -0.5]))
        self.session += self.draw(st.sampled_from([0] * 15 + [1]))
        if self.draw(st.sampled_from([False] * 15 + [True])):
            self.policy = self.draw(st.sampled_from(POLICIES))
        self.left_out = self.draw(st.sampled_from([None] * 20 + sorted(self.columns)))

    def gauge(self, name: str, choices: list[Any], change: bool) -> tuple[Any, ...]:
        column = self.columns.setdefault(name, [choices[0]] * GPUS)
        if change:
            column[self.draw(st.integers(0, GPUS - 1))] = self.draw(st.sampled_from(choices))
        return tuple(column)

    def counter(self, name: str, steps: list[int], change: bool) -> tuple[int | None, ...]:
        column = self.columns.setdefault(name, [0] * GPUS)
        if change:
            row = self.draw(st.integers(0, GPUS - 1))
            column[row] = self.draw(st.sampled_from([0, *[(column[row] or 0) + step for step in steps] * 3, None]))
        return tuple(column)

    def changed(self, names: list[str]) -> set[str]:
        return self.draw(st.sampled_from([set(), set(), set(), {self.draw(st.sampled_from(names))}, set(names)]))


@st.composite
def gpu_frames(draw: st.DrawFn) -> Heard:
    steady, frames = _Steady(draw), []
    uuids: tuple[str | None, ...] = tuple(uuid_of("node-1", gpu) for gpu in range(GPUS))
    for number in range(draw(st.integers(5, 60))):
        steady.tick()
        if draw(st.sampled_from([False] * 15 + [True])):
            uuids = draw(st.sampled_from([uuids[::-1], (uuids[0],) * GPUS, (None,) * GPUS]))
        changed = steady.changed([*GAUGES, *COUNTERS])
        columns: dict[str, Any] = {
            name: steady.gauge(name, choices, name in changed) for name, choices in GAUGES.items()
        }
        columns |= {name: steady.counter(name, steps, name in changed) for name, steps in COUNTERS.items()}
        columns.pop(steady.left_out or "", None)
        frame = gpu_frame(
            steady.seconds,
            gpus=GPUS,
            seq=number,
            session=f"s{steady.session}",
            gpu_uuid=uuids,
            sku=(H100, H100, A100),
            pcie_max_link_gen=5,
            pcie_max_link_width=16,
            **columns,
        )
        frames.append((frame, steady.policy))
    return frames


@st.composite
def fabric_frames(draw: st.DrawFn) -> Heard:
    steady, frames = _Steady(draw), []
    for number in range(draw(st.integers(5, 60))):
        steady.tick()
        changed = steady.changed(["state", "downs", "rx", "tx", "global", *PORT_COUNTERS, *PORT_GAUGES])
        counters = {name: steady.counter(name, steps, name in changed) for name, steps in PORT_COUNTERS.items()}
        counters.pop(steady.left_out or "", None)
        gauges = {name: steady.gauge(name, choices, name in changed) for name, choices in PORT_GAUGES.items()}
        gauges.pop(steady.left_out or "", None)
        frame = FabricFrame(
            view="host",
            node_id="node-1",
            agent_session=f"s{steady.session}",
            seq=number,
            event_time_ns=at(steady.seconds),
            device=tuple(f"mlx5_{port}" for port in range(GPUS)),
            port=("1",) * GPUS,
            link_state=steady.gauge("state", ["active", "active", "down", None], "state" in changed),
            link_down_events=steady.counter("downs", [1], "downs" in changed),
            rx_global_pause_frames=steady.counter("global", [40, 500], "global" in changed),
            pfc_port=(0, 1, 2),
            pfc_priority=(3, 3, 3),
            rx_pause_frames=steady.counter("rx", [40, 500], "rx" in changed),
            tx_pause_frames=steady.counter("tx", [40, 500], "tx" in changed),
            pcie_max_link_width=(16,) * GPUS,
            pcie_max_link_gen=(5,) * GPUS,
            counters=counters,
            **gauges,
        )
        frames.append((frame, steady.policy))
    return frames


def assert_passing_over_changes_nothing(rule: type[Any], heard: Heard) -> None:
    going_on, snapshot = rule(SITE), None
    for frame, in_force in heard:
        roster = Roster()
        roster.policy = in_force
        fresh = rule(SITE)
        if snapshot is not None:
            fresh.restore(stored(snapshot))
        said = [finding.model_dump_json() for finding in going_on.on_frame(frame, roster)]
        assert said == [finding.model_dump_json() for finding in fresh.on_frame(frame, roster)]
        snapshot = fresh.snapshot()
        assert repr(stored(going_on.snapshot())) == repr(stored(snapshot))


PORT_RULES = [PfcPause, PortErrors, Congestion, PortSpeed, PortLoss, NicPcieLink, CongestionOwn]
GPU_RULES = [SmClock, ThermalViolation, UncorrectableEcc, Power, NvlinkErrors, PcieLink, RowRemap]


@LAW
@given(gpu_frames())
def test_passing_over_frames_of_gpus_changes_nothing(heard: Heard) -> None:
    for rule in GPU_RULES:
        assert_passing_over_changes_nothing(rule, heard)


@LAW
@given(fabric_frames())
def test_passing_over_frames_of_ports_changes_nothing(heard: Heard) -> None:
    for rule in PORT_RULES:
        assert_passing_over_changes_nothing(rule, heard)


def assert_telling_all_rules_at_once_changes_nothing(heard: Heard, every: int) -> None:
    """Give frames to an engine, and to engines that each read one and are restored from the one before.

    Args:
        heard: frames and the policy in force.
        every: after how many frames the states are compared; between, the one that goes on makes no snapshot.
    """
    roster = Roster()
    going_on, snapshot = TelemetryEngine(SITE, 0, roster), None
    sessions: Counter[str] = Counter()
    for number, (frame, in_force) in enumerate(heard):
        roster.policy = in_force
        numbered = frame.model_copy(update={"seq": sessions[frame.agent_session]})
        sessions[frame.agent_session] += 1
        place = Position("frames", 0, number, 0)
        fresh = TelemetryEngine(SITE, 0, roster)
        if snapshot is not None:
            fresh.restore(stored(snapshot), {})
        said = [output.model_dump_json() for output in going_on.on_record(numbered, place)]
        assert said == [output.model_dump_json() for output in fresh.on_record(numbered, place)]
        snapshot = fresh.snapshot()
        if number % every == every - 1 or number == len(heard) - 1:
            assert repr(stored(going_on.snapshot())) == repr(stored(snapshot))


@LAW
@given(gpu_frames(), st.sampled_from([1, 7, 60]))
def test_telling_all_rules_of_gpus_at_once_changes_nothing(heard: Heard, every: int) -> None:
    assert_telling_all_rules_at_once_changes_nothing(heard, every)


@LAW
@given(fabric_frames(), st.sampled_from([1, 7, 60]))
def test_telling_all_rules_of_ports_at_once_changes_nothing(heard: Heard, every: int) -> None:
    assert_telling_all_rules_at_once_changes_nothing(heard, every)


@pytest.mark.parametrize("capped_from", [0, 75])
def test_time_under_the_power_cap_is_added_up_for_a_node_as_for_each_gpu(capped_from: int) -> None:
    short = policy({"power": RulePolicy(thresholds={"cap_busy_ns": 40e9, "cap_span_ns": 100e9})})
    heard = []
    for second in range(0, 150, 1):
        masks = (0x4, 0x4, 0x4) if second < capped_from else (0x4, 0x0, 0x0)
        util = (99, 99, 98 if second % 50 else 3)
        frame = gpu_frame(second, gpus=GPUS, gpu_util_pct=util, clock_event_reasons_mask=masks, sku=(H100,) * GPUS)
        heard.append((frame, short))
    assert_telling_all_rules_at_once_changes_nothing(heard, len(heard))
    roster = Roster()
    roster.policy = short
    engine = TelemetryEngine(SITE, 0, roster)
    said = [
        output.kind
        for number, (frame, _) in enumerate(heard)
        for output in engine.on_record(frame.model_copy(update={"seq": number}), Position("frames", 0, number, 0))
        if isinstance(output, Finding)
    ]
    assert said == ["power_cap"]


@pytest.mark.parametrize("rule", GPU_RULES)
@pytest.mark.parametrize("in_force", POLICIES)
def test_what_happened_once_grows_old_though_all_stands_still(rule: type[Any], in_force: Policy | None) -> None:
    healthy = {name: choices[0] for name, choices in GAUGES.items()}
    heard = []
    for second in [*range(10), *range(20, 200, 10)]:
        grown: dict[str, Any] = {name: steps[0] if second >= 2 else 0 for name, steps in COUNTERS.items()}
        frame = gpu_frame(second, gpus=GPUS, pcie_max_link_gen=5, pcie_max_link_width=16, **healthy, **grown)
        heard.append((frame, in_force))
    assert_passing_over_changes_nothing(rule, heard)


@pytest.mark.parametrize("rule", GPU_RULES)
def test_a_link_that_rests_at_a_low_generation_leaves_no_trace(rule: type[Any]) -> None:
    healthy = {name: choices[0] for name, choices in GAUGES.items()} | {"gpu_util_pct": (99, 3, 99)}
    heard = []
    for second in range(8):
        healthy["pcie_link_gen"] = (5, 1 if 2 <= second < 6 else 5, 5)
        frame = gpu_frame(second, gpus=GPUS, pcie_max_link_gen=5, pcie_max_link_width=16, **healthy)
        heard.append((frame, None))
    assert_passing_over_changes_nothing(rule, heard)


@pytest.mark.parametrize("rule", [*GPU_RULES[1:], *PORT_RULES[:-1]])
def test_a_healthy_publisher_s_frames_are_passed_over(rule: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    passed_over = []
    in_full = Rows.stand_still

    def noted(rows: Rows[Any], session: str, now_ns: int, said: tuple[object, ...]) -> bool:
        passed_over.append(in_full(rows, session, now_ns, said))
        return passed_over[-1]

    monkeypatch.setattr(Rows, "stand_still", noted)
    detector = rule(SITE)
    zeros = (0,) * GPUS
    healthy = {name: choices[0] for name, choices in GAUGES.items()} | dict.fromkeys(COUNTERS, 0)
    for second in range(5):
        frame: GpuFrame | FabricFrame
        if rule in GPU_RULES:
            frame = gpu_frame(second, gpus=GPUS, pcie_max_link_gen=5, pcie_max_link_width=16, **healthy)
        else:
            frame = FabricFrame(
                view="host",
                node_id="node-1",
                agent_session="s1",
                seq=second,
                event_time_ns=at(second),
                device=("mlx5_0", "mlx5_1", "mlx5_2"),
                port=("1",) * GPUS,
                link_state=("active",) * GPUS,
                link_down_events=zeros,
                pfc_port=(0, 1, 2),
                pfc_priority=(3, 3, 3),
                rx_pause_frames=zeros,
                tx_pause_frames=zeros,
                rate_gbps=(400.0,) * GPUS,
                pcie_link_width=(16,) * GPUS,
                pcie_max_link_width=(16,) * GPUS,
                counters=dict.fromkeys(PORT_COUNTERS, zeros),
            )
        del passed_over[:]
        assert list(detector.on_frame(frame, Roster())) == []
        assert passed_over
        assert all(passed_over) == (second >= 2)


@LAW
@given(gpu_frames())
def test_who_is_busy_is_the_same_for_all_gpus_as_for_each(heard: Heard) -> None:
    for frame, _ in heard:
        assert are_busy(frame) == [is_busy(frame, gpu) for gpu in range(GPUS)]  # type: ignore[arg-type]
