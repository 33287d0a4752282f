"""The Doctor screen: rows as they come, each explained, looked at again, copied, saved."""

import json
from pathlib import Path

import pytest

from poros_tui.app import PorosApp
from poros_tui.engine.tasks import Task
from poros_tui.screens.doctor import DoctorScreen
from poros_tui.screens.doctor_rows import Doctor
from poros_tui.widgets.entry_list import EntryList
from tests.tui.pilot import app_of, at, piloted
from tests.tui.recorded import RecordedTask, answers
from tests.tui.scenes import doctor as scenes


def text(app: PorosApp, of: str) -> str:
    return str(app.screen.query_one(of).render())


def heard(records) -> Doctor:
    found = Doctor()
    found.begin()
    found.hear(records)
    return found


@piloted(mode="doctor", make=scenes.doctor_app(scenes.RUNNING, goes_on=True))
async def test_rows_are_there_before_the_last_one_is(app, pilot):
    assert "20 of 24, now a 4-bit product" in text(app, "#doctor-verdict")
    screen = app.screen
    assert isinstance(screen, DoctorScreen)
    assert screen.doctor.rows["nf4"].state == "trying"
    assert screen.doctor.rows["link"].state == "waiting"
    assert "doctor" not in app.state.done


@piloted(mode="doctor", make=scenes.doctor_app(scenes.GOOD))
async def test_enter_goes_on_to_the_model(app, pilot):
    assert "This machine can train" in text(app, "#doctor-verdict")
    assert "doctor" in app.state.done
    await pilot.press("enter")
    assert app.current_mode == "model"


@piloted(mode="doctor", make=scenes.doctor_app(scenes.BROKEN, exit_code=1))
async def test_what_must_be_mended_is_under_the_cursor_with_its_fix(app, pilot):
    assert "Not yet: 2 things" in text(app, "#doctor-verdict")
    assert app.screen.query_one(EntryList).entry.key == "torch"
    assert "must be mended" in text(app, "#doctor-detail")
    await pilot.press("c")
    assert app.clipboard.startswith("pip install --upgrade torch")
    await pilot.press("up", "up")
    assert "fine" in text(app, "#doctor-detail")
    assert "doctor" not in app.state.done


def test_one_row_is_looked_at_again_and_the_others_stay():
    asked: list[tuple[str, ...]] = []
    mended = {"kind": "row", "id": "torch", "state": "ok", "what": "well", "meaning": "", "fix": ""}
    given = iter([scenes.BROKEN, [mended, scenes.VERDICT]])
    doctor = {"doctor": lambda words: RecordedTask(words, next(given))}

    @piloted(mode="doctor", make=lambda: app_of(make_task=answers(doctor, asked)))
    async def run(app, pilot):
        rows = app.screen.doctor.rows
        before = dict(rows)
        await pilot.press("r")
        assert asked[1] == ("doctor", "--json-lines", "--row", "torch")
        await at(app, pilot, "doctor")
        assert app.screen.doctor.rows["torch"].what == "well"
        assert list(app.screen.doctor.rows) == list(before)
        assert "1 thing must be mended" in text(app, "#doctor-verdict")

    run()


def test_rows_are_saved_as_the_command_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @piloted(mode="doctor", make=scenes.doctor_app(scenes.GOOD))
    async def run(app, pilot):
        await pilot.press("e")
        await pilot.pause()
        await pilot.press("e")
        await pilot.pause()

    run()
    saved = json.loads(Path("poros-doctor.json").read_text())
    assert Path("poros-doctor-2.json").exists()
    assert saved["fit"] is True
    assert {"id", "state", "what", "meaning", "fix"} == set(saved["rows"][0])


@piloted(mode="doctor", make=scenes.doctor_app([], exit_code=1, stderr=["poros: error[E-x]: no"]))
async def test_a_check_that_fails_itself_is_told(app, pilot):
    assert "The check itself failed: no" in text(app, "#doctor-verdict")
    assert "doctor" not in app.state.done


def test_without_torch_the_machine_is_not_called_ready():
    assert scenes.doctor_without_card().make_task(["doctor"]).result is not None
    found = heard(scenes.doctor_without_card().make_task(["doctor"]).drain())
    found.end(0.0)
    assert found.verdict == "What trains is not installed yet: see Packages"


@pytest.mark.parametrize("name", ["env_LD_LIBRARY_PATH", "gpu1_link", "package_torch", "new_row"])
def test_every_row_has_a_title_and_one_group(name):
    found = heard([{"kind": "row", "id": name, "state": "ok", "what": ""}, *scenes.GOOD])
    rows = [row for _, group in found.groups() for row in group]
    assert len(rows) == len(found.rows)
    assert all(row.title for row in rows)


def test_pinned_memory_is_no_limit_of_pinning():
    groups = {row.id: title for title, group in heard(scenes.GOOD).groups() for row in group}
    assert groups["pinned_limit"] == "This computer"
    assert groups["pinned"] == groups["link"] == "Tried out"
    assert groups["gpu0_link"] == "Graphics card"


@pytest.mark.long
@piloted(mode="doctor", make=lambda: app_of(make_task=lambda w, **k: Task([*w, "--no-kernels"])))
async def test_the_real_command_fills_the_screen(app, pilot):
    for _ in range(400):
        await pilot.pause(0.05)
        await app.tick()
        if not app.screen.doctor.is_running:
            break
    assert app.screen.doctor.failure == ""
    assert app.screen.doctor.rows["host_memory"].state in ("ok", "warn")
