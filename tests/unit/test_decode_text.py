"""Lines, addresses and the driver: what all decoders share."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode import driver, text
from agents.decode.pci_address import normalise
from agents.decode.record import Damaged, Record, Tally, UnknownFormat, malformed

REPOSITORY = Path(__file__).parents[2]


def numbered(data: bytes) -> list[tuple[int, str]]:
    return list(text.lines(io.BytesIO(data)))


def test_every_kind_of_line_end_ends_one_line() -> None:
    assert numbered(b"a\r\nb\rc\n\nd") == [(1, "a"), (2, "b"), (3, "c"), (4, ""), (5, "d")]


def test_an_end_at_the_end_opens_no_further_line() -> None:
    assert numbered(b"a\n") == [(1, "a")]
    assert numbered(b"") == []


def test_terminal_sequences_are_removed() -> None:
    assert numbered(b"\x1b[1;31mNVRM\x1b[0m: \x1b]0;title\x07x\x1b(B") == [(1, "NVRM: x")]


def test_bad_bytes_and_the_byte_order_mark_do_not_cost_the_line() -> None:
    assert numbered(b"\xef\xbb\xbfa\xffb\n") == [(1, "a\ufffdb")]


def test_the_rest_of_an_endless_line_is_dropped_and_the_next_is_read() -> None:
    data = io.BytesIO(b"x" * 1000 + b"\nnext\n")
    assert list(text.lines(data, max_line_bytes=10)) == [(1, "x" * 10), (2, "next")]


def test_memory_does_not_grow_with_the_line() -> None:
    class Endless(io.RawIOBase):
        left = 256

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"x" * 65536 if self.left else b""

    [(_, line)] = text.lines(Endless())  # type: ignore[arg-type]
    assert len(line) == text.MAX_LINE_BYTES


@given(st.binary(max_size=200), st.integers(1, 7))
def test_lines_do_not_depend_on_where_chunks_end(data: bytes, size: int) -> None:
    class Chunked(io.BytesIO):
        def read1(self, limit: int | None = -1, /) -> bytes:
            return super().read(size)

    assert list(text.lines(Chunked(data))) == numbered(data)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\x1b\ufeff", codec="utf-8")), max_size=8))
def test_plain_text_comes_back_as_it_was(rows: list[str]) -> None:
    data = "".join(row + "\n" for row in rows).encode()
    assert numbered(data) == list(enumerate(rows, 1))


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00"),
        ("00000000:3B:00.0", "0000:3b:00"),
        ("00010002:3b:00.0", "10002:3b:00"),
        ("PCI:0008:01:00", "0008:01:00"),
        ("3b:00.0", "0000:3b:00"),
        ("0000:10:1c", "0000:10:1c"),
        (" 0000:3b:00 ", "0000:3b:00"),
        ("...", None),
        ("PCI:...", None),
        ("", None),
        ("3b", None),
        ("0000:3b:00.0.0", None),
        ("0000:3b:0g", None),
        ("\uff10000:3b:00", None),
    ],
)
def test_addresses_have_one_spelling(source: str, address: str | None) -> None:
    assert normalise(source) == address


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_the_spelling_keeps_domain_bus_and_device(domain: int, bus: int, device: int, function: int) -> None:
    expected = f"{domain:04x}:{bus:02x}:{device:02x}"
    for source in (f"{domain:04x}:{bus:02x}:{device:02x}", f"PCI:{domain:08X}:{bus:02X}:{device:02X}.{function}"):
        assert normalise(source) == expected
    assert normalise(expected) == expected


def test_malformed_quotes_at_most_500_characters() -> None:
    assert malformed("why", "x" * 900, 3) == {"kind": "malformed", "reason": "why", "raw": "x" * 500, "line": 3}
    assert "line" not in malformed("why", "x")


def install(monkeypatch: pytest.MonkeyPatch, decode: Any) -> None:
    module = types.ModuleType("agents.decode.made_up")
    module.decode = decode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(driver.DECODERS, "made-up", module.__name__)


def run(path: Path) -> tuple[int, list[Any], str]:
    out, err = io.BytesIO(), io.StringIO()
    status = driver.run("made-up", str(path), out, err)
    return status, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample"
    path.write_bytes(b"x\n")
    return path


def test_records_are_counted_by_the_driver_and_skips_by_the_decoder(
    monkeypatch: pytest.MonkeyPatch, sample: Path
) -> None:
    def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
        yield {"kind": "a", "x": float("nan"), "big": 1 << 80, "half": "\ud800"}
        tally.skipped += 3
        yield malformed("why", stream.read().decode(), 1)

    install(monkeypatch, decode)
    status, records, err = run(sample)
    assert status == 0
    assert records[0] == {"kind": "a", "x": None, "big": 1 << 80, "half": "?"}
    assert records[1]["kind"] == "malformed"
    assert err == "records=1 malformed=1 skipped=3\n"


def test_damage_writes_a_malformed_record_and_ends_with_two(monkeypatch: pytest.MonkeyPatch, sample: Path) -> None:
    def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
        yield {"kind": "a"}
        raise Damaged("cut", "raw")

    install(monkeypatch, decode)
    status, records, err = run(sample)
    assert status == 2
    assert [record["kind"] for record in records] == ["a", "malformed"]
    assert records[1] == {"kind": "malformed", "reason": "cut", "raw": "raw"}
    assert err.endswith("records=1 malformed=1 skipped=0\n")


@pytest.mark.parametrize("error", [UnknownFormat("not ours"), OSError("disk"), RecursionError("deep"), KeyError("k")])
def test_no_failure_of_a_decoder_is_a_traceback(
    monkeypatch: pytest.MonkeyPatch, sample: Path, error: Exception
) -> None:
    def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
        yield from ()
        raise error

    install(monkeypatch, decode)
    status, _, err = run(sample)
    assert status == 2
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("name", ["absent", ".", "a\0b"])
def test_a_file_that_cannot_be_opened_ends_with_two(tmp_path: Path, name: str) -> None:
    out, err = io.BytesIO(), io.StringIO()
    assert driver.run("kernel-log", str(tmp_path / name), out, err) == 2
    assert out.getvalue() == b""
    assert err.getvalue().endswith("records=0 malformed=0 skipped=0\n")


def test_an_unknown_kind_names_the_known_ones() -> None:
    err = io.StringIO()
    assert driver.run("nothing", "x", io.BytesIO(), err) == 2
    assert "kernel-log" in err.getvalue()


PROGRAM = (
    "import sys; from agents.decode.driver import run; sys.exit(run(*sys.argv[1:3], sys.stdout.buffer, sys.stderr))"
)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("NVRM: Xid (PCI:0000:3b:00): 79, \n" * 20000)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "kernel-log", str(path)],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            check=False,
        )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_decoding_imports_neither_faust_nor_pyarrow_nor_pydantic(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("NVRM: Xid (PCI:0000:3b:00): 79, \n")
    program = (
        "import io, sys; from agents.decode.driver import run;"
        "assert run('kernel-log', sys.argv[1], io.BytesIO(), sys.stderr) == 0;"
        "print(sorted({'faust', 'pyarrow', 'pydantic', 'numpy', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert done.stdout.strip() == "[]"


def test_standard_input_is_read_for_a_dash() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "kernel-log", "-"],
        input=b"NVRM: Xid (PCI:0000:3b:00): 79, \n",
        capture_output=True,
        cwd=REPOSITORY,
        check=True,
    )
    assert json.loads(done.stdout)["code"] == 79
    assert done.stderr == b"records=1 malformed=0 skipped=0\n"
