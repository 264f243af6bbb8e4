"""Gets the peers of the comparison ready, in the cache folder and outside the repository's own environment.

Quix Streams goes into a virtual environment of its own, from PyPI; the Kafka Streams program is built by Maven against
the broker's version of Kafka. What is there is used again. A peer that cannot be had comes back as the reason.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.brokers.jars import cache_folder, ensure_jars, find_java

__all__ = ["QUIX_VERSION", "Peer", "PeerMissingError", "faust_peer", "kafka_streams_peer", "quix_peer"]

QUIX_VERSION = "3.28.1"
_PEERS = Path(__file__).with_name("peers")
_TIMEOUT_S = 600


class PeerMissingError(Exception):
    """A peer cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that joins steps.

    Attributes:
        name: with its version.
        command: to which servers, topics and counts are added.
        has_state_dir: whether it also takes a directory for its state.
    """

    name: str
    command: tuple[str, ...]
    has_state_dir: bool


def faust_peer(version: str) -> Peer:
    """Faust with nothing else, in this environment."""
    return Peer(f"Faust {version}, bare", (sys.executable, str(_PEERS / "faust_join.py")), has_state_dir=False)


def quix_peer() -> Peer:
    """Quix Streams.

    Raises:
        PeerMissingError: PyPI does not have it for this Python.
    """
    venv = cache_folder() / "bench" / f"quix-{QUIX_VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = venv / "bin" / "python"
    stamp = venv / ".installed"
    if not stamp.exists():
        shutil.rmtree(venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(venv)], "its virtual environment")
        _run([str(python), "-m", "pip", "install", "-q", f"quixstreams=={QUIX_VERSION}"], "quixstreams from PyPI")
        stamp.touch()
    return Peer(f"Quix Streams {QUIX_VERSION}", (str(python), str(_PEERS / "quix_join.py")), has_state_dir=True)


def kafka_streams_peer() -> Peer:
    """Kafka Streams, of the broker's version.

    Raises:
        PeerMissingError: Maven is missing, or cannot have its jars.
    """
    version = ensure_jars().version
    source = _PEERS / "kafka_streams"
    files = sorted(path for path in source.rglob("*") if path.is_file() and "target" not in path.parts)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = cache_folder() / "bench" / f"kafka-streams-{version}-{digest}"
    jar = folder / "target" / "step-join.jar"
    if not jar.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise PeerMissingError("Maven (mvn) is not on the PATH")
        shutil.rmtree(folder, ignore_errors=True)
        for path in files:
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        _run(
            [maven, "-B", "-q", "-f", str(folder / "pom.xml"), f"-Dkafka.version={version}", "-DskipTests", "package"],
            "kafka-streams through Maven",
        )
    command = (
        *(str(find_java()), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        *("-cp", f"{jar}:{folder / 'target' / 'libraries'}/*", "bench.StepJoin"),
    )
    return Peer(f"Kafka Streams {version}", command, has_state_dir=True)


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerMissingError(f"{what}: not within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise PeerMissingError(f"{what}: {(said or ['no word'])[0][:300]}")
