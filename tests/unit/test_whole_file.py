"""A file that is replaced whole: what else may stand at its place, a link or a pipe, stays what it is."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from paceline.whole_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    link, page = tmp_path / "latest.html", tmp_path / "page.html"
    link.symlink_to(page)
    for content in (b"first", b"second"):
        write_whole(link, content)
        assert (link.is_symlink(), page.read_bytes()) == (True, content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.html", "page.html"]


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"one ", b"two")
        assert os.read(reading, 100) == b"one two"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
