"""The page as one text: styles, charts, data and scripts in one file that loads nothing from anywhere.

Every text of the archive travels as JSON and is set as text, never as markup. The policy in the page's head lets nothing be
loaded or sent, even if something were amiss.
"""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import Any

import orjson

from paceline.page_place import PAGE_START

__all__ = ["SCRIPTS", "render_page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_UPLOT = "uPlot-1.6.32"

SCRIPTS = (
    f"{_UPLOT}.iife.min.js",
    "elements.js",
    "lines.js",
    "heat.js",
    "statements.js",
    "summary.js",
    "report.js",
)
"""In the order in which they need each other."""


def render_page(data: dict[str, Any], title: str) -> bytes:
    """The page of an incident.

    Args:
        data: what `page_data` made.
        title: its title, plain text.
    """
    # In JSON a `<` stands in texts alone, and its escape there is the same text: nothing can end the data or begin a tag.
    packed = orjson.dumps(data).replace(b"<", b"\\u003c")
    parts = [
        f'{PAGE_START.decode()}<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_asset(f'{_UPLOT}.min.css')}\n{_asset('report.css')}</style></head>\n<body>",
        _asset("report.html"),
        f"<!-- uPlot, whose licence is:\n{_asset('uPlot.LICENSE')}-->",
    ]
    scripts = [_asset(name) for name in SCRIPTS]
    tail = "".join(f"\n<script>{script}</script>" for script in scripts) + "\n</body></html>\n"
    return (
        "\n".join(parts).encode()
        + b'\n<script type="application/json" id="data">'
        + packed
        + b"</script>"
        + tail.encode()
    )


def _asset(name: str) -> str:
    return resources.files("paceline").joinpath("report", "assets", name).read_text(encoding="utf-8")
