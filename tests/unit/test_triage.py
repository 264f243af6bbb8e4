"""Triage lines carry the addresses of their finding and nothing that a shell would take for more than a word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from factories import finding
from hypothesis import given
from hypothesis import strategies as st

from schemas.findings import BLAMELESS_KINDS, Finding, Subject
from schemas.remediation import Incident
from streams.decisions.remedies import ADVICE
from streams.decisions.triage import triage

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
GPU = Subject(level="gpu", node_id="node-0003", gpu_uuid="GPU-5d0b6a1c-77aa", pci_bus_id="0000:1b:00")
NIC = Subject(level="port", node_id="node-0003", device="mlx5_3", port="1")
SWITCH_PORT = Subject(level="port", switch_id="leaf-001", port="Ethernet4")
DEVICE_KINDS = ("straggler", "thermal_violation", "sm_clock", "xid", "sxid", "uncorrectable_ecc")
PORT_KINDS = ("pfc_pause", "pfc_pause_transmit")
SWITCH = Subject(level="switch", switch_id="leaf-001")
WITHOUT_LOOKS = {
    "pause_storm_unlocalised",
    "cooling",
    "common_mode",
    "shared_place",
    "hang",
    "hang_mismatch",
    "hang_network",
    "whole_job",
    "partition",
    "workload",
    "storage",
    "facility",
}
CLASSES = tuple(name for name in ADVICE if name not in WITHOUT_LOOKS)
PORT_CLASSES = ("pause_storm", "nic", "link")


def lines(kind: str, subject: Subject) -> list[str]:
    return triage(finding(kind, 1, subject))


def incident(cause_class: str, culprit: Subject | None) -> Incident:
    return Incident(
        incident_id="inc-1",
        site_id="site-1",
        state="open",
        cause_class=cause_class,
        culprit=culprit,
        event_time_ns=1,
        onset_ns=1,
    )


def commands(text: list[str]) -> list[str]:
    """What a line runs on its host."""
    found = []
    for line in text:
        words = shlex.split(line)
        assert words[0] == "ssh"
        assert len(words) == 3, f"{line!r} is more than a host and one command"
        found.append(words[2])
    return found


def test_a_throttling_gpu_is_looked_at_by_the_right_fields() -> None:
    text = lines("thermal_violation", GPU)
    assert all(line.startswith("ssh node-0003 ") for line in text)
    assert any("dcgmi dmon -e 100,155,240,241" in command for command in commands(text))
    assert any("GPU-5d0b6a1c-77aa" in command for command in commands(text))


def test_a_kernel_code_is_looked_for_in_the_log_and_its_link_on_the_bus() -> None:
    text = commands(lines("xid", GPU))
    assert "dmesg -T | grep NVRM | tail -n 50" in text
    assert "lspci -vvv -s 0000:1b:00.0 | grep LnkSta" in text


def test_an_address_with_its_function_is_taken_as_it_is() -> None:
    gpu = GPU.model_copy(update={"pci_bus_id": "00000000:1B:00.0"})
    assert "lspci -vvv -s 00000000:1B:00.0 | grep LnkSta" in commands(lines("xid", gpu))


def test_pause_is_looked_at_where_its_port_is() -> None:
    (host,) = commands(lines("pfc_pause", NIC))
    assert "mlx5_3" in host
    assert "ethtool -S $dev | grep pause" in host
    assert lines("pfc_pause", SWITCH_PORT) == [
        "ssh leaf-001 'show pfc counters'",
        "ssh leaf-001 'show interfaces counters | grep -w Ethernet4'",
    ]


@pytest.mark.parametrize("kind", sorted(BLAMELESS_KINDS))
def test_what_blames_nobody_has_no_machine_to_look_at(kind: str) -> None:
    assert lines(kind, Subject(level="job", job_id="job-1")) == []
    assert lines(kind, Subject(level="node", job_id="job-1", node_id="node-0003")) == []


def test_a_kind_without_looks_of_its_own_is_looked_at_by_what_it_is_about() -> None:
    assert any("lspci" in line for line in lines("new_device_rule", GPU))
    assert any("show pfc counters" in line for line in lines("new_port_rule", SWITCH_PORT))
    assert lines("new_job_rule", Subject(level="job", job_id="job-1")) == []


def test_an_incident_is_looked_at_by_its_culprit_and_class() -> None:
    assert triage(incident("gpu_lost", GPU)) == [
        "ssh node-0003 'dmesg -T | grep NVRM | tail -n 50'",
        "ssh node-0003 'dmesg -T | grep -i 0000:1b:00 | tail -n 50'",
        "ssh node-0003 'lspci -vvv -s 0000:1b:00.0 | grep LnkSta'",
        "ssh node-0003 'nvidia-smi -L'",
    ]
    assert triage(incident("pause_storm_unlocalised", None)) == []
    assert triage(incident("pause_storm", None)) == []
    assert triage(incident("cooling", Subject(level="zone", zone="zone-1"))) == []


@pytest.mark.parametrize("kind", [*DEVICE_KINDS, *PORT_KINDS])
def test_what_is_not_known_is_left_out_and_never_a_placeholder(kind: str) -> None:
    assert lines(kind, Subject(level="gpu")) == []
    for line in lines(kind, Subject(level="node", node_id="node-0003")):
        assert "None" not in line
        assert "<" not in line


hostile = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from(
        ["-oProxyCommand=id", "a;id", "$(id)", "`id`", "a b", "a\nid", "a'b", 'a"b', "..", "0000:1b:00;id", "ä", "a|id"]
    ),
)


@given(kind=st.sampled_from([*DEVICE_KINDS, *PORT_KINDS, *CLASSES]), names=st.lists(hostile, min_size=6, max_size=6))
def test_no_name_from_outside_is_more_than_a_word_of_its_line(kind: str, names: list[str]) -> None:
    node_id, gpu_uuid, pci_bus_id, device, port, switch_id = names
    harmless = Subject(
        level="gpu", node_id="n", gpu_uuid="g", pci_bus_id="0000:00:00", device="d", port="p", switch_id="s"
    )
    known = {shape(command) for command in commands(lines(kind, harmless))}
    known |= {shape(command) for command in commands(lines(kind, harmless.model_copy(update={"switch_id": None})))}
    known |= {
        shape(c) for c in commands(lines(kind, harmless.model_copy(update={"gpu_uuid": None, "pci_bus_id": None})))
    }
    for switch in (switch_id, None):
        subject = Subject(
            level="gpu",
            node_id=node_id,
            gpu_uuid=gpu_uuid,
            pci_bus_id=pci_bus_id,
            device=device,
            port=port,
            switch_id=switch,
        )
        for command in commands(lines(kind, subject)):
            assert shape(command) in known, command


def shape(command: str) -> tuple[str, ...]:
    """A command without its addresses: what the shell splits at, and the program of each part."""
    parts = re.split(r"([|;&<>()`\n]|\$\()", command)
    return tuple(part if len(part) <= 2 else part.split()[0] if part.split() else "" for part in parts)


# --- The page -----------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def samples(kind: str) -> list[Any]:
    subjects = (
        [NIC, SWITCH_PORT] if kind in PORT_KINDS or kind in PORT_CLASSES else [SWITCH if kind == "switch" else GPU]
    )
    if kind in ADVICE:
        return [incident(kind, subject) for subject in subjects]
    return [finding(kind, 1, subject) for subject in subjects]


@pytest.mark.parametrize("kind", [*DEVICE_KINDS, *PORT_KINDS, *CLASSES])
def test_the_runbook_shows_the_very_lines_of_its_kind(kind: str) -> None:
    section = sections()[kind]
    expected: dict[str, None] = {}
    for sample in samples(kind):
        lines = triage(sample)
        assert isinstance(sample, Finding | Incident)
        assert lines
        expected |= dict.fromkeys(lines)
    block = re.search(r"^```sh\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].splitlines() == list(expected)


def test_every_kind_of_finding_and_class_of_incident_has_a_section() -> None:
    assert {*DEVICE_KINDS, *PORT_KINDS, *BLAMELESS_KINDS, *ADVICE} <= sections().keys()
