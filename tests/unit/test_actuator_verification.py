"""Which messages an actuator takes for commands, and the word for each that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from factories import SITE, at
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_commands import KEY, RING, SIGNER, command, signed

from agents.actuators.limits import LocalLimits
from agents.actuators.permission import Permission
from agents.actuators.verification import Expectations, Refusal, verify
from schemas.codec import MAX_RECORD_BYTES, Message, encode, message
from schemas.fleet import Policy, PolicyHeartbeat
from schemas.remediation import Command, Target
from schemas.signatures import SIGNATURE_HEADER, sign
from streams.faust_roles.command_signer import CommandSigner

EXPECTED = Expectations(SITE, frozenset({f"actuators/{SITE}", f"actuators/{SITE}/slurm"}), RING)
STRANGER = CommandSigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))


def verdict(wire: Message, second: float = 1.0, expected: Expectations = EXPECTED) -> Command | Refusal:
    return verify(wire.value, wire.headers, expected, at(second))


def code(wire: Message, second: float = 1.0, expected: Expectations = EXPECTED) -> str:
    found = verdict(wire, second, expected)
    assert isinstance(found, Refusal), found
    return found.code


def test_a_signed_command_for_this_actuator_is_taken_as_it_is() -> None:
    assert verdict(signed(command())) == command()
    assert verdict(signed(command(audience=f"actuators/{SITE}/slurm"))) == command(audience=f"actuators/{SITE}/slurm")


def test_each_way_of_not_being_signed_has_its_word() -> None:
    good = signed(command())
    header = dict(good.headers)[SIGNATURE_HEADER]
    plain = message(command())
    assert code(plain) == "unsigned"
    assert code(replace(good, headers=(*good.headers, (SIGNATURE_HEADER, header)))) == "unsigned"
    assert code(replace(plain, headers=((SIGNATURE_HEADER, header[:-1]),))) == "malformed_signature"
    assert code(signed(command(key_id=STRANGER.key_id), STRANGER)) == "unknown_key"
    assert code(replace(good, value=good.value + b" ")) == "bad_signature"
    forged = sign(Ed25519PrivateKey.from_private_bytes(bytes(32)), good.value)
    claimed = SIGNER.key_id.encode() + forged[len(SIGNER.key_id) :]
    assert code(replace(good, headers=((SIGNATURE_HEADER, claimed),))) == "bad_signature"


def test_a_key_is_held_against_this_clock_and_not_against_the_command() -> None:
    retired = replace(EXPECTED, keyring=RING.retired(SIGNER.key_id, at(100)))
    assert isinstance(verdict(signed(command()), 100, retired), Command)
    assert code(signed(command()), 101, retired) == "key_expired"
    # A time from before the retirement does not help whoever has the old key.
    assert code(signed(command(50, expires_at_ns=at(3600))), 101, retired) == "key_expired"
    assert code(signed(command()), 1, replace(EXPECTED, keyring=RING.without_trust(SIGNER.key_id))) == "key_revoked"
    assert code(signed(command(-3700)), -3700) == "key_not_yet_valid"


def test_a_command_that_names_another_key_than_the_one_that_signed_is_refused() -> None:
    payload = encode(command(key_id="ed25519-another"))
    assert code(Message("t", b"k", payload, ((SIGNATURE_HEADER, sign(KEY, payload)),))) == "key_mismatch"


def test_signed_bytes_that_are_no_command_are_malformed() -> None:
    for payload in (b"", b"{}", b"null", b"\xff", encode(command()).replace(b"cordon_node", b"cordon_site")):
        assert code(Message("t", b"k", payload, ((SIGNATURE_HEADER, sign(KEY, payload)),))) == "malformed"
    for odd in ("a b", "a\nb", "a\x00", "-a", "ü", "a" * 101):
        assert code(signed(command(command_id=odd))) == "malformed"
    large = b" " * (MAX_RECORD_BYTES + 1)
    assert code(Message("t", b"k", large, ((SIGNATURE_HEADER, sign(KEY, large)),))) == "malformed"
    nothing = verify(None, (), EXPECTED, at(1))
    assert isinstance(nothing, Refusal)
    assert nothing.code == "malformed"


def test_another_site_and_another_audience_are_refused() -> None:
    assert code(signed(command(site_id="site-2"))) == "wrong_site"
    assert code(signed(command(audience="actuators/site-2"))) == "wrong_audience"
    assert code(signed(command(audience=f"actuators/{SITE}/kubernetes"))) == "wrong_audience"


def test_a_command_holds_until_its_last_nanosecond() -> None:
    assert isinstance(verdict(signed(command()), 600), Command)
    late = verdict(signed(command()), 600.001)
    assert isinstance(late, Refusal)
    assert (late.code, late.outcome, late.command) == ("expired", "expired", command())


def test_a_clock_that_is_ten_minutes_off_is_said_either_way() -> None:
    assert code(signed(command(600, expires_at_ns=at(1200))), 0) == "from_the_future"
    assert isinstance(verdict(signed(command(60)), 0), Command)
    permission = Permission(SITE)
    permission.take(Policy(policy_version="1", site_id=SITE, effective_from_ns=0))
    permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(0)))
    for second, expected in ((-600, "no_policy_heartbeat"), (0, None), (60, None), (600, "no_policy_heartbeat")):
        refusal = permission.refusal(at(second))
        assert (refusal.code if refusal is not None else None) == expected


def test_a_term_beyond_every_rule_is_refused() -> None:
    assert isinstance(verdict(signed(command(expires_at_ns=at(24 * 3600)))), Command)
    assert code(signed(command(expires_at_ns=at(26 * 3600)))) == "term_too_long"


@settings(max_examples=300)
@given(st.data())
def test_a_changed_byte_anywhere_is_refused_and_names_no_command(data: st.DataObject) -> None:
    wire = signed(command())
    header = dict(wire.headers)[SIGNATURE_HEADER]
    both = wire.value + header
    place = data.draw(st.integers(0, len(both) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != both[place]))
    changed = both[:place] + bytes([byte]) + both[place + 1 :]
    payload, signature = changed[: len(wire.value)], changed[len(wire.value) :]
    found = verify(payload, [(SIGNATURE_HEADER, signature)], EXPECTED, at(1))
    assert isinstance(found, Refusal)
    assert found.command is None


@given(
    st.binary(max_size=400), st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=200)), max_size=3)
)
def test_any_bytes_are_refused_and_nothing_worse(payload: bytes, headers: list[tuple[str, bytes | None]]) -> None:
    assert isinstance(verify(payload, headers, EXPECTED, at(1)), Refusal)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(Command.model_fields)), JSON)
def test_a_signed_command_with_any_value_in_any_field_never_crashes(name: str, value: object) -> None:
    import json

    fields = {**json.loads(encode(command())), name: value}
    payload = json.dumps(fields).encode()
    found = verify(payload, [(SIGNATURE_HEADER, sign(KEY, payload))], EXPECTED, at(1))
    assert isinstance(found, Command | Refusal)


def test_the_policy_permits_only_while_its_keeper_is_heard_and_its_switch_is_not_thrown() -> None:
    permission = Permission(SITE)

    def word(second: float) -> str | None:
        refusal = permission.refusal(at(second))
        return refusal.code if refusal is not None else None

    def policy(second: float, site_id: str = SITE, **fields: bool) -> Policy:
        return Policy(policy_version="1", site_id=site_id, effective_from_ns=at(second), **fields)

    assert word(0) == "no_policy"
    permission.take(policy(0, "site-2"))
    assert word(0) == "no_policy"
    permission.take(policy(0))
    assert word(0) == "no_policy_heartbeat"
    permission.take(PolicyHeartbeat(policy_version="1", site_id="site-2", event_time_ns=at(1)))
    assert word(1) == "no_policy_heartbeat"
    permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(1)))
    assert word(61) is None
    assert word(62) == "no_policy_heartbeat"
    permission.take(policy(10, kill_switch=True))
    assert word(11) == "kill_switch"
    permission.take(policy(5))
    assert word(11) == "kill_switch", "an older policy does not lift the switch of a newer one"
    permission.take(policy(12))
    assert word(12) is None
    permission.take(policy(86_400))
    permission.take(policy(13, kill_switch=True))
    assert word(13) == "kill_switch", "a policy dated ahead does not keep it out"
    permission.take(policy(14))
    assert word(14) is None


def test_a_heartbeat_from_far_ahead_does_not_cover_the_silence_after_it() -> None:
    permission = Permission(SITE)
    permission.take(Policy(policy_version="1", site_id=SITE, effective_from_ns=0))
    permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(3600)))
    refusal = permission.refusal(at(0))
    assert refusal is not None
    permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(1)))
    assert permission.refusal(at(2)) is None
    assert permission.refusal(at(100)) is not None


@pytest.mark.parametrize(
    ("limits", "fields", "costly_s", "expected"),
    [
        (LocalLimits(), {}, [-10, -20, -30], None),
        (LocalLimits(), {}, [-10, -20, -30, -40], "local_limit"),
        (LocalLimits(), {}, [-10, -20, -30, -3601], None),
        (LocalLimits(), {}, [-10, -20, -30, 500], "local_limit"),
        (LocalLimits(), {"kind": "uncordon_node"}, [-10] * 9, None),
        (LocalLimits(costly_per_hour=0), {}, [], "local_limit"),
        (LocalLimits(only=("node-*",)), {}, [], None),
        (LocalLimits(only=("gpu-*",)), {}, [], "target_not_allowed"),
        (LocalLimits(never=("node-1",)), {}, [], "target_not_allowed"),
        (LocalLimits(only=("gpu-*",)), {"kind": "uncordon_node"}, [], "target_not_allowed"),
        (LocalLimits(), {"target": Target(level="job", job_id="7"), "kind": "restart_job"}, [-1] * 4, "local_limit"),
    ],
)
def test_local_limits(
    limits: LocalLimits, fields: dict[str, object], costly_s: list[float], expected: str | None
) -> None:
    refusal = limits.refusal(command(**fields), [at(second) for second in costly_s], at(0))
    assert (refusal.code if refusal is not None else None) == expected
