"""`paceline diagnose profile` tells people, programs and a page the same, and names the rank that came last."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paceline.profile_command import profile_command
from paceline.profile_reading import read_profile
from tests.bench.kineto_trace import Shape, write

VOID = {"meta", "rect"}


class Balanced(HTMLParser):
    """Checks that what is opened is closed, and gathers what a page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name in {"src", "href", "srcset", "data"} or name.startswith("on")
        ]
        if tag in {"script", "link", "iframe", "img", "object", "embed"}:
            self.loads.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def four_ranks(tmp_path: Path) -> list[Path]:
    """Rank 2 computes 1.5 times as long; the others wait for it in every collective."""
    paths = []
    for rank in range(4):
        path = tmp_path / f"trace_rank{rank}.json.gz"
        is_slow = rank == 2
        write(
            path,
            Shape(kernels=600, rank=rank, slow=1.5 if is_slow else 1.0, wait_us=0.0 if is_slow else 760.0, seed=rank),
        )
        paths.append(path)
    return paths


def ndjson(captured: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in captured.splitlines()]


def test_the_slow_rank_is_named_to_programs(four_ranks: list[Path], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert profile_command(four_ranks, True, None, None) == 0
    records = ndjson(capsysbinary.readouterr().out)
    assert [record["kind"] for record in records] == (["trace_step"] * 3 + ["trace_profile", "profile_verdict"]) * 4 + [
        "rank_comparison"
    ]
    assert [record["rank"] for record in records if record["kind"] == "profile_verdict"] == [0, 1, 2, 3]
    assert records[-1]["straggler_rank"] == 2


def test_the_slow_rank_is_named_to_people(four_ranks: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_command(four_ranks, False, None, None) == 0
    told = capsys.readouterr().out
    assert re.search(r"rank 2: step .*<- came last", told)
    assert told.splitlines()[-1].startswith("rank 2 has the shortest collectives")


def test_the_page_holds_all_ranks_loads_nothing_and_has_both_schemes(four_ranks: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert profile_command(four_ranks, True, page, None) == 0
    text = page.read_text()
    parsed = Balanced()
    parsed.feed(text)
    assert parsed.open == []
    assert parsed.loads == []
    assert "http" not in text
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    assert [f"rank {rank}" for rank in range(4) if f"rank {rank}" in parsed.text] == [
        f"rank {rank}" for rank in range(4)
    ]
    assert "rank 2 came last" in parsed.text
    assert text.count("<svg") == 4 + 4 + 12


def test_names_of_a_trace_cannot_become_markup(tmp_path: Path) -> None:
    trace, page = tmp_path / "<b>.json", tmp_path / "page.html"
    name = "<script>alert(1)</script>\ud800"
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 0, "dur": 5, "args": {}}
    trace.write_text(json.dumps({"traceEvents": [event], "deviceProperties": [{"id": 0, "name": "<i>"}]}))
    assert profile_command([trace], True, page, None) == 0
    parsed = Balanced()
    parsed.feed(page.read_text())
    assert parsed.open == []
    assert parsed.loads == []
    assert any("<script>alert(1)</script>" in text for text in parsed.text)


def test_one_trace_that_cannot_be_read_costs_the_others_nothing(
    four_ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(four_ranks[0].read_bytes()[:-20])
    assert profile_command([other, *four_ranks[:2], cut, tmp_path / "missing.json"], False, None, None) == 2
    told = capsys.readouterr()
    assert "other.json is no profiler trace" in told.err
    assert "cut.json.gz is damaged" in told.err
    assert "cannot read" in told.err
    assert "rank 0: step" in told.out


def test_two_traces_of_a_rank_are_told_and_the_second_is_not_compared(
    four_ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "trace_rank1_again.json.gz"
    again.write_bytes(four_ranks[1].read_bytes())
    assert profile_command([four_ranks[0], four_ranks[1], again], True, None, None) == 0
    assert "second trace of rank 1" in capsys.readouterr().err


def test_the_rank_may_stand_in_the_name_alone(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": 0, "dur": 5, "args": {}}
    for name, rank in (("worker_rank-12.pt.trace.json", 12), ("trace.json", None)):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": [event]}))
        assert read_profile(path).rank == rank


def test_products_are_held_against_the_part_of_the_trace_or_the_one_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    args = {"External id": 7, "Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    listed = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5, "args": args},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "nvjet_x",
            "pid": 0,
            "tid": 7,
            "ts": 9,
            "dur": 200,
            "args": {"External id": 7},
        },
    ]
    path.write_text(
        json.dumps({"traceEvents": listed, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]})
    )
    (product,) = read_profile(path).products
    assert product.regime.regime == "compute"
    assert product.regime.tflops == pytest.approx(2 * 4096**3 / 200e6)
    assert product.regime.roof_share == pytest.approx(product.regime.tflops / 989.5, rel=0.01)
    (unknown,) = read_profile(path, "some GPU").products
    assert (unknown.regime.regime, unknown.regime.roof_share) == ("unknown", None)


def test_a_page_that_cannot_be_written_ends_with_status_2(
    four_ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = four_ranks[0]
    before = trace.read_bytes()
    for place, why in (
        (tmp_path / "no" / "page.html", "is no directory"),
        (trace, "is no page"),
        (tmp_path, "is a directory"),
    ):
        assert profile_command([trace], True, place, None) == 2
        told = capsys.readouterr()
        assert (told.out, why in told.err) == ("", True)
    assert trace.read_bytes() == before
