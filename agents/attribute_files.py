"""Small files that are read again and again, as the attributes of sysfs: opened once, read in place.

Guarantees: every reading asks the kernel anew; a file that is gone or refuses costs itself alone and is opened again with
a later reading; the list of files is made anew now and then, so devices may come and go; descriptors are bounded. A kept
descriptor holds no device back: the kernel answers it with an error once the device is gone. Opening takes most of the
time of reading such a file: a node with eight NICs has over 400 of them, and keeping them open costs a fifteenth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["AttributeFiles"]

_MOST_BYTES = 4096
"""A page: the most that an attribute of sysfs can have."""

_MOST_OPEN = 2048
"""Files kept open at most; what is beyond is opened for each reading. Half as many where the process may open fewer."""


class AttributeFiles:
    """Reads a set of files.

    Args:
        list_files: names the files; called with the first reading and then once in `list_every` readings.
        list_every: how often the list is made anew, in readings.
        most_open: descriptors kept at most; None takes 2,048, or half of what the process may have open.
    """

    def __init__(
        self, list_files: Callable[[], Iterable[Path]], *, list_every: int = 60, most_open: int | None = None
    ) -> None:
        self._files: dict[str, int | None] = {}
        self._list_files = list_files
        self._list_every = list_every
        self._most_open = _allowed() if most_open is None else most_open
        self._readings = 0
        self._open_count = 0

    def read(self) -> Iterator[tuple[str, str]]:
        """Path and content of every file that can be read now, in the order of the list."""
        if self._readings % self._list_every == 0:
            self._list()
        self._readings += 1
        for path in self._files:
            content = self._content(path)
            if content is not None:
                yield path, content.decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of all files; a later reading opens them again."""
        for path in self._files:
            self._let_go(path)

    def __del__(self) -> None:
        # Who makes collectors again and again, as tests do, must not run out of descriptors.
        self.close()

    def _list(self) -> None:
        listed = {str(path): None for path in self._list_files()}
        for path in [path for path in self._files if path not in listed]:
            self._let_go(path)
        self._files = {path: self._files.get(path) for path in listed}

    def _content(self, path: str) -> bytes | None:
        file = self._files[path]
        try:
            if file is not None:
                return os.pread(file, _MOST_BYTES, 0)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._let_go(path)
            return None
        try:
            content = os.pread(file, _MOST_BYTES, 0)
        except OSError:  # some counters exist and refuse to be read; that is how a driver says that it does not know
            os.close(file)
            return None
        if self._open_count < self._most_open:
            self._files[path] = file
            self._open_count += 1
        else:
            os.close(file)
        return content

    def _let_go(self, path: str) -> None:
        file = self._files[path]
        if file is not None:
            os.close(file)
            self._files[path] = None
            self._open_count -= 1


def _allowed() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if soft == resource.RLIM_INFINITY else min(_MOST_OPEN, soft // 2)
