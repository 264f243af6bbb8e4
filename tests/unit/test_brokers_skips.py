"""How the suite counts and refuses skips: a small suite of its own, run beside the real conftest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MARKERS = ["needs_docker", "needs_torch", "needs_gpu", "needs_kube", "needs_broker", "needs_kafka", "needs_slurm"]


def run_suite(folder: Path, tests: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"    {marker}\n" for marker in MARKERS))
    (folder / "test_it.py").write_text("import pytest\n" + tests)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


REFERENCE_AND_DOCKER = """
def test_reads(): pytest.skip("reference data absent: samples")
def test_contains(): pytest.skip("needs_docker: no engine")
def test_passes(): pass
"""


def test_skips_are_counted_by_what_they_needed(tmp_path: Path) -> None:
    done = run_suite(tmp_path, REFERENCE_AND_DOCKER)

    assert done.returncode == 0
    assert (
        "skips: needs_docker=1 needs_torch=0 needs_gpu=0 needs_kube=0 needs_kmsg=0 reference_data=1 needs_chromium=0 "
        "needs_kafka=0 needs_slurm=0 needs_program=0 other=0"
    ) in done.stdout


def test_refusing_skips_lets_those_pass_that_are_expected(tmp_path: Path) -> None:
    assert run_suite(tmp_path, REFERENCE_AND_DOCKER, PACELINE_REFUSE_SKIPS="1").returncode == 0


@pytest.mark.parametrize(
    "tests",
    [
        "def test_a(): pytest.skip('not today')",
        "pytest.skip('not this file', allow_module_level=True)",
        "@pytest.mark.skip(reason='flaky')\ndef test_a(): pass",
        "def test_a(): pytest.skip('torch: needs_torch: hidden inside')",
    ],
)
def test_refusing_skips_fails_a_run_with_any_other_skip(tmp_path: Path, tests: str) -> None:
    done = run_suite(tmp_path, tests + "\ndef test_passes(): pass", PACELINE_REFUSE_SKIPS="1")

    assert done.returncode != 0
    assert "other=1" in done.stdout
    assert "refused by PACELINE_REFUSE_SKIPS=1: 1 skips" in done.stdout


def test_a_test_for_real_kafka_is_skipped_on_the_embedded_broker_and_that_is_refused(tmp_path: Path) -> None:
    tests = """
@pytest.mark.needs_kafka
def test_real(kafka): assert False
@pytest.mark.needs_broker
def test_any(kafka, topic): assert topic().startswith("topic-") and not kafka.is_real
"""
    done = run_suite(tmp_path, tests, PACELINE_TEST_BROKER="embedded", PACELINE_REFUSE_SKIPS="1")

    assert done.returncode == 1
    assert "1 passed, 1 skipped" in done.stdout
    assert "needs_kafka=1" in done.stdout


def test_a_given_broker_is_taken_as_real_without_being_started(tmp_path: Path) -> None:
    tests = """
@pytest.mark.needs_kafka
def test_real(kafka): assert kafka.bootstrap_servers == "kafka.example:9092" and kafka.origin == "given"
"""
    done = run_suite(tmp_path, tests, PACELINE_BOOTSTRAP_SERVERS="kafka.example:9092")

    assert done.returncode == 0, done.stdout


def test_an_unknown_kind_of_broker_fails_and_names_the_kinds(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "def test_any(kafka): pass", PACELINE_TEST_BROKER="redpanda")

    assert done.returncode == 1
    assert "docker, apache, embedded" in done.stdout


def test_a_run_under_xdist_counts_the_same(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="other: pytest-xdist is not installed")
    done = run_suite(
        tmp_path,
        REFERENCE_AND_DOCKER + "def test_b(): pytest.skip('no')",
        PYTEST_ADDOPTS="-n1",
        PACELINE_REFUSE_SKIPS="1",
    )

    assert done.returncode == 1
    assert "needs_docker=1" in done.stdout
    assert "other=1" in done.stdout
