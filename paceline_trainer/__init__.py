"""The hook for training code: tells the agent on the same node how long each part of each step took.

Guarantees to the training loop: no method raises, blocks or starts a thread; memory is bounded; without an agent there
is one warning and nothing else. It imports the standard library alone and never initialises CUDA; PyTorch is used only
where the program has imported it. It measures and reports; it compares nothing and decides nothing.
"""

from __future__ import annotations

from paceline_trainer.flight_recording import write_flight_recording
from paceline_trainer.reporter import StepReporter
from paceline_trainer.torch_steps import TorchStepReporter, watch

__all__ = ["StepReporter", "TorchStepReporter", "__version__", "watch", "write_flight_recording"]

__version__ = "0.1.0"
