"""How long the page of an incident takes to be drawn and to answer a hand, in Debian's Chromium, at 64 and at 16,384 ranks.

Input is real (of the DevTools protocol), and an answer ends with the frame that shows it. Main-thread tasks are taken from a
trace of the same inputs. Where there is no Chromium nothing is measured.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parents[1]), str(BENCH.parent / "integration")]

from chromium import CHROMIUM, open_page, running_chromium  # noqa: E402
from large_report import large_page  # noqa: E402
from report import Section, Table, options, publish  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chromium import Page

_REPEATS = 3
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


ACTS: dict[str, Callable[[Page], Awaitable[float]]] = {
    "point at a chart": lambda page: _hover(page, "#jobs .u-over"),
    "zoom all charts": _zoom,
    "another map": lambda page: _click(page, "#heat-choice button:nth-child(2)", "true"),
    "point at a map": lambda page: _hover(page, "#heat .cells"),
    "filter findings": _filter,
    "to a raw record": lambda page: _click(page, "#finding-table a", "document.querySelector(':target')?.open"),
    "light and dark": lambda page: _click(page, "#theme", "true"),
}


async def _measure(url: str, port: str, theme: str) -> tuple[float, float, float, dict[str, float]]:
    """Drawn after, the longest task until then, the longest task of all answers, and the answers."""
    async with open_page(port) as page:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await page.call("Emulation.setEmulatedMedia", media="", features=features)
        await page.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
        async with page.traced("toplevel,devtools.timeline,disabled-by-default-devtools.timeline") as loading:
            ready_ms = await page.load(url)
        async with page.traced("toplevel,devtools.timeline,disabled-by-default-devtools.timeline") as acting:
            answers = {name: await act(page) for name, act in ACTS.items()}
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


async def _rows(repeats: int, directory: Path) -> list[tuple[str, ...]]:
    rows = []
    for ranks in _RANKS:
        path = directory / f"{ranks}.html"
        path.write_bytes(large_page(ranks))
        for theme in _THEMES:
            runs = []
            for number in range(repeats):
                with running_chromium(directory / f"{ranks}-{theme}-{number}") as port:
                    runs.append(await _measure(path.as_uri(), port, theme))
            rows.append((f"{ranks:,}, {theme}", f"{path.stat().st_size / 1e6:.1f}", *_figures(runs)))
    return rows


def _figures(runs: list[tuple[float, float, float, dict[str, float]]]) -> list[str]:
    ready, loading, acting, answers = zip(*runs, strict=True)
    slowest = [max(run[act] for run in answers) for act in ACTS]
    figures = [median(ready), max(ready), max(loading), *slowest, max(acting)]
    return [*(f"{ms:.0f}" for ms in figures), f"{os.getloadavg()[0]:.1f}"]


def main() -> None:
    """Measure and keep the section."""
    asked, load_before = options(__doc__ or ""), os.getloadavg()[0]
    if CHROMIUM is None:
        print("no chromium on the PATH: nothing is measured", file=sys.stderr)
        return
    repeats = 1 if asked.quick else _REPEATS
    with tempfile.TemporaryDirectory() as kept:
        rows = asyncio.run(_rows(repeats, Path(kept)))
    columns = ("ranks", "page, MB", "drawn", "longest", "its longest task", *ACTS, "their longest task", "load average")
    section = Section(
        "report_in_browser",
        "The report in a browser",
        "The page of one job with an incident, 4,000 findings and 1,500 raw records, two hours in steps of 4 s. Each row is "
        f"of {repeats} runs in a new Chromium without a screen or a GPU; milliseconds, the longest unless a note says otherwise.",
        (Table("", columns, rows),),
        (
            (
                "`drawn` is from navigation to the frame after the last chart, the median. Input is real mouse and keys, and an "
                "answer ends with the frame that shows it; pointing is the slowest of four moves, the filter of seven letters."
            ),
            (
                "A `longest task` is one of the page's main thread in a trace of the same, by its own processor time. The rest "
                f"of an answer is waiting, for a frame or for a machine that is busy. Priority of the run: nice {os.nice(0)}."
            ),
        ),
    )
    publish(section, asked, load_before)


if __name__ == "__main__":
    main()
