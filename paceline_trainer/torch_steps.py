"""The reporter for PyTorch loops: times by CUDA events, steps found by hooks, collectives by communicator.

Guarantees beyond those of `StepReporter`: nothing synchronises; a step's events are asked about when later steps end,
so it is reported a step later; PyTorch is never imported here, only used where the program has imported it. Without a
GPU the same calls are timed on the host. What runs inside a captured CUDA graph or a compiled region is not seen, and a
step with such a gap is timed on the host. Other accelerators than CUDA (and ROCm under its name) count as none.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline_trainer.collective_timers import CollectiveTimers
from paceline_trainer.loop_hooks import LoopHooks
from paceline_trainer.reporter import StepReporter, harmless
from paceline_trainer.tape import Mark, Recording, Tape

__all__ = ["TorchStepReporter", "watch"]

_MOST_PENDING = 64
"""Steps whose events have not passed; a host that is so far ahead of its GPU loses the oldest, which are counted."""

_PATIENT_STEPS = 8
"""So many later steps an operation has time to complete; then its step is reported without it."""

_FINISH_S = 0.2
_POLL_S = 0.005


class TorchStepReporter(StepReporter):
    """Reports the steps of one rank of a PyTorch loop.

    The methods are those of `StepReporter`. With a GPU the parts are what the compute stream spent on them: waiting for
    data that computation hid counts nothing.

    Args:
        job_id: as for `StepReporter`.
        events: whether to time by CUDA events; None does once the program has initialised CUDA.
        **about: as for `StepReporter`.
    """

    def __init__(self, job_id: str | None = None, *, events: bool | None = None, **about: Any) -> None:
        super().__init__(job_id, **about)
        self._events = events
        self._tape = Tape(self._mark, self._stream)
        self._stopwatch = self._tape
        self._pending: deque[tuple[dict[str, Any], Recording]] = deque()
        self._lost = 0
        self._collectives = CollectiveTimers(self._tape, self.progress, self._trouble)
        self._hooks: LoopHooks | None = None

    @property
    def counters(self) -> dict[str, int]:
        """As for `StepReporter`; `lost` are steps whose times could not be read."""
        return {**super().counters, "lost": self._lost + self._tape.given_up}

    @harmless
    def time_collectives(self, groups: Mapping[Any, str] | None = None) -> None:
        """Time what the program calls of `torch.distributed` from now on, until `close`.

        Functions that were imported by name before are not seen, nor is what PyTorch itself calls below Python, such as
        the buckets of DistributedDataParallel (see `comm_hook`). Of one communicator the first 256 operations of a step
        are timed.

        Args:
            groups: names (`dp`, `tp`, ...) of process groups; others keep their own description.
        """
        self._collectives.name(groups or {})
        self._collectives.install()

    def comm_hook(self, hook: Callable[[Any, Any], Any] | None = None, group: Any = None) -> Callable[[Any, Any], Any]:
        """A communication hook that times the buckets of DistributedDataParallel.

        As `ddp.register_comm_hook(state, reporter.comm_hook(hook))`. Its errors are the inner hook's alone.

        Args:
            hook: what reduces a bucket; None averages it, as without a hook.
            group: the process group of the model; None is the default one.
        """
        return self._collectives.comm_hook(hook, group)

    @harmless
    def watch(
        self, model: Any, optimizer: Any, *, first_step: int = 0, tokens: Callable[[], int] | int | None = None
    ) -> None:
        """Find the steps of a loop by hooks on its model and optimizer, until `close`.

        A step begins with the first forward pass in training mode after the last one's end, and ends behind the
        optimizer's step; several forward passes in between are one step. Watch the outermost module that the loop
        calls, compiled or wrapped. With DistributedDataParallel the end of the backward pass, where only the buckets of
        others are waited for, is told as waiting.

        Args:
            model: a `torch.nn.Module`.
            optimizer: a `torch.optim.Optimizer`, or several of which the last one called ends the step.
            first_step: number of the first step, where a job was resumed; the same on all ranks.
            tokens: tokens of this rank in one step, or what tells them at its end.
        """
        optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
        self._hooks = LoopHooks(self, first_step, tokens, self._trouble)
        self._hooks.install(model, optimizers)

    @harmless
    def close(self) -> None:
        """Say that the loop is done, take all hooks away, and wait at most 0.2 s for events that have not passed."""
        self._collectives.remove()
        if self._hooks is not None:
            self._hooks.remove()
        self._finish()
        super().close()

    @harmless
    def _finish(self) -> None:
        deadline_s = time.monotonic() + _FINISH_S
        self._send_ready()
        while self._pending and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self._send_ready()
        self._send_ready(patient=False)
        self._lost += len(self._pending)
        self._pending.clear()

    def _report(self, about: dict[str, Any], measured: Recording) -> None:
        self._pending.append((about, measured))
        if len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self._lost += 1
        self._send_ready()

    def _send_ready(self, patient: bool = True) -> None:
        while self._pending:
            about, recording = self._pending[0]
            try:
                if not recording.is_ready(patient and len(self._pending) <= _PATIENT_STEPS):
                    return
                measured = recording.measured()
            except Exception:
                # A GPU that is in error says so to every question: this step is lost, and the loop will hear it itself.
                self._pending.popleft()
                self._lost += 1
                raise
            self._pending.popleft()
            self._send("step", {**about, **measured})
            for text in recording.errors:
                self._trouble(text)

    def _mark(self) -> Mark:
        return Mark(time.perf_counter_ns(), self._event())

    def _event(self) -> Any:
        cuda = self._cuda()
        if cuda is None or cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stream(self) -> int | None:
        cuda = self._cuda()
        return None if cuda is None else int(cuda.current_stream().cuda_stream)

    def _cuda(self) -> Any:
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        return None if self._events is False or cuda is None or not cuda.is_initialized() else cuda


def watch(
    model: Any,
    optimizer: Any,
    *,
    job_id: str | None = None,
    collectives: bool = True,
    groups: Mapping[Any, str] | None = None,
    first_step: int = 0,
    tokens: Callable[[], int] | int | None = None,
    **about: Any,
) -> TorchStepReporter:
    """Report the steps of a PyTorch loop without further calls in it; raises nothing.

    Args:
        model: as for `TorchStepReporter.watch`.
        optimizer: as for `TorchStepReporter.watch`.
        job_id: as for `StepReporter`.
        collectives: whether to time the functions of `torch.distributed`.
        groups: as for `TorchStepReporter.time_collectives`.
        first_step: as for `TorchStepReporter.watch`.
        tokens: as for `TorchStepReporter.watch`.
        **about: as for `TorchStepReporter`.

    Returns:
        The reporter: wrap the loader with its `batches`, and `close` it at the end.
    """
    reporter = TorchStepReporter(job_id, **about)
    if collectives:
        reporter.time_collectives(groups)
    reporter.watch(model, optimizer, first_step=first_step, tokens=tokens)
    return reporter
