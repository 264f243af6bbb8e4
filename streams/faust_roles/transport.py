"""Faust's aiokafka transport with one difference: partitions resume where their snapshots say, not where the group is.

Faust commits every second and at every rebalance, so the group's commit is ahead of the snapshot as a rule; what lies
between is in no state and would never be folded again. Both of Faust's recovery paths seek to the committed offsets when
the tables have been read, through `seek_to_committed`: there the restart point takes the commit's place.

A fetch that is under way while that happens may bring records of the old position, after which Faust would drop those of
the new one as read before; or it fails, because the client's buffers were taken from under it. Either way it is thrown
away and all partitions are sought once more, with no fetch under way.
"""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING, Any

from faust.transport.drivers import aiokafka as driver
from mode.services import WaitResults

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping

__all__ = ["SnapshotTransport"]


class _SnapshotConsumer(driver.Consumer):  # type: ignore[misc]  # Faust ships no usable types
    """Seeks the partitions of the role's topics to their restart points."""

    _seeks = 0

    async def seek_to_committed(self) -> Mapping[Any, int]:
        self._seeks += 1
        committed = dict(await super().seek_to_committed())
        points = self.app.paceline_restart_points(self.assignment())
        for tp, offset in points.items():
            await self._seek(tp, offset)
            # What this returns becomes Faust's own idea of what is read and acknowledged.
            committed[tp] = offset
        return committed

    async def _wait_next_records(self, timeout: float) -> Any:  # noqa: ASYNC109 (Faust's own signature)
        seeks = self._seeks
        try:
            fetched = await super()._wait_next_records(timeout)
        except KeyError:
            if self._seeks == seeks:
                raise
            fetched = None
        if self._seeks == seeks:
            return fetched
        await self.perform_seek()
        return {}, set()

    async def wait_first(self, *coros: Any, timeout: Any = None) -> Any:  # noqa: ASYNC109 (Faust's own signature)
        """Faust hands on every message in a race of four tasks, which costs more than all else about a message.

        Handing on waits only where a buffer is full: it is begun without a race, and races on from where it waits.
        """
        is_message = len(coros) == 2 and timeout is None and getattr(coros[0], "__name__", None) == "on_message"
        if not is_message:
            return await super().wait_first(*coros, timeout=timeout)
        handing_on, suspension = coros
        try:
            awaited = handing_on.send(None)
        except StopIteration as ended:
            suspension.close()
            return WaitResults([handing_on], [ended.value], False)
        return await super().wait_first(_go_on(handing_on, awaited), suspension)


async def _go_on(begun: Coroutine[Any, Any, Any], awaited: Any) -> Any:
    return await _begun(begun, awaited)


@types.coroutine
def _begun(begun: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that has been begun by hand and waits for something."""
    while True:
        try:
            sent = yield awaited
        except BaseException as error:  # noqa: BLE001 (a cancellation is the coroutine's to handle)
            step = partial(begun.throw, error)
        else:
            step = partial(begun.send, sent)
        try:
            awaited = step()
        except StopIteration as ended:
            return ended.value


class SnapshotTransport(driver.Transport):  # type: ignore[misc]
    """The transport to give to the app."""

    Consumer = _SnapshotConsumer
