"""What the agent's settings say about the spool."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.agent import _publisher_settings
from agents.settings import AgentSettings, SettingsError


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        (AgentSettings(), Path("/var/lib/paceline/spool")),
        (AgentSettings(state_dir="/state"), Path("/state/spool")),
        (AgentSettings(state_dir=""), None),
        (AgentSettings(state_dir="", spool_dir="/spool"), Path("/spool")),
        (AgentSettings(spool_dir=""), None),
    ],
)
def test_the_spool_is_beside_the_places_in_logs_unless_told_otherwise(
    settings: AgentSettings, directory: Path | None
) -> None:
    spool = _publisher_settings(settings, "n").spool
    assert (spool.directory if spool else None) == directory


def test_caps_and_times_go_to_the_spool() -> None:
    settings = AgentSettings(
        spool_critical_kbytes=2048,
        spool_bulk_kbytes=9000,
        spool_sync_s=3.0,
        spool_after_s=4.0,
        dead_letter_kbytes=100,
    )
    wire = _publisher_settings(settings, "n")
    assert wire.spool is not None
    assert wire.spool_after_s == 4.0
    assert wire.spool.critical_policy().cap_bytes == 2048 * 1024
    assert wire.spool.bulk_policy().cap_bytes == 9000 * 1024
    assert (wire.spool.bulk_sync_s, wire.spool.dead_letter_kbytes) == (3.0, 100)


@pytest.mark.parametrize(
    "name", ["spool_critical_kbytes", "spool_bulk_kbytes", "spool_sync_s", "spool_after_s", "dead_letter_kbytes"]
)
def test_a_value_outside_its_limits_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is 0"):
        AgentSettings(**{name: 0})
