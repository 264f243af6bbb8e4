"""Scenarios: the size of a simulated fleet, its jobs, and what is done to it.

A scenario is plain frozen data, read from TOML or built in code, and checked as a whole before anything is simulated.
Places that it leaves open are drawn from the seed by `faults` and `look_alikes`; nothing here draws. A scenario file may
extend another one: its keys replace the other's.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agents.simulation.errors import ScenarioError
from schemas.fleet import Model

__all__ = [
    "MIN_NODES",
    "FaultKind",
    "FaultPlan",
    "JobPlan",
    "LookAlikeKind",
    "Scenario",
    "default_scenario",
    "load_scenario",
    "scenario_names",
]

MIN_NODES = 4
"""Three nodes for the faults of one job, which never share a node, and one for the other job."""

FaultKind = Literal["thermal", "xid79", "pause_storm", "cpu_contention"]
LookAlikeKind = Literal[
    "power_cap",
    "application_clocks",
    "gc_spike",
    "application_xid",
    "unknown_xid",
    "corrected_ecc",
    "pause_trickle",
    "brief_thermal_violation",
    "agent_restart",
]

_DIRECTORY = Path(__file__).parent / "scenarios"
_MAX_EXTENDS = 8


class _Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class JobPlan(_Plan):
    """One job: where it runs, how it is laid out, and how long its steps are.

    The job takes all GPUs of nodes `nodes_from` up to, not including, `nodes_to`. Negative numbers count from the end of
    the fleet, and then at most a third of it, so that a plan for eight nodes also fits four. The data-parallel degree is
    what tensor and pipeline leave. `tokens_per_step` is derived from `mfu` (6N convention) unless it is given.
    `starts_s` and `ends_s` are seconds of the run.
    """

    job_id: str = Field(min_length=1, max_length=253)
    nodes_from: int = 0
    nodes_to: int | None = None
    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    microbatches: int = Field(default=8, ge=1, le=1024)
    step_time_ms: float = Field(default=500.0, ge=10.0, le=600_000.0)
    last_stage_factor: float = Field(default=1.0, ge=0.5, le=4.0)
    model: Model
    mfu: float = Field(default=0.45, gt=0, lt=1)
    tokens_per_step: int | None = Field(default=None, gt=0)
    seq_len: int | None = Field(default=None, gt=0)
    mfu_target: float | None = Field(default=None, gt=0, le=1)
    starts_s: float = Field(default=2.0, ge=0)
    ends_s: float | None = Field(default=None, gt=0)
    warmup_steps: int = Field(default=5, ge=0)
    checkpoint_every_s: float | None = Field(default=25.0, gt=0)


class FaultPlan(_Plan):
    """One fault of one job. `onset` and `end` are shares of the run; a place that is not pinned is drawn from the seed.

    `slowdown` is the range of the culprit's compute (thermal) or own time (cpu_contention) over its peers'. `pause_rate` is the range
    of pause frames a second at the culprit's port, and `step_slowdown` of the step time over the healthy one
    (pause_storm). A lost GPU does not heal: its `end` is the end of the run.
    """

    kind: FaultKind
    job: str
    onset: float = Field(ge=0, lt=1)
    end: float = Field(default=1.0, gt=0, le=1)
    node: int | None = Field(default=None, ge=0)
    gpu: int | None = Field(default=None, ge=0)
    slowdown: tuple[float, float] | None = None
    pause_rate: tuple[float, float] = (2_000.0, 20_000.0)
    step_slowdown: tuple[float, float] = (1.30, 1.50)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.onset >= self.end:
            raise ValueError(f"fault {self.kind}: onset {self.onset} is not before end {self.end}")
        if self.kind == "xid79" and self.end != 1.0:
            raise ValueError("fault xid79: a lost GPU does not heal; leave out `end`")
        for name in ("slowdown", "pause_rate", "step_slowdown"):
            bounds = getattr(self, name)
            if bounds is not None and not 0 < bounds[0] <= bounds[1]:
                raise ValueError(f"fault {self.kind}: {name} is no range of two rising positive numbers")
        return self


class Scenario(_Plan):
    """A fleet, its jobs, its faults and its healthy look-alikes."""

    name: str = Field(min_length=1)
    description: str = ""
    nodes: int = Field(default=8, le=65_536)
    gpus_per_node: int = Field(default=8, ge=1, le=16)
    nics_per_node: int = Field(default=8, ge=1, le=16)
    nodes_per_leaf: int = Field(default=4, ge=1, le=64)
    seed: int = Field(default=0, ge=0, lt=2**63)
    duration_s: float = Field(default=60.0, ge=1.0, le=7 * 24 * 3600.0)
    tick_s: float = Field(default=1.0, ge=0.1, le=60.0)
    sku: str = "NVIDIA H100 80GB HBM3"
    peak_tflops: float = Field(default=989.5, gt=0)
    jobs: tuple[JobPlan, ...] = ()
    faults: tuple[FaultPlan, ...] = ()
    look_alikes: tuple[LookAlikeKind, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.nodes < MIN_NODES:
            raise ValueError(f"a simulated fleet needs at least {MIN_NODES} nodes, not {self.nodes}")
        if len({job.job_id for job in self.jobs}) != len(self.jobs):
            raise ValueError("two jobs have one job_id")
        taken = 0
        for job in sorted(self.jobs, key=lambda plan: self.node_range(plan)[0]):
            first, stop = self.node_range(job)
            if first >= stop:
                raise ValueError(f"job {job.job_id}: no nodes from {first} to {stop} in a fleet of {self.nodes}")
            if first < taken:
                raise ValueError(f"job {job.job_id}: node {first} already belongs to another job")
            taken = stop
            world = (stop - first) * self.gpus_per_node
            if self.gpus_per_node % job.tensor:
                raise ValueError(
                    f"job {job.job_id}: tensor {job.tensor} does not divide the {self.gpus_per_node} GPUs of a node"
                )
            if world % (job.tensor * job.pipeline):
                raise ValueError(
                    f"job {job.job_id}: {world} GPUs are no multiple of tensor x pipeline = {job.tensor * job.pipeline}"
                )
            if job.ends_s is not None and job.ends_s <= job.starts_s:
                raise ValueError(f"job {job.job_id}: it ends at {job.ends_s} s, before its start")
        for fault in self.faults:
            self._check_fault(fault)
        return self

    def _check_fault(self, fault: FaultPlan) -> None:
        job = next((job for job in self.jobs if job.job_id == fault.job), None)
        if job is None:
            raise ValueError(f"fault {fault.kind}: no job {fault.job!r} in this scenario")
        first, stop = self.node_range(job)
        if fault.node is not None and not first <= fault.node < stop:
            raise ValueError(f"fault {fault.kind}: node {fault.node} is outside {first}..{stop - 1} of {fault.job}")
        if fault.gpu is not None and fault.gpu >= self.gpus_per_node:
            raise ValueError(f"fault {fault.kind}: gpu {fault.gpu} of {self.gpus_per_node} in a node")

    def node_range(self, job: JobPlan) -> tuple[int, int]:
        """The job's nodes as indices [first, stop) of this fleet."""
        stop = self.nodes if job.nodes_to is None else self._node_index(job.nodes_to)
        return self._node_index(job.nodes_from), stop

    def _node_index(self, index: int) -> int:
        if index >= 0:
            return min(index, self.nodes)
        return self.nodes - max(1, min(-index, self.nodes // 3))


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.toml")))


def load_scenario(name_or_path: str | Path, **overrides: Any) -> Scenario:
    """Read a scenario.

    Args:
        name_or_path: a name from `scenario_names`, or the path of a TOML file (anything with a `/` or ending in `.toml`).
        **overrides: fields of `Scenario` that replace the file's; null ones do not.

    Raises:
        ScenarioError: no such scenario, no TOML, or it contradicts itself.
    """
    tables = _read(_locate(str(name_or_path)), depth=0)
    tables.update({key: value for key, value in overrides.items() if value is not None})
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"scenario {name_or_path}: {place + ': ' if place else ''}{text}") from None


def default_scenario(nodes: int = 8, duration_s: float = 60.0, seed: int = 0, scenario: str = "mixed") -> Scenario:
    """A packaged scenario for a fleet of this size.

    Raises:
        ScenarioError: unknown name, or a fleet of fewer than `MIN_NODES` nodes.
    """
    return load_scenario(scenario, nodes=nodes, duration_s=duration_s, seed=seed)


def _locate(name: str) -> Path:
    if "/" in name or name.endswith(".toml"):
        return Path(name)
    path = _DIRECTORY / f"{name}.toml"
    if name not in scenario_names():
        raise ScenarioError(f"no scenario {name!r}; there are {', '.join(scenario_names())}, or give a .toml file")
    return path


def _read(path: Path, depth: int) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"scenario {path}: {error.strerror or 'cannot be read'}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"scenario {path}: no TOML: {error}") from None
    base = tables.pop("extends", None)
    tables.setdefault("name", path.stem)
    if base is None:
        return tables
    if not isinstance(base, str) or depth >= _MAX_EXTENDS:
        raise ScenarioError(f"scenario {path}: `extends` names one scenario, at most {_MAX_EXTENDS} deep")
    beside = path.parent / f"{base}.toml"
    return _read(beside if beside.exists() else _locate(base), depth + 1) | tables
