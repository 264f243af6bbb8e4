"""The error of this package: a scenario that cannot be simulated, with what is wrong and what would do."""

from __future__ import annotations

__all__ = ["ScenarioError"]


class ScenarioError(ValueError):
    """A scenario is unknown, unreadable or contradicts itself. The text is one line, fit for a command line."""
