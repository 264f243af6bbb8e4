"""`paceline topics` against a broker: what it makes agrees with the table, and what differs from the table is said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from typer.testing import CliRunner

import deploy.topics
from deploy.brokers import open_broker
from deploy.brokers.embedded import PARTITIONS_PER_TOPIC
from deploy.topics import TopicSetupError, apply_topics, check_topics
from paceline.cli import app
from schemas.topics import DEAD_LETTER, LATE, TOPICS, topic_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from deploy.brokers import Broker

GPU_FRAMES = topic_named("gpu-frames").name
FINDINGS = topic_named("findings").name
WAIT_S = 30.0


def topics(broker: Broker, *arguments: str) -> Result:
    result: Any = CliRunner().invoke(app, ["topics", *arguments, "--bootstrap", broker.bootstrap_servers])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def real(own_kafka: Broker) -> Broker:
    """A real broker of this module's own."""
    if not own_kafka.is_real:
        pytest.skip("needs_kafka: the embedded broker has no admin API")
    return own_kafka


@pytest.fixture
def applied(real: Broker) -> Broker:
    """A real broker with all topics as the table has them."""
    apply_topics(real.bootstrap_servers, 4, 1)
    until_it_agrees(real)
    return real


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def delete(broker: Broker, topic: str) -> None:
    """Delete a topic, and wait until the broker has forgotten it."""
    admin = admin_of(broker)
    admin.delete_topics([topic], operation_timeout=WAIT_S)[topic].result(timeout=WAIT_S)
    until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics, f"{topic} to be gone")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.1)


def until_it_agrees(broker: Broker) -> None:
    # What the controller has accepted reaches the broker's own answers a moment later.
    until(lambda: topics(broker, "check").exit_code == 0, "the topics to agree with the table")


def test_topics_that_were_applied_agree_with_the_table(real: Broker) -> None:
    before = topics(real, "check")
    assert before.exit_code == 1
    missing = [line.removesuffix(": is missing") for line in before.stdout.splitlines()]
    assert set(missing) >= {topic.name for topic in TOPICS}

    made = topics(real, "apply", "--partitions", "4", "--replication", "1")
    assert made.exit_code == 0, made.stderr
    assert sorted(made.stdout.splitlines()) == sorted(missing)

    until_it_agrees(real)
    after = topics(real, "check")
    assert (after.exit_code, after.stdout, after.stderr) == (0, "", "")
    again = topics(real, "apply", "--partitions", "4", "--replication", "1")
    assert (again.exit_code, again.stdout) == (0, "")


@pytest.mark.parametrize(
    ("topic", "setting", "altered", "usual"),
    [
        (GPU_FRAMES, "retention.ms", "1000", "604800000"),
        (GPU_FRAMES, "message.timestamp.type", "CreateTime", "LogAppendTime"),
        (FINDINGS, "cleanup.policy", "compact", "delete"),
        (DEAD_LETTER.name, "max.message.bytes", "1048588", "2097176"),
    ],
)
def test_a_setting_that_was_altered_is_drift(
    applied: Broker, topic: str, setting: str, altered: str, usual: str
) -> None:
    alter(applied, topic, setting, altered)
    try:
        checked = topics(applied, "check")
        assert checked.exit_code == 1
        assert checked.stdout.splitlines() == [f"{topic}: {setting} is {altered}, the table says {usual}"]
    finally:
        alter(applied, topic, setting, usual)
    until_it_agrees(applied)


def test_a_topic_of_another_size_or_none_is_drift_and_only_it_is_made_again(applied: Broker) -> None:
    admin = admin_of(applied)
    admin.create_partitions([NewPartitions(LATE.name, 6)])[LATE.name].result(timeout=WAIT_S)
    until(lambda: len(admin.list_topics(timeout=WAIT_S).topics[LATE.name].partitions) == 6, "6 partitions")
    checked = topics(applied, "check")
    assert (checked.exit_code, checked.stdout) == (1, f"{LATE.name}: has 6 partitions, the others 4\n")

    delete(applied, LATE.name)
    checked = topics(applied, "check")
    assert (checked.exit_code, checked.stdout) == (1, f"{LATE.name}: is missing\n")

    refused = topics(applied, "apply", "--partitions", "4", "--replication", "3")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"paceline: {LATE.name}: ")
    assert "eplication" in refused.stderr

    made = topics(applied, "apply", "--partitions", "4", "--replication", "1")
    assert (made.exit_code, made.stdout) == (0, f"{LATE.name}\n")
    until_it_agrees(applied)


def test_a_broker_without_an_admin_api_makes_topics_when_asked_for_them() -> None:
    with open_broker("embedded") as broker:
        made = apply_topics(broker.bootstrap_servers, 24, 3, has_admin=False)
        assert set(made) >= {topic.name for topic in TOPICS}
        there = admin_of(broker).list_topics(timeout=WAIT_S).topics
    assert {len(there[topic.name].partitions) for topic in TOPICS} == {PARTITIONS_PER_TOPIC}


@pytest.mark.parametrize("call", [check_topics, lambda servers: apply_topics(servers, 4, 1)])
def test_brokers_that_do_not_answer_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    monkeypatch.setattr(deploy.topics, "_TIMEOUT_S", 0.5)
    with pytest.raises(TopicSetupError, match=r"^127\.0\.0\.1:1: "):
        call("127.0.0.1:1")


def alter(broker: Broker, topic: str, name: str, value: str) -> None:
    """Set one setting of a topic, and wait until the broker tells it."""
    admin = admin_of(broker)
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([wanted]).values():
        future.result(timeout=WAIT_S)
    place = ConfigResource(ResourceType.TOPIC, topic)
    until(
        lambda: admin.describe_configs([place])[place].result(timeout=WAIT_S)[name].value == value,
        f"{topic}: {name} = {value}",
    )
