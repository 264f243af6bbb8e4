"""`paceline act kubernetes` as a process on Kafka: a signed command takes a node out, and the next process gives it back."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE
from kube_mock import KubeMock
from logged_process import LoggedProcess
from signed_commands import command, signed

from agents.actuators.node_hold import HELD_BY
from deploy.topics import apply_topics
from schemas.codec import decode
from schemas.key_files import make_private_key, store_keyring
from schemas.keyring import Keyring
from schemas.remediation import ActionResult
from streams.faust_roles.command_signer import CommandSigner

if TYPE_CHECKING:
    from pathlib import Path

    from deploy.brokers import Broker

pytestmark = pytest.mark.needs_broker

SECOND_NS = 1_000_000_000


def test_a_signed_command_on_kafka_drains_a_node_and_the_next_process_gives_it_back(
    own_kafka: Broker, sender_to: Any, read_topics: Any, tmp_path: Path
) -> None:
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    ring = tmp_path / "ring.json"
    signer = CommandSigner(make_private_key(tmp_path / "decisions.key"))
    store_keyring(ring, Keyring().with_key(signer._key.public_key().public_bytes_raw(), "commands", "d", 0))
    (tmp_path / "site.toml").write_text('mode = "auto"\n')
    common = ["--bootstrap", servers, "--site", SITE]
    with KubeMock() as mock:
        mock.add_node("node-1", [{"key": "example.com/pool", "value": "a", "effect": "NoSchedule"}])
        mock.add_pod("trainer-0", "node-1")
        before = mock.node("node-1")
        (tmp_path / "kubeconfig").write_text(kubeconfig(mock))
        files = ["--keyring", str(ring), "--state-dir", str(tmp_path / "state")]
        options = ["act", "kubernetes", *files, "--kubeconfig", str(tmp_path / "kubeconfig"), "--announce", *common]
        keeping = ["policy", "keep", str(tmp_path / "site.toml"), "--every", "1", *common]
        with ExitStack() as started:
            keeper = started.enter_context(LoggedProcess(keeping, tmp_path / "keeper"))
            # An actuator that is ready has read what was on its topics when it began: the policy, and that it is kept.
            keeper.until(lambda: bool(read_topics(servers, "paceline.policy-heartbeats.v1")))
            actuator = started.enter_context(LoggedProcess(options, tmp_path / "actuator-1"))
            actuator.until_said(b'"ready"')
            sender, now_ns = sender_to(servers), time.time_ns()
            times = {"decided_at_ns": now_ns, "expires_at_ns": now_ns + 600 * SECOND_NS, "key_id": signer.key_id}
            orders = [command(0, kind="drain_node", **times), command(number=1, kind="uncordon_node", **times)]

            def publish(number: int) -> None:
                wire = signed(orders[number], signer)
                sender.send(wire.topic, wire.key, wire.value, list(wire.headers))
                sender.flush()

            publish(0)
            actuator.until(lambda: len(results(read_topics, servers)) == 1)
            assert mock.node("node-1")["metadata"]["annotations"][HELD_BY] == orders[0].command_id
            assert mock.remaining("node-1") == set()
            actuator.kill()
            publish(1)
            actuator = started.enter_context(LoggedProcess(options, tmp_path / "actuator-2"))
            actuator.until(lambda: len(results(read_topics, servers)) == 2)
            assert mock.node("node-1")["spec"] == before["spec"]
            told = results(read_topics, servers)
            assert [(result.command_id, result.outcome, result.code) for result in told] == [
                (order.command_id, "applied", None) for order in orders
            ]
            assert [actuator.end(), keeper.end()] == [0, 0]


def kubeconfig(mock: KubeMock) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mock",
            "contexts": [{"name": "mock", "context": {"cluster": "mock", "user": "u"}}],
            "clusters": [{"name": "mock", "cluster": {"server": mock.configuration().host}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
    )


def results(read_topics: Any, servers: str) -> list[ActionResult]:
    found = [decode(got.topic(), got.value()) for got in read_topics(servers, "paceline.action-results.v1")]
    assert all(isinstance(record, ActionResult) for record in found)
    return sorted(found, key=lambda result: result.event_time_ns)
