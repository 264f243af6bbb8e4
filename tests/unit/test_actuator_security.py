"""What an attacker can send to an actuator: each is refused with a result that says so, and nothing crashes or acts on it.

The one who is held against here can write to the topic of actions and has read all of it; he has no signing key.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from factories import SITE, at
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_commands import KEY, RING, command, signed
from test_actuator import Rig

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.dry_run import DryRunHands
from agents.actuators.hands import TargetAwayError
from agents.actuators.job_controller import JOB_KINDS, JobControllerHands
from agents.actuators.job_spool import JobSpool
from agents.actuators.kubernetes import KubernetesHands, KubernetesSettings
from agents.actuators.limits import LocalLimits
from agents.actuators.memory import ActuatorMemory
from agents.actuators.scontrol import Scontrol
from agents.actuators.slurm import SlurmHands
from agents.actuators.webhook import WebhookHands, WebhookSettings
from schemas.codec import Message, encode, message
from schemas.findings import Evidence
from schemas.fleet import PolicyHeartbeat
from schemas.remediation import COMMAND_KINDS, Command
from schemas.signatures import SIGNATURE_HEADER, sign
from streams.faust_roles.command_signer import CommandSigner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from agents.actuators.hands import Hands

STRANGER = CommandSigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "memory.sqlite")
    yield rig
    rig.memory.close()


def flipped(wire: Message) -> Message:
    """One bit of the payload is another."""
    middle = len(wire.value) // 2
    return replace(wire, value=wire.value[:middle] + bytes([wire.value[middle] ^ 1]) + wire.value[middle + 1 :])


REFUSED: dict[str, tuple[Callable[[], Message], str, str]] = {
    "no key at all": (lambda: message(command()), "unsigned", "refused"),
    "a key of his own": (
        lambda: signed(command(key_id=STRANGER.key_id), STRANGER),
        "unknown_key",
        "refused",
    ),
    "a changed byte": (lambda: flipped(signed(command())), "bad_signature", "refused"),
    "another's audience": (
        lambda: signed(command(audience=f"actuators/{SITE}/kubernetes")),
        "wrong_audience",
        "refused",
    ),
    "an old sequence": (lambda: signed(command(number=4, command_id="cmd-new")), "old_sequence", "refused"),
    "a used id": (lambda: signed(command(number=5)), "reused_id", "refused"),
    "what has expired": (lambda: signed(command(-90, expires_at_ns=at(0), number=6)), "expired", "expired"),
    "what comes from the future": (lambda: signed(command(600)), "from_the_future", "refused"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_to_be_done_is_refused_with_a_result_that_says_so(rig: Rig, name: str) -> None:
    assert rig.take(signed(command(number=5))) == "applied"
    done = list(rig.fleet.log)
    make, code, outcome = REFUSED[name]
    assert rig.take(make()) == code
    result = rig.results()[-1]
    assert (result.outcome, result.code, result.actuator_id) == (outcome, code, "slurm-1")
    assert result.reason
    assert rig.fleet.log == done


@pytest.mark.parametrize("off_s", [-600, 600])
def test_an_actuator_whose_clock_is_ten_minutes_off_does_nothing_and_says_why(rig: Rig, off_s: float) -> None:
    # The command and the keeper of the policy are on time; this machine is not.
    rig.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(1)))
    wire = signed(command(1, expires_at_ns=at(3600)))
    rig.now_ns = at(1 + off_s)
    rig.actuator.on_message(wire.value, wire.headers, rig.place())
    [result] = rig.results()
    assert result.code in {"from_the_future", "no_policy_heartbeat", "before_memory"}
    assert (result.outcome, bool(result.reason), rig.fleet.log) == ("refused", True, [])


def test_what_was_read_may_be_written_again_and_changes_nothing(rig: Rig) -> None:
    wires = [signed(command(number=n, node_id=f"node-{n}")) for n in range(3)]
    assert [rig.take(wire) for wire in wires] == ["applied"] * 3
    done = list(rig.fleet.log)
    for wire in (*wires, *reversed(wires)):
        assert rig.take(wire) == "reused_id"
    assert rig.fleet.log == done


# --- Fuzzed commands ----------------------------------------------------------------------------------------------


class QuietCluster:
    """An API server that has every node and forgets every change."""

    def node(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": "1", "uid": "u"}, "spec": {}, "status": {}}

    def patch_node(self, node: dict[str, Any], change: dict[str, Any]) -> None:
        pass

    def pods_on(self, node_name: str) -> list[Any]:
        return []

    def evict(self, pod: Any) -> None:
        raise TargetAwayError(pod)


def no_slurm(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A Slurm that prints what nobody can read."""
    return subprocess.CompletedProcess(list(arguments), 0, "NodeName= State Reason=[\x00] =\n", "")


