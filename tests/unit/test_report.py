"""The page of an incident without a browser: bounded maps, what was recorded or replayed, and no text that becomes markup."""

from __future__ import annotations

import base64
import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from factories import SITE, at, gpu_frame, job, step_timing, xid_event
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli import app
from paceline.report.collected import Collected
from paceline.report.heat_map import HeatMap
from paceline.report.page import SCRIPTS, render_page
from schemas.archive import ArchiveWriter
from schemas.remediation import ActionResult, Cause, Command, Incident, Target
from streams.core.position import Position

SECOND = 1_000_000_000


def cells(drawn: dict[str, Any], name: str = "cells") -> np.ndarray[Any, Any]:
    raw = np.frombuffer(base64.b64decode(drawn[name]), dtype=np.uint8)
    return raw.reshape(drawn["rows"], drawn["columns"])


# --- Maps -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 200_000), st.floats(0, 1)), min_size=1, max_size=60))
def test_whatever_the_span_the_worst_of_a_row_is_drawn(draws: list[tuple[int, int, float]]) -> None:
    heat = HeatMap()
    for row, second, value in sorted(draws, key=lambda draw: draw[1]):
        heat.add(heat.rows_of([row]), second * SECOND, np.array([value]))
    order = sorted({row for row, _, _ in draws})
    drawn = heat.drawn(order, 0.0, 1.0)
    assert drawn["columns"] <= 420
    known = cells(drawn)
    for index, row in enumerate(order):
        worst = max(value for r, _, value in draws if r == row)
        shown = known[index][known[index] != 255]
        assert abs(shown.max() / 254 - worst) < 0.01
    assert drawn["cell_ms"] * drawn["columns"] >= (max(d[1] for d in draws) - min(d[1] for d in draws)) * 1000


def test_of_many_rows_one_bad_one_is_still_seen_and_named() -> None:
    heat, keys = HeatMap(), list(range(5_000))
    values = np.ones(5_000)
    values[4_321] = 2.0
    heat.add(heat.rows_of(keys), SECOND, values)
    drawn = heat.drawn(keys, 1.0, 2.0)
    assert drawn["rows"] <= 256
    row, column = np.argwhere(cells(drawn) == 254)[0]
    assert row * drawn["group"] + cells(drawn, "who")[row, column] == 4_321


def test_where_low_is_bad_the_lowest_counts_and_nothing_is_not_zero() -> None:
    heat = HeatMap("low")
    for second, value in enumerate([1900.0, 1200.0, np.nan, 1900.0]):
        heat.add(heat.rows_of(["gpu"]), second * SECOND, np.array([value]))
    assert heat.row("gpu")[1] == [1900.0, 1200.0, None, 1900.0]
    assert heat.row("nobody") == ([], [])


def test_memory_of_a_map_does_not_grow_with_time() -> None:
    heat = HeatMap()
    rows = heat.rows_of(["a"])
    heat.add(rows, 0, np.array([1.0]))
    size = heat._cells.nbytes
    for hour in range(0, 24 * 400, 50):
        heat.add(rows, hour * 3600 * SECOND, np.array([2.0]))
    assert heat._cells.nbytes == size


# --- What is collected ------------------------------------------------------------------------------------------------


def feed(records: list[Any]) -> Collected:
    found = Collected()
    for offset, record in enumerate(records):
        found.take_input(record, Position("paceline.gpu-frames.v1", 0, offset, 0))
    found.finish()
    return found


def test_who_was_not_heard_for_half_a_minute_is_silent_and_who_never_came_back_too() -> None:
    found = feed(
        [gpu_frame(second, node_id="node-1") for second in (0, 10, 50, 60)] + [gpu_frame(100, node_id="node-2")]
    )
    told = [(s.source, s.from_ns, s.to_ns) for s in found.silences]
    assert told == [("node-1", at(10), at(50)), ("node-1", at(60), None)]


def test_a_job_of_long_steps_is_not_called_silent() -> None:
    found = Collected()
    for number in range(4):
        found.take_input(
            step_timing(number, 60 * number, [200_000] * 8), Position("paceline.step-timings.v1", 0, number, 0)
        )
    found.finish()
    assert found.silences == []


def test_a_rank_is_held_against_the_ranks_of_its_step() -> None:
    found = feed([step_timing(n, n, [200_000] * 7 + [260_000]) for n in range(5)])
    assert found.slow_counts == {("job-1", 7): 5}
    assert found.worst_ratio == {("job-1", 7): pytest.approx(1.3)}


# --- The page ---------------------------------------------------------------------------------------------------------


def data_of(page: bytes) -> Any:
    found = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return orjson.loads(found[1])


def report(path: Path, *arguments: str) -> tuple[Any, bytes]:
    told = CliRunner().invoke(app, ["report", str(path), "-o", str(path.with_suffix(".html")), *arguments])
    return told, path.with_suffix(".html").read_bytes() if told.exit_code == 0 else b""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with ArchiveWriter.open(path) as writer:
        writer.write(job(8), at(0))
        writer.write(gpu_frame(1), at(1))
        for number in range(60):
            own = [200_000] * 7 + [260_000 if 20 <= number < 40 else 200_000]
            writer.write(step_timing(number, 20 + number, own), at(20 + number))
        writer.write(xid_event(85, 79), at(86))
    return path


