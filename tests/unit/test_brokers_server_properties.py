"""The text that configures a local Apache Kafka."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.brokers.errors import BrokerUsageError
from deploy.brokers.server_properties import HEADER, ApacheSettings, render


def parsed(text: str) -> dict[str, str]:
    """Reads properties as Java does, as far as this writer goes: escapes and leading blanks."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("=")
            value = value.lstrip(" \t\f")
            units = re.sub(
                r"\\(u[0-9a-f]{4}|.)",
                lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else m[1],
                value,
            )
            found[name] = units.encode("utf-16", "surrogatepass").decode("utf-16")
    return found


def test_the_node_listens_on_loopback_only() -> None:
    found = parsed(render(ApacheSettings(), Path("/data"), 21_000, 21_001))

    assert found["listeners"] == "PLAINTEXT://127.0.0.1:21000,CONTROLLER://127.0.0.1:21001"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:21001"


def test_topics_come_by_request_only_and_carry_append_time_unless_chosen_otherwise() -> None:
    default = parsed(render(ApacheSettings(), Path("/data"), 1, 2))
    chosen = parsed(render(ApacheSettings(auto_create_topics=True, timestamp_type="CreateTime"), Path("/d"), 1, 2))

    assert (default["auto.create.topics.enable"], default["log.message.timestamp.type"]) == ("false", "LogAppendTime")
    assert (chosen["auto.create.topics.enable"], chosen["log.message.timestamp.type"]) == ("true", "CreateTime")


def test_every_replicated_thing_is_content_with_one_node() -> None:
    found = parsed(render(ApacheSettings(), Path("/data"), 1, 2))

    assert {value for name, value in found.items() if name.endswith(("replication.factor", "min.isr"))} == {"1"}


def test_extra_properties_win() -> None:
    found = parsed(render(ApacheSettings(extra={"num.partitions": "12", "compression.type": "zstd"}), Path("/d"), 1, 2))

    assert (found["num.partitions"], found["compression.type"]) == ("12", "zstd")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1))
def test_any_value_of_one_line_reads_back_as_it_was(value: str) -> None:
    text = render(ApacheSettings(extra={"x": value}), Path("/data"), 1, 2)

    assert text.isascii()
    assert parsed(text)["x"] == value


def test_a_data_directory_with_blanks_and_accents_reads_back() -> None:
    assert parsed(render(ApacheSettings(), Path("/dä ta/😀"), 1, 2))["log.dir"] == "/dä ta/😀/kraft"


def test_a_data_directory_with_a_comma_is_refused() -> None:
    with pytest.raises(BrokerUsageError, match="comma"):
        render(ApacheSettings(), Path("/data,more"), 1, 2)


@pytest.mark.parametrize(
    "extra",
    [
        {"listeners": "PLAINTEXT://0.0.0.0:9092"},
        {"log.dirs": "/tmp"},
        {"a b": "c"},
        {"a": "b\nlog.dirs=/etc"},
        {"": "x"},
    ],
)
def test_extra_properties_cannot_move_the_broker_or_smuggle_lines(extra: dict[str, str]) -> None:
    with pytest.raises(BrokerUsageError):
        ApacheSettings(extra=extra)


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"heap_mib": 192}, {"timestamp_type": "NoTime"}])
def test_settings_that_kafka_would_refuse_are_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(BrokerUsageError):
        ApacheSettings(**wrong)  # type: ignore[arg-type]


def test_the_file_says_whose_it_is() -> None:
    assert render(ApacheSettings(), Path("/data"), 1, 2).startswith(HEADER)
