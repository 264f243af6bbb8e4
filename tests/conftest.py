"""The suite's Kafka, topics and skips.

`kafka` is one broker a session: a given one, Docker's, a local Apache Kafka, or the embedded one, in that order.
What a test cannot do here is skipped with the marker's name in front of the reason, and counted at the end, so that
a run shows what it did not look at. With PACELINE_REFUSE_SKIPS=1 a skip that is not for missing hardware, engines or
reference data fails the run.

Environment: PACELINE_BOOTSTRAP_SERVERS gives a broker (taken to be real Kafka with topic creation allowed);
PACELINE_TEST_BROKER=docker|apache|embedded demands one kind and fails where it cannot be had. PACELINE_TORCH_PYTHON
names an interpreter that has PyTorch, where this one has not. PACELINE_EXAMPLES=same draws the same examples for the
property tests at every run; without it each run draws others. PACELINE_KUBECONFIG names a throw-away Kubernetes API server.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import settings

from deploy.brokers import open_broker
from deploy.brokers.embedded import PARTITIONS_PER_TOPIC, touch_topic
from deploy.brokers.errors import BrokerError
from deploy.brokers.jars import missing_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# Records are slow to build and machines are shared: no deadline for a single example.
settings.register_profile("drawn", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("PACELINE_EXAMPLES", "drawn"))

REFERENCE_PREFIX = "reference data absent"
EXPECTED_SKIPS = (
    "needs_docker",
    "needs_torch",
    "needs_gpu",
    "needs_kube",
    "needs_kmsg",
    "reference_data",
)
SKIP_KINDS = (*EXPECTED_SKIPS, "needs_chromium", "needs_kafka", "needs_slurm", "needs_program", "other")
DOCKER_IMAGE = "confluentinc/cp-kafka:7.9.0"
DOCKER_START_S = 120
BROKER_KINDS = ("docker", "apache", "embedded")
_NOTES = pytest.StashKey[list[str]]()


@dataclass(frozen=True, slots=True)
class KafkaWire:
    """The broker that this session's tests talk to."""

    bootstrap_servers: str
    has_admin: bool
    is_real: bool
    origin: str


class TopicFactory(Protocol):
    """Makes a topic with a unique name."""

    def __call__(
        self, label: str = "topic", *, partitions: int = PARTITIONS_PER_TOPIC, config: Mapping[str, str] | None = None
    ) -> str: ...


# --- What is here -------------------------------------------------------------------------------------------------


@cache
def _docker_lacks() -> str | None:
    try:
        import docker  # type: ignore[import-untyped]

        docker.from_env(timeout=3).ping()
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no engine to use
        return f"no Docker engine answers ({type(error).__name__})"
    return None


@cache
def _torch_lacks() -> str | None:
    given = os.environ.get("PACELINE_TORCH_PYTHON")
    if given:
        return None if shutil.which(given) else f"PACELINE_TORCH_PYTHON={given} is no interpreter"
    found = importlib.util.find_spec("torch") is not None
    return None if found else "PyTorch is not installed, and PACELINE_TORCH_PYTHON names no interpreter that has it"


@cache
def _gpu_lacks() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - no library, no driver, no device: all the same here
        return f"NVML finds no NVIDIA GPU ({type(error).__name__})"
    return None if count else "NVML finds no NVIDIA GPU"


@cache
def _kube_lacks() -> str | None:
    given = os.environ.get("PACELINE_KUBECONFIG")
    if not given:
        # Never the cluster that a person happens to work with.
        return "PACELINE_KUBECONFIG names no throw-away API server (tests/kube/README.md)"
    try:
        from kubernetes import client, config

        client.VersionApi(config.new_client_from_config(given)).get_code(_request_timeout=3)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - no package, no configuration, no server
        return f"no Kubernetes API server answers ({type(error).__name__})"
    return None


@cache
def _slurm_lacks() -> str | None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "scontrol") if shutil.which(name, path=path) is None]
    return f"no {', '.join(missing)} (Debian: munge slurmctld slurmd slurm-client)" if missing else None


