"""`paceline policy` and the pieces of `paceline act` that need no broker: what is refused before anything starts."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE
from signed_commands import RING, SIGNER
from typer.testing import CliRunner

from paceline import policy_command
from paceline.cli import app
from schemas.fleet import Policy, PolicyHeartbeat
from schemas.key_files import KeyFileError, store_keyring
from schemas.keyring import Keyring
from schemas.keyring_file import KeyringFile

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.base import Record


class Brokers:
    """Takes what is published, or does not."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.dropped = 0
        self.is_away = False

    def publish(self, record: Record) -> bool:
        self.records.append(record)
        return True

    def flush(self, timeout_s: float) -> int:
        return int(self.is_away)

    def close(self) -> None:
        pass


class Turns(threading.Event):
    """Stops after some turns, and does something in between."""

    def __init__(self, *between: Any) -> None:
        super().__init__()
        self._between = list(between)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._between:
            return True
        self._between.pop(0)()
        return False


def keep(file: Path, brokers: Brokers, *between: Any, thrown: str | None = None) -> None:
    policy, trouble = policy_command._read(file, SITE)
    assert policy is not None, trouble
    policy_command._keep(brokers, file, SITE, policy, 10.0, Turns(*between), lambda: thrown)  # type: ignore[arg-type]


def rewritten(file: Path, text: str) -> Any:
    def write() -> None:
        before = file.stat().st_mtime_ns
        file.write_text(text)
        os.utime(file, ns=(before + 10**9, before + 10**9))

    return write


def policies(brokers: Brokers) -> list[Policy]:
    return [record for record in brokers.records if isinstance(record, Policy)]


def test_a_kept_policy_is_published_once_and_its_keeper_is_heard_every_turn(tmp_path: Path) -> None:
    file, brokers = tmp_path / "night.toml", Brokers()
    file.write_text('mode = "auto"')
    keep(file, brokers, lambda: None, lambda: None)
    [policy] = policies(brokers)
    assert (policy.policy_version, policy.site_id, policy.mode) == ("night", SITE, "auto")
    assert policy.effective_from_ns > 0
    beats = [record for record in brokers.records if isinstance(record, PolicyHeartbeat)]
    assert len(beats) == 3
    assert brokers.records[0] is policy


def test_a_changed_file_comes_into_force_and_a_broken_one_does_not(tmp_path: Path, capsys: Any) -> None:
    file, brokers = tmp_path / "night.toml", Brokers()
    file.write_text("")
    keep(
        file,
        brokers,
        rewritten(file, "kill_switch = true"),
        rewritten(file, "kil_switch = false"),
        lambda: None,
    )
    assert [policy.kill_switch for policy in policies(brokers)] == [False, True]
    first, second = policies(brokers)
    assert second.effective_from_ns > first.effective_from_ns
    assert "no key kil_switch" in capsys.readouterr().err


def test_a_policy_that_the_brokers_did_not_take_is_published_again(tmp_path: Path) -> None:
    file, brokers = tmp_path / "night.toml", Brokers()
    file.write_text("")
    brokers.is_away = True
    keep(file, brokers, lambda: setattr(brokers, "is_away", False), lambda: None)
    assert len(policies(brokers)) == 2
    assert brokers.records[:2] == policies(brokers), "no heartbeat for a policy that nobody has heard"


def test_a_file_that_is_no_policy_is_told_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('mode = "always"')
    for command in ("put", "keep"):
        result = CliRunner().invoke(app, ["policy", command, str(tmp_path / "a.toml")])
        assert (result.exit_code, "mode" in result.stderr) == (2, True)


def test_a_policy_dated_ahead_is_refused_and_one_of_the_past_is_not(tmp_path: Path) -> None:
    file, now_ns = tmp_path / "a.toml", time.time_ns()
    file.write_text(f"effective_from_ns = {now_ns + 3600 * 10**9}")
    policy, trouble = policy_command._read(file, SITE)
    assert policy is None
    assert "effective_from_ns is 3" in trouble
    file.write_text(f"effective_from_ns = {now_ns - 3600 * 10**9}")
    policy, trouble = policy_command._read(file, SITE)
    assert (policy is not None, trouble) == (True, "")


