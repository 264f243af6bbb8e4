"""Makes the development environment: a virtual environment, the locked packages, this repository's distributions.

The Makefile runs it with the Python it chose; standard library only, since nothing is installed yet. Guarantees: only
what requirements.lock names by hash gets installed besides our own code; a usable environment is kept, a broken one
is made anew; whatever fails ends in one sentence with the reason and exit 1. It does not choose a Python, and it does
not remove packages that an older lock brought in (`make clean` does).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG_NAME = "install.log"
PYTHON_RANGE = ((3, 11), (3, 13))
# An interpreter that does not answer by then hangs; a healthy one takes well under a second.
PROBE_TIMEOUT_S = 30
REASON_LINES = 3
REASON_CHARACTERS = 400
_PROBE = "import pip, sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Sets up the environment in the folder given, `.venv` by default, below the repository root."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) > 1:
        _say("usage: setup_env.py [FOLDER]")
        return 2
    venv = ROOT / (given[0] if given else ".venv")
    try:
        set_up(venv)
    except SetupError as error:
        _say(f"set-up failed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("set-up interrupted; the next make goes on from here")
        return 1
    return 0


def set_up(venv: Path) -> None:
    """Brings the environment to the state of the lock and of pyproject.toml.

    Raises:
        SetupError: A step failed, or a file of the repository is missing.
    """
    for needed in ("requirements.lock", "pyproject.toml", "LICENSE", "paceline_trainer/pyproject.toml"):
        if not (ROOT / needed).is_file():
            raise SetupError(f"{needed} is missing: is this a whole checkout?")
    python = venv / "bin" / "python"
    if is_usable(python):
        _say(f"1/3 keeping {venv.name} (Python {version_of(python)})")
    else:
        _say(f"1/3 making {venv.name} (Python {sys.version_info[0]}.{sys.version_info[1]})")
        _make_venv(venv)
    log = venv / LOG_NAME
    log.unlink(missing_ok=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar=off"]
    _step(
        "2/3 installing the packages of requirements.lock", [*pip, "--require-hashes", "-r", "requirements.lock"], log
    )
    own = [*pip, "--no-deps", "--no-build-isolation", "-e", ".", "-e", "./paceline_trainer"]
    _step("3/3 installing paceline and paceline-trainer", own, log)


def is_usable(python: Path) -> bool:
    """Whether the interpreter of an environment runs, has pip, and is of a version that we run on."""
    version = version_of(python)
    if version is None:
        return False
    major, minor = version.split(".")
    lowest, highest = PYTHON_RANGE
    return lowest <= (int(major), int(minor)) <= highest


def version_of(python: Path) -> str | None:
    """The version of an interpreter that has pip, as `3.12`; None when it has none or does not run."""
    try:
        done = subprocess.run(
            [str(python), "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def reason(output: str) -> str:
    """The lines of a tool's output that say why it failed: its errors, else its last words; bounded in length."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "fatal:"))]
    told = " / ".join((errors or lines)[-REASON_LINES:]) or "it said nothing"
    return told if len(told) <= REASON_CHARACTERS else told[:REASON_CHARACTERS] + "..."


def _make_venv(venv: Path) -> None:
    try:
        if venv.is_symlink() or venv.is_file():
            venv.unlink()
        elif venv.exists():
            shutil.rmtree(venv)
    except OSError as error:
        raise SetupError(f"{venv} cannot be replaced: {error.strerror}") from error
    done = _run([sys.executable, "-m", "venv", str(venv)])
    if done.returncode != 0:
        raise SetupError(f"{sys.executable} -m venv: {reason(done.stdout)} (install python3-venv)")


def _step(title: str, command: list[str], log: Path) -> None:
    _say(f"{title} ...")
    start = time.monotonic()
    done = _run(command)
    with log.open("a") as file:
        file.write(done.stdout)
    if done.returncode != 0:
        raise SetupError(f"{reason(done.stdout)} (all of it in {log.relative_to(ROOT)})")
    _say(f"    done in {time.monotonic() - start:.0f} s")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # A user's `pip install --user` habit would fail inside an environment.
    environment = {**os.environ, "PIP_USER": "0"}
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise SetupError(f"{command[0]} does not run: {error.strerror}") from error


def _say(line: str) -> None:
    sys.stderr.write(f"paceline: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
