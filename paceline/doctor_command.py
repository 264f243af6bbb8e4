"""`paceline doctor`: what here is missing or wrong, and what it costs. Status 1 when something is."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict, dataclass

import orjson

__all__ = ["Check", "doctor_command"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `needed` tells what fails without it from what is only left out."""

    name: str
    ok: bool
    needed: bool
    note: str


def doctor_command(bootstrap_servers: str | None, as_json: bool) -> int:
    """Look, say, and return 1 when something needed is missing."""
    checks = [*_python(), *_broker_tools(), *_sources(), *(_brokers(bootstrap_servers) if bootstrap_servers else ())]
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
        ("pyarrow", "parquet", "import of operation traces"),
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


def _sources() -> list[Check]:
    from agents.agent import build_collectors
    from agents.identity import AgentIdentity
    from agents.settings import load

    checks = []
    for collector in build_collectors(load(None, {}, {}), AgentIdentity("doctor", "doctor", "doctor")):
        reason = collector.is_supported()
        checks.append(Check(f"source {collector.name}", reason is None, False, reason or "can be read here"))
    return checks


def _brokers(bootstrap_servers: str) -> list[Check]:
    from deploy.topics import TopicSetupError, check_topics

    try:
        drift = check_topics(bootstrap_servers)
    except TopicSetupError as error:
        return [Check("brokers", False, True, str(error))]
    note = "; ".join(f"{d.topic} {d.what}" for d in drift[:5]) or "topics agree with the table"
    return [Check("topics", not drift, True, note)]
