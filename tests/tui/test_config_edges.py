"""The wizard's lines at the edge: the start that is under way, notices, long paths, keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from textual.widgets import Input, Static
from textual.widgets._toast import Toast

from poros_tui.app import PorosApp
from poros_tui.screens.config import ConfigScreen
from tests.tui.config_fixtures import known, wizard_app
from tests.tui.pilot import footer, piloted
from tests.tui.result_fixtures import until


def config(make: Any = wizard_app, size: tuple[int, int] = (100, 30)) -> Any:
    return piloted(mode="config", size=size, make=make)


def test_a_start_that_takes_its_time_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its file is written there

    @config()
    async def test(app: PorosApp, pilot: Any) -> None:
        screen = await known(app, pilot)
        may_end = asyncio.Event()

        async def start(path: Path) -> bool:
            await may_end.wait()
            return False

        app.runs.start = start  # type: ignore[method-assign, assignment]
        await pilot.press("f5")
        assert str(screen.query_one("#verdict", Static).content) == "● the run is being started"
        may_end.set()
        await screen.workers.wait_for_complete()
        assert "ready" in str(screen.query_one("#verdict", Static).content)

    test()


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
def test_a_notice_covers_nothing_of_the_start(size: tuple[int, int]) -> None:
    @config(size=size)
    async def test(app: PorosApp, pilot: Any) -> None:
        screen = await known(app, pilot)
        screen.query_one("#start").focus()
        app.notify("Lengths and batches are back to what fits")
        await until(app, pilot, lambda: any(one.region.area for one in screen.query(Toast)))
        notice = screen.query_one(Toast).region
        about = [] if screen.has_class("-wide") else ["#about", "#cost"]
        for name in ("#start-bar", *about):
            assert not notice.overlaps(screen.query_one(name).region), name

    test()


@config(lambda: wizard_app(model="/home/ada/cache/poros/models/smollm2-135m"), size=(80, 24))
async def test_of_a_long_path_its_name_is_shown(app: PorosApp, pilot: Any) -> None:
    screen = cast(ConfigScreen, app.screen)
    entry = screen.rows["model_name_or_path"].query_one(Input)
    assert entry.render_line(0).text.strip() == "/home/ada/…odels/smollm2-135m"
    screen.rows["model_name_or_path"].take_keyboard()
    await pilot.pause()
    assert "…" not in entry.render_line(0).text


@config()
async def test_only_what_can_be_mended_has_its_key(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    await app.tick()
    await pilot.pause()
    assert "mend" not in footer(app)
    screen.wizard.enter("learning_rate", "fast")
    screen.show_all()
    await app.tick()
    await pilot.pause()
    assert "mend" in footer(app)
