"""A headless Chromium for tests of web pages, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

#: The browser's program, None where there is none.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
#: Seconds that a page may take to draw itself, and the browser to answer.
PATIENCE = 60.0


class Page:
    """One page in the browser; ``errors`` and ``requests`` collect what it must not have."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop = loop
        self._socket = socket
        self._last = 0
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def end(self) -> None:
        """Close the connection, which newer Pythons allow within the loop only."""
        self._socket.close()
        await asyncio.sleep(0)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run one command of the protocol and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, params), PATIENCE))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        await self._socket.write_message(
            json.dumps({"id": self._last, "method": method, "params": params})
        )
        while True:
            text = await self._socket.read_message()
            assert text is not None, f"the browser closed before it answered {method}"
            message = json.loads(text)
            if message.get("id") == self._last:
                assert "error" not in message, message["error"]
                return cast(dict[str, Any], message["result"])
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep an event of the page that is a request, an error or a warning."""
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        evaluated = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in evaluated, evaluated["exceptionDetails"]
        return evaluated["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.run(
            "new Promise((done, fail) => { const end = Date.now() + 1000 * "
            f"{PATIENCE / 2}; const look = () => ({condition}) ? done(true) : Date.now() > end ? "
            "fail(new Error('waited in vain')) : setTimeout(look, 20); look(); })"
        )

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file and wait until its charts are drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && (!window.Bokeh || "
                  "document.documentElement.dataset.drawn === 'yes')")  # fmt: skip
        self.run("new Promise(done => setTimeout(() => requestAnimationFrame(done), 300))")

    def wheel(self, x: float, y: float, delta: float, ctrl: bool = True) -> None:
        """Turn the wheel at a place of the window."""
        self.call(
            "Input.dispatchMouseEvent",
            type="mouseWheel",
            x=x,
            y=y,
            deltaX=0,
            deltaY=delta,
            modifiers=2 * ctrl,
        )

    def hover(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window, and let the page draw what it tells there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a picture."""
        size = self.run("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


class _Process:
    """The browser as long as it is needed."""

    def __enter__(self) -> str:
        """Start it and return the address of its first page."""
        assert CHROMIUM is not None
        self._folder = tempfile.mkdtemp()
        words = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            f"--user-data-dir={self._folder}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            address = re.search(r"DevTools listening on ws://([\d.:]+)/", line)
            if address:
                return address[1]
        raise AssertionError(f"{CHROMIUM} ended with {self._process.wait()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it and remove its files."""
        self._process.terminate()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a fresh browser, which ends with the block."""
    loop = asyncio.new_event_loop()
    try:
        with _Process() as address:
            page = loop.run_until_complete(_connected(loop, address))
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            yield page
            loop.run_until_complete(page.end())
    finally:
        loop.close()


async def _connected(loop: asyncio.AbstractEventLoop, address: str) -> Page:
    for _ in range(100):  # a fresh browser may not have its page yet
        response = await AsyncHTTPClient().fetch(f"http://{address}/json/list")
        pages = [target for target in json.loads(response.body) if target["type"] == "page"]
        if pages:
            break
        await asyncio.sleep(0.1)
    url = pages[0]["webSocketDebuggerUrl"]
    return Page(loop, await websocket_connect(url, max_message_size=256 << 20))
