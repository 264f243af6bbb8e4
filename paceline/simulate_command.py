"""`paceline simulate`: a labelled synthetic fleet as an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from agents.simulation.delivery import deliver
from agents.simulation.errors import ScenarioError
from agents.simulation.fleet_run import simulate
from agents.simulation.scenario import default_scenario
from agents.simulation.truth import truth, truth_lines
from schemas.archive import ArchiveWriter

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["simulate_command"]

_START_NS = 1_767_225_600_000_000_000
"""2026-01-01: where a simulated archive's time begins, so that equal arguments give equal bytes."""


def simulate_command(
    output: Path, duration_s: float, nodes: int, seed: int, scenario_name: str, truth_file: Path | None
) -> int:
    """Write the archive, and the truth where asked; 2 when the scenario cannot be met."""
    try:
        scenario = default_scenario(nodes=nodes, duration_s=duration_s, seed=seed, scenario=scenario_name)
        with ArchiveWriter.open(output, partitions=4) as archive:
            for arrival_ns, record in deliver(simulate(scenario, _START_NS), seed=seed):
                archive.write(record, arrival_ns)
        if truth_file is not None:
            truth_file.write_bytes(b"".join(truth_lines(truth(scenario, _START_NS))))
    except (ScenarioError, OSError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    typer.echo(f"{archive.lines} records in {output}", err=True)
    return 0
