"""What a controller is told of its job: one TOML file, read once."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["JobSettings", "JobSettingsError", "ranks_text"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_KEYS = frozenset(
    {"job_id", "run_dir", "spool", "command", "register", "nodes", "spares", "job", "end_s", "checkpoint_s"}
    | {"evidence_s", "max_restarts", "dump_pipe"}
)


class JobSettingsError(ValueError):
    """Settings that do not hold; the text names the key."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job.

    Attributes:
        job_id: its name, as paceline knows it.
        run_dir: where checkpoints, logs and the controller's state are; all nodes see it.
        spool: the job's directory of orders and answers.
        command: a worker's command, with `{node}`, `{ranks}`, ... in it.
        seats: the ranks of each node.
        spares: nodes that wait, warm.
        devices: UUIDs of a node's GPUs, one a rank, where they are known.
        dump_pipe: pipe that each rank reads, with `{rank}` in it; a `1` in it asks for a dump. Empty sends SIGUSR1 instead.
        register: command that registers a job file, with `{file}` in it; empty registers nothing.
        job: what else the job file says, as `sku`.
        end_s: seconds for which workers may take to end when asked.
        checkpoint_s: seconds for which an order waits for a checkpoint.
        evidence_s: seconds for which it waits for dumps.
        max_restarts: restarts without an order and without a checkpoint in between.
    """

    job_id: str
    run_dir: Path
    spool: Path
    command: tuple[str, ...]
    seats: dict[str, tuple[int, ...]]
    spares: tuple[str, ...] = ()
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dump_pipe: str = ""
    register: tuple[str, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)
    end_s: float = 10.0
    checkpoint_s: float = 600.0
    evidence_s: float = 30.0
    max_restarts: int = 3

    @classmethod
    def load(cls, path: Path) -> JobSettings:
        """The settings in a file.

        Raises:
            JobSettingsError: it cannot be read, or a key is unknown, missing or of another kind.
        """
        try:
            fields = tomllib.loads(path.read_text(encoding="utf-8"))
            unknown = sorted(fields.keys() - _KEYS)
            if unknown:
                raise JobSettingsError(f"no key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
            nodes = [*fields["nodes"], *fields.get("spares", [])]
            plain = {
                name: fields[name] for name in ("end_s", "checkpoint_s", "evidence_s", "max_restarts") if name in fields
            }
            settings = cls(
                job_id=str(fields["job_id"]),
                run_dir=Path(fields["run_dir"]),
                spool=Path(fields["spool"]),
                command=tuple(map(str, fields["command"])),
                seats={str(node["node_id"]): tuple(node["ranks"]) for node in fields["nodes"]},
                spares=tuple(str(node["node_id"]) for node in fields.get("spares", [])),
                devices={str(node["node_id"]): tuple(node["gpu_uuid"]) for node in nodes if "gpu_uuid" in node},
                dump_pipe=str(fields.get("dump_pipe", "")),
                register=tuple(map(str, fields.get("register", []))),
                job=dict(fields.get("job", {})),
                **plain,
            )
        except (OSError, ValueError, TypeError) as error:
            raise JobSettingsError(f"{path}: {error}") from None
        except KeyError as error:
            raise JobSettingsError(f"{path}: no {error.args[0]}") from None
        settings._check(path)
        return settings

    def _check(self, path: Path) -> None:
        ranks = sorted(rank for held in self.seats.values() for rank in held)
        names = [self.job_id, *self.seats, *self.spares]
        if ranks != list(range(len(ranks))) or not ranks or not all(self.seats.values()):
            raise JobSettingsError(f"{path}: nodes hold ranks {ranks}, not each from 0 on once")
        if not all(_NAME.fullmatch(name) for name in names) or len({*self.seats, *self.spares}) != len(names) - 1:
            raise JobSettingsError(f"{path}: a name is not plain, or a node stands twice")
        if not self.command:
            raise JobSettingsError(f"{path}: command is empty")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return sum(len(ranks) for ranks in self.seats.values())

    def command_of(
        self, epoch: int, seats: Mapping[str, Sequence[int]], node_id: str, index: int, step: int | None
    ) -> tuple[list[str], dict[str, str]]:
        """A worker's command, and what is added to its environment.

        Args:
            epoch: which start of the job it is.
            seats: the ranks of each node in it.
            node_id: whose worker it is.
            index: the node's place among the nodes.
            step: the checkpoint from which it goes on.
        """
        ranks = seats[node_id]
        values = {
            "python": sys.executable,
            "job": self.job_id,
            "run_dir": str(self.run_dir),
            "node": node_id,
            "node_index": str(index),
            "nodes": str(len(seats)),
            "head": min(seats, key=lambda node: min(seats[node])),
            "ranks": ranks_text(ranks),
            "rank_count": str(len(ranks)),
            "world": str(self.world_size),
            "epoch": str(epoch),
            "step": str(step if step is not None else 0),
        }
        arguments = [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), part) for part in self.command]
        environment = {
            "PACELINE_JOB_ID": self.job_id,
            "PACELINE_NODE_ID": node_id,
            "PACELINE_JOB_EPOCH": str(epoch),
            # From here the trainer's hook knows the epoch; torchrun gives its own workers another.
            "TORCHELASTIC_RESTART_COUNT": str(epoch),
        }
        return arguments, environment


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks, comma separated."""
    return ",".join(str(rank) for rank in ranks)
