"""Which GPU a process computes on, asked of the driver without waiting for it.

A question is answered at once with what is known; the driver is asked in a thread of its own, because it may hang and
those who ask must not. An answer is forgotten after a while, since a pid is used again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

__all__ = ["ProcessDevices"]

_KEEP_S = 60.0
_MOST_QUESTIONS = 1024


class ProcessDevices:
    """Answers by pid; an instance is a device resolver.

    Args:
        look: asks the driver; may raise and may hang.
    """

    def __init__(self, look: Callable[[int], Mapping[str, str] | None]) -> None:
        self._look = look
        self._questions: queue.Queue[int] = queue.Queue(_MOST_QUESTIONS)
        self._answers: dict[int, tuple[float, Mapping[str, str]]] = {}
        self._asked: set[int] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, name="process-devices", daemon=True).start()

    def __call__(self, pid: int) -> Mapping[str, str] | None:
        """The device of a process if it is known by now, as `uuid` and `pci_bus_id`."""
        with self._lock:
            at_s, device = self._answers.get(pid, (0.0, None))
            if device is not None and time.monotonic() - at_s < _KEEP_S:
                return device
            if pid not in self._asked and not self._questions.full():
                self._asked.add(pid)
                self._questions.put_nowait(pid)
        return None

    def _serve(self) -> None:
        while True:
            pid = self._questions.get()
            try:
                device = self._look(pid)
            except Exception:  # noqa: BLE001 - a driver that is away is asked again with the next question
                device = None
            with self._lock:
                self._asked.discard(pid)
                now_s = time.monotonic()
                self._answers = {old: held for old, held in self._answers.items() if now_s - held[0] < _KEEP_S}
                if device is not None:
                    self._answers[pid] = (now_s, device)
