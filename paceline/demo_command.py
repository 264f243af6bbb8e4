"""`paceline demo`: options to a run, and the run to an exit status."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import orjson
from rich.console import Console

from agents.simulation.errors import ScenarioError
from deploy.brokers.errors import BrokerError
from deploy.topics import TopicSetupError
from paceline.demo import DemoError, DemoOptions, run_demo
from paceline.live_view import PlainView, TerminalView, print_result
from paceline.processes import ChildFailedError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["demo_command"]


def demo_command(
    duration_s: float,
    nodes: int,
    seed: int,
    scenario: str,
    broker: str,
    bootstrap_servers: str | None,
    as_json: bool,
    truth_file: Path | None,
) -> int:
    """Run the demo; 0 when all was found and nobody blamed, 1 when not, 2 when it could not run, 130 on Ctrl-C."""
    console = Console(stderr=True)
    view = TerminalView(console) if console.is_terminal and not as_json else PlainView(console)
    options = DemoOptions(duration_s, nodes, seed, scenario, broker, bootstrap_servers, truth_file)
    # SIGTERM unwinds like Ctrl-C, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run_demo(options, view)
    except KeyboardInterrupt:
        view.close()
        console.print("stopped")
        return 130
    except (DemoError, ScenarioError, BrokerError, TopicSetupError, ChildFailedError) as error:
        view.close()
        console.print(f"paceline demo: {error}", markup=False, soft_wrap=True)
        return 2
    print_result(console, result)
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(result.as_json()) + b"\n")
        sys.stdout.flush()
    return 0 if result.is_good else 1
