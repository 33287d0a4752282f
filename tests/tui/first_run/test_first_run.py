"""Why first runs fail: each way is provoked, and met before step 1 by a sentence that helps.

docs/troubleshooting.md lists the fifteen, with these tests' names.
"""

import asyncio
from dataclasses import replace

import pytest
from textual.widgets import Input

from poros import events
from poros.run_folder import open_run_folder
from poros_tui.screens.config_facts import look_at_model
from poros_tui.screens.doctor import DoctorScreen
from poros_tui.screens.model_facts import facts
from poros_tui.state import AppState
from tests.engine.command_line import poros_here
from tests.engine.data.tiny_tokenizers import BARE
from tests.engine.export.adapters import write_adapter
from tests.engine.loading.hub_stub import REPOSITORY, running_stub
from tests.tui.config_fixtures import known, wizard_app
from tests.tui.first_run.stand_ins import (
    Models,
    here,
    looked,
    on_screen,
    on_stack,
    shown,
    stack,
    talks,
    until,
)
from tests.tui.listed_runs import StandingRuns, listed
from tests.tui.made_runs import Made
from tests.tui.pilot import MACHINE, NOW, app_of, at, piloted
from tests.tui.result_fixtures import FINISHED, write_run
from tests.tui.result_fixtures import shown as outcome_shown
from tests.tui.scenes import model as scenes

SHORT = {"max_seq_length": 64}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    with running_stub() as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        yield stub


