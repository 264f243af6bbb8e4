"""Real Apache Kafka on this machine: one KRaft node from Maven's jars on a local Java 17 or newer.

`start` returns once a client got an answer from this very cluster (3.4 s on two idle cores, up to 9 s more after the
JVM was killed, while Kafka waits for the dead node's session), or fails with the end of the log. Data, address and
cluster id survive `stop` and `start`. The JVM ends with the process that started it, however that ends. One
node on loopback without authentication: good for tests and demonstrations, not for keeping anything.
"""

from __future__ import annotations

import base64
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.brokers.errors import BrokerError, BrokerStartError, BrokerUsageError
from deploy.brokers.jars import KAFKA_VERSIONS, KafkaJars, ensure_jars, find_java
from deploy.brokers.lifetime import BoundProcess, last_lines
from deploy.brokers.record import clear_record, refuse_if_running, wipe, write_record
from deploy.brokers.server_properties import (
    DATA_FOLDER,
    HOST,
    LOG_NAME,
    OLD_LOG_NAME,
    PROPERTIES_NAME,
    ApacheSettings,
    render,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

START_TIMEOUT_S = 90.0
FORMAT_TIMEOUT_S = 60.0
# Kafka's own clean shutdown takes 0.4 s when idle (measured, 4.4.0).
STOP_GRACE_S = 15.0
GREETING_TIMEOUT_S = 15.0
PORT_ATTEMPTS = 3
LOG_ROTATE_BYTES = 8 * 1024 * 1024
# Below Linux's range of ports for outgoing connections (32768 up): a client that keeps trying to reach a stopped
# broker on a port of that range can be given the port itself, connects to itself, and keeps the broker from it.
PORT_RANGE = range(20_000, 32_000)
_CLUSTER_ID = re.compile(r"^cluster\.id=(\S+)\s*$", re.MULTILINE)
_JAVA_OPTIONS = (
    # On two cores it starts no slower than the default collector, and with fewer threads (99 to 105, measured).
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    # Hundreds of lines of effective configuration per start, else.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)


class ApacheBroker:
    """One node of Apache Kafka on a data directory."""

    has_admin = True
    is_real = True

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        settings: ApacheSettings | None = None,
        cache: Path | None = None,
        versions: Sequence[str] = KAFKA_VERSIONS,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Prepares the broker; nothing is written or started yet.

        Args:
            data_dir: Where data, configuration, log and record live. None: a temporary directory, kept from stop
                to start and removed at the end of the `with` block.
            port: Port of the client listener; 0 for a free one, kept from stop to start.
            settings: What may be chosen about the broker.
            cache: Folder of Kafka's jars; the user's cache when None.
            versions: Versions of Kafka that will do, preferred first.
            start_timeout_s: How long it may take until it answers.

        Raises:
            BrokerUsageError: The port is not one.
        """
        if not 0 <= port < 65_536:
            raise BrokerUsageError(f"port {port}: choose 0 for a free one, or 1 to 65535")
        self._is_temporary = data_dir is None
        self._data_dir = data_dir.resolve() if data_dir is not None else None
        self._port_asked = port
        self._ports: tuple[int, int] | None = None
        self._settings = settings or ApacheSettings()
        self._cache = cache
        self._versions = tuple(versions)
        self._start_timeout_s = start_timeout_s
        self._process: BoundProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The address of the client listener, the same after a restart."""
        if self._ports is None:
            raise BrokerUsageError("the Apache broker has no address before it is started")
        return f"{HOST}:{self._ports[0]}"

    @property
    def data_dir(self) -> Path:
        """The broker's directory; a temporary one is made here."""
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="paceline-kafka-"))
        return self._data_dir

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is alive."""
        return self._process is not None and self._process.is_running

    @property
    def has_failed(self) -> bool:
        """Whether the broker's process ended without being asked to by `stop`, its record or its owner's end."""
        return self._process is not None and self._process.has_failed

    def start(self) -> Self:
        """Starts the node, on first use fetching the jars and formatting the directory.

        Raises:
            BrokerMissingError: Java, Maven or the jars are missing.
            BrokerRunningError: Another broker runs on the directory.
            BrokerStartError: A port is taken, or the node ended or did not answer; with the end of its log.
        """
        if self.is_running:
            return self
        self.stop()
        java = find_java()
        jars = ensure_jars(self._cache, self._versions)
        refuse_if_running(self.data_dir)
        self._make_directory()
        for attempt in range(1, PORT_ATTEMPTS + 1):
            is_chosen = self._ports is None
            ports = self._ports or (self._port_asked or free_port(), free_port())
            for port in ports:
                refuse_if_taken(port)
            try:
                self._launch(java, jars, ports)
            except BrokerStartError as error:
                # Between our look and Kafka's bind another process can take a free port.
                if is_chosen and attempt < PORT_ATTEMPTS and "Address already in use" in str(error):
                    continue
                raise
            self._ports = ports
            return self
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """Stops the node: a clean shutdown, or after 15 s a kill. Its data stays."""
        if self._process is None:
            return
        self._process.stop(STOP_GRACE_S + 5)
        self._process = None
        clear_record(self.data_dir)

    def wipe(self) -> None:
        """Removes the data of the stopped broker; the next start begins an empty cluster.

        Raises:
            BrokerRunningError: It runs.
        """
        if self._data_dir is not None:
            wipe(self._data_dir)

    def log_tail(self) -> str:
        """The last 30 lines of the broker's log."""
        return _tail(self.data_dir / LOG_NAME)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._remove_temporary()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._is_temporary and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def _make_directory(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            log = self.data_dir / LOG_NAME
            if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
                log.replace(self.data_dir / OLD_LOG_NAME)
        except OSError as error:
            raise BrokerError(f"data directory {self.data_dir} cannot be written: {error.strerror}") from error

    def _launch(self, java: Path, jars: KafkaJars, ports: tuple[int, int]) -> None:
        properties = self.data_dir / PROPERTIES_NAME
        properties.write_text(render(self._settings, self.data_dir, *ports))
        run_java = [str(java), f"-Xmx{self._settings.heap_mib}m", *_JAVA_OPTIONS, "-cp", jars.class_path]
        cluster_id = self._formatted(run_java)
        log = self.data_dir / LOG_NAME
        log_start = log.stat().st_size if log.exists() else 0
        self._process = BoundProcess(
            "deploy.brokers.lifetime",
            ["--log", str(log), "--grace-s", str(STOP_GRACE_S), "--", *run_java, "kafka.Kafka", str(properties)],
        )
        try:
            self._process.greeting(GREETING_TIMEOUT_S)
            self._wait_for_answer(f"{HOST}:{ports[0]}", cluster_id, log_start)
            write_record(self.data_dir, "apache", self._process.pid, f"{HOST}:{ports[0]}")
        except BaseException:
            self.stop()
            raise

    def _formatted(self, run_java: list[str]) -> str:
        """Formats the data folder unless it is; returns the cluster's id."""
        meta = self.data_dir / DATA_FOLDER / "meta.properties"
        if not meta.exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # Kafka reads an id that starts with a dash as an option.
            cluster_id = "A" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id
            command = [
                *run_java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id,
                "-c", str(self.data_dir / PROPERTIES_NAME),
            ]  # fmt: skip
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=FORMAT_TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise BrokerStartError(
                    f"Kafka's storage tool did not format {meta.parent} within {FORMAT_TIMEOUT_S:g} s"
                ) from None
            if done.returncode != 0:
                said = last_lines(done.stdout + done.stderr)
                raise BrokerStartError(f"Kafka's storage tool could not format {meta.parent}:\n{said}")
        found = _CLUSTER_ID.search(meta.read_text(errors="replace")) if meta.exists() else None
        if found is None:
            raise BrokerStartError(f"{meta} names no cluster; wipe {self.data_dir} and start again")
        return found[1]

    def _wait_for_answer(self, address: str, cluster_id: str, log_start: int) -> None:
        assert self._process is not None
        client = AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 200})
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if not self._process.is_running:
                raise BrokerStartError(
                    f"Kafka ended before it answered. The end of its log:\n{self._log_since(log_start)}"
                )
            try:
                members = client.list_topics(timeout=1.0)
            except KafkaException:
                continue
            if str(members.cluster_id) != cluster_id:
                raise BrokerStartError(
                    f"another cluster ({members.cluster_id}) answers at {address}; choose another port"
                )
            if members.brokers:
                return
        raise BrokerStartError(
            f"Kafka did not answer at {address} within {self._start_timeout_s:g} s. "
            f"The end of its log:\n{self._log_since(log_start)}"
        )

    def _log_since(self, start: int) -> str:
        return _tail(self.data_dir / LOG_NAME, start)


def free_port() -> int:
    """A port of loopback that nothing listens on now, from 20000 to 31999.

    Raises:
        BrokerStartError: None was found.
    """
    for port in random.sample(PORT_RANGE, 200):
        if not _is_taken(port):
            return port
    raise BrokerStartError(f"no free port found from {PORT_RANGE.start} to {PORT_RANGE.stop - 1}")


def refuse_if_taken(port: int) -> None:
    """Raises BrokerStartError when a process has the port."""
    if _is_taken(port):
        raise BrokerStartError(f"port {port} on {HOST} is taken; stop what listens there or choose another")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does; else connections of a broker that stopped a minute ago would count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _tail(path: Path, start: int = 0) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(start, path.stat().st_size - 64 * 1024))
            return last_lines(log.read().decode(errors="replace"))
    except OSError:
        return ""
