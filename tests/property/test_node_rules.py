"""The rules of power, links, ports, clocks and heartbeats: restored at any split they say what they would have said.

The heartbeat rule also says the same for heartbeats in any order within the lateness, and the clock rule for topics
that are read in any order within it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from factories import SITE, at, gpu_frame
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_restart_changes_nothing

from schemas.events import NodeStatus
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.clock_skew import ClockSkew
from streams.detectors.congestion import Congestion
from streams.detectors.congestion_own import CongestionOwn, CongestionOwnThresholds
from streams.detectors.nic_pcie_link import NicPcieLink
from streams.detectors.node_silence import NodeSilence
from streams.detectors.nvlink import NvlinkErrors
from streams.detectors.pcie_link import PcieLink
from streams.detectors.port_errors import PortErrors
from streams.detectors.port_loss import PortLoss
from streams.detectors.port_speed import PortSpeed, PortSpeedThresholds
from streams.detectors.power import Power
from streams.detectors.row_remap import RowRemap

if TYPE_CHECKING:
    from schemas.findings import Finding
    from schemas.frames import GpuFrame

SPLIT = st.integers(0, 40)
MS = 1_000_000


def said(rule: Any, frame: Any) -> list[str]:
    return [finding.model_dump_json() for finding in rule.on_frame(frame, Roster())]


@st.composite
def streams_of_masks(draw: st.DrawFn) -> list[GpuFrame]:
    seconds, violation, frames = 0, 0, []
    for number in range(draw(st.integers(0, 40))):
        seconds += draw(st.sampled_from([1, 1, 20, 30, 70]))
        violation += draw(st.sampled_from([0, 90 * MS]))
        frames.append(
            gpu_frame(
                seconds,
                gpus=3,
                seq=number,
                session=draw(st.sampled_from(["s1"] * 5 + ["s2"])),
                gpu_util_pct=[99, 99, draw(st.sampled_from([99, 3]))],
                clock_event_reasons_mask=[draw(st.sampled_from([0x4, 0x84, None])), 0, draw(st.sampled_from([0, 0x4]))],
                power_violation_ns=[violation, 0, 0],
            )
        )
    return frames


@LAW
@given(streams_of_masks(), SPLIT)
def test_power_survives_a_restart(frames: list[GpuFrame], split: int) -> None:

    assert_restart_changes_nothing(lambda: Power(SITE), said, frames, split)


@st.composite
def streams_of_counts(draw: st.DrawFn) -> list[GpuFrame]:
    seconds, crc, replay, frames = 0, 0, 0, []
    for number in range(draw(st.integers(0, 40))):
        seconds += draw(st.sampled_from([1, 1, 1, 2, 70]))
        crc = draw(st.sampled_from([crc, crc + 5, crc + 30, crc + 30, 0]))
        replay += draw(st.sampled_from([0, 4]))
        frames.append(
            gpu_frame(
                seconds,
                gpus=1,
                seq=number,
                session=draw(st.sampled_from(["s1"] * 6 + ["s2"])),
                nvlink_crc_errors=[draw(st.sampled_from([crc, crc, crc, None]))],
                nvlink_replay_errors=[replay],
            )
        )
    return frames


@LAW
@given(streams_of_counts(), SPLIT)
def test_nvlink_survives_a_restart(frames: list[GpuFrame], split: int) -> None:

    assert_restart_changes_nothing(lambda: NvlinkErrors(SITE), said, frames, split)


FLAGS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 30, 70]),
        st.sampled_from([0, 1, None]),
        st.sampled_from([0, 1]),
        st.sampled_from([0, 512, None]),
    ),
    max_size=40,
)


@LAW
@given(FLAGS, SPLIT)
def test_row_remap_survives_a_restart(flags: list[tuple[int, int | None, int, int | None]], split: int) -> None:
    seconds, frames = 0, []
    for gap, pending, failure, rows in flags:
        seconds += gap
        columns: dict[str, Any] = {
            "row_remap_pending": [pending],
            "row_remap_failure": [failure],
            "uncorrectable_remapped_rows": [rows],
        }
        frames.append(gpu_frame(seconds, gpus=1, **columns))

    assert_restart_changes_nothing(lambda: RowRemap(SITE), said, frames, split)


READINGS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 30, 70]),
        st.sampled_from([5, 3, 1, 0, None]),
        st.sampled_from([16, 16, 8, 63, None]),
        st.sampled_from([0, 99]),
        st.sampled_from([0, 2, 40]),
    ),
    max_size=40,
)


@LAW
@given(READINGS, SPLIT)
def test_pcie_link_survives_a_restart(readings: list[tuple[int, int | None, int | None, int, int]], split: int) -> None:
    seconds, replays, frames = 0, 0, []
    for gap, generation, width, util, more in readings:
        seconds, replays = seconds + gap, replays + more
        frames.append(
            gpu_frame(
                seconds,
                gpus=1,
                gpu_util_pct=util,
                pcie_link_gen=[generation],
                pcie_link_width=[width],
                pcie_max_link_gen=5,
                pcie_max_link_width=16,
                pcie_replay_count=replays,
            )
        )

    assert_restart_changes_nothing(lambda: PcieLink(SITE), said, frames, split)


@st.composite
def streams_of_ports(draw: st.DrawFn) -> list[FabricFrame]:
    """Three ports: one that goes down and errs, counters that begin anew or stand at their end, an agent that restarts."""
    seconds, downs, errors, marks, frames = 0, 0, 0, 0, []
    for number in range(draw(st.integers(0, 40))):
        seconds += draw(st.sampled_from([1, 1, 1, 5, 70]))
        downs += draw(st.sampled_from([0, 0, 0, 1]))
        errors = draw(st.sampled_from([errors, errors + 30, errors + 30, 65_535, 0]))
        marks += draw(st.sampled_from([0, 20_000]))
        frames.append(
            FabricFrame(
                view="host",
                node_id="node-1",
                agent_session=draw(st.sampled_from(["s1"] * 6 + ["s2"])),
                seq=number,
                event_time_ns=at(seconds),
                device=("mlx5_0", "mlx5_1", "mlx5_2"),
                port=("1",) * 3,
                link_state=(draw(st.sampled_from(["active", "active", "down", None])), "active", "down"),
                link_down_events=(downs, 0, None),
                counters={
                    "symbol_error": (min(errors, 65_535), 0, None),
                    "link_error_recovery": (number % 200, 0, 0),
                    "np_cnp_sent": (marks, 10 * number, 0),
                    "rx_crc_errors_phy": (errors, 0, None),
                    "rx_crc_errors": (errors, 0, 3 * errors),
                },
                rate_gbps=(draw(st.sampled_from([400.0, 400.0, 200.0, None])), 400.0, 400.0),
                pcie_link_width=(draw(st.sampled_from([16, 16, 8, 8, 63, None])), 16, 4),
                pcie_max_link_width=(16, 16, 16),
                rx_data_bytes=(draw(st.sampled_from([None, 10**9 * seconds])), 0, 0),
                tx_data_bytes=(0, 0, 0),
            )
        )
    return frames


@LAW
@given(streams_of_ports(), SPLIT)
def test_port_errors_survive_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: PortErrors(SITE), said, frames, split)


@LAW
@given(streams_of_ports(), SPLIT)
def test_congestion_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: Congestion(SITE), said, frames, split)


@LAW
@given(streams_of_ports(), SPLIT)
def test_port_speed_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: PortSpeed(SITE, PortSpeedThresholds(peers=1)), said, frames, split)


@LAW
@given(streams_of_ports(), SPLIT)
def test_port_loss_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: PortLoss(SITE), said, frames, split)


@LAW
@given(streams_of_ports(), SPLIT)
def test_nic_pcie_link_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: NicPcieLink(SITE), said, frames, split)


@LAW
@given(streams_of_ports(), SPLIT)
def test_congestion_own_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    soon = CongestionOwnThresholds(pieces=1, pieces_to_learn=2, packets_per_s=100)
    assert_restart_changes_nothing(lambda: CongestionOwn(SITE, soon), said, frames, split)


Times = tuple[str, int, int]


@st.composite
def streams_of_times(draw: st.DrawFn) -> list[Times]:
    """(publisher, event seconds, append seconds) in order of arrival at the broker: clocks that jump, pauses."""
    now, skews, records = 0, {"node-0": 0, "node-1": 0}, []
    for _ in range(draw(st.integers(0, 60))):
        now += draw(st.sampled_from([5, 20, 30, 400]))
        for name, skew in list(skews.items()):
            skews[name] = draw(st.sampled_from([skew] * 9 + [0, 40, -20]))
            records.append((name, now - skews[name] - draw(st.sampled_from([0, 0, 1, 90])), now))
    return records


def of_times(rule: ClockSkew, times: Times) -> list[str]:
    publisher, event_s, append_s = times
    found = rule.on_record(publisher, at(1000 + event_s), at(1000 + append_s) // MS, Roster())
    return [finding.model_dump_json() for finding in found]


@LAW
@given(streams_of_times(), SPLIT)
def test_clock_skew_survives_a_restart(times: list[Times], split: int) -> None:
    assert_restart_changes_nothing(lambda: ClockSkew(SITE), of_times, times, split)


@LAW
@given(streams_of_times(), st.integers(0, 2**32))
def test_the_order_in_which_topics_are_read_changes_no_word_about_clocks(times: list[Times], seed: int) -> None:
    order = random.Random(seed)
    delayed = [(append_s + 9.9 * order.random(), (name, event_s, append_s)) for name, event_s, append_s in times]
    shuffled = [entry for _, entry in sorted(delayed)]

    def heard(arriving: list[Times]) -> list[str]:
        rule = ClockSkew(SITE)
        found = [line for entry in arriving + arriving[-3:] for line in of_times(rule, entry)]
        return found + [finding.model_dump_json() for finding in rule.flush(Roster())]

    assert heard(shuffled) == heard(times)


@st.composite
def streams_of_statuses(draw: st.DrawFn) -> list[NodeStatus]:
    """Six nodes that fall silent, come back, stop, start and are maintained, alone and together, in order of time."""
    quiet_until = dict.fromkeys(range(6), 0)
    statuses = []
    for tick in range(draw(st.integers(0, 30))):
        if draw(st.integers(0, 9)) == 0:
            until = tick + draw(st.sampled_from([3, 8, 20]))
            for node in draw(st.sets(st.integers(0, 5), min_size=1)):
                quiet_until[node] = until
        for node in range(6):
            state = draw(st.sampled_from(["heartbeat"] * 30 + ["stop", "start", "maintenance"]))
            if tick >= quiet_until[node] or state == "stop":
                statuses.append(
                    NodeStatus(
                        node_id=f"node-{node}",
                        agent_session="s1",
                        seq=tick,
                        event_time_ns=at(5 * tick + 0.3 * node),
                        state=state,
                    )
                )
    return statuses


def of_status(rule: NodeSilence, status: NodeStatus) -> list[str]:
    rule.on_status(status)
    return [finding.model_dump_json() for finding in rule.on_time(status.event_time_ns, Roster())]


@LAW
@given(streams_of_statuses(), st.integers(0, 180))
def test_node_silence_survives_a_restart(statuses: list[NodeStatus], split: int) -> None:
    assert_restart_changes_nothing(lambda: NodeSilence(SITE), of_status, statuses, split)


@LAW
@given(streams_of_statuses(), st.integers(0, 2**32))
def test_the_order_of_heartbeats_changes_no_word_about_silence(statuses: list[NodeStatus], seed: int) -> None:
    order = random.Random(seed)
    delayed = [(one.event_time_ns + 9.9e9 * order.random(), number, one) for number, one in enumerate(statuses)]
    shuffled = [one for _, _, one in sorted(delayed, key=lambda entry: entry[:2])]

    def heard(arriving: list[NodeStatus]) -> list[str]:
        rule, newest_ns = NodeSilence(SITE), 0
        found: list[Finding] = []
        for one in [*arriving, *arriving[-3:]]:
            rule.on_status(one)
            newest_ns = max(newest_ns, one.event_time_ns)
            found += rule.on_time(newest_ns, Roster())
        return [finding.model_dump_json() for finding in [*found, *rule.flush(Roster())]]

    assert heard(shuffled) == heard(statuses)
