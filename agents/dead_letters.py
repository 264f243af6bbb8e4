"""The agent's dead-letter file: records that the brokers refuse for good, as lines of JSON with their original bytes.

One line a record: when, lane, topic, reason (Kafka's name of the error) and text, when the agent took it, and key,
headers and value in base64. The file is bounded: when it is full it becomes `<name>.1`, in place of the one before. A
line is written at once. It is for people and for sending again by hand; the agent never reads it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from pathlib import Path

from schemas.codec import Message

__all__ = ["DeadLetters"]

_LOG = logging.getLogger(__name__)


class DeadLetters:
    """Appends dead letters; safe to use from several threads.

    Args:
        path: the file; it is made when the first letter comes.
        cap_bytes: size at which the file is rotated; a letter larger than this is not kept.
    """

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self._path = path
        self._cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._has_failed = False

    def write(
        self, message: Message, lane: str, arrival_ns: int, at_ns: int, reason: str, text: str, *, sync: bool
    ) -> bool:
        """Keep a record; False if that was not possible, which is logged once until it is.

        Args:
            message: what was refused.
            lane: the lane that it came from.
            arrival_ns: wall time at which the agent took it.
            at_ns: now.
            reason: a name to count by.
            text: what the broker or client said.
            sync: return only when the line is on the disk.
        """
        line = json.dumps(
            {
                "at_ns": at_ns,
                "lane": lane,
                "topic": message.topic,
                "reason": reason,
                "text": text,
                "arrival_ns": arrival_ns,
                "key": base64.b64encode(message.key).decode(),
                "headers": [[name, base64.b64encode(value).decode()] for name, value in message.headers],
                "value": base64.b64encode(message.value).decode(),
            }
        )
        with self._lock:
            try:
                self._append(line.encode() + b"\n", sync)
            except OSError as error:
                if not self._has_failed:
                    _LOG.warning("dead letters cannot be kept: %s: %s", self._path, error.strerror or error)
                self._has_failed = True
                return False
            self._has_failed = False
            return True

    def _append(self, line: bytes, sync: bool) -> None:
        if len(line) > self._cap_bytes:
            raise OSError(f"a letter of {len(line)} bytes is above the file's {self._cap_bytes}")
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # the end of a line that a crash cut off
                line = b"\n" + line
            if size and size + len(line) > self._cap_bytes:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                os.close(file)
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
                line = line.removeprefix(b"\n")
            while line:
                line = line[os.write(file, line) :]
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