PROBES: dict[str, Callable[[], str | None]] = {
    "needs_docker": _docker_lacks,
    "needs_torch": _torch_lacks,
    "needs_gpu": _gpu_lacks,
    "needs_kube": _kube_lacks,
    "needs_slurm": _slurm_lacks,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, lacks in PROBES.items():
        if item.get_closest_marker(marker) is not None and (reason := lacks()) is not None:
            pytest.skip(f"{marker}: {reason}")


# --- Kafka --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaWire]:
    """A Kafka wire for the whole session; `is_real` tells whether it is Kafka."""
    notes = request.config.stash.setdefault(_NOTES, [])
    given = os.environ.get("PACELINE_BOOTSTRAP_SERVERS")
    if given:
        notes.append(f"given by PACELINE_BOOTSTRAP_SERVERS: {given}")
        yield KafkaWire(given, has_admin=True, is_real=True, origin="given")
        return
    demanded = os.environ.get("PACELINE_TEST_BROKER")
    if demanded and demanded not in BROKER_KINDS:
        pytest.fail(f"PACELINE_TEST_BROKER={demanded}: choose one of {', '.join(BROKER_KINDS)}", pytrace=False)
    for kind in (demanded,) if demanded else BROKER_KINDS:
        opened = _opened(kind, tmp_path_factory)
        try:
            wire = next(opened)
        except _NotHere as error:
            notes.append(f"not {kind}: {error}")
            continue
        notes.append(f"{wire.origin} at {wire.bootstrap_servers}")
        yield wire
        # Resumes behind its yield, which stops the broker.
        next(opened, None)
        return
    pytest.fail("no Kafka could be started: " + "; ".join(notes), pytrace=False)


class _NotHere(Exception):  # noqa: N818 - an outcome, not a failure
    """A kind of broker that this machine cannot run."""


def _opened(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaWire]:
    if kind == "docker":
        yield from _docker_broker()
        return
    data_dir = None
    if kind == "apache":
        if lacks := missing_tools():
            raise _NotHere("; ".join(lacks))
        data_dir = tmp_path_factory.mktemp("kafka")
    yield from _local_broker(kind, data_dir)


def _local_broker(kind: str, data_dir: Path | None) -> Iterator[KafkaWire]:
    broker = open_broker(kind, data_dir=data_dir)
    try:
        broker.start()
    except BrokerError as error:
        raise _NotHere(str(error)) from error
    try:
        yield KafkaWire(broker.bootstrap_servers, broker.has_admin, broker.is_real, origin=kind)
    finally:
        broker.stop()


def _docker_broker() -> Iterator[KafkaWire]:
    if (reason := _docker_lacks()) is not None:
        raise _NotHere(reason)
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer(DOCKER_IMAGE).with_kraft()
    container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    container.with_env("KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE", "LogAppendTime")
    container.with_env("KAFKA_NUM_PARTITIONS", str(PARTITIONS_PER_TOPIC))
    try:
        container.start(timeout=DOCKER_START_S)
    except Exception as error:
        container.stop()
        raise _NotHere(f"{DOCKER_IMAGE} does not start: {error}") from error
    try:
        yield KafkaWire(container.get_bootstrap_server(), has_admin=True, is_real=True, origin="docker")
    finally:
        container.stop()


@pytest.fixture(autouse=True)
def _real_kafka_where_needed(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("needs_kafka") is None:
        return
    wire: KafkaWire = request.getfixturevalue("kafka")
    if not wire.is_real:
        pytest.skip(f"needs_kafka: the session's broker is {wire.origin}, not Apache Kafka")


@pytest.fixture
def topic(kafka: KafkaWire) -> TopicFactory:
    """Makes topics with unique names on the session's broker; they stay until it ends."""

    def make(
        label: str = "topic", *, partitions: int = PARTITIONS_PER_TOPIC, config: Mapping[str, str] | None = None
    ) -> str:
        name = f"{label}-{uuid.uuid4().hex[:12]}"
        if kafka.has_admin:
            from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
            admin.create_topics([wanted], operation_timeout=15)[name].result(timeout=30)
        elif partitions != PARTITIONS_PER_TOPIC or config:
            pytest.skip(f"needs_kafka: {kafka.origin} has topics of {PARTITIONS_PER_TOPIC} partitions and no settings")
        else:
            touch_topic(kafka.bootstrap_servers, name)
        return name

    return make


# --- Skips, counted -----------------------------------------------------------------------------------------------


def skip_kind(reason: str) -> str:
    """Which of SKIP_KINDS a skip with this reason is."""
    plain = reason.removeprefix("Skipped: ").strip()
    if plain.startswith(REFERENCE_PREFIX):
        return "reference_data"
    return next((kind for kind in SKIP_KINDS if plain.startswith(f"{kind}:")), "other")


def _skips(config: pytest.Config) -> list[tuple[str, str, str]]:
    """Kind, test and reason of every skip so far; empty in a worker of a distributed run."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    found = []
    for report in reporter.stats.get("skipped", []) if reporter is not None else []:
        told = report.longrepr
        reason = str(told[2]) if isinstance(told, tuple) else str(told)
        found.append((skip_kind(reason), str(report.nodeid), reason.removeprefix("Skipped: ")))
    return found


def _refused(config: pytest.Config) -> list[tuple[str, str, str]]:
    if os.environ.get("PACELINE_REFUSE_SKIPS") != "1":
        return []
    return [skip for skip in _skips(config) if skip[0] not in EXPECTED_SKIPS]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _refused(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    for note in config.stash.get(_NOTES, []):
        terminalreporter.write_line(f"kafka: {note}")
    counts = Counter(kind for kind, _, _ in _skips(config))
    terminalreporter.write_line("skips: " + " ".join(f"{kind}={counts[kind]}" for kind in SKIP_KINDS))
    refused = _refused(config)
    if refused:
        terminalreporter.write_line(f"refused by PACELINE_REFUSE_SKIPS=1: {len(refused)} skips", red=True)
        for _, test, reason in refused:
            terminalreporter.write_line(f"  {test}: {reason}", red=True)
