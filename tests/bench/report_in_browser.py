"""How long the page of an incident takes to be drawn and to answer a hand, in Debian's Chromium, at 64 and at 16,384 ranks.

python -m tests.bench.report_in_browser [REPEATS]

Input is real (of the DevTools protocol), and an answer ends with the frame that shows it. Main-thread tasks are taken from a
trace of the same inputs. Nothing is asserted: a machine that is busy gives other figures.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.large_report import large_page
from tests.integration.chromium import open_page, running_chromium

if TYPE_CHECKING:
    from tests.integration.chromium import Page

_RANKS = (64, 16_384)
_THEMES = ("light", "dark")

# Notes how long after the input's own time the first frame came in which a condition held.
_WATCH = """(() => { window.answered = new Promise((done) => addEventListener('%s', (event) => {
  const look = () => requestAnimationFrame(() => setTimeout(() =>
    ((%s) ? done(performance.now() - event.timeStamp) : look())));
  look();
}, { capture: true, once: true })); })()"""


async def _centre(page: Page, selector: str) -> tuple[float, float, float]:
    """Bring an element into view; its middle and its width."""
    find = f"document.querySelector({selector!r})"
    await page.run(f"{find}.scrollIntoView({{block: 'center'}})")
    await page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    box = await page.run(
        f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2, box[2]


async def _mouse(page: Page, kind: str, x: float, y: float) -> None:
    button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
    held = {"buttons": 1} if kind == "mousePressed" else {}
    await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **held)


async def _answer(page: Page, event: str, holds: str, act: Any) -> float:
    """Milliseconds from an input to the frame in which it has shown."""
    await page.run(_WATCH % (event, holds))
    await act()
    return float(await page.run("window.answered"))


async def _hover(page: Page, selector: str) -> float:
    x, y, width = await _centre(page, selector)
    return max(
        [
            await _answer(page, "mousemove", "true", lambda at=at: _mouse(page, "mouseMoved", x + at * width, y))
            for at in (-0.3, -0.1, 0.1, 0.3)
        ]
    )


async def _click(page: Page, selector: str, holds: str) -> float:
    x, y, _ = await _centre(page, selector)

    async def act() -> None:
        await _mouse(page, "mousePressed", x, y)
        await _mouse(page, "mouseReleased", x, y)

    return await _answer(page, "click", holds, act)


async def _zoom(page: Page) -> float:
    x, y, width = await _centre(page, "#jobs .u-over")

    async def act() -> None:
        await _mouse(page, "mousePressed", x - 0.2 * width, y)
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 0.1 * width, y=y, button="left", buttons=1)
        await _mouse(page, "mouseReleased", x + 0.1 * width, y)

    return await _answer(page, "mouseup", "true", act)


async def _filter(page: Page) -> float:
    await page.run("document.getElementById('filter').focus()")
    return max(
        [
            await _answer(page, "input", "true", lambda letter=letter: page.call("Input.insertText", text=letter))
            for letter in "node-00"
        ]
    )


async def _answers(page: Page) -> dict[str, float]:
    found = {"point at a chart": await _hover(page, "#jobs .u-over"), "zoom all charts": await _zoom(page)}
    found["another map"] = await _click(page, "#heat-choice button:nth-child(2)", "true")
    found["point at a map"] = await _hover(page, "#heat .cells")
    found["filter findings"] = await _filter(page)
    link, opened = "#finding-table a", "document.querySelector(':target')?.open"
    found["to a raw record"] = await _click(page, link, opened)
    found["light and dark"] = await _click(page, "#theme", "true")
    return found


async def _measure(url: str, port: str, theme: str) -> tuple[float, float, float, dict[str, float]]:
    """Drawn after, the longest task until then, the longest task of all answers, and the answers."""
    async with open_page(port) as page:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await page.call("Emulation.setEmulatedMedia", media="", features=features)
        await page.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
        async with page.traced("toplevel,devtools.timeline,disabled-by-default-devtools.timeline") as loading:
            ready_ms = await page.load(url)
        async with page.traced("toplevel,devtools.timeline,disabled-by-default-devtools.timeline") as acting:
            answers = await _answers(page)
        assert not page.errors, page.errors
    return ready_ms, _longest_ms(loading), _longest_ms(acting), answers


def _longest_ms(events: list[dict[str, Any]]) -> float:
    """The longest task of the thread that draws the page, by its own processor time: others on the machine do not count."""
    mains = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and e["args"].get("name") == "CrRendererMain"
    }
    tasks = [
        e.get("tdur", 0) for e in events if e.get("name", "").endswith("RunTask") and (e["pid"], e["tid"]) in mains
    ]
    return max(tasks, default=0) / 1e3


async def _rows(repeats: int, directory: Path) -> None:
    for ranks in _RANKS:
        path = directory / f"{ranks}.html"
        path.write_bytes(large_page(ranks))
        for theme in _THEMES:
            runs = []
            for number in range(repeats):
                with running_chromium(directory / f"{ranks}-{theme}-{number}") as port:
                    runs.append(await _measure(path.as_uri(), port, theme))
            slowest = {name: max(run[3][name] for run in runs) for name in runs[0][3]}
            told = "; ".join(f"{name} {ms:.0f}" for name, ms in slowest.items())
            print(
                f"| {ranks:,} {theme} | {path.stat().st_size / 1e6:.1f} MB | {median(run[0] for run in runs):.0f} "
                f"| {max(run[0] for run in runs):.0f} | {max(run[1] for run in runs):.0f} "
                f"| {max(run[2] for run in runs):.0f} | {told} | {os.getloadavg()[0]:.1f} |"
            )


if __name__ == "__main__":
    print(
        "| ranks | page | drawn, ms (median) | (longest) | longest task of it | of answers | answers, ms (longest) | load |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as kept:
        asyncio.run(_rows(int(sys.argv[1]) if len(sys.argv) > 1 else 3, Path(kept)))
