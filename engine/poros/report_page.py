"""A run's report as one HTML file: charts are inline SVG, and nothing is fetched.

What models and data wrote is escaped by the template, and the page's own policy lets no script run
but the one that ships with Poros, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from poros._version import __version__
from poros.report_view import View

MARK = "<!DOCTYPE html>\n<!-- poros report -->"
"""How a report begins: only such a file is written over without being asked."""

NUM_OPEN = 4
"""So many prompts are shown at once; the others unfold."""


def page(view: View) -> str:
    """The whole file."""
    from jinja2 import Environment, StrictUndefined

    script = _shipped("report_page.js")
    digest = hashlib.sha256(script.encode()).digest()
    surroundings = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return surroundings.from_string(_shipped("report_page.html")).render(
        view=view,
        script=script,
        script_hash=f"sha256-{base64.b64encode(digest).decode()}",
        num_open=NUM_OPEN,
        version=__version__,
    )


def _shipped(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
