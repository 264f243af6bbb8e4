"""The page of an incident in a real browser, at 64 and at 16,384 ranks: drawn in time, quick to the hand, without an error."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, open_page, running_chromium

from tests.bench.large_report import SLOW, large_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs_chromium: no chromium on the PATH (Debian: apt-get install chromium)"
)

READY_MS, QUICK_MS = 5_000.0, 200.0
"""What a page may take to be drawn, and what it may take to answer a hand."""

_TIMED = """(async () => { const begun = performance.now(); %s;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); return performance.now() - begun; })()"""


@dataclass(frozen=True)
class Looked:
    """What a look at a page gave."""

    ready_ms: float
    answers_ms: dict[str, float]
    errors: list[str]
    loaded: list[str]
    told: dict[str, Any]


async def look(url: str, port: str, shots: dict[str, bytes]) -> Looked:
    async with open_page(url, port) as (page, ready_ms):
        acts = {
            "another map": "document.querySelectorAll('#heat-choice button')[2].click()",
            "filter": "const f = document.getElementById('filter'); f.value = 'node-05'; f.dispatchEvent(new Event('input'))",
            "point": "document.querySelector('#heat canvas').dispatchEvent(new PointerEvent('pointermove', {clientX: 400, clientY: 900}))",
            "raw record": "document.querySelector('#raw-list details').open = true",
            "first map": "document.querySelectorAll('#heat-choice button')[0].click()",
        }
        answers = {name: min([float(await page.run(_TIMED % act)) for _ in range(3)]) for name, act in acts.items()}
        told = {
            "title": await page.run("document.title"),
            "brief": await page.run("document.getElementById('briefs').textContent"),
            "worst": await page.run("document.querySelector('#heat tbody')?.textContent || ''"),
            "incidents": await page.run("document.querySelectorAll('#incident-list details').length"),
            "known": await page.run("document.querySelector('#incident-list table')?.textContent || ''"),
            "charts": await page.run("document.querySelectorAll('.uplot canvas').length"),
            "rows": await page.run("document.querySelectorAll('#finding-table tbody tr').length"),
            "overflow": await page.run("document.documentElement.scrollWidth - innerWidth"),
        }
        loaded = await page.run("performance.getEntriesByType('resource').map((r) => r.name)")
        if os.environ.get("PACELINE_SCREENSHOTS"):
            shots["light"] = await page.screenshot(3200)
            dark = [{"name": "prefers-color-scheme", "value": "dark"}]
            await page.call("Emulation.setEmulatedMedia", features=dark)
            shots["dark"] = await page.screenshot(3200)
            await page.call("Emulation.setEmulatedMedia", media="print", features=[])
            shots["print"] = await page.screenshot(3200)
        return Looked(ready_ms, answers, page.errors, loaded, told)


@pytest.fixture(scope="module", params=[64, 16_384], ids=lambda ranks: f"{ranks} ranks")
def looked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Looked]:
    directory = tmp_path_factory.mktemp("page")
    (directory / "incident.html").write_bytes(large_page(request.param, steps=450))
    shots: dict[str, bytes] = {}
    with running_chromium(directory / "profile") as port:
        found = asyncio.run(look((directory / "incident.html").as_uri(), port, shots))
    for name, shot in shots.items():
        (Path(os.environ["PACELINE_SCREENSHOTS"]) / f"report-{request.param}-{name}.png").write_bytes(shot)
    return request.param, found


def test_it_is_drawn_in_time_and_answers_at_once(looked: tuple[int, Looked]) -> None:
    _, found = looked
    assert found.ready_ms < READY_MS
    assert max(found.answers_ms.values()) < QUICK_MS, found.answers_ms


def test_it_runs_without_an_error_and_loads_nothing(looked: tuple[int, Looked]) -> None:
    _, found = looked
    assert (found.errors, found.loaded) == ([], [])


def test_it_says_who_was_slow_and_what_was_known_when(looked: tuple[int, Looked]) -> None:
    ranks, found = looked
    slow = SLOW % ranks
    assert found.told["incidents"] == 1
    assert f"rank {slow}" in found.told["brief"]
    assert "drain node after checkpoint (auto; applied)" in found.told["brief"]
    assert f"rank {slow}" in found.told["worst"]
    assert all(word in found.told["known"] for word in ("it began", "finding thermal violation", "result applied"))
    assert found.told["charts"] >= 4
    assert 0 < found.told["rows"] <= 100
    assert found.told["overflow"] <= 0
