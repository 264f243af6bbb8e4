"""Small files that are read again and again: every reading is of now, and descriptors are bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.attribute_files import AttributeFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}1\n")
    return tmp_path


def files_of(folder: Path, **options: int) -> AttributeFiles:
    return AttributeFiles(lambda: sorted(folder.glob("*")), **options)


def content(files: AttributeFiles) -> dict[str, str]:
    return {path.rpartition("/")[2]: text for path, text in files.read()}


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_reading_is_of_now(folder: Path) -> None:
    files = files_of(folder)
    assert content(files) == {"a": "a1\n", "b": "b1\n", "c": "c1\n"}
    (folder / "b").write_text("2\n")
    assert content(files) == {"a": "a1\n", "b": "2\n", "c": "c1\n"}
    files.close()


def test_files_are_opened_once_and_let_go(folder: Path) -> None:
    before = open_count()
    files = files_of(folder)
    for _ in range(5):
        content(files)
    assert open_count() == before + 3
    files.close()
    assert open_count() == before
    assert content(files)["a"] == "a1\n"
    files.close()


def test_what_is_beyond_the_bound_is_read_and_not_kept(folder: Path) -> None:
    before = open_count()
    files = files_of(folder, most_open=1)
    assert len(content(files)) == len(content(files)) == 3
    assert open_count() == before + 1
    files.close()


def test_a_file_that_comes_is_seen_with_the_next_listing_and_one_that_goes_is_let_go(folder: Path) -> None:
    before = open_count()
    files = files_of(folder, list_every=2)
    content(files)
    (folder / "d").write_text("d1\n")
    (folder / "a").unlink()
    assert "d" not in content(files)
    assert set(content(files)) == {"b", "c", "d"}
    assert open_count() == before + 3
    files.close()


def test_a_file_that_refuses_costs_itself_alone_and_is_asked_again(folder: Path) -> None:
    (folder / "b").unlink()
    (folder / "b").mkdir()  # can be opened, and cannot be read
    files = files_of(folder, list_every=100)
    assert set(content(files)) == {"a", "c"}
    (folder / "b").rmdir()
    assert set(content(files)) == {"a", "c"}
    (folder / "b").write_text("back\n")
    assert content(files)["b"] == "back\n"
    files.close()


def test_a_device_that_went_and_came_again_is_opened_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(folder, list_every=100)
    content(files)
    real = os.pread
    (gone,) = (
        int(entry.name)
        for entry in Path("/proc/self/fd").iterdir()
        if entry.is_symlink() and os.path.realpath(entry) == str(folder / "a")
    )

    def pread(file: int, length: int, offset: int) -> bytes:
        if file == gone:
            raise OSError(19, "No such device")  # how the kernel answers once the device is gone
        return real(file, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert set(content(files)) == {"b", "c"}
    monkeypatch.undo()
    (folder / "a").write_text("a2\n")
    assert content(files)["a"] == "a2\n"
    files.close()


def test_a_page_is_the_most_of_a_file_and_what_is_no_text_is_replaced(folder: Path) -> None:
    (folder / "a").write_bytes(b"x" * 10_000)
    (folder / "b").write_bytes(b"\xff1\n")
    found = content(files_of(folder))
    assert len(found["a"]) == 4096
    assert found["b"] == "\ufffd1\n"
