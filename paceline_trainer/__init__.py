"""The hook for training code: tells the agent on the same node how long each part of each step took.

Guarantees to the training loop: no method raises, blocks or starts a thread; memory is bounded; without an agent there
is one warning and nothing else. It imports the standard library alone and never initialises CUDA. It measures and
reports; it compares nothing and decides nothing.
"""

from __future__ import annotations

from paceline_trainer.reporter import StepReporter

__all__ = ["StepReporter", "__version__"]

__version__ = "0.1.0"
