"""What a browser fetches for the first look at the page: bytes, compressed, and from whom."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Response, sync_playwright

_STREAMS = ("text/event-stream",)


def measure(url: str) -> dict[str, Any]:
    """Opens the page in Chromium and adds up the bodies, as sent when the app compresses them, else gzipped here."""
    responses: list[Response] = []
    asked: list[str] = []
    with sync_playwright() as playwright:
        path = os.environ.get("SPECRACE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("response", lambda response: responses.append(response))  # noqa: PLW0108 - Playwright marks handlers
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url, wait_until="load")
        page.wait_for_timeout(1500)
        files: dict[str, int] = {}
        encoded = 0
        for response in responses:
            if response.headers.get("content-type", "").startswith(_STREAMS):
                continue
            sent_small = "content-encoding" in response.headers
            encoded += sent_small
            sizes = response.request.sizes()
            files[urlsplit(response.url).path] = (
                sizes["responseBodySize"] if sent_small else len(gzip.compress(response.body(), 6))
            )
        browser.close()
    here = urlsplit(url).netloc
    hosts = {urlsplit(one).netloc for one in asked if not one.startswith(("data:", "blob:"))}
    return {
        "compressed_bytes": sum(files.values()),
        "how": "as sent" if encoded else "gzip -6 of each",
        "requests": len(asked),
        "other_hosts": sorted(hosts - {here}),
        "files": files,
    }
