"""One job under the contract: its workers run, orders are carried out one after another, and every start is an epoch.

Guarantees: an order changes seats and spares once, over the end of this process at any moment, because the change and its
answer are one write; workers of two epochs never run together; a start goes on from the latest whole checkpoint. Order of a
move: checkpoint where one is asked for, end the workers, write down the new epoch, start it, answer.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deploy.job_controller.checkpoints import Checkpoints
from deploy.job_controller.files import read_object, write_object, write_whole
from deploy.job_controller.orders import MOVES, RESTARTS, Order, OrderSpool
from deploy.job_controller.registration import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.job_controller.job_settings import JobSettings
    from deploy.job_controller.workers import Launcher

__all__ = ["CHECKPOINT_REQUEST", "JobController", "JobState", "JobStateError"]

_LOG = logging.getLogger(__name__)

CHECKPOINT_REQUEST = "checkpoint-request"
"""File of the run directory that asks the job for a checkpoint now; what is in it tells one request from another."""

_KEEP_ANSWERS = 100
_ASK_AGAIN_NS = 1_000_000_000


class JobStateError(Exception):
    """The state that an earlier controller left cannot be read."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What outlives a controller.

    Attributes:
        epoch: which start of the job this is, from 0.
        phase: `running`, `ended` or `failed`.
        seats: the ranks of each node.
        spares: nodes that wait.
        out: nodes that the job has left.
        since_ns: when the epoch began.
        checkpoint_step: where it began.
        restarts: starts without an order since the last checkpoint.
        done: answers of orders that are in effect, by command.
    """

    epoch: int
    phase: str
    seats: dict[str, list[int]]
    spares: list[str]
    out: list[str]
    since_ns: int
    checkpoint_step: int | None
    restarts: int = 0
    done: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    """An order that is under way.

    Attributes:
        order: what is asked for.
        since_ns: when it was begun here.
        epoch: in which the job must have been seen for it; None where an earlier controller has taken it: since then the
            job was only started again.
        asked_at_step: latest checkpoint when another was asked for.
        dumps: modification times of the dumps that there were when others were asked for.
        asked_ns: when that was last.
    """

    order: Order
    since_ns: int
    epoch: int | None
    is_asked: bool = False
    asked_at_step: int | None = None
    dumps: dict[str, int] = field(default_factory=dict)
    asked_ns: int = 0


class JobController:
    """Controls one job.

    Args:
        settings: the job.
        workers: starts and ends its workers.
        clock_ns: wall time.

    Raises:
        JobStateError: what an earlier controller left cannot be read.
    """

    def __init__(self, settings: JobSettings, workers: Launcher, clock_ns: Callable[[], int]) -> None:
        self._settings, self._workers, self._clock_ns = settings, workers, clock_ns
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        self._file = settings.run_dir / "controller-state.json"
        self._request = settings.run_dir / CHECKPOINT_REQUEST
        self._dumps = settings.run_dir / "dumps"
        self._dumps.mkdir(exist_ok=True)
        self._checkpoints = Checkpoints(settings.run_dir / "checkpoints")
        self._spool = OrderSpool(settings.spool, clock_ns)
        self._registration = Registration(settings, clock_ns)
        self._pending: _Pending | None = None
        self._resumed: list[_Pending] = []
        self._is_first = not self._file.exists()
        self.state = _first(settings, clock_ns()) if self._is_first else _read_state(self._file)

    def start(self) -> None:
        """Take over: end what an earlier controller left, bring its orders on, and start the job.

        Raises:
            LeftoverWorkersError: workers of an earlier epoch cannot be ended.
        """
        if self.state.phase != "running":
            self._say()
            self._refuse_all()
            return
        self._workers.end_all()
        has_begun = False
        for command_id, fields, epoch in self._waiting():
            order = Order.read(command_id, fields)
            if isinstance(order, str):
                self._spool.answer(command_id, "refused", code="malformed", text=order)
                continue
            pending = _Pending(order, self._clock_ns(), self.state.epoch if has_begun else epoch)
            if has_begun or order.kind not in RESTARTS:
                self._resumed.append(pending)
            elif (refusal := self._refusal(pending)) is not None:
                self._spool.answer(command_id, "refused", code=refusal[0], text=refusal[1])
            else:
                # The job stands: to start it is to carry the order out.
                self._restart_for(order)
                has_begun = True
        if not has_begun:
            self._begin(self.state if self._is_first else replace(self.state, epoch=self.state.epoch + 1))
        for command_id, _ in self._spool.unanswered():
            if command_id in self.state.done:
                self._spool.answer(command_id, "done", **{**self.state.done[command_id], "epoch": self.state.epoch})

    def tick(self) -> bool:
        """Do what is to be done now; false once the job is over and that is on record."""
        self._registration.tick()
        if self.state.phase != "running":
            return self._registration.is_waiting
        fate = self._workers.fate()
        if fate == "ended":
            self._finish("ended")
            return True
        if self._pending is None:
            self._pending = self._resumed.pop(0) if self._resumed else self._next()
        epoch = self.state.epoch
        if self._pending is not None:
            self._progress(self._pending, fate)
        if fate == "failed" and self.state.epoch == epoch:
            self._start_again()
        return True

    def close(self) -> None:
        """End the workers; the next controller goes on."""
        self._registration.close()
        self._workers.end_all()

    def _waiting(self) -> Iterator[tuple[str, dict[str, Any] | None, int | None]]:
        """Orders that an earlier controller had, and those that came while there was none: of the epoch that is found."""
        for command_id, fields in self._spool.unanswered():
            if command_id not in self.state.done:
                yield command_id, fields, None
        found = self.state.epoch
        while (taken := self._spool.take()) is not None:
            yield *taken, found

    def _next(self) -> _Pending | None:
        """Take the next order that can be begun."""
        while (taken := self._spool.take()) is not None:
            command_id, fields = taken
            order = Order.read(command_id, fields)
            if isinstance(order, Order):
                return _Pending(order, self._clock_ns(), self.state.epoch)
            self._spool.answer(command_id, "refused", code="malformed", text=order)
        return None

    def _progress(self, pending: _Pending, fate: str) -> None:
        """Bring an order one step on."""
        order = pending.order
        if not pending.is_asked:
            refusal = self._refusal(pending)
            if refusal is not None:
                self._answered(order, "refused", code=refusal[0], text=refusal[1])
                return
            self._spool.answer(order.command_id, "accepted", epoch=self.state.epoch)
        if order.kind == "collect_evidence":
            self._collect(pending)
        elif order.kind == "uncordon_node":
            self._give_back(order)
        elif order.is_after_checkpoint and fate == "running":
            self._after_checkpoint(pending)
        else:
            self._restart_for(order)

    def _refusal(self, pending: _Pending) -> tuple[str, str] | None:
        """Why an order is not carried out: a word and a line."""
        order, state = pending.order, self.state
        if order.job_id != self._settings.job_id:
            return "wrong_job", f"this is the controller of {self._settings.job_id}"
        if self._clock_ns() > order.expires_at_ns:
            return "expired", "its time is over"
        if order.kind in RESTARTS and pending.epoch is not None and order.expected_epoch != pending.epoch:
            return "stale_epoch", f"the job is in epoch {state.epoch}; the order was made for {order.expected_epoch}"
        if order.kind in MOVES and order.node_id not in state.seats:
            return "not_here", f"no rank of the job runs on {order.node_id}"
        if order.kind in MOVES and not state.spares:
            return "no_spare", "the job has no spare"
        if order.kind == "uncordon_node" and order.node_id not in state.out:
            return "not_here", f"the job has not left {order.node_id}"
        return None

    def _after_checkpoint(self, pending: _Pending) -> None:
        latest = self._checkpoints.latest()
        if not pending.is_asked:
            pending.is_asked, pending.asked_at_step = True, latest
            write_whole(self._request, pending.order.command_id.encode())
            self._spool.answer(pending.order.command_id, "checkpointing", epoch=self.state.epoch)
        elif latest is not None and latest > (pending.asked_at_step if pending.asked_at_step is not None else -1):
            self._restart_for(pending.order)
        elif self._clock_ns() > pending.since_ns + self._settings.checkpoint_s * 1e9:
            self._request.unlink(missing_ok=True)
            text = f"no checkpoint within {self._settings.checkpoint_s:g} s; the latest is {_step(latest)}"
            self._answered(pending.order, "refused", code="no_checkpoint", text=text)

    def _restart_for(self, order: Order) -> None:
        """Restart the job, without the order's node where it asks for that."""
        state = self.state
        self._spool.answer(order.command_id, "restarting", epoch=state.epoch)
        seats, spares, out = dict(state.seats), list(state.spares), list(state.out)
        moved = []
        if order.kind in MOVES:
            assert order.node_id is not None
            spare = spares.pop(0)
            seats[spare] = seats.pop(order.node_id)
            out.append(order.node_id)
            moved = [{"ranks": seats[spare], "from": order.node_id, "to": spare}]
        self._workers.end_all()
        self._request.unlink(missing_ok=True)
        step = self._checkpoints.latest()
        text = f"goes on from {_step(step)} in epoch {state.epoch + 1}"
        answer = {"epoch": state.epoch + 1, "moved": moved, "checkpoint_step": step, "text": text}
        done = dict([*state.done.items(), (order.command_id, answer)][-_KEEP_ANSWERS:])
        self._begin(replace(state, epoch=state.epoch + 1, seats=seats, spares=spares, out=out, restarts=0, done=done))
        self._answered(order, "done", **answer)

    def _give_back(self, order: Order) -> None:
        """The node that the job has left is a spare again."""
        assert order.node_id is not None
        out = [node_id for node_id in self.state.out if node_id != order.node_id]
        answer = {"epoch": self.state.epoch, "text": f"{order.node_id} is a spare again"}
        done = dict([*self.state.done.items(), (order.command_id, answer)][-_KEEP_ANSWERS:])
        self._save(replace(self.state, out=out, spares=[*self.state.spares, order.node_id], done=done))
        self._say()
        self._answered(order, "done", **answer)

    def _collect(self, pending: _Pending) -> None:
        """Ask all workers for dumps, and say which ranks wrote one."""
        now = {path.name: path.stat().st_mtime_ns for path in self._dumps.iterdir()}
        if not pending.is_asked:
            pending.is_asked, pending.dumps = True, now
        fresh = {name for name, at_ns in now.items() if pending.dumps.get(name) != at_ns}
        ranks = range(self._settings.world_size)
        there = [rank for rank in ranks if any(name.endswith(f"rank_{rank}") for name in fresh)]
        is_late = self._clock_ns() > pending.since_ns + self._settings.evidence_s * 1e9
        if len(there) < len(ranks) and not is_late:
            # A worker that has only begun cannot write one yet.
            if self._clock_ns() >= pending.asked_ns + _ASK_AGAIN_NS:
                pending.asked_ns = self._clock_ns()
                self._workers.ask_for_evidence()
            return
        if not there:
            self._answered(pending.order, "refused", code="no_evidence", text="no rank wrote a dump")
            return
        missing = [rank for rank in ranks if rank not in there]
        collected = {"directory": str(self._dumps), "ranks": there, "missing": missing}
        text = f"dumps of {len(there)} of {len(ranks)} ranks in {self._dumps}"
        self._answered(pending.order, "done", epoch=self.state.epoch, collected=collected, text=text)

    def _start_again(self) -> None:
        """Workers have failed: the same seats, from the latest checkpoint, as often as it may be."""
        self._workers.end_all()
        step = self._checkpoints.latest()
        restarts = 1 if step != self.state.checkpoint_step else self.state.restarts + 1
        if restarts > self._settings.max_restarts:
            _LOG.error("workers failed %d times from %s on", restarts, _step(step))
            self._finish("failed")
            return
        _LOG.warning("workers failed; starting again from %s", _step(step))
        self._begin(replace(self.state, epoch=self.state.epoch + 1, restarts=restarts))

    def _begin(self, state: JobState) -> None:
        """Write an epoch down, and start it; no worker is running."""
        step = self._checkpoints.latest()
        self._save(replace(state, since_ns=self._clock_ns(), checkpoint_step=step))
        self._registration.write(self.state.epoch, self.state.seats, self.state.since_ns)
        self._say()
        self._workers.start(self.state.epoch, self.state.seats, step)
        _LOG.info("epoch %d from %s on %s", self.state.epoch, _step(step), ", ".join(self.state.seats))

    def _finish(self, phase: str) -> None:
        self._save(replace(self.state, phase=phase))
        self._registration.write(self.state.epoch, self.state.seats, self.state.since_ns, "ended")
        self._say()
        self._refuse_all()

    def _refuse_all(self) -> None:
        """Nothing is carried out any more."""
        self._pending, self._resumed = None, []
        while self._spool.take() is not None:
            pass
        for command_id, _ in self._spool.unanswered():
            known = self.state.done.get(command_id)
            if known is not None:
                self._spool.answer(command_id, "done", **known)
            else:
                self._spool.answer(command_id, "refused", code="ended", text=f"the job has {self.state.phase}")

    def _answered(self, order: Order, state: str, **fields: Any) -> None:
        self._spool.answer(order.command_id, state, **fields)
        self._pending = None
        _LOG.info("%s %s: %s %s", order.command_id, order.kind, state, fields.get("text", ""))

    def _save(self, state: JobState) -> None:
        write_object(self._file, asdict(state))
        self.state = state

    def _say(self) -> None:
        state = self.state
        self._spool.say_job(
            {
                "job_id": self._settings.job_id,
                "epoch": state.epoch,
                "state": state.phase,
                "seats": state.seats,
                "spares": state.spares,
                "out": state.out,
                "since_ns": state.since_ns,
                "checkpoint_step": state.checkpoint_step,
            }
        )


def _read_state(path: Path) -> JobState:
    """The state that an earlier controller left.

    Raises:
        JobStateError: it is none; whoever began anew would use spares twice.
    """
    fields = read_object(path)
    try:
        return JobState(**(fields or {}))
    except TypeError as error:
        raise JobStateError(f"{path}: {error}") from None


def _first(settings: JobSettings, now_ns: int) -> JobState:
    seats = {node_id: list(ranks) for node_id, ranks in settings.seats.items()}
    return JobState(0, "running", seats, list(settings.spares), [], now_ns, None)


def _step(step: int | None) -> str:
    return f"the checkpoint of step {step}" if step is not None else "the beginning"
