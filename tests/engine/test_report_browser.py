"""A report in a real browser: its script runs, no text acts, and nothing is asked of a network."""

import json
import shutil
import subprocess

import pytest

from poros import events
from tests.engine.test_report import _own_registry, add, make, poros, sample  # noqa: F401

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ACTS = "<img src=x onerror=\"document.title='acted'\"><script>document.title='acted'</script>"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)"),
]


def test_a_report_in_chromium(tmp_path):
    make(tmp_path / "a")
    add(tmp_path / "a", sample(prompt=ACTS, text=ACTS), events.Warned(code=ACTS, message=ACTS))
    assert poros("report", tmp_path / "a") == 0
    address = f"file://{tmp_path}/a/report.html"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               f"--user-data-dir={tmp_path}/browser", f"--log-net-log={tmp_path}/net.json",
               "--dump-dom")  # fmt: skip
    done = subprocess.run(
        [CHROMIUM, *options, address], capture_output=True, text=True, check=True, timeout=120
    )
    assert 'data-script="ran"' in done.stdout
    assert done.stdout.count('class="line a"') >= 1
    assert "<title>m on d: a Poros run</title>" in done.stdout
    assert "CONSOLE" not in done.stderr
    requests = [
        event["params"]
        for event in json.loads((tmp_path / "net.json").read_text())["events"]
        if "params" in event and "initiator" in event["params"]
    ]
    # The browser's own have no page for an initiator.
    assert [r.get("url") for r in requests if r["initiator"] != "not an origin"] == []
