"""Kafka's jars, from Maven coordinates into a cache folder, once a version.

A folder appears whole or not at all (copied aside, then renamed), two runs side by side wait for each other,
and a folder from which a jar went missing or was cut short is made again. Maven checks the checksums. Nothing is
fetched when a usable version is there, and nothing is executed here but `mvn` and `java -version`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.brokers.errors import BrokerError, BrokerMissingError
from deploy.brokers.lifetime import last_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KAFKA_VERSIONS = ("4.4.0", "4.3.1", "4.2.1", "4.1.1")
"""Versions that this package runs, tried in this order."""
MANIFEST_NAME = "jars.json"
FETCH_TIMEOUT_S = 600.0
LOCK_TIMEOUT_S = 900.0
JAVA_MINIMUM = 17
POLL_S = 0.2
REASON_CHARACTERS = 400
_POM = Path(__file__).with_name("kafka_pom.xml")
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """A complete set of jars."""

    version: str
    folder: Path

    @property
    def class_path(self) -> str:
        """What `java -cp` takes."""
        return f"{self.folder}{os.sep}*"


def cache_folder() -> Path:
    """`$PACELINE_CACHE`, else `$XDG_CACHE_HOME/paceline`, else `~/.cache/paceline`."""
    if own := os.environ.get("PACELINE_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "paceline"
    return Path.home() / ".cache" / "paceline"


def find_java() -> Path:
    """The `java` of `$JAVA_HOME`, else of the PATH, if it is new enough for Kafka 4.

    Raises:
        BrokerMissingError: There is none, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    found = next((path for name in (*candidates, "java") if (path := shutil.which(name))), None)
    if found is None:
        raise BrokerMissingError(f"Java {JAVA_MINIMUM} or newer is not on the PATH; Apache Kafka 4 needs it")
    try:
        said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerMissingError(f"{found} does not run: {error}") from error
    major = java_major(said.stderr + said.stdout)
    if major is None or major < JAVA_MINIMUM:
        have = "of an unknown version" if major is None else f"version {major}"
        raise BrokerMissingError(f"Apache Kafka 4 needs Java {JAVA_MINIMUM} or newer; {found} is {have}")
    return Path(found)


def java_major(said: str) -> int | None:
    """The feature release in what `java -version` prints: 17 for "17.0.15", 8 for "1.8.0_392"."""
    found = _JAVA_VERSION.search(said)
    return int(found[1]) if found else None


def missing_tools(cache: Path | None = None, versions: Sequence[str] = KAFKA_VERSIONS) -> list[str]:
    """What keeps Apache Kafka from running here, one sentence each; empty when nothing is known to.

    Maven counts only while no version of the jars is cached. Nothing is fetched.
    """
    lacks = []
    try:
        find_java()
    except BrokerMissingError as error:
        lacks.append(str(error))
    if cached_jars(cache, versions) is None and shutil.which("mvn") is None:
        lacks.append(
            "Maven (mvn) is not on the PATH; it is needed once, to fetch Kafka's jars into "
            f"{(cache or cache_folder()) / 'kafka'}"
        )
    return lacks


def cached_jars(cache: Path | None = None, versions: Sequence[str] = KAFKA_VERSIONS) -> KafkaJars | None:
    """The first of the versions whose jars are all in the cache."""
    for version in versions:
        folder = _folder(cache, version)
        if _is_complete(folder):
            return KafkaJars(version, folder)
    return None


def ensure_jars(cache: Path | None = None, versions: Sequence[str] = KAFKA_VERSIONS) -> KafkaJars:
    """Kafka's jars, from the cache or through Maven.

    Args:
        cache: Folder of the cache; `cache_folder()` when None.
        versions: Versions that will do, preferred first. A cached one is taken before a better one is fetched.

    Raises:
        BrokerMissingError: Maven is missing, or none of the versions can be fetched.
        BrokerError: Another run has been fetching for over 15 minutes, or the cache cannot be written.
    """
    if (have := cached_jars(cache, versions)) is not None:
        return have
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerMissingError(
            "Kafka's jars are not cached and Maven (mvn) is not on the PATH; install Maven, or set PACELINE_CACHE to "
            "a cache folder that has them"
        )
    refusals = []
    for version in versions:
        folder = _folder(cache, version)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{version}.lock")):
                # The run that held the lock before may have fetched it.
                refusal = None if _is_complete(folder) else _fetch(maven, version, folder)
        except OSError as error:
            raise BrokerError(f"Kafka's jars cannot be cached in {folder.parent}: {error}") from error
        if refusal is None:
            return KafkaJars(version, folder)
        refusals.append(f"{version}: {refusal}")
    raise BrokerMissingError("Maven could not fetch Apache Kafka:\n" + "\n".join(refusals))


def _folder(cache: Path | None, version: str) -> Path:
    return (cache or cache_folder()) / "kafka" / version


def _is_complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MANIFEST_NAME).read_text())
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _fetch(maven: str, version: str, folder: Path) -> str | None:
    """Makes the folder; returns why not, or None."""
    _log.info("fetching Apache Kafka %s into %s", version, folder)
    aside = Path(tempfile.mkdtemp(prefix=f"{version}.", dir=folder.parent))
    try:
        libraries = aside / "libraries"
        command = [
            maven, "-B", "-q", "-C", "-f", str(_POM), f"-Dkafka.version={version}", "-DincludeScope=runtime",
            f"-DoutputDirectory={libraries}", "dependency:copy-dependencies",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                cwd=aside,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"Maven did not finish within {FETCH_TIMEOUT_S:g} s"
        except OSError as error:
            return f"{maven} does not run: {error}"
        sizes = {jar.name: jar.stat().st_size for jar in sorted(libraries.glob("*.jar"))}
        if done.returncode != 0 or f"kafka_2.13-{version}.jar" not in sizes:
            return _reason(done.stdout + done.stderr) or f"Maven ended with {done.returncode} and no word"
        (libraries / MANIFEST_NAME).write_text(json.dumps(sizes, indent=1) + "\n")
        if folder.exists():
            # It was found incomplete; a broker that runs from it has its jars open already.
            shutil.rmtree(folder)
        libraries.rename(folder)
        return None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _reason(said: str) -> str:
    # Maven's first error line is the reason; the last ones are advice on how to run it again.
    plain = _COLOUR.sub("", said)
    errors = [line for line in plain.splitlines() if line.startswith("[ERROR]")]
    return errors[0].removeprefix("[ERROR]").strip()[:REASON_CHARACTERS] if errors else last_lines(plain, 3)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BrokerError(
                        f"another run has been fetching Kafka's jars for {LOCK_TIMEOUT_S:g} s (lock {path})"
                    ) from None
                time.sleep(POLL_S)
        yield
