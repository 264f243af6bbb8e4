"""Runs a broker in the foreground until it is told to end, for the command line.

SIGINT and SIGTERM end it cleanly, once; further ones while it stops are ignored so that nothing is left behind.
A broker that another process stopped through its record is no error; one that died is. It prints nothing.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from deploy.brokers import Broker, open_broker
from deploy.brokers.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from deploy.brokers.server_properties import ApacheSettings

POLL_S = 0.2


def run_foreground(
    kind: str,
    *,
    data_dir: Path | None = None,
    port: int = 0,
    settings: ApacheSettings | None = None,
    on_ready: Callable[[Broker], None] = lambda _broker: None,
) -> None:
    """Starts a broker and returns once it has been stopped. Call it from the main thread.

    Args:
        kind: `embedded` or `apache`.
        data_dir: See `open_broker`; with it, `stop_recorded` can end this broker from another process.
        port: See `open_broker`.
        settings: See `open_broker`.
        on_ready: Called once with the broker when it answers.

    Raises:
        BrokerError: It could not start, or ended without being told to; with the end of its log.
    """
    broker = open_broker(kind, data_dir=data_dir, port=port, settings=settings)
    is_ending = False

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with broker:
            on_ready(broker)
            while broker.is_running:
                time.sleep(POLL_S)
            is_ending = True
            if broker.has_failed:
                raise BrokerError(f"the {kind} broker ended by itself. The end of its log:\n{broker.log_tail()}")
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
