"""Times what a program calls of `torch.distributed`, by communicator.

The functions of the module are replaced by ones that make a mark before and after. Guarantees: arguments, results and
exceptions pass untouched; `remove` puts back what is still ours; nothing is waited for. An operation that the program
waits for at once counts as waiting if it runs on the step's own stream; any other is overlapped, and its time is from
issue to completion without what its communicator did before. Calls below Python and in compiled regions are not seen.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline_trainer.tape import Span, Tape

__all__ = ["CollectiveTimers"]

_FUNCTIONS = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "_all_gather_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
)

_TIMED_A_STEP = 256
_GROUP_CHARACTERS = 64


class _Communicator:
    """A process group by name: its kind, its members, and how many operations it has begun and ended."""

    def __init__(self, kind: str, instance: tuple[int | str, ...] | None) -> None:
        self.kind = kind
        self.instance = instance
        self.enqueued = 0
        self.completed = 0


class CollectiveTimers:
    """Times collectives on a tape.

    Args:
        tape: where spans are written.
        progress: takes a group's name, and how many operations were issued and, where the host knows, completed.
        on_trouble: takes the text of an error.
    """

    def __init__(self, tape: Tape, progress: Callable[..., None], on_trouble: Callable[[str], None]) -> None:
        self._tape = tape
        self._progress = progress
        self._on_trouble = on_trouble
        self._names: dict[str, str] = {}
        # By name: a group that is kept here would not end when the program lets go of it.
        self._communicators: dict[str, _Communicator] = {}
        self._first_of_kind: dict[str, _Communicator] = {}
        self._in_step: Counter[_Communicator] = Counter()
        self._step = -1
        self._replaced: dict[str, tuple[Any, Any]] = {}
        self._inside = threading.local()

    def name(self, groups: Mapping[Any, str]) -> None:
        """Give process groups names."""
        self._names.update({str(group.group_name): name for group, name in groups.items()})

    def install(self) -> None:
        """Replace the functions of `torch.distributed`; nothing happens where it is not there."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or self._replaced:
            return
        for name in _FUNCTIONS:
            original = getattr(distributed, name, None)
            if original is not None:
                timed = self._timed(name, original)
                self._replaced[name] = (original, timed)
                setattr(distributed, name, timed)

    def remove(self) -> None:
        """Put the functions back, except what somebody else has replaced since."""
        distributed: Any = sys.modules.get("torch.distributed")
        replaced, self._replaced = self._replaced, {}
        for name, (original, timed) in replaced.items():
            if getattr(distributed, name, None) is timed:
                setattr(distributed, name, original)

    def comm_hook(self, hook: Callable[[Any, Any], Any] | None, group: Any) -> Callable[[Any, Any], Any]:
        """A communication hook around `hook` that times the buckets of a model."""

        def timed_bucket(state: Any, bucket: Any) -> Any:
            inner = hook if hook is not None else _averaging_hook()
            span, communicator = self._begun("all_reduce", group, True, bucket)
            # What the hook calls of the module is this operation, and no second one.
            self._inside.call = True
            try:
                reduced = inner(state, bucket)
            finally:
                self._inside.call = False
            if communicator is not None:
                self._on_completion(reduced, span, communicator)
            return reduced

        # DistributedDataParallel takes annotations that are texts for wrong ones.
        timed_bucket.__annotations__ = {}
        return timed_bucket

    def _timed(self, name: str, original: Any) -> Any:
        places = list(inspect.signature(original).parameters)
        operation = name.lstrip("_")

        def argument(wanted: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if wanted in named or wanted not in places:
                return named.get(wanted)
            place = places.index(wanted)
            return arguments[place] if place < len(arguments) else None

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            if _is_compiling() or getattr(self._inside, "call", False):
                return original(*arguments, **named)
            is_async = bool(argument("async_op", arguments, named))
            buffers = (*arguments, *named.values())
            span, communicator = self._begun(operation, argument("group", arguments, named), is_async, buffers)
            self._inside.call = True
            try:
                work = original(*arguments, **named)
            finally:
                self._inside.call = False
            if communicator is not None:
                if not is_async:
                    self._ended(span, communicator)
                elif work is not None:
                    self._on_completion(work, span, communicator)
            return work

        return timed

    def _begun(
        self, operation: str, group: Any, is_async: bool, buffers: Any
    ) -> tuple[Span | None, _Communicator | None]:
        try:
            communicator = self._communicator(group)
            if communicator is None:
                return None, None
            communicator.enqueued += 1
            self._tell(communicator)
            if self._step != self._tape.steps:
                self._step = self._tape.steps
                self._in_step.clear()
            self._in_step[communicator] += 1
            if self._in_step[communicator] > _TIMED_A_STEP:
                return None, communicator
            overlapped = is_async or not self._tape.is_on_main_stream()
            size_bytes = _larger_bytes(buffers) if operation != "barrier" else None
            span = self._tape.span(communicator.kind, communicator.instance, operation, overlapped, size_bytes)
        except Exception as error:  # noqa: BLE001 - a hook must not cost the training that it watches
            self._on_trouble(f"{operation}: {error!r}")
            return None, None
        else:
            return span, communicator

    def _ended(self, span: Span | None, communicator: _Communicator) -> None:
        try:
            end = self._tape.mark()
            if end.event is None:  # else only the host has come so far
                communicator.completed += 1
            if span is not None:
                span.end = end
        except Exception as error:  # noqa: BLE001 - a hook must not cost the training that it watches
            self._on_trouble(f"collective: {error!r}")

    def _on_completion(self, work: Any, span: Span | None, communicator: _Communicator) -> None:
        """Mark the end of what runs by itself; on a GPU the callback's stream is one behind the operation."""
        try:
            future = work.get_future() if hasattr(work, "get_future") else work
            future.add_done_callback(lambda _: self._ended(span, communicator))
        except Exception:  # noqa: BLE001 - not every backend's work has a future; its time stays unknown
            return

    def _tell(self, communicator: _Communicator) -> None:
        if self._first_of_kind.setdefault(communicator.kind, communicator) is communicator:
            self._progress(communicator.kind, enqueued=communicator.enqueued, completed=communicator.completed or None)

    def _communicator(self, group: Any) -> _Communicator | None:
        distributed: Any = sys.modules["torch.distributed"]
        if group is None:
            group = distributed.group.WORLD
        name = getattr(group, "group_name", None)
        if name is None:  # what stands for a group that this rank is no member of: the call does nothing
            return None
        known = self._communicators.get(name)
        if known is None:
            description = str(getattr(group, "group_desc", "") or "").removeprefix("mesh_")
            kind = self._names.get(name) or (description if description != "undefined" else "") or "group"
            try:
                instance = _members(distributed.get_process_group_ranks(group))
            except Exception:  # noqa: BLE001 - a group that cannot be asked has a time all the same
                instance = None
            known = self._communicators[name] = _Communicator(str(kind)[:_GROUP_CHARACTERS], instance)
        return known


def _members(ranks: Sequence[int]) -> tuple[int | str, ...]:
    """A short name for the members of a group, the same on all of them: first rank, stride and size, or a digest."""
    ranks = sorted(ranks)
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if ranks == list(range(ranks[0], ranks[0] + stride * len(ranks), stride)):
        return (ranks[0], stride, len(ranks))
    return (ranks[0], hashlib.sha256(repr(ranks).encode()).hexdigest()[:12], len(ranks))


def _larger_bytes(buffers: Any) -> int | None:
    """Bytes of the larger buffer of a call: of a tensor, of a list of tensors, or of a bucket of gradients."""
    if hasattr(buffers, "buffer"):
        buffers = (buffers.buffer(),)
    found = 0
    for given in buffers:
        tensors = given if isinstance(given, (list, tuple)) else (given,)
        found = max(found, sum(one.numel() * one.element_size() for one in tensors if hasattr(one, "element_size")))
    return found or None


def _averaging_hook() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # type: ignore[import-not-found]

    return default_hooks.allreduce_hook


def _is_compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    return bool(is_compiling is not None and is_compiling())
