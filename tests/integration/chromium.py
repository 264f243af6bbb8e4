"""Debian's Chromium without a screen, over its DevTools protocol: loads a page, asks what it shows, and records a trace."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

__all__ = ["CHROMIUM", "Page", "open_page", "running_chromium"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A page that is open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._trace: list[dict[str, Any]] = []
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(60):
            while True:
                told = await self._socket.receive_json()
                self._take(told)
                if told.get("id") == self._number:
                    assert "error" not in told, told
                    result: dict[str, Any] = told["result"]
                    return result

    async def load(self, url: str, timeout_s: float = 90.0) -> float:
        """Load a page that marks when it is drawn, and say after how many milliseconds of its own clock that was."""
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(timeout_s):
            while (ready := await self.run("document.documentElement?.dataset.ready ?? null")) is None:
                assert not self.errors, self.errors
                await asyncio.sleep(0.1)
        return float(ready)

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def _take(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(told["params"]["exceptionDetails"]))
        elif told.get("method") == "Tracing.dataCollected":
            self._trace += told["params"]["value"]

    @asynccontextmanager
    async def traced(self, categories: str) -> AsyncIterator[list[dict[str, Any]]]:
        """Record a trace; its events are there when the block has ended."""
        self._trace, events = [], []
        await self.call("Tracing.start", traceConfig={"includedCategories": categories.split(",")})
        yield events
        await self.call("Tracing.end")
        async with asyncio.timeout(60):
            while True:
                told = await self._socket.receive_json()
                self._take(told)
                if told.get("method") == "Tracing.tracingComplete":
                    break
        events += self._trace

    async def screenshot(self, width: int, height: int) -> bytes:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await asyncio.sleep(0.5)
        shot = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])


@contextmanager
def running_chromium(profile: Path, timeout_s: float = 60.0) -> Iterator[str]:
    """A browser of its own, and the port that it answers at."""
    assert CHROMIUM is not None
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        "--window-size=1280,1400",
    )
    command = [CHROMIUM, *options, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file, deadline = profile / "DevToolsActivePort", time.monotonic() + timeout_s
        while not (port_file.exists() and port_file.read_text().strip()):
            assert time.monotonic() < deadline, "chromium does not answer"
            time.sleep(0.1)
        yield port_file.read_text().split()[0]
    finally:
        process.kill()
        process.wait(30)


@asynccontextmanager
async def open_page(port: str) -> AsyncIterator[Page]:
    """An empty page of a browser that answers at a port."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json") as told:
            target = next(t for t in await told.json() if t["type"] == "page")
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            await page.call("Runtime.enable")
            await page.call("Page.enable")
            yield page
