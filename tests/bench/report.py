"""Tables of figures: printed, and kept in docs/benchmarks.md, one section a script.

A script replaces its own section and leaves the others as they are. Every section says how it was made: command,
machine, load, versions. Figures are ratios wherever two things can be measured in one run; seconds are never a promise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

__all__ = ["Section", "Table", "count", "figure", "keep", "options", "publish", "ratio"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_ORDER = (
    "pure_path",
    "faust_path",
    "peers",
    "latency",
    "urgent_lane",
    "settled_lane",
    "replay",
    "report_in_browser",
    "acts",
    "agent_overhead",
)
_VERSIONED = ("faust-streaming", "aiokafka", "confluent-kafka", "pydantic", "orjson", "numpy")
_HEAD = """# Benchmarks

Made by `make bench` (all of it, about 12 minutes on two cores), or section by section with the command named there.
Each script replaces its own section. Sections on accuracy are of `paceline evaluate`, laid out by
`tests/bench/accuracy_sections.py` where a command with `--out` is named.

How to read the tables:

- Processor time is that of the measured process alone, all its threads together. "Per core" is work divided by it. Where
  clocks are read, in the latency sections, producer, broker, workers and reader share the machine.
- A ratio compares two things measured in one run on the same bytes; that is what carries over to other machines.
  Absolute figures are of the machine and load named in the section.
- `orjson` is `orjson.loads` of the same bytes: the least that any reader of JSON pays. `decode` is `schemas.codec.decode`:
  the same bytes validated in full into records; in the section on replay it is pydantic alone.
- Fleets are simulated and healthy unless a row says otherwise; bytes are made before any clock starts.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """One table; cells are text already."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def markdown(self) -> str:
        """The table with its caption."""
        lines = [self.caption, ""] if self.caption else []
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "|".join(["---", *["---:"] * (len(self.columns) - 1)]) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Section:
    """What one script has to say.

    Attributes:
        name: of the script, without `bench_`.
        title: heading.
        method: how it was measured, in a few sentences.
        tables: the figures.
        notes: what has to be known to read them, one point each.
        script: its file, where that is not `bench_` and the name.
    """

    name: str
    title: str
    method: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    script: str = ""


def options(description: str) -> argparse.Namespace:
    """Command line that all scripts share: `quick` and `print_only`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: shows that it runs, not how fast")
    parser.add_argument("--print-only", action="store_true", help="leave docs/benchmarks.md as it is")
    return parser.parse_args()


def publish(section: Section, asked: argparse.Namespace, load_before: float) -> None:
    """Print a section, and keep it in the document unless this was a quick run or only printing was asked for."""
    text = _markdown(section, asked, load_before)
    print(text, flush=True)
    if not (asked.quick or asked.print_only):
        keep(section.name, text)


def keep(name: str, text: str) -> None:
    """Put a section into the document, in the place of the one of its name."""
    kept = _sections(DOCUMENT.read_text(encoding="utf-8")) if DOCUMENT.exists() else {}
    kept[name] = text
    order = [name for name in _ORDER if name in kept] + sorted(set(kept) - set(_ORDER))
    body = "\n".join(f"<!-- begin {name} -->\n{kept[name]}\n<!-- end {name} -->\n" for name in order)
    DOCUMENT.write_text(f"{_HEAD}\n{body}", encoding="utf-8")
    print(f"kept in {DOCUMENT}", file=sys.stderr)


def ratio(value: float) -> str:
    """A ratio, three digits."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def count(value: float) -> str:
    """A number of things, three digits and thousands separators."""
    return f"{float(f'{value:.3g}'):,.0f}"


def figure(value: float | None, digits: int = 3) -> str:
    """A measured value; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def _sections(document: str) -> dict[str, str]:
    found = re.findall(r"<!-- begin (\w+) -->\n(.*?)\n<!-- end \1 -->", document, re.DOTALL)
    return dict(found)


def _markdown(section: Section, asked: argparse.Namespace, load_before: float) -> str:
    parts = [f"## {section.title}", section.method]
    parts += [table.markdown() for table in section.tables]
    if section.notes:
        parts.append("\n".join(f"- {note}" for note in section.notes))
    script = section.script or f"bench_{section.name}.py"
    command = f"`.venv/bin/python tests/bench/{script}{' --quick' if asked.quick else ''}`"
    parts.append(f"{command}, {datetime.now(UTC):%Y-%m-%d}. {_machine(load_before)}")
    return "\n\n".join(parts)


def _machine(load_before: float) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _VERSIONED)
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}. Load average (1 min) before and after: "
        f"{load_before:.1f}, {os.getloadavg()[0]:.1f}."
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or "unknown processor"
