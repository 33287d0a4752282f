"""Rows about the Hub: a token, an answer, a refusal, silence."""

import json
import time

import pytest

from poros import doctor_hub
from poros.doctor_hub import HubQuestion
from tests.engine.command_line import poros_here
from tests.engine.loading.hub_stub import running_stub

TOKEN = "hf_secretsecretsecretsecret"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def rows():
    return {row.id: row for row in HubQuestion().rows()}


def test_an_answer_is_ok_with_or_without_a_token(monkeypatch):
    with running_stub() as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        assert (rows()["hub_token"].what, rows()["hub"].state) == ("no token", "ok")
        stub.failure = "401"
        assert rows()["hub"].state == "ok"  # to a stranger the Hub says so too
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        found = rows()
        assert found["hub"].state == "warn"
        assert "refuses the token" in found["hub"].what
        assert "hf auth login" in found["hub"].fix
        stub.failure = "503"
        assert "fails (HTTP 503)" in rows()["hub"].what
        assert TOKEN not in str(rows())
        stub.failure = "html"
        assert "a network's own page" in rows()["hub"].what


def test_nobody_there_is_a_warning_and_a_dead_resolver_holds_nobody(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = rows()["hub"]
    assert (found.state, "can't be reached" in found.what) == ("warn", True)
    monkeypatch.setattr(doctor_hub, "PATIENCE_S", 0.05)
    monkeypatch.setattr(HubQuestion, "_ask", lambda self: time.sleep(1))
    assert "did not answer within 0.05 s" in rows()["hub"].what


def test_offline_nobody_is_asked_and_a_broken_token_is_bad(monkeypatch):
    asked = []
    monkeypatch.setattr(HubQuestion, "_ask", lambda self: asked.append(1))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert list(rows()) == ["hub_token"]
    monkeypatch.setenv("HF_TOKEN", "two words")
    assert rows()["hub_token"].state == "bad"
    record = json.loads(poros_here("doctor", "--no-network", "--row", "python", "--json").stdout)
    assert [row["id"] for row in record["rows"]] == ["python"]
    assert asked == []
