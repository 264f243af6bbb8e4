"""`paceline doctor`: what here is missing or wrong, and what it costs. Status 1 when something is."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson
import typer

from paceline.doctor_check import Check

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agents.settings import AgentSettings

__all__ = ["Check", "doctor_command", "tell"]

_TIMEOUT_S = 10.0


def doctor_command(bootstrap_servers: str | None, as_json: bool, config: Path | None = None) -> int:
    """Look, say, and return 1 when something needed is missing, 2 when the settings do not hold.

    Args:
        bootstrap_servers: brokers to look at; None takes the agent's, where its settings are given.
        as_json: print NDJSON.
        config: the agent's TOML file; with it, what the agent needs counts as needed here.
    """
    from agents.settings import SettingsError, load

    try:
        settings = load(config, {"bootstrap_servers": bootstrap_servers}, os.environ)
    except SettingsError as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    checks = [*_python(), *_broker_tools(), *_node(settings, is_node=config is not None)]
    if bootstrap_servers or config is not None:
        checks += _brokers(settings)
    return tell(checks, as_json)


def tell(checks: Iterable[Check], as_json: bool) -> int:
    """Print checks, as lines or as NDJSON, and return 1 when something needed is missing."""
    checks = list(checks)
    for check in checks:
        if as_json:
            sys.stdout.buffer.write(orjson.dumps(asdict(check)) + b"\n")
        else:
            mark = "ok  " if check.ok else ("MISSING" if check.needed else "none")
            print(f"{mark:8}{check.name}: {check.note}")
    return 0 if all(check.ok or not check.needed for check in checks) else 1


def _python() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    checks = [
        Check("python", (3, 11) <= sys.version_info[:2] <= (3, 13), True, f"{version}; 3.11 to 3.13 are supported")
    ]
    for module, extra, purpose in (
        ("cramjam", None, "zstd batches from Kafka"),
        ("pyarrow", "parquet", "import of operation traces, export of archives"),
        ("kubernetes", "kubernetes", "the Kubernetes actuator"),
    ):
        present = importlib.util.find_spec(module) is not None
        how = f"pip install 'paceline[{extra}]'" if extra else "reinstall paceline"
        checks.append(Check(module, present, extra is None, purpose if present else f"{purpose} needs it: {how}"))
    return checks


def _broker_tools() -> list[Check]:
    from deploy.brokers.jars import missing_tools

    missing = missing_tools()
    note = (
        "; ".join(missing) + "; the embedded broker needs neither" if missing else "a local Apache Kafka can run here"
    )
    return [Check("local Apache Kafka", not missing, False, note)]


def _node(settings: AgentSettings, is_node: bool) -> list[Check]:
    from paceline.doctor_node import capability_checks, clock_check, place_checks, source_checks

    return [
        *source_checks(settings),
        *place_checks(settings, needed=is_node),
        *capability_checks(),
        clock_check(),
    ]


def _brokers(settings: AgentSettings) -> list[Check]:
    """Whether the brokers answer with the agent's properties, and whether their topics agree with the table."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        client = AdminClient({"log_level": 0, **settings.kafka, "bootstrap.servers": settings.bootstrap_servers})
        count = len(client.list_topics(timeout=_TIMEOUT_S).brokers)
    except KafkaException as error:
        note = f"{settings.bootstrap_servers}: {error.args[0].str()}; look at the address, its port and `[agent.kafka]`"
        return [Check("brokers", False, True, note)]
    answered = Check("brokers", True, True, f"{count} answer at {settings.bootstrap_servers}")
    return [answered, _topics(settings)]


def _topics(settings: AgentSettings) -> Check:
    from deploy.topics import TopicSetupError, check_topics

    if settings.kafka.get("security.protocol", "plaintext").lower() != "plaintext":
        return Check("topics", True, False, "not compared: `paceline topics` has no encrypted connection yet")
    try:
        drift = check_topics(settings.bootstrap_servers)
    except TopicSetupError as error:
        return Check("topics", False, True, str(error))
    shown = "; ".join(f"{d.topic} {d.what}" for d in drift[:5])
    more = f"; and {len(drift) - 5} more" if len(drift) > 5 else ""
    note = f"{shown}{more}: run `paceline topics apply`" if drift else "topics agree with the table"
    return Check("topics", not drift, True, note)
