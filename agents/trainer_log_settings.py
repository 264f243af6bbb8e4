"""What the setting `trainer_logs` says of one group of trainer logs, in one line of `name=value` words.

`path=/logs/train/rank_*.log job=llama-70b rank=3 zone=Europe/Berlin`; a value with blanks is quoted as in a shell.
Guarantees: what does not hold is one error that names the word. Nothing is looked for on the disk here.
"""

from __future__ import annotations

import shlex
import zoneinfo
from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "TrainerLog", "TrainerLogError", "parse_trainer_log"]

FRAMEWORKS = ("megatron", "torchtitan", "nemo", "deepspeed", "huggingface", "nanotron", "maxtext", "nanogpt")
"""As the decoder names them."""

_WORDS = ("path", "job", "rank", "epoch", "framework", "zone", "from_start")


class TrainerLogError(ValueError):
    """An entry that does not hold; the text says which word and what would do."""


@dataclass(frozen=True, slots=True)
class TrainerLog:
    """Logs of one job on this node.

    Attributes:
        path: a file, or a pattern as of a shell; `**` goes into folders.
        job_id: the job.
        rank: whose the lines are that name no rank; None takes it from the file's name, else numbers the files.
        epoch: the attempt that the log begins with; a step number that falls begins the next one.
        framework: lines of others are left out; empty takes all that are known.
        zone: of times that are printed without a zone; empty is this machine's.
        from_start: publish also the steps that a log holds when it is first seen.
    """

    path: str
    job_id: str
    rank: int | None = None
    epoch: int = 0
    framework: str = ""
    zone: str = ""
    from_start: bool = False


def parse_trainer_log(text: str) -> TrainerLog:
    """One entry of the setting.

    Raises:
        TrainerLogError: it does not hold.
    """
    words = _words(text)
    for needed in ("path", "job"):
        if not words.get(needed):
            raise TrainerLogError(f"{text!r} has no {needed}: write path=/logs/train.log job=NAME")
    if not words["path"].startswith("/"):
        raise TrainerLogError(f"path {words['path']!r} is not absolute: an agent has no folder of its own")
    if len(words["job"]) > 253:
        raise TrainerLogError("job has more than 253 characters")
    framework = words.get("framework", "")
    if framework and framework not in FRAMEWORKS:
        raise TrainerLogError(f"framework {framework!r} is none of {', '.join(FRAMEWORKS)}; leave it out to take all")
    from_start = words.get("from_start", "no").lower()
    if from_start not in ("yes", "no", "true", "false"):
        raise TrainerLogError(f"from_start is {from_start!r}: give yes or no")
    zone = words.get("zone", "")
    if zone:
        try:
            zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise TrainerLogError(
                f"zone {zone!r} is not known here: give a name such as UTC or Europe/Berlin"
            ) from None
    return TrainerLog(
        path=words["path"],
        job_id=words["job"],
        rank=_number(words, "rank") if "rank" in words else None,
        epoch=_number(words, "epoch") if "epoch" in words else 0,
        framework=framework,
        zone=zone,
        from_start=from_start in ("yes", "true"),
    )


def _words(text: str) -> dict[str, str]:
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise TrainerLogError(f"{text!r}: {error}") from None
    words: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in _WORDS:
            raise TrainerLogError(f"{part!r} is no word of trainer_logs: known are {', '.join(_WORDS)}, as name=value")
        if name in words:
            raise TrainerLogError(f"{text!r} has {name} twice")
        words[name] = value
    return words


def _number(words: dict[str, str], name: str) -> int:
    text = words[name]
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise TrainerLogError(f"{name} is {text!r}: give a whole number from 0 to 999999")
    return int(text)
