"""How a local Apache Kafka is configured: one node, broker and controller, plain text on loopback.

Pure: settings in, the text of `server.properties` out. Replication is 1 and the internal topics are small, which
is right for one node on one machine and for nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from deploy.brokers.errors import BrokerUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEADER = "# Written by paceline for a local broker; overwritten at every start.\n"
DATA_FOLDER = "kraft"
PROPERTIES_NAME = "server.properties"
LOG_NAME = "broker.log"
OLD_LOG_NAME = "broker.log.1"
HOST = "127.0.0.1"
HEAP_MINIMUM_MIB = 224
"""Measured with Kafka 4.4.0: it starts with 224 and not with 192; its log cleaner alone takes 128."""

TimestampType = Literal["CreateTime", "LogAppendTime"]
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# What binds the broker to its data directory and its ports is not open to extra settings.
_RESERVED = frozenset(
    {
        "advertised.listeners", "controller.listener.names", "controller.quorum.bootstrap.servers",
        "controller.quorum.voters", "inter.broker.listener.name", "listener.security.protocol.map", "listeners",
        "log.dir", "log.dirs", "metadata.log.dir", "node.id", "process.roles",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApacheSettings:
    """What may be chosen about a local Apache Kafka."""

    auto_create_topics: bool = False
    """Whether a topic that a client names comes into being by that."""
    timestamp_type: TimestampType = "LogAppendTime"
    """What a record's timestamp means in topics that do not say so themselves."""
    partitions: int = 4
    """Partitions of topics that are made without a number."""
    heap_mib: int = 512
    """Upper limit of the Java heap, MiB; at least HEAP_MINIMUM_MIB."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further broker properties by Kafka's name; they win over those written here."""

    def __post_init__(self) -> None:
        if self.timestamp_type not in get_args(TimestampType):
            raise BrokerUsageError(f"timestamp type {self.timestamp_type!r}: CreateTime or LogAppendTime")
        if self.partitions < 1:
            raise BrokerUsageError(f"{self.partitions} partitions: a topic has at least 1")
        if self.heap_mib < HEAP_MINIMUM_MIB:
            raise BrokerUsageError(
                f"heap of {self.heap_mib} MiB: Kafka runs out of memory at start with less than {HEAP_MINIMUM_MIB}"
            )
        for name, value in self.extra.items():
            if not _NAME.fullmatch(name) or "\n" in value or "\r" in value:
                raise BrokerUsageError(f"broker property {name!r}: a name of letters, digits, . _ -, and one line")
            if name in _RESERVED:
                raise BrokerUsageError(f"broker property {name}: set by the local broker itself")


def render(settings: ApacheSettings, data_dir: Path, port: int, controller_port: int) -> str:
    """The text of `server.properties`.

    Args:
        settings: What was chosen.
        data_dir: The broker's directory; its log segments go to a folder in it.
        port: Port of the client listener.
        controller_port: Port of the controller listener.

    Raises:
        BrokerUsageError: The directory's name cannot be written in such a file.
    """
    if "," in str(data_dir) or "\n" in str(data_dir):
        raise BrokerUsageError(f"data directory {str(data_dir)!r}: Kafka splits its name at commas; choose another")
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        # Voters by configuration, not by formatting: the same data starts on other ports too.
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dir": _escaped(str(data_dir / DATA_FOLDER)),
        "num.partitions": str(settings.partitions),
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "log.message.timestamp.type": settings.timestamp_type,
        # Waiting for further members of a new group costs 3 s a group, and locally there is nothing to wait for.
        "group.initial.rebalance.delay.ms": "0",
    }
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        properties[f"{topic}.replication.factor"] = "1"
        properties[f"{topic}.num.partitions"] = "4"
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        properties[f"{topic}.min.isr"] = "1"
    properties.update({name: _escaped(value) for name, value in settings.extra.items()})
    return HEADER + "".join(f"{name}={value}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    # Java reads properties files as Latin-1 with \uXXXX escapes, and drops leading blanks.
    text = "".join(_escaped_character(character) for character in value)
    return f"\\{text}" if text.startswith(" ") else text


def _escaped_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isascii():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
