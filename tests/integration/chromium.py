"""Debian's Chromium without a screen, asked over its DevTools protocol: enough to load a page and to time what happens in it."""

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
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(60):
            while True:
                told = await self._socket.receive_json()
                if told.get("method") == "Runtime.exceptionThrown":
                    self.errors.append(str(told["params"]["exceptionDetails"]))
                if told.get("id") == self._number:
                    assert "error" not in told, told
                    result: dict[str, Any] = told["result"]
                    return result

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def screenshot(self, height: int) -> bytes:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=1280, height=height, deviceScaleFactor=1, mobile=False
        )
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
async def open_page(url: str, port: str, timeout_s: float = 60.0) -> AsyncIterator[tuple[Page, float]]:
    """Load a page that marks when it is drawn, and say after how many milliseconds of its own clock that was."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json") as told:
            target = next(t for t in await told.json() if t["type"] == "page")
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            await page.call("Runtime.enable")
            await page.call("Page.enable")
            await page.call("Page.navigate", url=url)
            async with asyncio.timeout(timeout_s):
                ready = None
                while ready is None:
                    await asyncio.sleep(0.1)
                    ready = await page.run("document.documentElement?.dataset.ready ?? null")
            yield page, float(ready)
