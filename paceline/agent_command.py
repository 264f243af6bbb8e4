"""`paceline agent`."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from agents.agent import check_settings, run_agent
from agents.publisher import PublisherSettingsError
from agents.settings import SettingsError, load_with_origins
from agents.settings_text import as_toml
from agents.source_registry import SourceNameError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["agent_command"]


def agent_command(
    config: Path | None, flags: Mapping[str, Any], print_config: bool = False, check: bool = False
) -> int:
    """Run the agent until told to stop; 2 when its settings do not hold.

    Args:
        config: the TOML file.
        flags: settings from the command line, by name; None for one that was not given.
        print_config: print the settings that hold and where each came from, and end.
        check: hold the settings against their limits, the sources and the Kafka client, and end.
    """
    log_to_stderr()
    try:
        settings, origins = load_with_origins(config, flags, os.environ)
        if check or print_config:
            check_settings(settings)
    except (SettingsError, SourceNameError, PublisherSettingsError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    if print_config:
        typer.echo(as_toml(settings, origins), nl=False)
    if check or print_config:
        return 0
    return run_agent(settings, os.environ)


def log_to_stderr() -> None:
    """Log from level INFO on, with the time unless the journal puts its own."""
    stamp = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s "
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"{stamp}%(levelname)s %(name)s: %(message)s")
