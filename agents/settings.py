"""The agent's settings: one frozen record, from flags, environment, file and defaults, in that order of precedence.

The file is TOML with a table `[agent]`; the environment has `PACELINE_` and the setting's name in capitals; lists are
comma separated there, and a producer property `sasl.password` is `PACELINE_KAFKA_SASL_PASSWORD`. A setting that the file
has and nobody knows is an error, because a typing error would otherwise pass for a choice. Nothing is read after the
start. Whether a source of a name exists is not known here (`agents.source_registry`).
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.trainer_log_settings import TrainerLogError, parse_trainer_log

__all__ = ["AgentSettings", "SettingsError", "load", "load_with_origins"]

_ENVIRONMENT_PREFIX = "PACELINE_"
_KAFKA_PREFIX = "PACELINE_KAFKA_"


class SettingsError(ValueError):
    """Settings that do not hold; the text names the setting, where it stands, and what would do."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that an agent can be told.

    Attributes:
        bootstrap_servers: brokers, as `host:port`, comma separated.
        node_id: the node's name; empty takes the host's.
        sources: what is collected, by name; `auto` stands for all that need not be named. Of two that know a value
            the earlier one states it.
        disable: sources that are not read, also where `auto` would.
        tick_s: how often frames are published.
        collect_deadline_s: how long a tick waits for its sources.
        heartbeat_s: how often the node says that it is alive.
        drain_s: how long a stop waits for the brokers.
        connect_spread_s: over how long the nodes of a fleet that is started at once spread their first connection to
            the brokers; each waits its own share, by the hash of its name.
        metrics_port: where Prometheus metrics are served; 0 for nowhere.
        kernel_log: `/dev/kmsg`, or a log file.
        kernel_log_from_start: publish also what the log holds already.
        journalctl: the command that reads the journal, for the source `journald`.
        fabric_manager_log: the log of NVIDIA's Fabric Manager.
        state_dir: where places in logs are kept over restarts; empty keeps none, and every start reads them again.
        dcgm_exporter_url: the exporter's page.
        dcgm_exporter_user: for basic authentication there.
        dcgm_exporter_password_file: file of that user's password; read for every page.
        dcgm_exporter_token_file: file of a bearer token, instead of a user.
        dcgm_exporter_ca_file: certificates to trust there, instead of the system's.
        dcgm_exporter_cert_file: the agent's certificate for that page.
        dcgm_exporter_key_file: its key, where that is not in the same file.
        dcgm_exporter_insecure: take any certificate there.
        dcgm_exporter_hostname: what the exporter calls this node in `Hostname`; empty is the node's name or the host's,
            `*` takes all lines. Lines of other nodes are left out.
        dcgmi: the command of DCGM.
        sysfs_root: where sysfs is mounted.
        procfs_root: where procfs is mounted.
        nic_interfaces: network interfaces to read; empty takes those with hardware behind them.
        switch_id: the switch whose counters this agent publishes; empty for none. Give it a tick of a second or two,
            and a `collect_deadline_s` that the commands keep.
        switch_commands: what prints them, each run without a shell; empty for `show pfc counters` and
            `show pfcwd stats` where `switch_paths` is empty too.
        switch_paths: files, or directories of files, that hold such output or an export of COUNTERS_DB.
        trainer_logs: logs of trainers without a hook, each as `path=/logs/rank_*.log job=NAME` and what else
            `agents.trainer_log_settings` knows.
        flight_recorder_dumps: patterns of the files that PyTorch's flight recorder writes
            (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` and a `*`); empty for none.
        socket: where trainers report; empty for none.
        socket_uids: users who may report; empty for all.
        step_timeout_s: how long a step waits for its last local rank.
        progress_s: how often the ranks' progress is published.
        queue_messages: messages held in memory at most.
        queue_kbytes: size of that at most.
        linger_ms: how long a batch waits to fill.
        spool_dir: where records wait on the disk for brokers that are away; `auto` is `spool` in `state_dir`, empty
            is nowhere. Two agents on one machine need two.
        spool_critical_kbytes: size at which the spool takes no more kernel events, status, jobs and placements.
        spool_bulk_kbytes: size at which the oldest of all others in the spool are given up.
        spool_sync_s: how often those others are synced to the disk.
        spool_after_s: how long the brokers may leave a record unanswered before those others go to the disk.
        dead_letter_kbytes: size at which the file of records that the brokers refuse is rotated.
        stamp_arrival: stamp messages here, for brokers that cannot stamp them on arrival.
        kafka: further producer properties, as for TLS and SASL; in the file, as table `[agent.kafka]`.
    """

    bootstrap_servers: str = "localhost:9092"
    node_id: str = ""
    sources: tuple[str, ...] = ("auto",)
    disable: tuple[str, ...] = ()
    tick_s: float = 1.0
    collect_deadline_s: float = 0.5
    heartbeat_s: float = 5.0
    drain_s: float = 10.0
    connect_spread_s: float = 5.0
    metrics_port: int = 0
    kernel_log: str = "/dev/kmsg"
    kernel_log_from_start: bool = True
    journalctl: str = "journalctl"
    fabric_manager_log: str = "/var/log/fabricmanager.log"
    state_dir: str = "/var/lib/paceline"
    dcgm_exporter_url: str = "http://127.0.0.1:9400/metrics"
    dcgm_exporter_user: str = ""
    dcgm_exporter_password_file: str = ""
    dcgm_exporter_token_file: str = ""
    dcgm_exporter_ca_file: str = ""
    dcgm_exporter_cert_file: str = ""
    dcgm_exporter_key_file: str = ""
    dcgm_exporter_insecure: bool = False
    dcgm_exporter_hostname: str = ""
    dcgmi: str = "dcgmi"
    sysfs_root: str = "/sys"
    procfs_root: str = "/proc"
    nic_interfaces: tuple[str, ...] = ()
    switch_id: str = ""
    switch_commands: tuple[str, ...] = ()
    switch_paths: tuple[str, ...] = ()
    trainer_logs: tuple[str, ...] = ()
    flight_recorder_dumps: tuple[str, ...] = ("/tmp/nccl_trace_rank_*",)  # noqa: S108 - where PyTorch writes them
    socket: str = "/run/paceline/trainer.sock"
    socket_uids: tuple[int, ...] = ()
    step_timeout_s: float = 10.0
    progress_s: float = 5.0
    queue_messages: int = 20_000
    queue_kbytes: int = 65_536
    linger_ms: int = 50
    spool_dir: str = "auto"
    spool_critical_kbytes: int = 65_536
    spool_bulk_kbytes: int = 524_288
    spool_sync_s: float = 1.0
    spool_after_s: float = 5.0
    dead_letter_kbytes: int = 16_384
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
        for name in ("drain_s", "connect_spread_s"):
            if not 0 <= getattr(self, name) <= 3600:
                raise SettingsError(f"{name} is {getattr(self, name)}: give seconds from 0 to 3600")
        if not 0 <= self.metrics_port < 65_536:
            raise SettingsError(f"metrics_port is {self.metrics_port}: give a port up to 65535, or 0 for none")
        _check_spool_seconds(self)
        for name, least in (
            *(("queue_messages", 100), ("queue_kbytes", 1024), ("linger_ms", 0)),
            *(("spool_critical_kbytes", 1024), ("spool_bulk_kbytes", 8192), ("dead_letter_kbytes", 64)),
        ):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}: give {least} or more")
        if len(set(self.sources)) != len(self.sources):
            raise SettingsError("sources names a source twice")
        _check_kernel_lines_once(self.sources, self.disable)
        _check_trainer_logs(self.trainer_logs)
        if not self.bootstrap_servers.strip():
            raise SettingsError("bootstrap_servers is empty: give host:port of a broker")
        for name in ("node_id", "switch_id"):
            if len(getattr(self, name)) > 253:
                raise SettingsError(f"{name} has more than 253 characters")
            if getattr(self, name) != getattr(self, name).strip():
                raise SettingsError(f"{name} is {getattr(self, name)!r}: it must not begin or end with a blank")
        _check_characters(self)


def _check_kernel_lines_once(sources: tuple[str, ...], disable: tuple[str, ...]) -> None:
    if "journald" not in sources or {"journald", "kernel-log"} & set(disable):
        return
    if {"kernel-log", "auto"} & set(sources):
        raise SettingsError("sources has journald and kernel-log, which carry the same lines: put one into disable")


def _check_characters(settings: AgentSettings) -> None:
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and any(character < " " for character in text):
                raise SettingsError(f"{setting.name} is {text!r}: it must not have control characters")


def _check_spool_seconds(settings: AgentSettings) -> None:
    for name in ("spool_sync_s", "spool_after_s"):
        if not 0.1 <= getattr(settings, name) <= 3600:
            raise SettingsError(f"{name} is {getattr(settings, name)}: give seconds from 0.1 to 3600")


def _check_trainer_logs(entries: tuple[str, ...]) -> None:
    for entry in entries:
        try:
            parse_trainer_log(entry)
        except TrainerLogError as error:
            raise SettingsError(f"trainer_logs: {error}") from None


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
    return load_with_origins(config_path, overrides, env)[0]


def load_with_origins(
    config_path: str | Path | None, overrides: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
) -> tuple[AgentSettings, dict[str, str]]:
    """As `load`, and where each setting that is no default came from: a flag, a variable or the file.

    Raises:
        SettingsError: the file cannot be read, or a setting does not hold.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if config_path is not None:
        values.update(_from_file(Path(config_path)))
        origins.update(dict.fromkeys(values, str(config_path)))
    for name in _FIELDS:
        variable = _ENVIRONMENT_PREFIX + name.upper()
        if env is not None and variable in env and name != "kafka":
            values[name] = _converted(name, env[variable], variable)
            origins[name] = variable
    if properties := _kafka_variables(env or {}):
        values["kafka"] = {**values.get("kafka", {}), **properties}
        origins["kafka"] = ", ".join(filter(None, [origins.get("kafka"), f"{_KAFKA_PREFIX}*"]))
    for name, value in (overrides or {}).items():
        if value is None:
            continue
        _check_name(name, "flags")
        flag = f"--{name.replace('_', '-')}"
        values[name] = _converted(name, value, flag)
        origins[name] = flag
    return AgentSettings(**values), origins


def _kafka_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Producer properties of the environment: their names have dots, and no underscores."""
    return {
        variable.removeprefix(_KAFKA_PREFIX).lower().replace("_", "."): value
        for variable, value in sorted(env.items())
        if variable.startswith(_KAFKA_PREFIX)
    }


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from None
    if others := sorted(document.keys() - {"agent"}):
        raise SettingsError(f"{path}: {others[0]!r} is no table of an agent's; settings stand in [agent]")
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
