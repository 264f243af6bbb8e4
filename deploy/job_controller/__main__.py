"""`python -m deploy.job_controller JOB.toml`: controls a job until it is over, or until told to stop."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from deploy.job_controller.controller import JobController, JobStateError
from deploy.job_controller.job_settings import JobSettings, JobSettingsError
from deploy.job_controller.workers import LeftoverWorkersError, Workers

_TICK_S = 0.05


def main() -> int:
    """0 when the job has ended or this was told to stop, 1 when the job failed, 2 when it could not be begun."""
    parser = argparse.ArgumentParser(prog="python -m deploy.job_controller", description=__doc__)
    parser.add_argument("file", type=Path, help="TOML: docs/job-controller.md")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopped = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopped.set())
    # Workers inherit it: one that is asked for a dump before it can write one goes on.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        settings = JobSettings.load(parser.parse_args().file)
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        # Held until this process ends, however it ends.
        lock = os.open(settings.run_dir / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        controller = JobController(settings, Workers(settings), time.time_ns)
        controller.start()
    except (JobSettingsError, JobStateError, LeftoverWorkersError, OSError) as error:
        print(f"job controller: {error}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        while controller.tick():
            if stopped.wait(_TICK_S):
                break
    except (LeftoverWorkersError, OSError) as error:
        print(f"job controller: {error}", file=sys.stderr)  # noqa: T201
        return 2
    finally:
        controller.close()
    return 1 if controller.state.phase == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
