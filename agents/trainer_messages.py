"""What a trainer may say over the agent's socket, checked in full before anything is made of it.

The messages are those of the `paceline_trainer` hook, protocol version 1: one JSON object a line. A trainer is a
tenant's program: every text, number and list has a bound here, unknown fields are ignored, and what does not hold is
one error with one line of text. Nothing here keeps state.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from schemas.base import DeviceKey, Identifier
from schemas.fleet import Layout, Model
from schemas.steps import Phase

__all__ = [
    "MAX_LINE_BYTES",
    "CollectiveTime",
    "Device",
    "End",
    "InvalidMessageError",
    "Progress",
    "Register",
    "StatusRequest",
    "StepReport",
    "TrainerMessage",
    "parse_message",
]

MAX_LINE_BYTES = 65_536
"""A registration takes about 2 kB, a step below 1 kB."""

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_DurationUs = Annotated[int, Field(ge=0, lt=2**53)]
_TimeNs = Annotated[int, Field(ge=0, lt=2**63)]
_Rank = Annotated[int, Field(ge=0, lt=1_000_000)]
_Word = Annotated[str, Field(min_length=1, max_length=64)]
_Variable = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Z][A-Z0-9_]*$")]
_VariableValue = Annotated[str, Field(max_length=256)]

_JOB_FACTS = frozenset(
    {
        "workload",
        "flop_convention",
        "recompute",
        "precision",
        "seq_len",
        "tokens_per_step",
        "sku",
        "peak_tflops",
        "mfu_target",
        "gpu_hour_cost",
        "reporting_ranks",
    }
)
"""Fields of a job that its trainer may state."""

_Part = TypeVar("_Part", bound=BaseModel)


class InvalidMessageError(ValueError):
    """A line that is no message; the text says why."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Device(_Message):
    """The GPU of a rank, by name; `source` says how the trainer knows it."""

    uuid: DeviceKey | None = Field(default=None, pattern=r"^(GPU|MIG)-[0-9A-Za-z/_-]+$")
    pci_bus_id: str | None = Field(default=None, pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}$")
    source: Literal["cuda", "visible_devices", "given"] = "visible_devices"

    @field_validator("pci_bus_id", mode="before")
    @classmethod
    def _one_spelling(cls, value: Any) -> Any:
        from agents.decode.pci_address import normalise

        return normalise(value) or value if isinstance(value, str) else value


class Register(_Message):
    """A rank introduces itself. A part that is no valid `model` or `layout` is left out rather than refused."""

    v: Literal[1]
    type: Literal["register"]
    job_id: Identifier
    epoch: int = Field(default=0, ge=0, lt=1_000_000)
    rank: _Rank
    world_size: int = Field(ge=1, le=1_000_000)
    event_time_ns: _TimeNs
    pid: int | None = Field(default=None, ge=0)
    local_rank: _Rank | None = None
    local_world_size: int | None = Field(default=None, ge=1, le=1024)
    stage: _Rank | None = None
    role: _Word | None = None
    device: Device | None = None
    model: Model | None = None
    layout: Layout | None = None
    job: dict[str, Any] = Field(default_factory=dict)
    nccl_env: dict[_Variable, _VariableValue] = Field(default_factory=dict, max_length=64)
    torch_version: _Word | None = None
    refused_parts: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_bad_parts(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        refused = [
            name
            for name, kind in (("model", Model), ("layout", Layout), ("device", Device))
            if message.get(name) is not None and not _holds(kind, message[name])
        ]
        return {**message, "refused_parts": tuple(refused), **dict.fromkeys(refused)}

    @field_validator("job", mode="after")
    @classmethod
    def _known_facts(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in facts.items() if name in _JOB_FACTS and value is not None}

    @model_validator(mode="after")
    def _rank_in_world(self) -> Register:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is outside a world of {self.world_size}")
        return self


class CollectiveTime(_Message):
    """Time of one step in one communicator."""

    group: _Word
    instance: tuple[int | _Word, ...] | None = Field(default=None, max_length=8)
    op: _Word | None = None
    duration_us: _DurationUs
    size_bytes: _Count | None = None


class StepReport(_Message):
    """A step that has ended."""

    v: Literal[1]
    type: Literal["step"]
    step: _Count
    phase: Phase = "train"
    event_time_ns: _TimeNs
    step_us: _DurationUs
    own_us: _DurationUs | None = None
    compute_us: _DurationUs | None = None
    forward_us: _DurationUs | None = None
    backward_us: _DurationUs | None = None
    optimizer_us: _DurationUs | None = None
    host_us: _DurationUs | None = None
    data_us: _DurationUs | None = None
    wait_us: _DurationUs | None = None
    tokens: _Count | None = None
    sum_squared_lengths: _Count | None = None
    collectives: tuple[CollectiveTime, ...] = Field(default=(), max_length=64)


class Progress(_Message):
    """Where a rank stands, step or no step."""

    v: Literal[1]
    type: Literal["progress"]
    last_step: _Count | None = None
    groups: dict[_Word, tuple[_Count | None, _Count | None, _Count | None]] = Field(default_factory=dict, max_length=64)
    phase: Phase | None = None


class End(_Message):
    """The loop is done."""

    v: Literal[1]
    type: Literal["end"]
    event_time_ns: _TimeNs | None = None


class StatusRequest(_Message):
    """Not a trainer's: somebody asks what the agent knows of the ranks here. It is answered, and the connection ends."""

    v: Literal[1]
    type: Literal["status"]


TrainerMessage = Register | StepReport | Progress | End | StatusRequest

_ADAPTER: TypeAdapter[TrainerMessage] = TypeAdapter(Annotated[TrainerMessage, Field(discriminator="type")])


def parse_message(line: bytes) -> TrainerMessage:
    """The message of a line.

    Raises:
        InvalidMessageError: it is none.
    """
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "message"
        raise InvalidMessageError(f"{place}: {first['msg']}") from None


def _holds(kind: type[_Part], value: Any) -> bool:
    try:
        kind.model_validate(value)
    except ValidationError:
        return False
    return True