@pytest.fixture(scope="module")
def on_data(models, tmp_path_factory):
    """What Data says of rows with one thing wrong each, one after the other."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "columns.csv").write_text("question,reply\nwho,me\nwhat,that\n")
    few = talks(folder / "talks.jsonl")
    long = talks(folder / "long.jsonl", asked="a long question " * 20)
    base = models.with_tokenizer("base", template=None)
    endless = models.with_tokenizer("endless", template=BARE, pad=None, eos=None)
    asked = {
        "columns": ("", folder / "columns.csv"),
        "base": (base, few),
        "long": (models.good, long),
        "endless": (endless, few),
    }
    seen = {}

    @piloted(mode="data", make=lambda: app_of(AppState(values=SHORT), make_task=here))
    async def run(app, pilot):
        for name, (model, data) in asked.items():
            app.state.update(model=str(model))
            app.screen.ask(str(data))
            seen[name] = await looked(app, pilot, "data", is_taken=name != "endless")

    run()
    return seen


def notes_of(app):
    return [f"{note.title}: {note.message}" for note in app._notifications]


@pytest.fixture(scope="module")
def on_config():
    """What Config says of a 7B model under one thing that is wrong each: verdict, and after f5."""
    wrong = {
        "card": (replace(MACHINE, card_total_bytes=6 * 10**9), {"max_seq_length": "200000"}),
        "disk": (replace(MACHINE, disk_free_bytes=10**8), {}),
        "memory": (replace(MACHINE, ram_free_bytes=10**9), {}),
        "linears": (MACHINE, {"lora_target_modules": "query_key_value"}),
    }
    seen = {}

    @piloted(mode="config", size=(120, 40), make=wizard_app)
    async def run(app, pilot):
        screen = await known(app, pilot)
        for name, (machine, entries) in wrong.items():
            app._watch.latest = machine
            for key, text in entries.items():
                screen.wizard.enter(key, text)
            await app.tick()
            screen.show_all()
            told = shown(app, "#verdict"), shown(app, "#problems")
            await pilot.press("f5")
            await until(app, pilot, lambda: app.screen is not screen or notes_of(app))
            await pilot.pause()
            seen[name] = (*told, "\n".join([on_screen(app), *notes_of(app)]))
            await pilot.press(*(["b"] if app.screen is not screen else []), "f7")
            await pilot.pause()
            seen[f"{name} mended"] = shown(app, "#verdict"), screen.checked.config
        screen.wizard.enter("lora_target_modules", "q_proj, v_proj")
        screen.show_all()
        seen["named"] = screen.checked.config.lora_target_modules

    run()
    return seen


def test_1_columns_that_are_no_known_shape(on_data):
    seen = on_data["columns"]
    assert "no rows with the columns question, reply" in seen.said
    assert all(word in seen.way_out for word in ("ename", "prompt", "completion"))
    assert seen.went_to == "data"
    assert all(word in seen.text for word in ("question", "reply", "who"))


def test_2_a_model_without_a_chat_template(on_data):
    seen = on_data["base"]
    assert "no chat template" in seen.said
    assert "instruct" in seen.way_out
    assert seen.went_to == "data"


def test_3_a_card_that_is_too_small(on_config):
    verdict, _, after_f5 = on_config["card"]
    assert "not expected to fit" in verdict
    assert "lower max_seq_length" in after_f5
    assert "ready, and it fits" in on_config["card mended"][0]


def test_4_a_model_that_never_stops(on_data, models, tmp_path):
    seen = on_data["endless"]
    assert "No sample teaches the model to stop" in seen.said
    assert "ake an instruct model" in seen.way_out
    data = talks(tmp_path / "talks.jsonl")
    shared = models.with_tokenizer("pad-is-eos", template=BARE, pad="<|im_end|>")
    told = here(["data", str(data), "--model", str(shared), "--json"]).result.document
    assert told["num_stops"] == 10
    assert told["sample"]["pieces"][-1] == ["a 0\n<|im_end|>", True]


def test_5_a_stack_that_does_not_suit_the_card(tmp_path):
    broken = 'raise RuntimeError("libcudart.so.12: cannot open shared object file")'
    rows = doctor_rows(stack(tmp_path, bitsandbytes=broken))
    assert "without kernels for this card (sm_120)" in rows["torch"].what
    assert "pip install --upgrade torch" in rows["torch"].fix
    assert "libcudart.so.12" in rows["bitsandbytes"].what
    assert rows["bitsandbytes"].fix == "pip install --upgrade bitsandbytes"
    assert rows["nf4"].state == "bad"


def doctor_rows(packages):
    """What Doctor shows with these packages: all rows, by name."""

    async def run():
        app = app_of(make_task=on_stack(packages))
        async with app.run_test(size=(120, 40)) as pilot:
            await at(app, pilot, "doctor")
            screen = app.screen
            assert isinstance(screen, DoctorScreen)
            await until(app, pilot, lambda: not screen.doctor.is_running)
            assert "must be mended first" in shown(app, "#doctor-verdict")
            assert "doctor" not in app.state.done
            return screen.doctor.rows

    return asyncio.run(run())


def test_6_a_model_that_one_may_not_read(hub):
    answers = {
        "gated": ("its owner wants you to accept terms", f"{hub.endpoint}/{REPOSITORY} and accept"),
        "token": ("Hub refuses access", "the token must be allowed to read this model"),
        "401": ("o such model on the Hub, or it is private", "hf auth login"),
    }

    @piloted(mode="model", make=lambda: app_of(make_task=here))
    async def run(app, pilot):
        for failure, (said, way_out) in answers.items():
            hub.failure = failure
            app.screen.ask(REPOSITORY)
            seen = await looked(app, pilot, "model")
            assert said in seen.said
            assert way_out in seen.way_out
            assert seen.went_to == "model"

    run()


def test_7_a_disk_that_is_too_small(on_config, hub, models, monkeypatch):
    verdict, _, after_f5 = on_config["disk"]
    assert "too little room for the checkpoints" in verdict
    assert all(word in after_f5 for word in ("make room", "keep_checkpoints", "5 Where to"))
    hub.files = {file.name: file.read_bytes() for file in models.good.iterdir() if file.is_file()}
    monkeypatch.setattr("poros.hub_model.free_bytes", lambda folder: 10**5)
    facts = look_at_model(REPOSITORY)
    assert facts.is_wrong
    assert "are to be downloaded, 100.00 kB are free" in facts.told
    assert "set HF_HOME to a folder on a larger disk" in facts.told


def test_8_a_card_or_a_model_that_makes_no_numbers(models, tmp_path):
    """Of the model the engine tells: test_engine_refusals.py."""
    old = doctor_rows(stack(tmp_path, capability=(7, 5), build="", sees=False))
    assert "without bfloat16" in old["gpu0"].meaning
    assert "Ampere" in old["gpu0"].fix
    assert "can't use the GPU" in old["torch"].meaning


def test_9_rows_with_nothing_to_learn(on_data):
    seen = on_data["long"]
    assert "0 usable samples of 10 rows" in seen.said
    assert "raise max_seq_length" in seen.way_out
    assert seen.went_to == "data"


def test_10_a_base_that_nothing_can_be_merged_into(models, tmp_path):
    told = {fact.label: fact for fact in facts(scenes.report() | {"prequantised": True}, MACHINE)}
    assert told["export"].state == "warn"
    assert "name the original" in told["export"].text
    run = write_run(tmp_path / "run", [], model=str(models.good))
    write_adapter(run / "adapter", models.good)
    packed = models.packed()
    (run / "adapter" / "adapter_config.json").write_text(
        (run / "adapter" / "adapter_config.json").read_text().replace(str(models.good), str(packed))
    )

    @piloted(mode="result", make=lambda: app_of(AppState(run_folder=run)))
    async def press(app, pilot):
        screen = await outcome_shown(app, pilot, replace(FINISHED, folder=run))
        screen.exporting._start = here
        await pilot.press("e")
        await pilot.press("enter")
        await until(app, pilot, lambda: not screen.exporting.is_running)
        assert "the base's files are 4-bit already" in screen.exporting.told.text
        assert "name its 16-bit original: --base MODEL" in screen.exporting.told.text

    press()
    assert not (tmp_path / "run-merged").exists()


def test_11_a_computer_with_too_little_memory(on_config):
    verdict, _, after_f5 = on_config["memory"]
    assert "more memory than is free" in verdict
    assert all(word in after_f5 for word in ("Close other programs", "host_tier: disk"))


def test_12_a_download_from_which_nothing_comes(tmp_path):
    made = Made(now_s=NOW - 100)
    made.tell(events.PhaseStarted(phase="download"))
    progressed = events.PhaseProgressed(
        phase="download", done=10**9, total=15 * 10**9, unit="bytes"
    )
    made.tell(progressed, after_s=5.0)
    run = write_run(tmp_path / "run", made.lines, model="m")

    @piloted(mode="train", make=lambda: app_of(AppState(run_folder=run)))
    async def watch(app, pilot):
        with open_run_folder(run, identity={"model": "m"}):
            await until(app, pilot, lambda: "No byte came for 1 min" in on_screen(app))
        assert "Abort (x), start again: it goes on." in on_screen(app)

    watch()


def test_13_linears_that_the_model_has_not(on_config):
    verdict, problems, after_f5 = on_config["linears"]
    assert "1 thing to mend" in verdict
    assert "no linear of this model is named query_key_value" in problems
    assert "It can't start yet" in after_f5
    assert on_config["linears mended"][1].lora_target_modules is None
    assert on_config["named"] == ("q_proj", "v_proj")


def test_14_a_number_that_yaml_takes_for_text(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("model_name_or_path: m\ndataset: d.jsonl\nlearning_rate: 1e-5\n")

    @piloted(mode="config", make=app_of)
    async def run(app, pilot):
        await pilot.press("ctrl+o")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen.checked.config.learning_rate == 1e-5

    run()
    path.write_text(path.read_text().replace("1e-5", '"1e-5"'))
    ended = poros_here("train", str(path), "--dry-run")
    assert ended.returncode == 2
    assert "train.yaml:3" in ended.stderr
    assert "learning_rate" in ended.stderr


def test_15_a_run_that_was_lost(tmp_path):
    folder = write_run(tmp_path / "voice", [])
    cut = listed("voice", "killed", 287, 1200, checkpoint_step=200)
    cut = replace(cut, run=replace(cut.run, known=replace(cut.run.known, path=folder)))
    started = []

    @piloted(make=lambda: app_of(runs=StandingRuns(cut)))
    async def run(app, pilot):
        assert "Go on with the run that was cut off" in on_screen(app)
        assert "voice, step 200 of 1,200" in on_screen(app)

        async def start(config, settings=(), flags=()):
            started.append((config, settings))

        app.runs.start = start
        await pilot.press("enter")
        await app.workers.wait_for_complete()

    run()
    assert started == [(folder / "config.yaml", (f"output_dir={folder}",))]
