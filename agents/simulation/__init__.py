"""A simulated fleet that publishes exactly as real nodes do, with injected faults, healthy look-alikes and the truth.

`simulate` is a pure generator of records, `truth` says what is wrong in them, `deliver` models their way, `play` publishes
them in real time. Written without knowledge of the rules that read its output.
"""

from agents.simulation.delivery import Delivery, deliver
from agents.simulation.errors import ScenarioError
from agents.simulation.fleet_run import simulate
from agents.simulation.player import PlayReport, RecordPublisher, play
from agents.simulation.scenario import (
    FaultPlan,
    JobPlan,
    Scenario,
    default_scenario,
    load_scenario,
    scenario_names,
)
from agents.simulation.truth import Truth, truth, truth_lines

__all__ = [
    "Delivery",
    "FaultPlan",
    "JobPlan",
    "PlayReport",
    "RecordPublisher",
    "Scenario",
    "ScenarioError",
    "Truth",
    "default_scenario",
    "deliver",
    "load_scenario",
    "play",
    "scenario_names",
    "simulate",
    "truth",
    "truth_lines",
]
