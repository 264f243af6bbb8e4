"""One command through live processes: it waits, a person signs consent, it is ordered, and its result closes the loop."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from factories import finding
from typer.testing import CliRunner
from worker_processes import WorkerProcesses

from deploy.topics import apply_topics
from paceline.cli import app
from schemas.codec import decode
from schemas.findings import ProgressMark, Subject
from schemas.fleet import Policy
from schemas.remediation import ActionResult, Approval, Command, Decision, Incident
from schemas.signatures import SIGNATURE_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import Message

    from deploy.brokers import Broker

SITE = "consent"
S = 1_000_000_000


@pytest.mark.needs_broker
def test_a_command_is_ordered_once_by_the_consent_of_a_person(
    own_kafka: Broker, sender_to: Any, read_topics: Any, tmp_path: Path
) -> None:
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    ring, signing, ada = tmp_path / "ring.json", tmp_path / "decisions.key", tmp_path / "ada.key"
    for options in (["--key", signing], ["--key", ada, "--purpose", "approvals", "--holder", "ada"]):
        made = CliRunner().invoke(app, ["keys", "new", "--ring", str(ring), *map(str, options)])
        assert made.exit_code == 0, made.output
    sender = sender_to(servers)

    def say(record: Any) -> None:
        sender.record(record)
        sender.flush()

    def waited_for(topic: str, wanted: Callable[[Any], bool]) -> Message:
        """The first message of a topic whose record is wanted; marks go on until then, as those of living detectors do."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            say(ProgressMark(site_id=SITE, role="telemetry", partition=0, mark_ns=time.time_ns()))
            for found in read_topics(servers, topic):
                if wanted(decode(topic, found.value())):
                    return found
        raise AssertionError(f"nothing of the kind on {topic}: {[m.value() for m in read_topics(servers, topic)]}")

    def consents(*options: str) -> None:
        given = CliRunner().invoke(app, ["approve", *options, "--bootstrap", servers, "--site", SITE])
        assert given.exit_code == 0, given.output

    say(
        Policy(
            policy_version="people-decide",
            site_id=SITE,
            effective_from_ns=time.time_ns(),
            mode="approve",
            settle_ns=0,
        )
    )
    device = Subject(level="gpu", node_id="node-7", pci_bus_id="0000:10:00")
    with WorkerProcesses(servers, SITE, tmp_path, "--signing-key", str(signing), "--keyring", str(ring)) as workers:
        workers.start("decisions")
        now_ns = time.time_ns()
        lost = finding("xid", 0, device, urgent=True, values={"code": 79, "trusted": True})
        say(lost.model_copy(update={"site_id": SITE, "event_time_ns": now_ns, "onset_ns": now_ns}))
        waits = decode("actions", waited_for("paceline.actions.v1", lambda c: c.kind == "cordon_node").value() or b"")
        assert isinstance(waits, Command)
        assert waits.mode == "approve"
        listed = CliRunner().invoke(app, ["incidents", "--waiting", "--json", "--bootstrap", servers, "--site", SITE])
        (standing,) = [json.loads(line) for line in listed.stdout.splitlines()]
        assert {c["command_id"]: c["became"] for c in standing["commands"]}[waits.command_id] == "waits"
        # Whoever signs commands does not approve them, and nobody without a key does.
        consents(waits.command_id, "--key", str(signing), "--approver", "ada")
        say(
            Approval(
                command_id=waits.command_id,
                site_id=SITE,
                approver="ada",
                event_time_ns=time.time_ns(),
                expires_at_ns=time.time_ns() + 60 * S,
            )
        )
        consents(waits.command_id, "--key", str(ada), "--keyring", str(ring))
        consents(waits.command_id, "--key", str(ada), "--keyring", str(ring))
        found = waited_for("paceline.actions.v1", lambda c: c.supersedes == waits.command_id)
        order = decode("actions", found.value() or b"")
        assert isinstance(order, Command)
        assert (order.mode, order.approved_by, order.kind) == ("auto", "ada", "cordon_node")
        assert SIGNATURE_HEADER in {name for name, _ in found.headers() or []}
        say(
            ActionResult(
                command_id=order.command_id,
                site_id=SITE,
                actuator_id="slurm",
                event_time_ns=time.time_ns(),
                outcome="applied",
            )
        )
        listed = CliRunner().invoke(app, ["incidents", "--waiting", "--bootstrap", servers, "--site", SITE])
        assert listed.stdout == ""
        told = decode("incidents", waited_for("paceline.incidents.v1", lambda i: i.state == "verifying").value() or b"")
        assert isinstance(told, Incident)
        assert told.summary.endswith("cordon_node of node-7 was carried out")
        waited_for("paceline.decisions.v1", lambda d: d.detail.get("code") == "already_approved")
        workers.stop()
    entries = [decode("decisions", m.value()) for m in read_topics(servers, "paceline.decisions.v1")]
    said = [
        (entry.action, entry.detail.get("code"))
        for entry in entries
        if isinstance(entry, Decision) and entry.action.startswith(("approval", "result"))
    ]
    assert said == [
        ("approval_refused", "key_of_other_purpose"),
        ("approval_refused", "unsigned"),
        ("approval_taken", None),
        ("approval_refused", "already_approved"),
        ("result_taken", None),
    ]
    orders = [decode("actions", m.value()) for m in read_topics(servers, "paceline.actions.v1")]
    assert [o.mode for o in orders if isinstance(o, Command) and o.kind == "cordon_node"] == ["approve", "auto"]
