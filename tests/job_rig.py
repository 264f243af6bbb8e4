"""A job under the reference controller, with workers that are only written down, and an end of the process at any moment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from power_cut import Cut

from deploy.job_controller.checkpoints import Checkpoints
from deploy.job_controller.controller import JobController
from deploy.job_controller.job_settings import JobSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["NOW_NS", "TERM_NS", "FakeWorkers", "Rig"]

NOW_NS = 1_760_000_000_000_000_000
TERM_NS = 3_600_000_000_000


class FakeWorkers:
    """Workers that outlive their controller, as processes do."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.running: dict[str, tuple[int, ...]] = {}
        self.starts: list[tuple[int, dict[str, list[int]], int | None]] = []
        self.how = "running"
        self.asked = 0

    def start(self, epoch: int, seats: Mapping[str, Sequence[int]], step: int | None) -> None:
        self.cut.pass_by()
        assert not self.running, "workers of two epochs would run together"
        self.running = {node: tuple(ranks) for node, ranks in seats.items()}
        self.starts.append((epoch, {node: list(ranks) for node, ranks in seats.items()}, step))
        self.how = "running"
        self.cut.pass_by()

    def fate(self) -> str:
        return self.how

    def end_all(self) -> None:
        self.cut.pass_by()
        self.running = {}
        self.cut.pass_by()

    def ask_for_evidence(self) -> None:
        self.asked += 1


class Rig:
    """A controller that can be ended and started again, with its job."""

    def __init__(self, home: Path, cut: Cut | None = None, **named: Any) -> None:
        self.home, self.cut, self.now_ns = home, cut or Cut(), NOW_NS
        fields: dict[str, Any] = {
            "job_id": "llama",
            "run_dir": home / "run",
            "spool": home / "spool" / "llama",
            "command": ("trainer",),
            "seats": {"node-1": (0, 1), "node-2": (2, 3)},
            "spares": ("node-3", "node-4"),
        }
        self.settings = JobSettings(**{**fields, **named})
        self.workers = FakeWorkers(self.cut)
        self.checkpoints = Checkpoints(self.settings.run_dir / "checkpoints")

    def start(self) -> JobController:
        self.controller = JobController(self.settings, self.workers, lambda: self.now_ns)
        self.controller.start()
        return self.controller

    def order(self, command_id: str = "cmd-1", kind: str = "swap_spare", **fields: Any) -> None:
        order = {
            "contract": 1,
            "command_id": command_id,
            "kind": kind,
            "job_id": "llama",
            "node_id": "node-2",
            "when": "now",
            "expected_epoch": 0,
            "expires_at_ns": NOW_NS + TERM_NS,
            **fields,
        }
        place = self.settings.spool / "orders"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{command_id}.json").write_text(json.dumps(order))

    def checkpoint(self, step: int) -> None:
        self.checkpoints.write(step, "rank-0", b"weights")
        self.checkpoints.complete(step, ["rank-0"])

    def answer(self, command_id: str = "cmd-1") -> dict[str, Any]:
        path = self.settings.spool / "answers" / f"{command_id}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def sheet(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.settings.spool / "job.json").read_text())
        return found

    def ticks(self, count: int = 3) -> None:
        for _ in range(count):
            self.controller.tick()
