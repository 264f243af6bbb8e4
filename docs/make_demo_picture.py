#!/usr/bin/env python3
"""Draws docs/demo.svg: the demo's own screen and its verdict, from a run of the simulated fleet.

The fleet, the engines, the view and the verdict are the product's; there is no broker between them, so the seconds in the
picture are event time and not a wall clock's. Equal arguments give an equal picture. Nothing in it is written by hand.

    .venv/bin/python docs/make_demo_picture.py [--seed N] [--nodes N] [--duration SECONDS] [--output FILE]
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agents.simulation.delivery import deliver
from agents.simulation.fleet_run import simulate
from agents.simulation.scenario import default_scenario
from agents.simulation.truth import truth
from paceline.demo import SETTLE_NS, SITE, DemoResult
from paceline.live_view import TerminalView, print_result
from paceline.verdict import Heard, judge
from schemas.archive import ArchiveWriter, read_archive
from schemas.fleet import Job, Policy
from schemas.remediation import Command, Incident
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agents.simulation.scenario import Scenario
    from schemas.base import Record

START_NS = 1_767_225_600_000_000_000
"""2026-01-01: a fixed start, so that the picture does not change with the day on which it is made."""

WIDTH = 118
"""Columns. Wide enough for a node's name, a GPU's UUID and a reason beside each other."""


class PictureView(TerminalView):
    """The live screen, kept: a terminal that is no terminal draws nothing while it runs, and the last state at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._paper = console

    def close(self) -> None:
        """Print what the screen held last."""
        if self._live is not None:
            screen = self._live.renderable
            super().close()
            self._paper.print(screen)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description="Draws docs/demo.svg from a run of the simulated fleet.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--duration", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("demo.svg"))
    given = parser.parse_args()
    scenario = default_scenario(nodes=given.nodes, duration_s=given.duration, seed=given.seed)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=False, color_system="truecolor")
    draw(scenario, console, given.output.with_suffix(".jsonl"))
    picture = console.export_svg(
        title=f"paceline: a simulated fleet of {given.nodes} nodes, seed {given.seed}", unique_id="paceline-demo"
    )
    given.output.write_text(picture, encoding="utf-8")


def draw(scenario: Scenario, console: Console, scratch: Path) -> None:
    """Run the fleet through the engines, and show it as the demo shows it.

    Args:
        scenario: the fleet.
        console: records what is shown.
        scratch: an archive that is written and removed again.
    """
    heard, gpus = Heard(), {}
    view = PictureView(console)
    try:
        with ArchiveWriter.open(scratch, partitions=4) as archive:
            for arrival_ns, record in deliver(simulate(scenario, START_NS), seed=scenario.seed):
                archive.write(record, arrival_ns)
                if isinstance(record, Job):
                    gpus[record.job_id] = record.world_size
        for record in _outputs(scratch):
            fresh = [record] if heard.take(record) else []
            view.update(heard, fresh, (_time_of(record) - START_NS) / 1e9, scenario.duration_s)
    finally:
        scratch.unlink(missing_ok=True)
    view.close()
    truths = truth(scenario, START_NS)
    print_result(console, DemoResult(truths, heard, judge(truths, heard), gpus, archive.lines))


def _outputs(archive: Path) -> Iterator[Record]:
    policy = Policy(policy_version="demo", site_id=SITE, effective_from_ns=0, settle_ns=SETTLE_NS)
    return replay(read_archive(archive), SITE, Problems(), policy)


def _time_of(record: Record) -> int:
    if isinstance(record, Command):
        return record.decided_at_ns
    if isinstance(record, Incident):
        return record.event_time_ns
    return int(record.event_time_ns)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
