"""What can go wrong with a local broker, as errors a person can act on.

Every message names the value, the limit and the next step. Nothing here catches or logs; the command line turns
a BrokerError into one line and an exit code.
"""

from __future__ import annotations


class BrokerError(Exception):
    """A local broker could not do what was asked; base of all errors of this package."""


class BrokerUsageError(BrokerError):
    """The request itself cannot be met: an unknown kind, a port for a broker that has no say in it."""


class BrokerMissingError(BrokerError):
    """Something that the broker needs is not on this machine: Java, Maven, or Kafka's jars."""


class BrokerStartError(BrokerError):
    """The broker's process ended, or did not answer in time; the message carries the end of its log."""


class BrokerRunningError(BrokerError):
    """A broker runs on this data directory, and what was asked needs it stopped."""
