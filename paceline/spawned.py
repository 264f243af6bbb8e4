"""Tasks in processes of their own, and their results in the order of the tasks: what comes out does not depend on how many.

Processes are spawned, so that nothing of the parent's threads and open files is in them; what a task takes and gives is
plain data.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["results_in_order", "usable_cores"]

R = TypeVar("R")

_LOOK_S = 0.25
"""How often who waits is asked to look."""


def results_in_order(
    task: Callable[..., R],
    arguments: Sequence[tuple[Any, ...]],
    processes: int,
    initializer: Callable[..., object] | None = None,
    initial: tuple[Any, ...] = (),
    while_waiting: Callable[[], object] = lambda: None,
) -> Iterator[R]:
    """Results of a task for each of its arguments, in their order.

    Args:
        task: a function of a module.
        arguments: of each call.
        processes: how many at once; with 1 the tasks run here.
        initializer: called in each process before its first task.
        initial: its arguments.
        while_waiting: called now and then while no result is there.

    Raises:
        BrokenProcessPool: a process has died.
    """
    if processes == 1:
        if initializer is not None:
            initializer(*initial)
        yield from (task(*each) for each in arguments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(initializer, initial)
    ) as pool:
        try:
            with _held_back_sigint():
                pending = [pool.submit(task, *each) for each in arguments]
            for future in pending:
                while not wait([future], timeout=_LOOK_S).done:
                    while_waiting()
                yield future.result()
        except BaseException:
            # What runs may end; nothing else is begun. At a good end there is nothing to be cancelled.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _held_back_sigint() -> Iterator[None]:
    """What is spawned within takes no SIGINT before `_begin`: while it imports, it would end with a traceback."""
    # Started in between, it would let SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(initializer: Callable[..., object] | None, initial: tuple[Any, ...]) -> None:
    """Die of Ctrl-C without a word from here on: who spawned this process tells of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if initializer is not None:
        initializer(*initial)


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
