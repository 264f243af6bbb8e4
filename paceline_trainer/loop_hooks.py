"""Hooks on a model and its optimizers that find the steps of a PyTorch loop.

Guarantees: a hook raises nothing and changes nothing that passes it; the hooks of a model that is copied or saved do
nothing there and need no paceline to be loaded. Forward passes in evaluation mode or without gradients are not seen.
The backward pass begins with the first gradient of the model's output and ends with autograd's last callback, both
found without hooks on the backward pass of modules, which would forbid to change outputs in place.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

__all__ = ["LoopHooks", "StepCalls"]

_MOST_OUTPUTS = 16
"""Tensors of a model's output that are looked at; the gradient of one of the first of them comes first."""

_DEEPEST_OUTPUT = 3


class StepCalls(Protocol):
    """What is done to a reporter."""

    def begin_step(self, step: int | None = None) -> None:
        """A step begins."""

    def end_step(self, *, tokens: int | None = None) -> None:
        """A step ends."""

    def forget_step(self) -> None:
        """A step is given up."""

    def enter_phase(self, name: str) -> None:
        """A part begins."""

    def leave_phase(self) -> None:
        """A part ends."""


class LoopHooks:
    """Turns what a loop does to its model and optimizers into calls of a reporter.

    Args:
        reporter: takes the calls.
        first_step: number of the first step.
        tokens: tokens of a step, or what tells them at its end.
        on_trouble: takes the text of an error.
    """

    def __init__(
        self,
        reporter: StepCalls,
        first_step: int,
        tokens: Callable[[], int] | int | None,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._reporter = reporter
        self._next_step = first_step
        self._tokens = tokens
        self._on_trouble = on_trouble
        self._handles: list[Any] = []
        self._optimizers = 1
        self._optimizers_done = 0
        self._waits_at_end = False
        self._step_open = False
        self._parts: list[str] = []

    def install(self, model: Any, optimizers: Sequence[Any]) -> None:
        """Put hooks on a model and its optimizers."""
        self._optimizers = len(optimizers)
        try:
            self._install(model, optimizers)
        except Exception:
            self.remove()  # half of the hooks would begin a step that nothing ends
            raise

    def _install(self, model: Any, optimizers: Sequence[Any]) -> None:
        self._waits_at_end = any(kind.__name__ == "DistributedDataParallel" for kind in type(model).__mro__)
        self._handles.append(model.register_forward_pre_hook(self._hook(self._before_forward)))
        self._handles.append(model.register_forward_hook(self._hook(self._after_forward)))
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._hook(self._before_optimizer)))
            self._handles.append(optimizer.register_step_post_hook(self._hook(self._after_optimizer)))

    def remove(self) -> None:
        """Take the hooks away."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _hook(self, act: Callable[..., None]) -> _Hook:
        return _Hook(act, self._on_trouble)

    def _before_forward(self, module: Any, _inputs: Any) -> None:
        if not module.training or not sys.modules["torch"].is_grad_enabled():
            return
        if "backward" in self._parts and _in_backward():  # activations are computed again
            return
        if "forward" in self._parts or "backward" in self._parts:  # the pass before was left by an exception
            self._reporter.forget_step()
            self._step_open = False
            self._parts.clear()
        if not self._step_open:
            self._step_open = True
            self._optimizers_done = 0
            self._reporter.begin_step(self._next_step)
        self._enter("forward")

    def _after_forward(self, module: Any, _inputs: Any, output: Any) -> None:
        if not self._parts or self._parts[-1] != "forward" or not module.training:
            return
        self._leave()
        begun: list[bool] = []
        for tensor in _tensors(output):
            tensor.register_hook(self._hook(lambda _gradient: self._begin_backward(begun)))

    def _begin_backward(self, begun: list[bool]) -> None:
        if begun or not self._step_open or "backward" in self._parts:
            return
        begun.append(True)
        self._enter("backward")
        self._queue(self._gradients_computed)

    def _gradients_computed(self) -> None:
        # What DistributedDataParallel waits for stands behind this in the queue, and behind that what is queued now.
        if "backward" not in self._parts:
            return
        if self._waits_at_end:
            self._enter("wait")
        self._queue(self._end_backward)

    def _end_backward(self) -> None:
        while "backward" in self._parts:
            self._leave()

    def _queue(self, act: Callable[[], None]) -> None:
        engine = sys.modules["torch"].autograd.Variable._execution_engine
        engine.queue_callback(self._hook(act))

    def _before_optimizer(self, *_: Any) -> None:
        if self._step_open:
            self._end_backward()
            self._enter("optimizer")

    def _after_optimizer(self, *_: Any) -> None:
        if not self._step_open:
            return
        while self._parts:
            self._leave()
        self._optimizers_done += 1
        if self._optimizers_done >= self._optimizers:
            self._step_open = False
            self._next_step += 1
            self._reporter.end_step(tokens=self._tokens() if callable(self._tokens) else self._tokens)

    def _enter(self, part: str) -> None:
        self._parts.append(part)
        self._reporter.enter_phase(part)

    def _leave(self) -> None:
        self._parts.pop()
        self._reporter.leave_phase()


class _Hook:
    """Calls what it was made for and swallows its errors; a copy of it, or what is loaded of it, does nothing."""

    __slots__ = ("_act", "_on_trouble")

    def __init__(self, act: Callable[..., Any], on_trouble: Callable[[str], None]) -> None:
        self._act = act
        self._on_trouble = on_trouble

    def __call__(self, *arguments: Any) -> None:
        if _is_compiling():
            return
        try:
            self._act(*arguments)
        except Exception as error:  # noqa: BLE001 - a hook must not cost the training that it watches
            self._on_trouble(f"hook: {error!r}")

    def __deepcopy__(self, _memo: Any) -> _Hook:
        return _Hook(_nothing, self._on_trouble)

    def __reduce__(self) -> Any:
        # Found in the standard library wherever the model is loaded, takes any arguments and gives None.
        return getattr, (logging.getLogger("paceline_trainer"), "debug")


def _nothing(*_: Any) -> None:
    pass


def _is_compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    return bool(is_compiling is not None and is_compiling())


def _in_backward() -> bool:
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return bool(task is not None and task() != -1)


def _tensors(output: Any) -> list[Any]:
    """The first tensors of a model's output that have a gradient to come."""
    found: list[Any] = []
    for tensor in _leaves(output, _DEEPEST_OUTPUT):
        if tensor.requires_grad:
            found.append(tensor)
        if len(found) >= _MOST_OUTPUTS:
            break
    return found


def _leaves(output: Any, depth: int) -> Iterator[Any]:
    if isinstance(output, sys.modules["torch"].Tensor):
        yield output
    elif depth > 0 and isinstance(output, dict):
        for value in output.values():
            yield from _leaves(value, depth - 1)
    elif depth > 0 and isinstance(output, (list, tuple)):
        for value in output:
            yield from _leaves(value, depth - 1)
    elif depth > 0 and hasattr(output, "__dataclass_fields__"):
        for name in output.__dataclass_fields__:
            yield from _leaves(getattr(output, name, None), depth - 1)