def hands_of(kind: str, directory: Path) -> Hands:
    if kind == "slurm":
        return SlurmHands(Scontrol(run=no_slurm))
    if kind == "webhook":
        # Nothing listens on port 1 of this machine.
        return WebhookHands(WebhookSettings("http://127.0.0.1:1/", bytes(24)), lambda: 1.0)
    if kind == "kubernetes":
        return KubernetesHands(
            QuietCluster(),  # type: ignore[arg-type]
            KubernetesSettings(drain_wait_s=0.0),
            lambda: at(1),
            lambda _: False,
        )
    if kind == "job_controller":
        return JobControllerHands(JobSpool(directory / "jobs"), JOB_KINDS, lambda _: True)
    return DryRunHands(lambda _: None)


ODD_TEXT = st.text(max_size=60) | st.sampled_from(
    [
        "",
        "..",
        "../../etc",
        "a/b",
        "-h",
        "ALL",
        "node-1,node-2",
        "n[1-9]",
        "$(reboot)",
        "a\nb",
        "a\x00b",
        "x" * 300,
        "ü",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(sorted(Command.model_fields)), ODD, max_size=3)
TARGETS = st.dictionaries(
    st.sampled_from(["node_id", "gpu_uuid", "pci_bus_id", "job_id", "port", "switch_id"]), ODD_TEXT
)


@contextmanager
def opened(directory: Path, hands: Hands) -> Iterator[tuple[Actuator, ActuatorMemory]]:
    """An actuator with a memory of its own."""
    memory = ActuatorMemory(directory / "memory.sqlite", "odd", at(-100))
    try:
        yield (
            Actuator(
                ActuatorSettings("odd", SITE, LocalLimits(costly_per_hour=10**6)),
                hands,
                memory,
                lambda _: None,
                lambda: RING,
                lambda: at(1),
                _soon,
            ),
            memory,
        )
    finally:
        memory.close()


@pytest.mark.parametrize("kind", ["dry_run", "slurm", "webhook", "kubernetes", "job_controller"])
def test_a_fuzzed_command_never_crashes_an_actuator(tmp_path: Path, kind: str) -> None:
    """Signed, so that it gets past the signature: even the owner of the key may be wrong."""
    offsets = count()
    with opened(tmp_path, hands_of(kind, tmp_path)) as (actuator, memory):

        @settings(max_examples=30, deadline=None)
        @given(st.sampled_from(COMMAND_KINDS), TARGETS, FIELDS)
        def takes(command_kind: str, target: dict[str, str], fields: dict[str, Any]) -> None:
            offset = next(offsets)
            told = json.loads(encode(command(kind=command_kind, command_id=f"cmd-{offset}", sequence=offset)))
            told["target"] |= target
            payload = json.dumps(told | fields).encode()
            assert actuator.on_message(payload, [(SIGNATURE_HEADER, sign(KEY, payload))], _place(offset))
            assert memory.unfinished() == []

        takes()


def test_any_bytes_are_refused_and_leave_a_result_behind(tmp_path: Path) -> None:
    offsets = count()
    with opened(tmp_path, DryRunHands(lambda _: None)) as (actuator, memory):

        @settings(max_examples=30, deadline=None)
        @given(st.binary(max_size=300), st.binary(max_size=200) | st.none())
        def refuses(payload: bytes, header: bytes | None) -> None:
            place = _place(next(offsets))
            word = actuator.on_message(payload, [(SIGNATURE_HEADER, header)], place)
            [(number, result)] = memory.outbox()
            assert (result.outcome, result.code, result.message) == ("refused", word, place)
            assert result.command_id.startswith("unverified-")
            memory.sent(number)

        refuses()


def _soon(_: float) -> None:
    """Waits are over at once."""


def _place(offset: int) -> Evidence:
    return Evidence(topic="paceline.actions.v1", partition=0, offset=offset)
