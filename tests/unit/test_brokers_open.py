"""What `open_broker` takes and refuses, and which ports a broker gets."""

import socket
from pathlib import Path

import pytest

from deploy.brokers import open_broker
from deploy.brokers.apache import PORT_RANGE, ApacheBroker, free_port, refuse_if_taken
from deploy.brokers.embedded import EmbeddedBroker
from deploy.brokers.errors import BrokerStartError, BrokerUsageError
from deploy.brokers.server_properties import ApacheSettings


def test_each_kind_says_what_it_is() -> None:
    embedded, apache = open_broker("embedded"), open_broker("apache")

    assert (embedded.is_real, embedded.has_admin) == (False, False)
    assert (apache.is_real, apache.has_admin) == (True, True)
    assert not embedded.is_running
    assert not apache.is_running
    assert not embedded.has_failed
    assert not apache.has_failed


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BrokerUsageError, match="'redpanda' is unknown; choose one of: embedded, apache"):
        open_broker("redpanda")


def test_the_embedded_broker_refuses_what_it_cannot_do() -> None:
    with pytest.raises(BrokerUsageError, match="port 9092"):
        open_broker("embedded", port=9092)
    with pytest.raises(BrokerUsageError, match="settings"):
        open_broker("embedded", settings=ApacheSettings())
    with pytest.raises(BrokerUsageError, match="at least 1"):
        EmbeddedBroker(brokers=0)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_outside_the_range_is_refused(port: int) -> None:
    with pytest.raises(BrokerUsageError, match=str(port)):
        open_broker("apache", port=port)


@pytest.mark.parametrize("kind", ["embedded", "apache"])
def test_a_broker_has_no_address_before_it_starts_and_may_be_stopped_all_the_same(kind: str, tmp_path: Path) -> None:
    broker = open_broker(kind, data_dir=tmp_path)
    broker.stop()
    with pytest.raises(BrokerUsageError, match="before it is started"):
        _ = broker.bootstrap_servers
    assert broker.log_tail() == ""


def test_preparing_a_broker_writes_nothing(tmp_path: Path) -> None:
    ApacheBroker(data_dir=tmp_path / "data")

    assert list(tmp_path.iterdir()) == []


def test_a_free_port_lies_below_the_range_of_outgoing_connections() -> None:
    port = free_port()

    assert port in PORT_RANGE
    refuse_if_taken(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(BrokerStartError, match=str(port)):
            refuse_if_taken(port)
