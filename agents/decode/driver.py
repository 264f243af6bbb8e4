"""One file of raw telemetry to NDJSON: opens it, runs the decoder of its kind, writes and counts.

Guarantees: strict JSON, one object a line, on `out`; the count as the last line on `err`; no input and no
closed pipe ends in a traceback; memory does not grow with the file. Decoders are imported when asked for, so
starting costs no more than the kind that runs. Nothing here knows a format, and compressed input is the
decoder's affair.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from json import dumps as exact_dumps
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, cast

import orjson

from agents.decode.record import Damaged, Decoder, Record, Tally, UnknownFormat, malformed

DECODERS: Final[dict[str, str]] = {
    "pcie": "agents.decode.pcie",
    "kernel-log": "agents.decode.kernel_log",
    "dcgm": "agents.decode.dcgm",
    "fabric": "agents.decode.fabric",
    "steps": "agents.decode.steps",
    "kineto": "agents.decode.kineto",
    "flight-recorder": "agents.decode.flight_recorder",
}
"""Kind of telemetry to the module whose `decode` reads it."""

EXIT_READ = 0
EXIT_UNREADABLE = 2


def run(kind: str, path: str, out: BinaryIO, err: TextIO) -> int:
    """Decodes one file and returns the exit status.

    Args:
        kind: A key of `DECODERS`.
        path: The file, or `-` for standard input.
        out: Takes one JSON object a line.
        err: Takes what is for people; the count is its last line.

    Returns:
        0 when the file was read, malformed lines or not. 2 when the kind is unknown or the file could not be
        opened, is of no known sub-format or is damaged as a whole (the last also writes a malformed record).
    """
    tally = Tally()
    try:
        status = _decode(kind, path, out, err, tally)
        out.flush()
    except BrokenPipeError:
        # The reader has what it wanted. Python would complain once more when it flushes at exit.
        _discard(out)
        status = EXIT_READ
    with suppress(OSError, ValueError):
        err.write(tally.line() + "\n")
        err.flush()
    return status


def encode(record: Record) -> bytes:
    """`record` as one line of strict JSON: NaN and infinities become null, integers stay exact."""
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer beyond 64 bits, or half a surrogate pair
        return exact_dumps(_strict(record), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _decode(kind: str, path: str, out: BinaryIO, err: TextIO, tally: Tally) -> int:
    module = DECODERS.get(kind)
    if module is None:
        return _refuse(err, f"unknown kind {kind!r}; known are {', '.join(DECODERS)}")
    decoder = cast("Decoder", importlib.import_module(module).decode)
    try:
        with _opened(path) as stream:
            for record in decoder(stream, tally):
                _write(record, out, tally)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _refuse(err, f"cannot read {path}: {error.strerror or error}")
    except UnknownFormat as error:
        return _refuse(err, f"{path} is of no known {kind} format: {error}")
    except Damaged as error:
        _write(malformed(error.reason, error.raw), out, tally)
        return _refuse(err, f"{path} is damaged: {error.reason}")
    except Exception as error:  # noqa: BLE001 - no input may end in a traceback, whatever a decoder overlooked
        reason = f"cannot be decoded: {type(error).__name__}: {error}"
        _write(malformed(reason, ""), out, tally)
        return _refuse(err, f"{path} {reason}")
    return EXIT_READ


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    if "\0" in path:
        raise OSError("a file name holds no NUL")
    with Path(path).open("rb") as stream:
        yield stream


def _write(record: Record, out: BinaryIO, tally: Tally) -> None:
    out.write(encode(record))
    if record["kind"] == "malformed":
        tally.malformed += 1
    else:
        tally.records += 1


def _refuse(err: TextIO, message: str) -> int:
    with suppress(OSError, ValueError):
        err.write(f"paceline: {message}\n")
    return EXIT_UNREADABLE


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {_strict(str(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def _discard(out: BinaryIO) -> None:
    with suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, out.fileno())
        os.close(sink)
