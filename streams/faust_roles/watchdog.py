"""Ends a worker that has something to read and does not read it, or whose event loop stands still.

Faust's agents can stop while their process lives. A supervisor starts the process anew, and its state comes from the
snapshots; nothing is lost by ending it. The watch runs in a thread, so that a loop that stands still is seen too.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog

from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.faust_roles.settings import WorkerSettings

__all__ = ["EXIT_STUCK", "Progress", "Watchdog"]

_log = structlog.get_logger(__name__)

EXIT_STUCK = 71
_LOOK_EVERY_S = 5.0


class Progress:
    """Tells whether a worker is stuck, from what is unread and what was processed.

    Args:
        limit_s: how long something may be unread without anything being processed. It covers a rebalance and the
            reading of snapshots, which take tens of seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._processed = -1
        self._since: float | None = None

    def is_stuck(self, now_s: float, unread: int, processed: int) -> bool:
        """Take a look.

        Args:
            now_s: monotonic seconds.
            unread: records that wait in the assigned partitions.
            processed: records processed since the start.
        """
        if unread <= 0 or processed != self._processed:
            self._processed = processed
            self._since = now_s
            return False
        assert self._since is not None
        return now_s - self._since >= self._limit_s


class Watchdog:
    """Watches one worker.

    Args:
        app: the Faust app.
        settings: the worker's settings.
        end: ends the process; `os._exit`, because a stuck app does not stop when asked.
    """

    def __init__(self, app: Any, settings: WorkerSettings, end: Callable[[int], None] = os._exit) -> None:
        from streams.faust_roles.app import INPUTS

        self._app = app
        self._limit_s = settings.stuck_after_s
        self._topics = frozenset(topic_named(family).name for family in INPUTS[settings.role])
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._heartbeat_s = time.monotonic()

    def start(self) -> None:
        """Start watching."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _beat(self) -> None:
        self._heartbeat_s = time.monotonic()

    def _watch(self) -> None:
        progress = Progress(self._limit_s)
        while not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._beat)
            time.sleep(_LOOK_EVERY_S)
            now_s = time.monotonic()
            if now_s - self._heartbeat_s > self._limit_s:
                self._give_up("the event loop stands still", unread=None)
                return
            unread = self._unread()
            if progress.is_stuck(now_s, unread, self._app.paceline_keeper.processed):
                self._give_up("records wait and none is processed", unread=unread)
                return

    def _unread(self) -> int:
        """Records that wait in the assigned partitions of the role's topics, as far as the broker has told."""
        unread = 0
        try:
            for tp in list(self._app.consumer.assignment()):
                if tp.topic in self._topics:
                    end = self._app.consumer.highwater(tp) or 0
                    unread += max(0, end - 1 - self._app.paceline_keeper.folded(tp.partition, tp.topic))
        except (AttributeError, KeyError, RuntimeError):
            # In the midst of a rebalance there is no answer; the next look asks again.
            return 0
        return unread

    def _give_up(self, why: str, unread: int | None) -> None:
        _log.critical("worker is stuck and ends; its supervisor starts it anew", why=why, unread=unread)
        self._end(EXIT_STUCK)
