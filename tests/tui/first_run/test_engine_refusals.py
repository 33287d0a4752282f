"""The same failures where nobody looked at a screen first: the real engine ends before step 1."""

import json
import time

import pytest

from poros_tui.engine.process import start_run
from poros_tui.engine.run_alerts import Surroundings, alerts_of
from poros_tui.engine.run_state import RunState
from poros_tui.glyphs import chosen
from poros_tui.screens.train_ending import told_ending
from tests.engine.data.tiny_tokenizers import BARE
from tests.engine.loading.hub_stub import REPOSITORY, running_stub
from tests.engine.training.tiny_run import tiny_settings
from tests.tui.first_run.stand_ins import ROOT, Models, talks

pytestmark = pytest.mark.long

LIMIT_S = 200


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hub(models):
    with running_stub() as stub:
        stub.files = {f.name: f.read_bytes() for f in models.good.iterdir() if f.is_file()}
        yield stub


@pytest.fixture
def start(models, tmp_path, monkeypatch):
    """Starts the engine on a tiny run with other settings."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'engine'}:{ROOT}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    engines = []

    def begin(**changes):
        settings = tiny_settings(models.good, tmp_path) | changes
        path = tmp_path / "train.yaml"
        path.write_text(json.dumps({key: str(v) if key == "model_name_or_path" else v
                                    for key, v in settings.items()}))  # fmt: skip
        engines.append(start_run(path))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.kill()


def state_of(engine):
    run = RunState()
    if engine.events_path.exists():
        run.take_lines(engine.events_path.read_text().splitlines(keepends=True))
    return run


def refused(engine):
    """How it ended, as Train shows it; no step was made."""
    until_s = time.monotonic() + LIMIT_S
    while engine.poll() != "ended":
        assert time.monotonic() < until_s
        time.sleep(0.05)
    ending, run = engine.ending(), state_of(engine)
    assert ending.status == "failed", ending
    assert run.step == 0
    return " ".join(str(told_ending(run, ending, 100, chosen()).text).split())


def test_columns_template_and_labels(models, start, tmp_path):
    (tmp_path / "columns.csv").write_text("question,reply\nwho,me\nwhat,that\n")
    told = refused(start(dataset=str(tmp_path / "columns.csv")))
    assert "Poros knows no rows with the columns" in told
    assert "To mend: Rename question to prompt" in told
    data = str(talks(tmp_path / "talks.jsonl"))
    base = models.with_tokenizer("base", template=None)
    told = refused(start(model_name_or_path=base, dataset=data))
    assert "To mend: Take a model with a chat template" in told
    data = str(talks(tmp_path / "long.jsonl", asked="a long question " * 20))
    assert "To mend: Raise max_seq_length" in refused(start(dataset=data))


def test_weights_and_linears(models, start):
    for tensor in ("model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"):
        told = refused(start(model_name_or_path=models.with_nan(tensor)))
        assert f"{tensor} holds values that are no numbers (NaN or infinity)" in told
        assert "To mend: Download the model again" in told
    for targets, mend in (("q_proj", "Write a list"), (["query_key_value"], "Leave it out")):
        assert f"To mend: {mend}" in refused(start(lora_target_modules=targets))


def test_a_run_that_would_never_stop_says_so(models, start, tmp_path):
    model = models.with_tokenizer("endless", template=BARE, pad=None, eos=None)
    engine = start(model_name_or_path=model, dataset=str(talks(tmp_path / "talks.jsonl")))
    until_s = time.monotonic() + LIMIT_S
    while engine.poll() != "ended":
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert any("no sample teaches the model to stop" in line.text for line in state_of(engine).log)


def test_gate_and_disk(start, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.failure = "gated"
    told = refused(start(model_name_or_path=REPOSITORY))
    assert f"Open {hub.endpoint}/{REPOSITORY} and accept them" in told
    hub.failure, hub.sizes = "", {"model.safetensors": 10**17}
    told = refused(start(model_name_or_path=REPOSITORY))
    assert "are to be downloaded" in told
    assert "set HF_HOME to a folder on a larger disk" in told
    assert not [path for path in hub.asked if "/resolve/" in path]


def test_a_download_from_which_nothing_comes(start, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.stalls = 1000
    engine = start(model_name_or_path=REPOSITORY)
    until_s = time.monotonic() + LIMIT_S
    while (phase := state_of(engine).phase) is None or phase.name != "download":
        assert time.monotonic() < until_s
        time.sleep(0.05)
    alerts = alerts_of(state_of(engine), Surroundings(time.time() + 60, is_alive=True))
    assert [alert.code for alert in alerts] == ["stuck"]
    assert engine.kill()
    hub.stalls = -1
    hub.let_go.set()
    again = start(model_name_or_path=REPOSITORY)
    while again.poll() != "ended":
        assert time.monotonic() < until_s + LIMIT_S
        time.sleep(0.05)
    assert again.ending().status == "finished"
