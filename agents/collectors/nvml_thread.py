"""A thread that asks the driver one question after another, so that a call that hangs holds up nobody else.

Guarantees: one thread for its whole life, started with the first question; it does not keep the process from ending.
A call into the driver cannot be broken off: a thread that hangs stays until its call returns, and questions behind it
wait. Who asks decides how long to wait and when to stop asking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["QuestionThread"]

_Answer = TypeVar("_Answer")


class QuestionThread:
    """Answers questions in the order in which they were put.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._questions: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def ask(self, question: Callable[[], _Answer]) -> Future[_Answer]:
        """Put a question; the future holds the answer, or what it raised."""
        answer: Future[_Answer] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
        self._questions.put((question, answer))
        return answer

    def close(self) -> None:
        """Let the thread end when it has answered what was asked; it is not waited for."""
        self._questions.put(None)

    def _serve(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, answer = asked
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is taken
                answer.set_exception(error)
            # The next wait may be long: it must not keep the last answer alive.
            del asked, question, answer
