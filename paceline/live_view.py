"""What the demo shows on a terminal: steps, MFU, slowest ranks, findings, commands, as they come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.demo import DemoView
from schemas.findings import Finding
from schemas.remediation import Command, Incident

if TYPE_CHECKING:
    from paceline.demo import DemoResult
    from paceline.verdict import Heard
    from schemas.base import Record
    from schemas.results import StepResult

__all__ = ["PlainView", "TerminalView", "print_result"]

_SPARKS = "▁▂▃▄▅▆▇█"
# Victims of a storm are many and not to blame: the transmitter is what is shown.
_QUIET_KINDS = frozenset({"pfc_pause", "insufficient"})


class PlainView(DemoView):
    """One line per thing said, on stderr: for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        """Say it."""
        self._console.print(text, highlight=False)

    def update(self, heard: Heard, fresh: list[Record], elapsed_s: float, duration_s: float) -> None:  # noqa: ARG002
        """Say what is new."""
        for record in fresh:
            line = _line(record)
            if line is not None:
                self._console.print(Text(f"{elapsed_s:6.1f} s  ").append_text(line))


class TerminalView(DemoView):
    """A live screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: deque[Text] = deque(maxlen=12)
        self._notes: list[str] = []
        self._live: Live | None = None

    def note(self, text: str) -> None:
        """Shown above the live part, and kept after it."""
        self._console.print(f"[dim]{text}[/dim]")

    def update(self, heard: Heard, fresh: list[Record], elapsed_s: float, duration_s: float) -> None:
        """Draw anew."""
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=5, transient=True)
            self._live.start()
        for record in fresh:
            line = _line(record)
            if line is not None:
                self._lines.append(Text(f"{elapsed_s:5.1f} s  ").append_text(line))
        self._live.update(
            Group(
                _jobs_table(heard, elapsed_s, duration_s),
                Panel(Group(*self._lines) if self._lines else Text("healthy so far"), title="findings and commands"),
            )
        )

    def close(self) -> None:
        """Give the screen back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _jobs_table(heard: Heard, elapsed_s: float, duration_s: float) -> Table:
    table = Table(title=f"{min(elapsed_s, duration_s):.0f} of {duration_s:.0f} s", expand=True)
    for name in ("job", "step", "step time", "MFU", "last 40 steps", "slowest ranks (own time)"):
        table.add_column(name)
    for job_id in sorted({job for job, _, _ in heard.steps}):
        steps = sorted((s for (job, _, _), s in heard.steps.items() if job == job_id), key=lambda s: (s.epoch, s.step))
        last = steps[-1]
        slowest = "  ".join(
            f"{rank}: {us / 1000:.0f} ms" for rank, us in zip(last.slowest_ranks[:3], last.slowest_own_us, strict=False)
        )
        table.add_row(
            job_id,
            str(last.step),
            f"{(last.step_time_us or 0) / 1000:.0f} ms",
            f"{100 * last.mfu:.1f} %" if last.mfu is not None else "-",
            _spark(steps[-40:]),
            slowest,
        )
    return table


def _spark(steps: list[StepResult]) -> str:
    times = [step.step_time_us or 0 for step in steps]
    low, high = min(times), max(times)
    span = max(high - low, 1)
    return "".join(_SPARKS[min(7, 8 * (time - low) // span)] for time in times)


def _line(record: Record) -> Text | None:
    if isinstance(record, Command):
        what = f"COMMAND {record.kind} {record.when.replace('_', ' ')} on {record.target.name()} [{record.mode}]"
        return Text(what, style="bold red").append(f"  {record.reason}", style="default")
    if isinstance(record, Incident) and record.state == "resolved":
        return Text(f"resolved: {record.summary}", style="green")
    if isinstance(record, Finding) and record.kind not in _QUIET_KINDS and record.state == "open":
        if record.kind == "pfc_pause_transmit" and record.subject.switch_id is not None:
            return None
        style = {"critical": "bold red", "warning": "yellow"}.get(record.severity, "dim")
        place = record.subject.node_id or record.subject.switch_id or record.job_id or ""
        return Text(f"{record.kind} {place}: {record.explanation}", style=style)
    return None


def print_result(console: Console, result: DemoResult) -> None:
    """The verdict as a table, for people."""
    table = Table(title="what was wrong, and what was said", expand=True)
    for name in ("fault", "named", "command", "after", "why"):
        table.add_column(name)
    for detail in result.verdict.details:
        named = detail["named"] or {}
        who = ", ".join(
            str(named[name]) for name in ("node_id", "switch_id", "device", "port", "rank", "gpu_uuid") if name in named
        )
        seconds = detail["seconds_to_command"]
        table.add_row(
            detail["cause_class"],
            who or "[red]nobody[/red]",
            f"{detail['command'] or '[red]none[/red]'} {(detail['when'] or '').replace('_', ' ')}",
            f"{seconds:.1f} s" if seconds is not None else "-",
            detail["why"] or "",
        )
    console.print(table)
    fields = result.as_json()
    console.print(
        f"{fields['found']} of {fields['injected']} faults found, {len(fields['blamed_healthy'])} healthy blamed, "
        f"{fields['commands']} commands, {fields['steps']} steps, {fields['gpu_hours_lost']:.3f} GPU-hours lost"
    )
    for line in fields["blamed_healthy"]:
        console.print(f"[red]blamed though healthy:[/red] {line}")
