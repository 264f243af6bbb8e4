"""The code catalogues: what a lookup gives, and that every entry can be relied on."""

from __future__ import annotations

import dataclasses

import pytest

from schemas import catalog


def test_a_known_xid_has_its_severity_and_action() -> None:
    entry = catalog.xid(79)
    assert entry is not None
    assert (entry.code, entry.severity, entry.category) == (79, "fatal", "pcie_bus")
    assert entry.hardware_suspect


def test_a_program_fault_is_not_a_device_fault() -> None:
    entry = catalog.xid(31)
    assert entry is not None
    assert entry.severity == "app"
    assert entry.conditional_actions


def test_a_known_sxid_has_its_severity() -> None:
    entry = catalog.sxid(20034)
    assert entry is not None
    assert entry.severity == "fatal"


@pytest.mark.parametrize("code", [0, -1, 9999, 1 << 70])
def test_a_code_that_is_not_listed_is_none(code: int) -> None:
    assert catalog.xid(code) is None
    assert catalog.sxid(code) is None


def test_xids_and_sxids_are_tables_of_their_own() -> None:
    assert catalog.xid(20034) is None
    assert catalog.sxid(79) is None


def test_every_entry_is_complete_and_filed_under_its_code() -> None:
    for table in (catalog.xids(), catalog.sxids()):
        assert len(table) > 100
        for code, entry in table.items():
            assert entry.code == code
            assert entry.severity in {"info", "app", "degraded", "fatal"}
            assert entry.mnemonic != ""
            assert entry.name
            assert entry.category
            assert entry.suggested_action
            assert entry.hardware_suspect in {True, False, "possible"}
            assert all(item.when and item.action for item in entry.conditional_actions)
            assert all(isinstance(companion, int) for companion in entry.companion_codes)


def test_companions_are_xids_for_both_tables() -> None:
    for table in (catalog.xids(), catalog.sxids()):
        for entry in table.values():
            assert all(catalog.xid(companion) is not None for companion in entry.companion_codes)


def test_entries_and_tables_cannot_be_changed() -> None:
    entry = catalog.xid(13)
    assert entry is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.severity = "info"  # type: ignore[misc]
    with pytest.raises(TypeError):
        catalog.xids()[13] = entry  # type: ignore[index]


def test_a_table_is_read_once() -> None:
    assert catalog.xids() is catalog.xids()
