"""The stopwatch of a training loop: phases, collectives and steps of one rank, handed to the agent.

Guarantees: every method returns at once and raises nothing; the first trouble of any kind is logged as one warning and
the rest is counted in `counters`. An exception of the training code passes through untouched and its step is not
reported. Times are what the host sees; a GPU runs behind it (see `record`). A reporter is for the thread that runs the
loop and for the process that made it: in a forked child it is silent.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from paceline_trainer import protocol
from paceline_trainer.device import current_device
from paceline_trainer.environment import collective_environment, torch_version
from paceline_trainer.link import AgentLink
from paceline_trainer.stopwatch import StepWatch, Stopwatch

__all__ = ["StepReporter", "harmless"]

_LOG = logging.getLogger("paceline_trainer")

_DRAIN_AT_EXIT_S = 0.2
_PROGRESS_PAUSE_NS = 200_000_000
"""`progress` sends at most five messages a second; the agent publishes every five seconds."""

_DEVICE_TRIES = 20
"""Steps during which a device that is still unknown is looked for again; CUDA may start with the first of them."""

_Item = TypeVar("_Item")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def harmless(method: _Method) -> _Method:
    """Keep every error of a reporter's method from the training loop; such a call gives None."""

    @functools.wraps(method)
    def guarded(self: StepReporter, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except Exception as error:  # noqa: BLE001 - a hook must not cost the training that it watches
            self._trouble(f"{method.__name__}: {error!r}")
            return None

    return guarded  # type: ignore[return-value]


class _Scope:
    """A `with` block of a step or a phase; it never swallows an exception."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[bool], None]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind is not None)


class StepReporter:
    """Reports the steps of one rank of one attempt of one job.

    Job and epoch together name one attempt: a job that is started anew needs a new name or a higher epoch, or its steps
    are taken for repeats of the old ones.

    Args:
        job_id: the job's name, the same on all ranks; else `PACELINE_JOB_ID`.
        model: the model's shape; `parameters` at least. Other known names: active_parameters, layers, hidden, heads,
            kv_heads, head_dim, ffn_hidden, vocab, experts, experts_per_token, gated_mlp, tied_embeddings.
        layout: degrees of parallelism: tensor, context, data, pipeline, expert, virtual_pipeline.
        tokens_per_step: tokens of the whole job in one step.
        workload: `training`, `forward_only` or `inference`.
        facts: further fields of a job: precision, recompute, seq_len, flop_convention, sku, peak_tflops, mfu_target,
            gpu_hour_cost, reporting_ranks.
        rank, world_size, local_rank, epoch: else `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `TORCHELASTIC_RESTART_COUNT`;
            epoch counts the attempts of the job.
        stage: pipeline stage of this rank.
        role: what this rank does, where ranks differ (`actor`, `learner`).
        device: GPU UUID or PCI address of this rank, where the hook cannot find it.
        warmup_steps: so many first steps of an attempt are marked `warmup`.
        socket_path: the agent's socket; else `PACELINE_SOCKET`, else `/run/paceline/trainer.sock`.
        queue_limit: messages kept while there is no agent.
        environ: read instead of the process environment.
    """

    def __init__(
        self,
        job_id: str | None = None,
        *,
        model: Mapping[str, Any] | None = None,
        layout: Mapping[str, int] | None = None,
        tokens_per_step: int | None = None,
        workload: str = "training",
        facts: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        epoch: int | None = None,
        stage: int | None = None,
        role: str | None = None,
        device: str | None = None,
        warmup_steps: int = 10,
        socket_path: str | None = None,
        queue_limit: int = 256,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._link: AgentLink | None = None
        self._errors = 0
        self._warned = False
        self._warmup_steps = warmup_steps
        self._steps_done = 0
        self._last_step: int | None = None
        self._groups: dict[str, list[int | None]] = {}
        self._progress_at_ns = 0
        self._phase = "train"
        self._environ = os.environ if environ is None else environ
        self._local_rank: int | None = None
        self._device: dict[str, str] | None = None
        self._device_tries = 0
        self._step: dict[str, Any] = {}
        self._stopwatch: StepWatch = Stopwatch(time.perf_counter_ns)
        try:
            self._local_rank = self._number(local_rank, "LOCAL_RANK")
            self._device = (
                {_device_field(device): device, "source": "given"}
                if device
                else current_device(self._environ, self._local_rank)
            )
            self._about = {
                "job_id": self._job_id(job_id),
                "epoch": self._number(epoch, "TORCHELASTIC_RESTART_COUNT") or 0,
                "rank": self._number(rank, "RANK") or 0,
                "world_size": self._number(world_size, "WORLD_SIZE") or 1,
                "local_rank": self._local_rank,
                "local_world_size": self._number(None, "LOCAL_WORLD_SIZE"),
                "pid": None if self._environ.get("PACELINE_REPORT_PID") == "0" else os.getpid(),
                "event_time_ns": time.time_ns(),
                "stage": stage,
                "role": role,
                "model": dict(model) if model else None,
                "layout": dict(layout) if layout else None,
                "job": {**(facts or {}), "workload": workload, "tokens_per_step": tokens_per_step},
                "nccl_env": collective_environment(self._environ),
                "torch_version": torch_version(),
            }
            path = socket_path or self._environ.get("PACELINE_SOCKET") or protocol.DEFAULT_SOCKET
            self._link = AgentLink(path, queue_limit, self._trouble)
            self._register()
            atexit.register(_drain_at_exit, weakref.ref(self._link))
        except Exception as error:  # noqa: BLE001 - a hook must not cost the training that it watches
            self._trouble(f"step timings are not reported: {error!r}")

    @property
    def counters(self) -> dict[str, int]:
        """Messages sent and dropped, connections made, errors swallowed."""
        link = self._link
        return {
            "sent": link.sent if link else 0,
            "dropped": link.dropped if link else 0,
            "connections": link.connections if link else 0,
            "errors": self._errors,
        }

    def step(
        self,
        step: int | None = None,
        *,
        tokens: int | None = None,
        phase: str | None = None,
        sum_squared_lengths: int | None = None,
    ) -> _Scope:
        """A `with` block around one optimizer step; left by an exception, the step is not reported.

        Args:
            step: its number, the same on all ranks; None counts on from the last one, from 0.
            tokens: tokens that this rank worked on.
            phase: what the step is if not plain training: `warmup`, `checkpoint`, `evaluation` or `compile`.
            sum_squared_lengths: over the rank's sequences, where lengths vary.
        """

        def leave(failed: bool) -> None:
            if failed:
                self.forget_step()
            else:
                self.end_step()

        return _Scope(
            lambda: self.begin_step(step, tokens=tokens, phase=phase, sum_squared_lengths=sum_squared_lengths), leave
        )

    @harmless
    def begin_step(
        self,
        step: int | None = None,
        *,
        tokens: int | None = None,
        phase: str | None = None,
        sum_squared_lengths: int | None = None,
    ) -> None:
        """Begin a step without a `with` block; phases since the last step's end (loading data) belong to it."""
        if step is None:
            step = 0 if self._last_step is None else self._last_step + 1
        self._step = {"step": step, "phase": phase, "tokens": tokens, "sum_squared_lengths": sum_squared_lengths}
        self._tell_phase(phase or "train")
        self._stopwatch.begin()

    @harmless
    def end_step(self, *, tokens: int | None = None) -> None:
        """End the step that was begun and report it; without one nothing happens."""
        measured = self._stopwatch.end()
        if measured is None:
            return
        warm = self._steps_done < self._warmup_steps
        self._steps_done += 1
        self._last_step = int(self._step["step"])
        phase = self._step["phase"] or ("warmup" if warm else "train")
        if phase not in protocol.PHASES:
            raise ValueError(f"phase {phase!r} is none of {', '.join(protocol.PHASES)}; its step is not reported")
        about = {
            "step": self._last_step,
            "phase": phase,
            "event_time_ns": time.time_ns(),
            "tokens": _whole(self._step["tokens"] if tokens is None else tokens),
            "sum_squared_lengths": _whole(self._step["sum_squared_lengths"]),
        }
        self._look_for_device()
        self._report(about, measured)

    @harmless
    def forget_step(self) -> None:
        """Drop the step in hand and all that was measured for it."""
        self._stopwatch.forget()

    def phase(self, name: str) -> _Scope:
        """A `with` block that times a part: data, forward, backward, optimizer, compute, host or wait.

        A part inside another is taken out of the outer one, so that parts add up to no more than the step.
        """
        return _Scope(lambda: self.enter_phase(name), lambda _failed: self.leave_phase())

    @harmless
    def enter_phase(self, name: str) -> None:
        """Begin a part without a `with` block."""
        self._stopwatch.enter(name)

    @harmless
    def leave_phase(self) -> None:
        """End the part that was entered last."""
        self._stopwatch.leave()

    def data(self) -> _Scope:
        """`phase("data")`: the wait for the next batch."""
        return self.phase("data")

    def forward(self) -> _Scope:
        """`phase("forward")`."""
        return self.phase("forward")

    def backward(self) -> _Scope:
        """`phase("backward")`."""
        return self.phase("backward")

    def optimizer(self) -> _Scope:
        """`phase("optimizer")`."""
        return self.phase("optimizer")

    def wait(self) -> _Scope:
        """`phase("wait")`: a collective that the loop waits for."""
        return self.phase("wait")

    def batches(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """The items of a loader, with the wait for each one timed as `data` of the step that follows."""
        iterator = iter(loader)
        while True:
            self.enter_phase("data")
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.leave_phase()
            yield item

    @harmless
    def record(self, name: str, duration_s: float) -> None:
        """Add seconds that were measured elsewhere, as with CUDA events, to a part of the current step.

        Besides the parts of `phase` this takes `own`: the rank's time with all waiting for others removed.
        """
        self._stopwatch.add(name, duration_s)

    @harmless
    def collective(
        self,
        group: str,
        duration_s: float,
        *,
        instance: tuple[int | str, ...] | None = None,
        op: str | None = None,
        overlapped: bool = False,
        size_bytes: int | None = None,
    ) -> None:
        """Add time spent in a communicator, transfer and waiting together; several calls in a step add up.

        Args:
            group: the kind of communicator: `dp`, `tp`, `pp`, ...
            duration_s: seconds.
            instance: tells communicators of one kind apart; ranks with equal group and instance meet in it.
            op: the operation, as `all_reduce`.
            overlapped: it ran beside computation, so the rank did not wait for it. Otherwise the time counts as
                waiting, and is taken out of the part whose `with` block is open.
            size_bytes: of the larger of the rank's two buffers; gives the communicator's bandwidth.
        """
        self._stopwatch.add_collective(group, duration_s, instance, op, overlapped, size_bytes)

    @harmless
    def progress(
        self,
        group: str,
        *,
        enqueued: int | None = None,
        started: int | None = None,
        completed: int | None = None,
    ) -> None:
        """Tell the sequence numbers of the last collectives of a group: where a job that hangs stands."""
        self._groups[str(group)] = [enqueued, started, completed]
        now_ns = time.monotonic_ns()
        if now_ns - self._progress_at_ns >= _PROGRESS_PAUSE_NS:
            self._progress_at_ns = now_ns
            self._send("progress", {"last_step": self._last_step, "groups": self._groups})

    def _tell_phase(self, phase: str) -> None:
        """Say beforehand that a step takes its own time, and when that is over: a checkpoint is no hang."""
        if phase != self._phase and phase in protocol.PHASES:
            self._phase = phase
            self._send("progress", {"last_step": self._last_step, "groups": self._groups, "phase": phase})

    @harmless
    def close(self) -> None:
        """Say that the loop is done, and let go of the socket. A loop that dies does not call this."""
        link, self._link = self._link, None
        if link is not None:
            link.send(protocol.encode("end", {"event_time_ns": time.time_ns()}))
            link.drain(_DRAIN_AT_EXIT_S)
            link.close()

    def _job_id(self, given: str | None) -> str:
        job_id = given or self._environ.get("PACELINE_JOB_ID")
        if not job_id:
            raise ValueError("give job_id or set PACELINE_JOB_ID")
        return str(job_id)

    def _number(self, given: int | None, variable: str) -> int | None:
        text = self._environ.get(variable) if given is None else given
        return None if text in (None, "") else int(text)

    def _look_for_device(self) -> None:
        certain = self._device is not None and self._device["source"] != "visible_devices"
        if certain or self._device_tries >= _DEVICE_TRIES:
            return
        self._device_tries += 1
        found = current_device(self._environ, self._local_rank)
        if found != self._device:
            self._device = found
            self._register()

    def _register(self) -> None:
        if self._link is not None:
            self._link.register(protocol.encode("register", {**self._about, "device": self._device}))

    def _report(self, about: dict[str, Any], measured: Any) -> None:
        self._send("step", {**about, **measured})

    def _send(self, kind: str, fields: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.send(protocol.encode(kind, fields))

    def _trouble(self, text: str) -> None:
        self._errors += 1
        if not self._warned:
            self._warned = True
            _LOG.warning("paceline: %s; training goes on, and this is said once", text)


def _drain_at_exit(reference: weakref.ref[AgentLink]) -> None:
    link = reference()
    if link is not None:
        link.drain(_DRAIN_AT_EXIT_S)


def _whole(count: Any) -> int | None:
    return None if count is None else int(count)


def _device_field(name: str) -> str:
    return "uuid" if name.startswith(("GPU-", "MIG-")) else "pci_bus_id"
