"""`paceline agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["agent_command"]


def agent_command(config: Path | None, bootstrap_servers: str | None, node_id: str | None) -> int:
    """Run the agent until told to stop."""
    import os

    from agents.agent import run_agent
    from agents.settings import load

    overrides = {"bootstrap_servers": bootstrap_servers, "node_id": node_id}
    return run_agent(load(config, {name: value for name, value in overrides.items() if value is not None}, os.environ))
