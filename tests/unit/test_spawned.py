"""Tasks in processes of their own: how they end where somebody stops them."""

from __future__ import annotations

import signal
from concurrent.futures.process import BrokenProcessPool

import pytest

from paceline.spawned import results_in_order


def test_a_process_that_is_interrupted_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(BrokenProcessPool):
        list(results_in_order(signal.raise_signal, [(signal.SIGINT,)] * 2, 2))
    assert "Traceback" not in capfd.readouterr().err
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held_back
