"""`paceline agent`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from agents.agent import run_agent
from agents.settings import SettingsError, load

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["agent_command"]


def agent_command(config: Path | None, bootstrap_servers: str | None, node_id: str | None) -> int:
    """Run the agent until told to stop; 2 when its settings do not hold."""
    try:
        settings = load(config, {"bootstrap_servers": bootstrap_servers, "node_id": node_id}, os.environ)
    except SettingsError as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    return run_agent(settings)
