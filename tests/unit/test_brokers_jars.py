"""Fetching Kafka's jars, with stand-ins for Maven and Java on the PATH."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.brokers.errors import BrokerMissingError
from deploy.brokers.jars import (
    MANIFEST_NAME,
    cache_folder,
    cached_jars,
    ensure_jars,
    find_java,
    java_major,
    missing_tools,
)

MAVEN = """#!{python}
import pathlib, sys, time
options = dict(a.split("=", 1) for a in sys.argv if "=" in a)
version, folder = options["-Dkafka.version"], pathlib.Path(options["-DoutputDirectory"])
with open({calls!r}, "a") as calls: calls.write(version + "\\n")
time.sleep({delay_s})
if version in {absent!r}:
    print("[\\x1b[1;31mERROR\\x1b[m] Could not find artifact kafka_2.13 " + version)
    print("[ERROR] For more information, read the manual")
    sys.exit(1)
folder.mkdir(parents=True)
for name in ("kafka_2.13-" + version, "scala-library"):
    (folder / (name + ".jar")).write_bytes(b"PK" + name.encode())
"""


class Machine:
    """A PATH of our own and a cache."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.cache = folder / "cache"
        self.calls = folder / "calls"

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def maven(self, absent: tuple[str, ...] = (), delay_s: float = 0) -> None:
        text = MAVEN.format(python=sys.executable, calls=str(self.calls), absent=absent, delay_s=delay_s)
        self.program("mvn", text)

    def java(self, said: str) -> None:
        self.program("java", f"#!/bin/sh\necho '{said}' >&2\n")

    def called(self) -> list[str]:
        return self.calls.read_text().split() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return made


def test_jars_are_fetched_once(machine: Machine) -> None:
    machine.maven()

    first = ensure_jars(machine.cache, ("4.4.0",))
    second = ensure_jars(machine.cache, ("4.4.0",))

    assert first == second
    assert machine.called() == ["4.4.0"]
    assert sorted(path.name for path in first.folder.iterdir()) == [
        MANIFEST_NAME, "kafka_2.13-4.4.0.jar", "scala-library.jar",
    ]  # fmt: skip


def test_the_next_version_is_taken_when_the_newest_is_not_served(machine: Machine) -> None:
    machine.maven(absent=("4.4.0",))

    assert ensure_jars(machine.cache, ("4.4.0", "4.3.1")).version == "4.3.1"


def test_a_cached_older_version_is_taken_before_anything_is_fetched(machine: Machine) -> None:
    machine.maven()
    ensure_jars(machine.cache, ("4.3.1",))

    assert ensure_jars(machine.cache, ("4.4.0", "4.3.1")).version == "4.3.1"
    assert machine.called() == ["4.3.1"]


def test_the_error_names_each_version_with_mavens_own_reason(machine: Machine) -> None:
    machine.maven(absent=("4.4.0", "4.3.1"))

    with pytest.raises(BrokerMissingError) as caught:
        ensure_jars(machine.cache, ("4.4.0", "4.3.1"))

    assert "4.4.0: Could not find artifact kafka_2.13 4.4.0" in str(caught.value)
    assert "4.3.1: Could not find artifact kafka_2.13 4.3.1" in str(caught.value)
    assert "read the manual" not in str(caught.value)


def test_a_failed_fetch_leaves_no_half_made_folder(machine: Machine) -> None:
    machine.maven(absent=("4.4.0",))
    with pytest.raises(BrokerMissingError):
        ensure_jars(machine.cache, ("4.4.0",))

    assert [path.name for path in (machine.cache / "kafka").iterdir()] == ["4.4.0.lock"]


@pytest.mark.parametrize("harm", ["remove", "cut", "manifest"])
def test_a_damaged_folder_is_made_again(machine: Machine, harm: str) -> None:
    machine.maven()
    folder = ensure_jars(machine.cache, ("4.4.0",)).folder
    if harm == "remove":
        (folder / "scala-library.jar").unlink()
    elif harm == "cut":
        (folder / "scala-library.jar").write_bytes(b"P")
    else:
        (folder / MANIFEST_NAME).write_text("[]")

    assert cached_jars(machine.cache, ("4.4.0",)) is None
    ensure_jars(machine.cache, ("4.4.0",))
    assert set(json.loads((folder / MANIFEST_NAME).read_text())) == {"kafka_2.13-4.4.0.jar", "scala-library.jar"}
    assert (folder / "scala-library.jar").stat().st_size > 1


def test_runs_side_by_side_fetch_once_and_agree(machine: Machine) -> None:
    machine.maven(delay_s=0.5)
    program = (
        "import sys, pathlib; from deploy.brokers.jars import ensure_jars;"
        "print(ensure_jars(pathlib.Path(sys.argv[1]), ('4.4.0',)).folder)"
    )
    answers: list[str] = []

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-c", program, str(machine.cache)], capture_output=True, text=True, timeout=60, check=True
        )
        answers.append(done.stdout.strip())

    runs = [threading.Thread(target=run) for _ in range(3)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()

    assert answers == [str(machine.cache / "kafka" / "4.4.0")] * 3
    assert machine.called() == ["4.4.0"]


def test_without_maven_the_error_says_what_to_do(machine: Machine) -> None:
    with pytest.raises(BrokerMissingError, match=r"Maven .* PACELINE_CACHE"):
        ensure_jars(machine.cache, ("4.4.0",))


def test_maven_is_not_missed_once_the_jars_are_there(machine: Machine) -> None:
    machine.maven()
    machine.java('openjdk version "21.0.2" 2024-01-16')
    ensure_jars(machine.cache, ("4.4.0",))
    (machine.bin / "mvn").unlink()

    assert missing_tools(machine.cache, ("4.4.0",)) == []
    assert len(missing_tools(machine.cache, ("4.3.1",))) == 1


def test_everything_missing_is_named_at_once(machine: Machine) -> None:
    lacks = missing_tools(machine.cache, ("4.4.0",))

    assert len(lacks) == 2
    assert "Java 17" in lacks[0]
    assert "mvn" in lacks[1]


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "23-ea" 2024-09-17', 23),
        ("command not understood", None),
    ],
)
def test_the_java_release_is_read_from_what_java_says(said: str, major: int | None) -> None:
    assert java_major(said) == major


def test_an_old_java_is_refused_with_its_version(machine: Machine) -> None:
    machine.java('openjdk version "11.0.20" 2023-07-18')

    with pytest.raises(BrokerMissingError, match=r"17 or newer; .* is version 11"):
        find_java()


def test_java_home_goes_before_the_path(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.java('openjdk version "11.0.20" 2023-07-18')
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == home / "bin" / "java"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("PACELINE_CACHE")
    assert cache_folder() == Path("/xdg/paceline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/paceline")
