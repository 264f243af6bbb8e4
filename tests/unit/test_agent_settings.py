"""Settings of the agent: one precedence, and errors that say what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents.settings import AgentSettings, SettingsError, load, load_with_origins
from agents.settings_text import HIDDEN, as_toml

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "agent.toml"


def test_flags_win_over_the_environment_and_that_over_the_file(config: Path) -> None:
    config.write_text('[agent]\nnode_id = "file"\ntick_s = 2\nheartbeat_s = 7\nsources = ["nvml"]\n')
    env = {"PACELINE_NODE_ID": "environment", "PACELINE_TICK_S": "3", "PACELINE_UNRELATED": "x"}
    found = load(config, {"node_id": "flag", "sources": None}, env)
    assert (found.node_id, found.tick_s, found.heartbeat_s, found.sources) == ("flag", 3.0, 7.0, ("nvml",))
    assert found.linger_ms == AgentSettings().linger_ms


def test_each_setting_tells_where_it_came_from(config: Path) -> None:
    config.write_text('[agent]\nnode_id = "file"\ntick_s = 2\nheartbeat_s = 7\n[agent.kafka]\na = "b"\n')
    env = {"PACELINE_TICK_S": "3", "PACELINE_KAFKA_SASL_PASSWORD": "x"}
    settings, origins = load_with_origins(config, {"metrics_port": 9465}, env)
    assert origins == {
        "node_id": str(config),
        "heartbeat_s": str(config),
        "tick_s": "PACELINE_TICK_S",
        "metrics_port": "--metrics-port",
        "kafka": f"{config}, PACELINE_KAFKA_*",
    }
    assert settings.kafka == {"a": "b", "sasl.password": "x"}


def test_what_is_printed_is_a_file_that_gives_the_same_settings(config: Path, tmp_path: Path) -> None:
    config.write_text(
        '[agent]\nnode_id = "a \\"b\\" \\\\ \\u00e9 \\U0001F600 \\u007f"\nsources = ["nvml", "nic"]\nsocket_uids = [1, 2]\n'
        'stamp_arrival = true\ntick_s = 2.5\n[agent.kafka]\n"ssl.ca.location" = "/ca"\n"socket.nagle.disable" = true\n'
    )
    settings, origins = load_with_origins(config, {"metrics_port": 9465}, {"PACELINE_DISABLE": "nic"})
    again = tmp_path / "again.toml"
    again.write_text(as_toml(settings, origins), "utf-8")
    assert load(again) == settings
    assert "tick_s = 2.5  # " + str(config) in again.read_text("utf-8").splitlines()
    assert "heartbeat_s = 5.0  # default" in again.read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "ssl.key", "sasl.jaas.config"),
        *(
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.client.credentials.client.secret",
        ),
        *("sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase"),
    ],
)
def test_no_secret_is_printed(name: str) -> None:
    text = as_toml(AgentSettings(kafka={name: "hunter2", "client.rack": "r1"}), {})
    assert "hunter2" not in text
    assert f'"{name}" = "{HIDDEN}"' in text
    assert '"client.rack" = "r1"' in text


@pytest.mark.parametrize(
    "name", ["ssl.key.location", "ssl.keystore.location", "sasl.oauthbearer.token.endpoint.url", "sasl.username"]
)
def test_where_a_secret_lies_is_printed(name: str) -> None:
    assert f'"{name}" = "/where"' in as_toml(AgentSettings(kafka={name: "/where"}), {})


def test_a_password_in_an_address_is_not_printed() -> None:
    text = as_toml(AgentSettings(dcgm_exporter_url="http://reader:hunter2@localhost:9400/metrics"), {})
    assert "hunter2" not in text
    assert f"http://reader:{HIDDEN}@localhost:9400/metrics" in text


def test_the_environment_has_lists_and_truths_as_text() -> None:
    found = load(
        None,
        env={
            "PACELINE_SOURCES": "nic, kernel-log",
            "PACELINE_SOCKET_UIDS": "1000,1001",
            "PACELINE_STAMP_ARRIVAL": "yes",
            "PACELINE_SOCKET": "",
        },
    )
    assert found.sources == ("nic", "kernel-log")
    assert found.socket_uids == (1000, 1001)
    assert found.stamp_arrival is True
    assert found.socket == ""


def test_producer_properties_are_texts_under_their_full_names(config: Path) -> None:
    config.write_text(
        '[agent.kafka]\nsecurity.protocol = "ssl"\n"ssl.ca.location" = "/ca"\nenable.ssl.certificate.verification = true\n'
    )
    assert load(config).kafka == {
        "security.protocol": "ssl",
        "ssl.ca.location": "/ca",
        "enable.ssl.certificate.verification": "true",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\ntick = 2\n", "did you mean tick_s"),
        ("[agent]\ntick_s = 0\n", "tick_s is 0"),
        ("[agent]\ntick_s = nan\n", "tick_s is nan"),
        ("[agent]\ntick_s = true\n", "give a number"),
        ("[agent]\nqueue_messages = 1.5\n", "give a whole number"),
        ("[agent]\nqueue_messages = 3\n", "give 100 or more"),
        ("[agent]\ntick_s = 0.1\n", "must not be above tick_s"),
        ("[agent]\nmetrics_port = 70000\n", "metrics_port is 70000"),
        ("[agent]\nconnect_spread_s = -1\n", "connect_spread_s is -1"),
        ('[agent]\nsources = ["nvml", "nvml"]\n', "twice"),
        ('[agent]\nstamp_arrival = "perhaps"\n', "give true or false"),
        ("[agent]\nkafka = 3\n", "give a table of texts"),
        ("agent = 3\n", "write \\[agent\\]"),
        ("[agnet]\ntick_s = 2\n", "'agnet' is no table of an agent's"),
        ("tick_s = 2\n[agent]\n", "'tick_s' is no table"),
        ('[agent]\nsocket = "/run/a\\u0000b"\n', "socket is .*control characters"),
        ('[agent]\nsources = ["a\\nb"]\n', "sources is .*control characters"),
        ('[agent]\nnode_id = "  "\n', "node_id is .*blank"),
        ("[agent\n", "is no TOML"),
        ('[agent]\nbootstrap_servers = " "\n', "host:port"),
    ],
)
def test_what_does_not_hold_is_one_line_that_says_what_to_write(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    with pytest.raises(SettingsError, match=says) as caught:
        load(config)
    assert "\n" not in str(caught.value).partition(" is no TOML")[0]


@pytest.mark.parametrize("overrides", [{"tick": 1}, {"tick_s": "soon"}, {"sources": 3}])
def test_flags_are_checked_like_the_file(overrides: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        load(None, overrides)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.toml")
