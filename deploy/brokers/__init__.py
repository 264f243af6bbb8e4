"""Local Kafka brokers behind one narrow protocol: `embedded` and `apache`.

A broker here listens on loopback without authentication, serves tests and demonstrations, and ends with the
process that started it. It deliberately does not manage a production cluster, and it makes no topics: clients
do, through the admin API where `has_admin` holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

from deploy.brokers.errors import BrokerUsageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from deploy.brokers.server_properties import ApacheSettings

BrokerKind = Literal["embedded", "apache"]
BROKER_KINDS: tuple[str, ...] = get_args(BrokerKind)


class Broker(Protocol):
    """One local broker. As a context manager it is started on entry and stopped on exit.

    `start` after `stop` is allowed; whether data and address survive that is the kind's to say. Instances are not
    thread safe.
    """

    @property
    def bootstrap_servers(self) -> str:
        """Comma-separated host:port list for clients.

        Raises:
            BrokerUsageError: It was never started.
        """
        ...

    @property
    def has_admin(self) -> bool:
        """Whether CreateTopics and the rest of the admin API work."""
        ...

    @property
    def is_real(self) -> bool:
        """Whether this is Apache Kafka, not something that speaks its protocol."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is alive."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the broker's process ended without being asked to by `stop`, its record or its owner's end."""
        ...

    def start(self) -> Self:
        """Starts the broker and returns once it answers a client. Does nothing when it runs already.

        Raises:
            BrokerError: It cannot run here, or did not answer in time; nothing is left running.
        """
        ...

    def stop(self) -> None:
        """Stops the broker within a bounded time. Does nothing when it does not run."""
        ...

    def log_tail(self) -> str:
        """The last lines the broker's process wrote, for error messages; may be empty."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_broker(
    kind: str,
    *,
    data_dir: Path | None = None,
    port: int = 0,
    settings: ApacheSettings | None = None,
) -> Broker:
    """Makes a broker of one kind, not yet started.

    Args:
        kind: `embedded` (in memory, bounded, no admin API, no data after a stop) or `apache` (real Apache Kafka,
            needs Java 17 or newer, and once Maven).
        data_dir: Where `apache` keeps its data; a temporary directory when None. For `embedded` only the place of
            the record that lets another process stop it.
        port: Port of the client listener, 0 for a free one. `embedded` cannot choose.
        settings: How `apache` is set up; its defaults when None.

    Raises:
        BrokerUsageError: The kind is unknown, or an argument does not apply to it.
    """
    if kind == "embedded":
        from deploy.brokers.embedded import EmbeddedBroker

        if port:
            raise BrokerUsageError(
                f"port {port}: the embedded broker takes whatever port is free; leave the port out or use apache"
            )
        if settings is not None:
            raise BrokerUsageError("the embedded broker takes no server settings; use apache")
        return EmbeddedBroker(data_dir=data_dir)
    if kind == "apache":
        from deploy.brokers.apache import ApacheBroker

        return ApacheBroker(data_dir=data_dir, port=port, settings=settings)
    raise BrokerUsageError(f"broker kind {kind!r} is unknown; choose one of: {', '.join(BROKER_KINDS)}")