def test_a_kill_switch_that_was_thrown_elsewhere_is_not_lifted_by_another_change(tmp_path: Path, capsys: Any) -> None:
    file, brokers = tmp_path / "a.toml", Brokers()
    file.write_text("")
    keep(file, brokers, rewritten(file, 'mode = "auto"'), lambda: None, thrown="it is thrown")
    assert [policy.mode for policy in policies(brokers)] == ["observe"]
    assert capsys.readouterr().err.count("it is thrown") == 1


def test_a_change_that_had_to_wait_is_published_once_the_switch_is_lifted(tmp_path: Path) -> None:
    file, brokers, said = tmp_path / "a.toml", Brokers(), iter(["it is thrown", None])
    file.write_text('mode = "auto"')
    policy, _ = policy_command._read(file, SITE)
    assert policy is not None
    turns = Turns(rewritten(file, 'mode = "observe"'), lambda: None, lambda: None)
    policy_command._keep(brokers, file, SITE, policy, 10.0, turns, lambda: next(said))  # type: ignore[arg-type]
    assert [policy.mode for policy in policies(brokers)] == ["auto", "observe"]


def test_a_switch_that_was_thrown_in_the_file_while_its_keeper_started_is_heard(tmp_path: Path) -> None:
    file, brokers = tmp_path / "a.toml", Brokers()
    file.write_text("")
    policy, _ = policy_command._read(file, SITE)
    assert policy is not None
    file.write_text("kill_switch = true")
    policy_command._keep(brokers, file, SITE, policy, 10.0, Turns(), lambda: None)  # type: ignore[arg-type]
    assert policies(brokers)[-1].kill_switch


def test_the_switch_of_the_kept_file_is_thrown_and_lifted_without_asking(tmp_path: Path) -> None:
    file, brokers = tmp_path / "a.toml", Brokers()
    file.write_text("")
    keep(file, brokers, rewritten(file, "kill_switch = true"), rewritten(file, 'mode = "auto"'), thrown="it is thrown")
    assert [(policy.kill_switch, policy.mode) for policy in policies(brokers)] == [
        (False, "observe"),
        (True, "observe"),
        (False, "auto"),
    ]


def test_a_file_that_was_written_again_and_says_the_same_is_not_published(tmp_path: Path) -> None:
    file, brokers = tmp_path / "a.toml", Brokers()
    file.write_text('mode = "auto"')
    keep(file, brokers, rewritten(file, 'mode = "auto"  # as before'), rewritten(file, 'mode = "approve"'))
    assert [policy.mode for policy in policies(brokers)] == ["auto", "approve"]


def test_a_thrown_kill_switch_is_said(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "a.toml"
    file.write_text("kill_switch = true")
    keep(file, Brokers())
    assert "kill switch is thrown" in capsys.readouterr().err
    file.write_text("kill_switch = false")
    keep(file, Brokers())
    assert capsys.readouterr().err == f"policy a of site {SITE} published\n"


def test_an_actuator_does_not_start_without_a_ring(tmp_path: Path) -> None:
    arguments = ["act", "dry-run", "--keyring", str(tmp_path / "none.json"), "--state-dir", str(tmp_path / "state")]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "No such file" in result.stderr) == (2, True)
    assert not (tmp_path / "state").exists()


def test_a_ring_is_read_anew_when_it_changes_and_trusts_nobody_while_it_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    with pytest.raises(KeyFileError):
        KeyringFile(path)
    store_keyring(path, RING)
    ring = KeyringFile(path)
    assert ring.current() == RING
    revoked = RING.without_trust(SIGNER.key_id)
    store_keyring(path, revoked)
    assert ring.current() == revoked
    path.write_text("{")
    assert ring.current() == Keyring()
    path.unlink()
    assert ring.current() == Keyring()
    store_keyring(path, RING)
    assert ring.current() == RING