def test_inputs_alone_are_replayed_and_the_page_says_so(archive: Path) -> None:
    told, page = report(archive)
    assert told.exit_code == 0, told.output
    data = data_of(page)
    assert not data["about"]["is_recorded"]
    assert data["summary"]["steps"] == 60
    assert data["summary"]["incidents"] == len(data["incidents"]) >= 2
    assert data["jobs"][0]["slowest"][0] == {"rank": 7, "count": 20, "worst": 1.3, "where": ""}
    lost = next(i for i in data["incidents"] if i["class"] == "gpu_lost")
    known = [row["what"] for row in lost["known"]]
    assert known[0] == "it began"
    assert "first raw record of it" in known
    assert any(what.startswith("command cordon_node") for what in known)
    cited = {anchor for command in lost["commands"] for anchor in command["evidence"]}
    assert cited <= {record["id"] for record in data["raw"]}


def test_a_page_replaces_a_page_and_nothing_else(archive: Path, tmp_path: Path) -> None:
    before, page, link = archive.read_bytes(), tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(archive)
    for place, why in (
        (archive, "is there already, and is no page"),
        (link, "is there already, and is no page"),
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "page.html", "is no directory"),
    ):
        told = CliRunner().invoke(app, ["report", str(archive), "-o", str(place)])
        assert (told.exit_code, why in told.output) == (2, True)
    assert archive.read_bytes() == before
    for _ in range(2):
        assert CliRunner().invoke(app, ["report", str(archive), "-o", str(page)]).exit_code == 0


def test_a_full_disk_leaves_the_page_that_was_there(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(archive), "-o", str(page)]).exit_code == 0
    before = page.read_bytes()
    monkeypatch.setattr("paceline.whole_file.os.fsync", fails)
    for place in (page, tmp_path / "new.html"):
        told = CliRunner().invoke(app, ["report", str(archive), "-o", str(place)])
        assert (told.exit_code, told.stderr) == (2, f"paceline: {place}: No space left on device\n")
    assert page.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_what_was_recorded_is_shown_as_it_was_said_with_its_arrival(archive: Path, tmp_path: Path) -> None:
    incident = Incident(
        incident_id="inc-x",
        site_id=SITE,
        state="open",
        cause_class="thermal",
        event_time_ns=at(30),
        onset_ns=at(25),
        summary="said then",
    )
    command = Command(
        command_id="cmd-x", site_id=SITE, kind="drain_node", target=Target(level="node", node_id="node-1"), audience="a",
        cause=Cause(incident_id="inc-x"), decided_at_ns=at(30), expires_at_ns=at(90), sequence=0, mode="auto",
    )  # fmt: skip
    result = ActionResult(
        command_id="cmd-x", site_id=SITE, actuator_id="slurm", event_time_ns=at(35), outcome="applied"
    )
    with ArchiveWriter.open(tmp_path / "said.jsonl") as writer:
        for second, record in enumerate((incident, command, result)):
            writer.write(record, at(40 + second))
    archive.write_bytes(archive.read_bytes() + (tmp_path / "said.jsonl").read_bytes())
    data = data_of(report(archive)[1])
    assert data["about"]["is_recorded"]
    (told,) = data["incidents"]
    assert (told["summary"], told["culprit"]) == ("said then", None)
    assert [(row["what"], row["arrived_ms"]) for row in told["known"]] == [
        ("it began", None),
        ("incident open", at(40) / 1e6),
        ("command drain_node (auto)", at(41) / 1e6),
        ("result applied", at(42) / 1e6),
    ]
    assert told["commands"][0]["results"][0]["outcome"] == "applied"
    assert data["summary"]["results"] == {"applied": 1}


def test_a_page_holds_all_that_it_needs_and_its_licence(archive: Path) -> None:
    page = report(archive)[1].decode()
    assert not re.search(r"""(?:src|href)=["']?https?:""", page)
    assert "default-src 'none'" in page
    assert "The MIT License (MIT)" in page


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "\u2028"])
def test_no_text_of_an_archive_becomes_markup(text: str) -> None:
    page = render_page({"text": text}, f"title {text}")
    assert data_of(page) == {"text": text}
    assert page.count(b"<script") == 1 + len(SCRIPTS)
    assert b"<title>title " + text.encode() not in page or "<" not in text


def test_a_source_without_events_is_a_clear_error(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    with ArchiveWriter.open(tmp_path / "jobs.jsonl") as writer:
        writer.write(job(8), at(0))
    none = "there is nothing to show: it holds no frames, events or steps"
    for source, asked, why in (
        (tmp_path / "empty.jsonl", (), none),
        (tmp_path / "jobs.jsonl", (), f"{none}, only jobs (1)"),
        (archive, ("--from", "2035-01-01T00:00:00Z"), f"{none} in that range, only jobs (1)"),
    ):
        told, _ = report(source, *asked)
        assert (told.exit_code, told.stderr) == (2, f"paceline: {source}: {why}\n")
