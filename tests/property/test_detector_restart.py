"""The step join and every detector: restored from a snapshot at any split they say what they would have said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import A100, SITE, at, gpu_frame, job, nic_frame, placement, step_timing, xid_event
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_restart_changes_nothing, assert_restarts_change_nothing

from streams.core.roster import Roster
from streams.core.step_join import ClosedStep, StepJoin, StepJoinConfig
from streams.detectors.barrier_wait import BarrierWait
from streams.detectors.changed_ranks import ChangedRanks
from streams.detectors.ecc import UncorrectableEcc
from streams.detectors.job_pace import JobPace, MissingRanks
from streams.detectors.mfu import MfuRules, step_utilisation
from streams.detectors.pfc import PfcPause
from streams.detectors.scattered_pauses import ScatteredPauses
from streams.detectors.slow_network import SlowNetwork
from streams.detectors.slow_storage import SlowStorage
from streams.detectors.sm_clock import SmClock
from streams.detectors.straggler import Straggler
from streams.detectors.thermal import ThermalViolation
from streams.detectors.uneven_work import UnevenWork
from streams.detectors.xid import XidCodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.events import KernelEvent
    from schemas.frames import FabricFrame, GpuFrame
    from schemas.steps import StepTiming

SPLIT = st.integers(0, 10_000)
ROSTER = Roster()
ROSTER.take(
    job(
        4,
        model={"parameters": 7e9},
        tokens_per_step=45_000,
        peak_tflops=1000,
        layout={"data": 2, "pipeline": 2},
        mfu_target=0.4,
    )
)
ROSTER.take(placement([0, 1, 2, 3]))
MEMBERS = frozenset(range(4))


@st.composite
def streams_of_frames(draw: st.DrawFn) -> list[GpuFrame]:
    """Two GPUs that heat up, clock down, err, and an agent that restarts."""
    seconds, heat, errors, session, frames = 0, [0, 0], [0, 0], 0, []
    for _ in range(draw(st.integers(10, 40))):
        seconds += draw(st.sampled_from([1, 1, 1, 20, 70]))
        session += draw(st.sampled_from([0, 0, 0, 0, 1]))
        for gpu in (0, 1):
            heat[gpu] += draw(st.sampled_from([0, 0, 60_000_000, 400_000_000]))
            errors[gpu] += draw(st.sampled_from([0, 0, 0, 1]))
        frames.append(
            gpu_frame(
                seconds,
                gpus=2,
                session=f"s{session}",
                sku=(A100, A100),
                sm_clock_mhz=[draw(st.sampled_from([1000, 1410])), 1410],
                gpu_util_pct=[draw(st.sampled_from([5, 99])), 99],
                thermal_violation_ns=list(heat),
                ecc_dbe_volatile_count=list(errors),
            )
        )
    return frames


def said(detector: Any, frame: Any) -> list[str]:
    return [finding.model_dump_json() for finding in detector.on_frame(frame, ROSTER)]


@LAW
@given(streams_of_frames(), SPLIT)
def test_sm_clock_survives_a_restart(frames: list[GpuFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: SmClock(SITE), said, frames, split)


@LAW
@given(streams_of_frames(), SPLIT)
def test_thermal_violation_survives_a_restart(frames: list[GpuFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: ThermalViolation(SITE), said, frames, split)


@LAW
@given(streams_of_frames(), SPLIT)
def test_uncorrectable_ecc_survives_a_restart(frames: list[GpuFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: UncorrectableEcc(SITE), said, frames, split)


@st.composite
def streams_of_pause(draw: st.DrawFn) -> list[FabricFrame]:
    seconds, rx, tx, frames = 0, 0, 0, []
    for _ in range(draw(st.integers(10, 40))):
        seconds += draw(st.sampled_from([1, 1, 1, 5, 15]))
        rx += draw(st.sampled_from([0, 50, 5000]))
        tx += draw(st.sampled_from([0, 5000]))
        frames.append(nic_frame(seconds, rx, tx))
    return frames


@LAW
@given(streams_of_pause(), SPLIT)
def test_pfc_pause_survives_a_restart(frames: list[FabricFrame], split: int) -> None:
    assert_restart_changes_nothing(lambda: PfcPause(SITE), said, frames, split)


KERNEL_LINES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([31, 63, 79, 9999]), st.integers(0, 1), st.booleans()),
    min_size=10,
    max_size=40,
)


@LAW
@given(KERNEL_LINES, SPLIT)
def test_xid_codes_survive_a_restart(lines: list[tuple[int, int, int, bool]], split: int) -> None:
    seconds, events = 0, []
    for gap, code, gpu, trusted in lines:
        seconds += gap
        events.append(xid_event(seconds, code, gpu=gpu, trusted=trusted))

    def read(detector: XidCodes, event: KernelEvent) -> list[str]:
        return [finding.model_dump_json() for finding in detector.on_event(event, ROSTER)]

    assert_restart_changes_nothing(lambda: XidCodes(SITE), read, events, split)


@st.composite
def streams_of_timings(draw: st.DrawFn) -> list[StepTiming]:
    """Two nodes of two ranks: some report late, twice or not at all, some are slow for a while."""
    timings = []
    slow = draw(st.sampled_from([None, 0, 3]))
    for step in range(draw(st.integers(5, 20))):
        number = step + (10 if step > 12 else 0)
        for node in (0, 1):
            compute = [200_000 + draw(st.sampled_from([0, 0, 0, 300, 80_000])) for _ in range(2)]
            if slow is not None and slow // 2 == node:
                compute[slow % 2] += 60_000
            if draw(st.sampled_from([True] * 9 + [False])):
                timings.append(
                    step_timing(
                        number,
                        2.0 * step + 0.1 * node,
                        compute,
                        node_id=f"node-{node}",
                        first_rank=2 * node,
                        step_us=1_700_000 if step % 2 else 1_900_000,
                        wait_us=(draw(st.sampled_from([10_000, 500_000])),) * 2,
                        dp_us=[draw(st.sampled_from([20_000, 90_000]))] * 2,
                        phase=draw(st.sampled_from(["train"] * 9 + ["checkpoint"])),
                    )
                )
    for _ in range(draw(st.integers(0, 3))):
        if timings:
            timings.append(timings[draw(st.integers(0, len(timings) - 1))])
    return timings


def joined(join: StepJoin, timing: StepTiming) -> Any:
    taken = join.add(timing)
    return taken, join.close(timing.event_time_ns, 4, MEMBERS), join.oldest_open_ns


@LAW
@given(streams_of_timings(), SPLIT)
def test_the_step_join_survives_a_restart(timings: list[StepTiming], split: int) -> None:
    config = StepJoinConfig(lateness_ns=3_000_000_000, open_steps=4, remembered_steps=5)
    assert_restart_changes_nothing(lambda: StepJoin(config), joined, timings, split)


def closed_steps(timings: list[StepTiming]) -> list[ClosedStep]:
    join = StepJoin()
    for timing in timings:
        join.add(timing)
    return join.close(at(10**6), 4, MEMBERS, final=True)


class PausesOfStragglers:
    """The rule of scattered pauses with the straggler rule, which tells it who paused."""

    def __init__(self) -> None:
        self.straggler = Straggler(SITE)
        self.pauses = ScatteredPauses(SITE)

    def on_step(self, step: ClosedStep) -> list[Any]:
        roster = ROSTER.job("job-1", 0)
        list(self.straggler.on_step(step, roster, None))
        return list(self.pauses.on_step(step, roster, self.straggler.pauses, None))

    def snapshot(self) -> dict[str, Any]:
        return {"straggler": self.straggler.snapshot(), "pauses": self.pauses.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.straggler.restore(snapshot["straggler"])
        self.pauses.restore(snapshot["pauses"])


class WorkOfStragglers:
    """The rule of uneven work with the straggler rule, which tells it what work explains."""

    def __init__(self) -> None:
        self.straggler = Straggler(SITE)
        self.uneven = UnevenWork(SITE)

    def on_step(self, step: ClosedStep) -> list[Any]:
        roster = ROSTER.job("job-1", 0)
        list(self.straggler.on_step(step, roster, None))
        return list(self.uneven.on_step(step, roster, self.straggler.explained, None))

    def snapshot(self) -> dict[str, Any]:
        return {"straggler": self.straggler.snapshot(), "uneven": self.uneven.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.straggler.restore(snapshot["straggler"])
        self.uneven.restore(snapshot["uneven"])


READERS: dict[str, tuple[Callable[[], Any], Callable[[Any, ClosedStep], Any]]] = {
    "straggler": (
        lambda: Straggler(SITE),
        lambda rule, step: (list(rule.on_step(step, ROSTER.job("job-1", 0), None)), rule.named, rule.noise_scale),
    ),
    "mfu": (
        lambda: MfuRules(SITE),
        lambda rule, step: list(
            rule.on_step(step, ROSTER.job("job-1", 0), step_utilisation(step, ROSTER.job("job-1", 0))[0], None)
        ),
    ),
    "barrier_wait": (lambda: BarrierWait(SITE), lambda rule, step: list(rule.on_step(step, None))),
    "job_pace": (
        lambda: JobPace(SITE),
        lambda rule, step: list(rule.on_step(step, ROSTER.job("job-1", 0), 0.06)),
    ),
    "missing_ranks": (lambda: MissingRanks(SITE), lambda rule, step: list(rule.on_step(step, None))),
    "slow_network": (lambda: SlowNetwork(SITE), lambda rule, step: list(rule.on_step(step, None))),
    "changed_ranks": (
        lambda: ChangedRanks(SITE),
        lambda rule, step: list(rule.on_step(step, 0.005, frozenset(), False, None)),
    ),
    "scattered_pauses": (PausesOfStragglers, lambda rule, step: rule.on_step(step)),
    "slow_storage": (
        lambda: SlowStorage(SITE),
        lambda rule, step: (list(rule.on_step(step, None)), rule.excess_us),
    ),
    "uneven_work": (WorkOfStragglers, lambda rule, step: rule.on_step(step)),
}


@pytest.mark.parametrize("name", sorted(READERS))
@LAW
@given(timings=streams_of_timings(), split=SPLIT)
def test_every_job_rule_survives_a_restart(name: str, timings: list[StepTiming], split: int) -> None:
    make, read = READERS[name]
    assert_restart_changes_nothing(make, read, closed_steps(timings), split)


def a_long_history() -> list[StepTiming]:
    """Ninety steps, six a minute, in which every job rule opens and clears."""
    timings = []
    for step in range(90):
        own = [200_000 + 150 * ((7 * rank + 3 * step) % 5) for rank in range(4)]
        if 12 <= step < 30:
            own[3] = 280_000
        if step >= 60:
            own = [round(1.2 * us) for us in own]
        step_us = 700_000
        if 5 <= step < 9 or 10 <= step < 15 or 35 <= step < 48 or step >= 70:
            step_us = 1_300_000
        if 50 <= step < 54:
            step_us = 400_000
        for node in (0, 1):
            if node == 1 and 32 <= step < 35:
                continue
            timings.append(
                step_timing(
                    step,
                    10.0 * step,
                    own[2 * node : 2 * node + 2],
                    node_id=f"node-{node}",
                    first_rank=2 * node,
                    step_us=step_us,
                    wait_us=(600_000 if 36 <= step < 45 else 50_000,) * 2,
                    dp_us=[90_000 if 40 <= step < 58 else 20_000] * 2,
                    phase="checkpoint" if step == 20 else "train",
                )
            )
    return timings


def a_history_of_some_ranks() -> list[StepTiming]:
    """Steps of four ranks of which three become slow together and recover."""
    return [
        step_timing(
            step,
            10.0 * step,
            [round(200_000 * (1.2 if node < 3 and 30 <= step < 60 else 1.0)) + 150 * (step % 5)],
            node_id=f"node-{node}",
            first_rank=node,
        )
        for step in range(100)
        for node in range(4)
    ]


def a_history_of_pauses() -> list[StepTiming]:
    """Steps of eight ranks that pause in turn for a while."""
    return [
        step_timing(
            step,
            10.0 * step,
            [200_000 + 150 * ((7 * rank + 3 * step) % 5) for rank in (2 * node, 2 * node + 1)],
            node_id=f"node-{node}",
            first_rank=2 * node,
            host_us=tuple(
                44_000 if step < 70 and 3 * rank == step % 24 else 4_000 for rank in (2 * node, 2 * node + 1)
            ),
        )
        for step in range(210)
        for node in range(4)
    ]


def a_history_of_uneven_steps() -> list[StepTiming]:
    """Steps of four ranks of which one is given more tokens for a while, and all wait for data later on."""
    timings = []
    for step in range(120):
        for node in range(2):
            ranks = (2 * node, 2 * node + 1)
            load = [1.25 if rank == 2 and 10 <= step < 40 else 1.0 for rank in ranks]
            timings.append(
                step_timing(
                    step,
                    10.0 * step,
                    [round(us * (200_000 + 150 * ((7 * r + 3 * step) % 5))) for us, r in zip(load, ranks, strict=True)],
                    node_id=f"node-{node}",
                    first_rank=2 * node,
                    tokens=tuple(round(8_192 * share) for share in load),
                    data_us=(60_000 if 60 <= step < 80 else 1_000,) * 2,
                )
            )
    return timings


HISTORIES = {
    "changed_ranks": a_history_of_some_ranks,
    "scattered_pauses": a_history_of_pauses,
    "slow_storage": a_history_of_uneven_steps,
    "uneven_work": a_history_of_uneven_steps,
}


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_job_rule_survives_restarts_all_along_a_long_history(name: str) -> None:
    make, read = READERS[name]
    history = closed_steps(HISTORIES.get(name, a_long_history)())
    whole = make()
    edges = {finding.state for step in history for finding in findings_of(read(whole, step))}
    assert edges == {"open", "cleared"}
    assert_restarts_change_nothing(make, read, history, range(0, len(history), 3))


def findings_of(said: Any) -> list[Any]:
    findings: list[Any] = said[0] if isinstance(said, tuple) else said
    return findings
