"""Pictures of all screens, made from recorded things: docs/screens/<screen>-<state>-<size>.svg.

python tests/tui/pictures.py --write [NAME...]   makes them again, all or those whose name begins so
python tests/tui/pictures.py --png FOLDER [NAME...]   as PNG, to look at (needs chromium)
"""

import asyncio
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path[:0] = [p for p in (str(ROOT), str(ROOT / "engine")) if p not in sys.path]

from textual._compositor import Compositor  # noqa: E402
from textual._context import visible_screen_stack  # noqa: E402
from textual.pilot import Pilot  # noqa: E402

from poros_tui.app import PorosApp  # noqa: E402
from poros_tui.screens.base import MODES  # noqa: E402
from tests.tui.pilot import at, begun_at  # noqa: E402
from tests.tui.scene import Scene  # noqa: E402

FOLDER = ROOT / "docs" / "screens"
MADE_WITH = "textual 8.2.8"
"""Others draw a little differently: the pictures are made, and compared, with this one."""
CHROMIUM = "chromium"
_AT_A_TIME = 3


def scenes() -> list[Scene]:
    """Of all screens, in their order."""
    return [
        scene
        for mode in MODES
        for scene in importlib.import_module(f"tests.tui.scenes.{mode}").SCENES
    ]


def pictures(chosen: list[Scene]) -> dict[str, str]:
    """SVG by file name; each scene is one app that is resized."""
    zone = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with mock.patch.object(Compositor, "render_update", _if_it_is_looked_at):
            return asyncio.run(_of_scenes(chosen))
    finally:
        os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
        time.tzset()


async def _of_scenes(chosen: list[Scene]) -> dict[str, str]:
    """A few at a time: each waits for its timers more than it computes."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def drawn(scene: Scene) -> dict[str, str]:
        async with turn:
            return await _of_scene(scene)

    made = await asyncio.gather(*map(drawn, chosen))
    return {name: svg for each in made for name, svg in each.items()}


_render_update = Compositor.render_update


def _if_it_is_looked_at(
    self: Compositor,
    full: bool = False,
    screen_stack: list[Any] | None = None,
    simplify: bool = False,
) -> Any:
    """What would be written to a terminal is a third of the time; a picture asks for all of it.

    A dialog's background is drawn then, so there it stays.
    """
    if full or screen_stack:
        return _render_update(self, full, screen_stack, simplify)
    visible_screen_stack.set([])
    self._dirty_regions.clear()
    return None


async def _of_scene(scene: Scene) -> dict[str, str]:
    made = {}
    app = _made(scene)
    async with app.run_test(size=scene.sizes[0], notifications=True) as pilot:
        app.theme = scene.theme
        await at(app, pilot, scene.screen)
        await scene.act(app, pilot)
        for width, height in scene.sizes:
            await pilot.resize_terminal(width, height)
            await _settled(app, pilot)
            made[f"{scene.name}-{width}x{height}.svg"] = tidied(app.export_screenshot())
    return made


def _made(scene: Scene) -> PorosApp:
    if not scene.no_color:
        return begun_at(scene.screen, scene.make)
    with mock.patch.dict(os.environ, NO_COLOR="1"):
        return begun_at(scene.screen, scene.make)


async def _settled(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Until the screen no longer changes by itself."""
    before: list[Any] = []
    num_same = 0
    for _ in range(60):
        await app.tick()
        await pilot.pause(0.02)
        now = [list(strip) for strip in app.screen._compositor.render_strips()]
        num_same = num_same + 1 if now == before else 0
        if num_same == 3:
            return
        before = now


def tidied(svg: str) -> str:
    """Without fonts from elsewhere, and with ids that don't depend on what is drawn."""
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"terminal-\d+", "t", svg)
    svg = re.sub(r"\s*<!-- .*? -->", "", svg)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def to_png(svg: str, path: Path) -> None:
    """Draw an SVG with chromium."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    window = f"--window-size={int(width) + 1},{int(height) + 1}"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"<body style='margin:0'>{svg}</body>", "utf-8")
        subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             window, f"--screenshot={path}", str(page)],
            check=True, capture_output=True,
        )  # fmt: skip


def main(arguments: list[str]) -> None:
    """See the top of the file."""
    command, *rest = arguments or ["--help"]
    if command not in ("--write", "--png"):
        sys.exit(__doc__)
    folder = FOLDER if command == "--write" else Path(rest.pop(0))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [s for s in scenes() if not rest or any(s.name.startswith(n) for n in rest)]
    for name, svg in pictures(chosen).items():
        if command == "--write":
            (folder / name).write_text(svg, "utf-8")
        else:
            to_png(svg, folder / name.replace(".svg", ".png"))
        print(folder / name)


if __name__ == "__main__":
    main(sys.argv[1:])
