"""What `make` says on a machine that lacks something: one sentence and a failure, never a traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
REAL_PYTHON = Path(sys.executable)

pytestmark = pytest.mark.skipif(
    MAKE is None, reason="needs_program: no make on the PATH (Debian: apt-get install make)"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as set-up looks at, without packages to install."""
    folder = tmp_path / "checkout"
    for name in ("Makefile", "deploy/setup_env.py", "pyproject.toml", "LICENSE", "paceline_trainer/pyproject.toml"):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    (folder / "requirements.lock").write_text("")
    return folder


@pytest.fixture
def path_folder(tmp_path: Path) -> Path:
    """The only folder on the PATH; what the recipes call besides Python is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("echo", "find", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def run_make(checkout: Path, path_folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert MAKE is not None
    # Not our own environment: under `make test` it carries MAKEFLAGS.
    environment = {"PATH": str(path_folder), "LC_ALL": "C"}
    return subprocess.run(
        [MAKE, *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def add_python(path_folder: Path, name: str, pretence: str) -> Path:
    """An interpreter under this name that runs the code it is given, after the pretence."""
    fake = path_folder / name
    code = f"import sys; sys.argv.pop(0); {pretence}; exec(sys.argv[1])"
    fake.write_text(f'#!/bin/sh\nexec "{REAL_PYTHON}" -c "{code}" "$@"\n')
    fake.chmod(0o755)
    return fake


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that is not make's own."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_no_python_is_said(checkout: Path, path_folder: Path) -> None:
    said = sentence(run_make(checkout, path_folder, "lint"))
    assert said == ("paceline: no python3 on the PATH: install Python 3.11, 3.12 or 3.13, or name it with PYTHON=...")


@pytest.mark.parametrize(("have", "told"), [((2, 7), "2.7"), ((3, 10), "3.10"), ((3, 14), "3.14")])
def test_a_python_out_of_range_is_said_with_its_version(
    checkout: Path, path_folder: Path, have: tuple[int, int], told: str
) -> None:
    add_python(path_folder, "python3", f"sys.version_info = {(*have, 1)}")
    said = sentence(run_make(checkout, path_folder, "lint"))
    assert said.startswith(f"paceline: needs Python 3.11, 3.12 or 3.13, but python3 is {told}:")


def test_a_python_without_ensurepip_is_told_what_to_install(checkout: Path, path_folder: Path) -> None:
    add_python(path_folder, "python3", "sys.modules['ensurepip'] = None; sys.version_info = (3, 11, 2)")
    said = sentence(run_make(checkout, path_folder, "lint"))
    assert "python3 cannot make virtual environments" in said
    assert said.endswith("install python3-venv")


def test_a_given_python_that_does_not_run_is_named(checkout: Path, path_folder: Path) -> None:
    said = sentence(run_make(checkout, path_folder, "lint", "PYTHON=/nowhere/python3"))
    assert said == "paceline: PYTHON=/nowhere/python3 does not run: name a Python 3.11, 3.12 or 3.13"


def test_a_given_python_is_not_replaced_by_one_on_the_path(checkout: Path, path_folder: Path) -> None:
    add_python(path_folder, "python3", "pass")
    old = add_python(path_folder, "old", "sys.version_info = (3, 9, 0)")
    assert f"{old} is 3.9" in sentence(run_make(checkout, path_folder, "lint", f"PYTHON={old}"))


def test_a_python_that_fits_is_found_behind_ones_that_do_not(checkout: Path, path_folder: Path) -> None:
    broken = path_folder / "python3.13"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    add_python(path_folder, "python3.12", "sys.modules['ensurepip'] = None; sys.version_info = (3, 12, 0)")
    (path_folder / "python3.11").symlink_to(REAL_PYTHON)
    (checkout / "LICENSE").unlink()
    # Set-up ran, and with it the last candidate: the complaint about the checkout is its own.
    assert sentence(run_make(checkout, path_folder, "lint")) == (
        "paceline: set-up failed: LICENSE is missing: is this a whole checkout?"
    )


def test_a_package_that_no_hash_can_hold_is_refused(checkout: Path, path_folder: Path) -> None:
    (checkout / "requirements.lock").write_text("./paceline_trainer\n")
    done = run_make(checkout, path_folder, "lint", f"PYTHON={REAL_PYTHON}")
    assert done.returncode == 2
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if "set-up failed" in line]
    assert len(said) == 1
    assert "ERROR: Can't verify hashes for these file:// requirements" in said[0]
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv" / ".installed").exists()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("golden", "no golden replays yet"),
        ("faults", "no fault campaigns yet"),
        ("soak", "no soak tests yet"),
        ("bench", "no benchmarks yet"),
    ],
)
def test_a_target_without_content_fails_before_anything_is_installed(
    checkout: Path, path_folder: Path, target: str, told: str
) -> None:
    assert sentence(run_make(checkout, path_folder, target)) == told
    assert not (checkout / ".venv").exists()


def test_every_target_of_the_makefile_is_in_the_help(checkout: Path, path_folder: Path) -> None:
    done = run_make(checkout, path_folder)
    assert done.returncode == 0
    helped = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("make ")}
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY: help"))
    assert helped == set(phony.split()[2:])
