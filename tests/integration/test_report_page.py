"""The page of an incident in a real browser, at 64 and at 16,384 ranks: all of it is drawn, and answers to mouse and keys.

How fast it is stands in the benchmarks (tests/bench/bench_report_in_browser.py): a bound in milliseconds would judge the machine.
`PACELINE_SCREENSHOTS=DIRECTORY` keeps pictures.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Page, open_page, running_chromium

from tests.bench.large_report import SLOW, large_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs_chromium: no chromium on the PATH (Debian: apt-get install chromium)"
)

TOLD = {
    "verdict": "document.getElementById('verdict').textContent",
    "worst": "document.querySelector('#heat tbody')?.textContent || ''",
    "incidents": "document.querySelectorAll('#incident-list details').length",
    "known": "document.querySelector('#incident-list table')?.textContent || ''",
    "charts": "document.querySelectorAll('.uplot canvas').length",
    "rows": "document.querySelectorAll('#finding-table tbody tr').length",
    "found": "document.querySelector('#finding-table tbody td').textContent",
    "raw": "document.querySelectorAll('#raw-list details').length",
    "overflow": "document.documentElement.scrollWidth - innerWidth",
    "loaded": "performance.getEntriesByType('resource').map((r) => r.name)",
}

# What a hand does, and what is to be seen of it. Waits are for the events that the browser sends by itself.
ACTS = {
    "another map": """(document.querySelectorAll('#heat-choice button')[2].click(),
        document.querySelector('#heat-choice [aria-pressed=true]').textContent)""",
    "point at a map": """(() => { const cells = document.querySelector('#heat .cells'), b = cells.getBoundingClientRect();
        cells.dispatchEvent(new PointerEvent('pointermove', { clientX: b.x + 9, clientY: b.y + 9 }));
        return document.querySelector('#heat .tip').textContent })()""",
    "go to another cell": """(() => { const cells = document.querySelector('#heat .cells');
        cells.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown' }));
        return document.querySelector('#heat .tip').textContent })()""",
    "read a chart by keys": """(() => { const lane = document.querySelector('.lane');
        lane.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
        return lane.querySelector('.u-legend').textContent })()""",
    "filter": """(() => { const filter = document.getElementById('filter');
        filter.value = 'node-0007'; filter.dispatchEvent(new Event('input'));
        return [...document.querySelectorAll('#finding-table tbody tr')].every((r) => r.textContent.includes('node-0007')) })()""",
    "only warnings": """(() => { const filter = document.getElementById('filter');
        filter.value = ''; filter.dispatchEvent(new Event('input'));
        document.querySelector('#severities button').click();
        return document.querySelectorAll('#finding-table tbody tr').length })()""",
    "raw record": """new Promise((done) => { addEventListener('hashchange', () => setTimeout(() =>
        requestAnimationFrame(() => done(document.querySelector('#raw-gpu-frames-0-900 pre')?.textContent))));
        location.hash = '#raw-gpu-frames-0-900' })""",
    "dark": "(document.getElementById('theme').click(), document.documentElement.dataset.theme)",
}


@dataclass
class Looked:
    """What a look at a page gave."""

    told: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    shots: dict[str, bytes] = field(default_factory=dict)


async def look(url: str, port: str) -> Looked:
    found = Looked()
    async with open_page(port) as page:
        await page.load(url)
        found.told = {name: await page.run(script) for name, script in TOLD.items()}
        if os.environ.get("PACELINE_SCREENSHOTS"):
            found.shots = await pictures(page)
        found.answers = {name: await page.run(script) for name, script in ACTS.items()}
        found.errors = page.errors
    return found


async def pictures(page: Page) -> dict[str, bytes]:
    shots = {}
    for name, width, scheme in (("light", 1440, "light"), ("dark", 1440, "dark"), ("phone", 390, "light")):
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        shots[name] = await page.screenshot(width, 3200)
    return shots


@pytest.fixture(scope="module", params=[64, 16_384], ids=lambda ranks: f"{ranks} ranks")
def looked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Looked]:
    directory = tmp_path_factory.mktemp("page")
    (directory / "incident.html").write_bytes(large_page(request.param, steps=90))
    with running_chromium(directory / "profile") as port:
        found = asyncio.run(look((directory / "incident.html").as_uri(), port))
    for name, shot in found.shots.items():
        (Path(os.environ["PACELINE_SCREENSHOTS"]) / f"report-{request.param}-{name}.png").write_bytes(shot)
    return request.param, found


def test_it_runs_without_an_error_and_loads_nothing(looked: tuple[int, Looked]) -> None:
    _, found = looked
    assert (found.errors, found.told["loaded"]) == ([], [])


def test_it_says_who_was_slow_what_it_cost_and_what_was_known_when(looked: tuple[int, Looked]) -> None:
    ranks, found = looked
    slow = SLOW % ranks
    for words in (f"rank {slow}, node-{slow // 8:04d}", "1,820 GPU-hours", "drain node after checkpoint applied"):
        assert words in found.told["verdict"]
    assert f"rank {slow}" in found.told["worst"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d ?at the brokers \d\d:\d\d:\d\d\.\d", found.told["found"])
    assert all(word in found.told["known"] for word in ("it began", "finding thermal violation", "result applied"))


def test_of_a_large_fleet_it_draws_no_more_than_of_a_small_one(looked: tuple[int, Looked]) -> None:
    _, found = looked
    assert found.told["incidents"] == 1
    assert found.told["charts"] == 5
    assert (found.told["rows"], found.told["raw"]) == (50, 20)
    assert found.told["overflow"] <= 0


def test_it_answers_to_mouse_and_keys(looked: tuple[int, Looked]) -> None:
    _, found = looked
    answers = found.answers
    assert answers["another map"] == "Temperature"
    assert answers["point at a map"].startswith("00:00:0")
    assert "°C" in answers["point at a map"]
    assert answers["go to another cell"] != answers["point at a map"]
    assert "s" in answers["read a chart by keys"].replace("step", "")
    assert answers["filter"]
    assert answers["only warnings"] == 1
    assert "node-0530" in answers["raw record"]
    assert answers["dark"] == "dark"
