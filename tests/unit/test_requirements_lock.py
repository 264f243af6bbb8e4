"""requirements.lock holds what pyproject.toml asks for, by hash, and names no machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")


def locked() -> list[Requirement]:
    """The pinned requirements, one for each version and environment."""
    joined = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    for line in lines:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), f"no hash: {line}"
    return [Requirement(line.split("--hash")[0].strip()) for line in lines]


def asked() -> list[Requirement]:
    """What pyproject.toml asks for at run time, in every extra, and to build."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*declared["project"]["dependencies"], *declared["build-system"]["requires"]]
    for extra in declared["project"]["optional-dependencies"].values():
        lines += extra
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.name != declared["project"]["name"]]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_locked_at_a_version_that_is_asked_for(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    pins = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in locked()
        if pin.marker is None or pin.marker.evaluate(environment)
    }
    for wanted in asked():
        pin = pins.get(canonicalize_name(wanted.name))
        assert pin is not None, f"{wanted.name} is not in requirements.lock"
        assert wanted.specifier.contains(pin, prereleases=True), f"{wanted} is locked at {pin}"


def test_the_lock_pins_one_version_exactly() -> None:
    for pin in locked():
        operators = [part.operator for part in pin.specifier]
        assert operators == ["=="], str(pin)


def test_the_lock_names_no_host_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--index-url|--extra-index-url|--find-links|--trusted-host|(?:^|\s)/\w", text)
