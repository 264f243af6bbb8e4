"""The collector while records are judged: rare, and as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from paceline.rare_collection import rare_collection


def test_the_collector_is_rare_within_and_as_it_was_behind() -> None:
    before = gc.get_threshold()
    with rare_collection():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_failure_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="torn"), rare_collection():
        raise ValueError("torn")
    assert gc.get_threshold() == before
