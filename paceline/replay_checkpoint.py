"""Where a replay into a file stands, in a file beside it: written now and then, so that an interrupted one goes on from there.

Two zstd frames of JSON: a head that says of what it is and how far that came, and the state, whose SHA-256 stands in the head. It
is replaced whole, and after the outputs that it counts are on the disk; so what a killed process, a full disk or a power cut leaves
is a checkpoint of before, or none. One that is damaged, or of another source, range, policy, site or code, is not used: then
the replay begins anew, which is slower and says the same. Deliberately no state of an older code is read.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import zstandard

from paceline.whole_file import write_whole
from schemas.errors import SchemaError
from streams.core.snapshot_codec import DamagedSnapshotError, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CHECKPOINT_EVERY_S",
    "Checkpoint",
    "CheckpointPace",
    "UnusableCheckpointError",
    "checkpoint_of",
    "code_sum",
]

_FORM = 1
_LOOK_EVERY = 64
"""Records between two looks at the clock."""
CHECKPOINT_EVERY_S = 10.0
"""What an interruption costs at most, more or less: no longer than the start of a few commands. Judgement."""
_LEAST_TIMES_ITS_COST = 50
"""Where a checkpoint of a large fleet takes long, the next one waits: they never take more than a fiftieth of the time."""


class UnusableCheckpointError(Exception):
    """It is damaged, or not of this replay; the text says which."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a replay came.

    Attributes:
        of: what is replayed, by name: source, range, policy, site, code. All of it decides what is said.
        position: where the source goes on, as it gave it.
        said: of the outputs so far, `lines`, `bytes` and `sha256`.
        problems: what could not be used so far: `bad_lines` and `counts`.
        pipeline: the state of the engines.
    """

    of: dict[str, Any]
    position: dict[str, Any]
    said: dict[str, Any]
    problems: dict[str, Any]
    pipeline: dict[str, Any]

    def write(self, path: Path) -> None:
        """Put it in the place of the last one.

        Raises:
            OSError: it cannot be written; the last one stands.
            TypeError: there is a number in the state that JSON has no room for, of an input that claims it.
        """
        packed = pack(self.pipeline)
        far = {"position": self.position, "said": self.said, "problems": self.problems}
        head = orjson.dumps({"checkpoint": _FORM, "of": self.of, **far, "sha256": packed.digest})
        frame = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(head)
        write_whole(path, frame, *packed.chunks)

    @staticmethod
    def read(path: Path, of: dict[str, Any]) -> Checkpoint | None:
        """The checkpoint in a file; None where there is none.

        Args:
            path: the file.
            of: what is replayed now.

        Raises:
            UnusableCheckpointError: it is damaged or of another replay.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableCheckpointError(str(error.strerror)) from None
        try:
            frame = zstandard.ZstdDecompressor().decompressobj()
            head = orjson.loads(frame.decompress(content))
            if head["checkpoint"] != _FORM:
                raise UnusableCheckpointError("it is of another version of paceline")
            differing = sorted(name for name in of if head["of"].get(name) != orjson.loads(orjson.dumps(of[name])))
            if differing:
                raise UnusableCheckpointError(f"it is of another {', '.join(differing)}")
            state = unpack((frame.unused_data,), head["sha256"])
            return Checkpoint(head["of"], head["position"], head["said"], head["problems"], state)
        except (
            zstandard.ZstdError,
            DamagedSnapshotError,
            SchemaError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):
            raise UnusableCheckpointError("it is damaged") from None


def checkpoint_of(output: Path) -> Path:
    """The file in which the checkpoints of a replay into a file are."""
    return output.with_name(output.name + ".checkpoint.json.zst")


@cache
def code_sum() -> str:
    """SHA-256 of all that decides what a replay says of an input, and in which form its state is: our files and what they compute with."""
    root = Path(__file__).parents[1]
    files = [*root.glob("schemas/**/*.py"), *root.glob("schemas/data/*"), *root.glob("streams/**/*.py")]
    digest = hashlib.sha256(sys.version.encode())
    for name in ("msgspec", "numpy", "orjson", "pydantic"):
        digest.update(version(name).encode())
    for file in sorted([*files, *root.glob("paceline/replay_*.py")]):
        digest.update(b"\0" + file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


class CheckpointPace:
    """Says when the next checkpoint is due.

    Args:
        every_s: seconds from one to the next, at least; 0 for one at every look, whatever it costs.
        clock: monotonic seconds.
    """

    def __init__(self, every_s: float = CHECKPOINT_EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._left = _LOOK_EVERY
        self._due = clock() + every_s
        self._began = 0.0

    def is_due(self) -> bool:
        """Whether it is; asked at every record. What is done until `done` is its cost."""
        self._left -= 1
        if self._left:
            return False
        self._left = _LOOK_EVERY
        self._began = self._clock()
        return self._began >= self._due

    def done(self) -> None:
        """It has been written, or was tried to be."""
        now = self._clock()
        cost_s = now - self._began
        self._due = now + max(self._every_s, _LEAST_TIMES_ITS_COST * cost_s) if self._every_s else now
