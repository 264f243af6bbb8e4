"""The agent's settings: one frozen record, from flags, environment, file and defaults, in that order of precedence.

The file is TOML with a table `[agent]`; the environment has `PACELINE_` and the setting's name in capitals; lists are
comma separated there. A setting that the file has and nobody knows is an error, because a typing error would otherwise
pass for a choice. Nothing is read after the start.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["SOURCE_NAMES", "AgentSettings", "SettingsError", "load"]

SOURCE_NAMES = ("kernel-log", "nvml", "dcgm-exporter", "dcgmi-dmon", "nic")
"""Sources that can be named in `sources`."""

_ENVIRONMENT_PREFIX = "PACELINE_"


class SettingsError(ValueError):
    """Settings that do not hold; the text names the setting, where it stands, and what would do."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that an agent can be told.

    Attributes:
        bootstrap_servers: brokers, as `host:port`, comma separated.
        node_id: the node's name; empty takes the host's.
        sources: what is collected; of two that know a value the earlier one states it.
        tick_s: how often frames are published.
        collect_deadline_s: how long a tick waits for its sources.
        heartbeat_s: how often the node says that it is alive.
        drain_s: how long a stop waits for the brokers.
        kernel_log: `/dev/kmsg`, or a log file.
        kernel_log_from_start: publish also what the log holds already.
        dcgm_exporter_url: the exporter's page.
        dcgmi: the command of DCGM.
        sysfs_root: where sysfs is mounted.
        nic_interfaces: network interfaces to read; empty takes those with hardware behind them.
        socket: where trainers report; empty for none.
        socket_uids: users who may report; empty for all.
        step_timeout_s: how long a step waits for its last local rank.
        progress_s: how often the ranks' progress is published.
        queue_messages: messages held in memory at most.
        queue_kbytes: size of that at most.
        linger_ms: how long a batch waits to fill.
        stamp_arrival: stamp messages here, for brokers that cannot stamp them on arrival.
        kafka: further producer properties, as for TLS and SASL; in the file, as table `[agent.kafka]`.
    """

    bootstrap_servers: str = "localhost:9092"
    node_id: str = ""
    sources: tuple[str, ...] = ("kernel-log", "nvml", "dcgm-exporter", "nic")
    tick_s: float = 1.0
    collect_deadline_s: float = 0.5
    heartbeat_s: float = 5.0
    drain_s: float = 10.0
    kernel_log: str = "/dev/kmsg"
    kernel_log_from_start: bool = True
    dcgm_exporter_url: str = "http://127.0.0.1:9400/metrics"
    dcgmi: str = "dcgmi"
    sysfs_root: str = "/sys"
    nic_interfaces: tuple[str, ...] = ()
    socket: str = "/run/paceline/trainer.sock"
    socket_uids: tuple[int, ...] = ()
    step_timeout_s: float = 10.0
    progress_s: float = 5.0
    queue_messages: int = 20_000
    queue_kbytes: int = 65_536
    linger_ms: int = 50
    stamp_arrival: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hold the values against their limits.

        Raises:
            SettingsError: one is outside.
        """
        for name in ("tick_s", "collect_deadline_s", "heartbeat_s", "step_timeout_s", "progress_s"):
            if not 0 < getattr(self, name) <= 3600:
                raise SettingsError(f"{name} is {getattr(self, name)}: give seconds above 0 and up to 3600")
        if self.collect_deadline_s > self.tick_s:
            raise SettingsError(
                f"collect_deadline_s is {self.collect_deadline_s}: it must not be above tick_s, {self.tick_s}"
            )
        if self.drain_s < 0:
            raise SettingsError(f"drain_s is {self.drain_s}: give seconds from 0")
        for name, least in (("queue_messages", 100), ("queue_kbytes", 1024), ("linger_ms", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}: give {least} or more")
        for source in self.sources:
            if source not in SOURCE_NAMES:
                raise SettingsError(f"sources names {source!r}: known are {', '.join(SOURCE_NAMES)}")
        if len(set(self.sources)) != len(self.sources):
            raise SettingsError("sources names a source twice")
        if not self.bootstrap_servers.strip():
            raise SettingsError("bootstrap_servers is empty: give host:port of a broker")
        if len(self.node_id) > 253:
            raise SettingsError("node_id has more than 253 characters")


_FIELDS = {setting.name: str(setting.type) for setting in dataclasses.fields(AgentSettings)}


def load(
    config_path: str | Path | None, overrides: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
) -> AgentSettings:
    """The settings of one start.

    Args:
        config_path: the TOML file; None for none.
        overrides: from flags, by setting; a None is a flag that was not given.
        env: the environment.

    Raises:
        SettingsError: the file cannot be read, or a setting does not hold.
    """
    values: dict[str, Any] = {}
    if config_path is not None:
        values.update(_from_file(Path(config_path)))
    for name in _FIELDS:
        variable = _ENVIRONMENT_PREFIX + name.upper()
        if env is not None and variable in env and name != "kafka":
            values[name] = _converted(name, env[variable], variable)
    for name, value in (overrides or {}).items():
        if value is None:
            continue
        _check_name(name, "flags")
        values[name] = _converted(name, value, f"--{name.replace('_', '-')}")
    return AgentSettings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from None
    table = document.get("agent", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: agent is no table; write [agent]")
    values = {}
    for name, value in table.items():
        _check_name(name, str(path))
        values[name] = _converted(name, value, f"{path}: {name}")
    return values


def _check_name(name: str, place: str) -> None:
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        raise SettingsError(f"{place}: no setting {name!r}" + (f"; did you mean {near[0]}?" if near else ""))


def _converted(name: str, value: Any, place: str) -> Any:
    convert, wanted = _CONVERSIONS[_FIELDS[name]]
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{place} is {value!r}: give {wanted}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str | Path):
        raise TypeError
    return str(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[_word(value)]


def _word(value: Any) -> str:
    word = _text(value).strip().lower()
    if word not in {"1", "true", "yes", "0", "false", "no"}:
        raise ValueError
    return word


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list | tuple):
        raise TypeError
    return list(value)


def _table(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError
    # Kafka's properties are texts; TOML has truths and numbers of its own.
    return {
        str(name): str(entry).lower() if isinstance(entry, bool) else str(entry)
        for name, entry in _flattened(value).items()
    }


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML reads `security.protocol = "ssl"` as a table in a table; to Kafka it is one name."""
    flat: dict[str, Any] = {}
    for name, entry in table.items():
        if isinstance(entry, Mapping):
            flat.update(_flattened(entry, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = entry
    return flat


_CONVERSIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "str": (_text, "a text"),
    "float": (_number, "a number"),
    "int": (_whole, "a whole number"),
    "bool": (_truth, "true or false"),
    "tuple[str, ...]": (lambda value: tuple(_text(item) for item in _items(value)), "a list of texts"),
    "tuple[int, ...]": (lambda value: tuple(_whole(item) for item in _items(value)), "a list of whole numbers"),
    "Mapping[str, str]": (_table, "a table of texts"),
}
