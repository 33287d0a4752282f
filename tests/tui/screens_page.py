"""screens.md: every screen with its purpose, its pictures and its keys, made from the app itself.

python tests/tui/screens_page.py --write   writes it
"""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [p for p in (str(ROOT), str(ROOT / "engine")) if p not in sys.path]

from poros_tui import keys  # noqa: E402
from poros_tui.app import PorosApp  # noqa: E402
from poros_tui.screens.base import MODES  # noqa: E402
from tests.tui import pictures  # noqa: E402

PAGE = ROOT / "screens.md"
_TAIL = "## Without screens\n"
_FRAME = """\
# Screens

`poros-tui` opens the app where there is a terminal. Each screen is a mode of its own: a number key
goes there, what it shows stays as it was. The first line tells the run that is shown, the memory
of the card that it trains on, the disk and the time; the last one the keys. Below 100 columns and
30 rows the screens fold; below 60 columns or 20 rows a notice says so. Every verdict is a word, a
sign and a colour; where the locale is not UTF-8, or with `POROS_ASCII=1`, the signs are ASCII;
with `NO_COLOR` all is grey, and what is wrong stands out most.

What is written to stdout or stderr while screens are open goes to `app.log` in the user's state
folder. Without a terminal, with `TERM=dumb` or where `CI` is set, `poros-tui train.yaml` trains
without screens, and says so. A run goes on when the app ends, however it ends; `poros-tui attach`
finds it again.

`app.yaml` in the user's config folder may choose another theme (`theme: light`; dark, light, ansi,
ansi-light or colour-blind) and other keys: below `keys:` lines such as `app.theme: f4`, by the
names that stand below and that `poros-tui keys` prints.

The pictures show made-up machines and runs: their figures are examples, no measurements.
"""


def page() -> str:
    """The whole text."""
    parts = [_FRAME, "\n## Everywhere\n\n", _keys(list(keys.app_actions(PorosApp.BINDINGS)))]
    parts += ["\nIn lists, tables, questions and dialogs:\n\n", _keys(list(keys.shared_actions()))]
    scenes = pictures.scenes()
    for number, (name, title) in enumerate(MODES.items(), 1):
        module = importlib.import_module(f"poros_tui.screens.{name}")
        parts += [f"\n## {number} {title}\n\n", f"{(module.__doc__ or '').strip()}\n\n"]
        parts += [
            f"![{title}, {scene.state}](docs/screens/{scene.name}-{width}x{height}.svg)\n"
            for scene in scenes
            if scene.screen == name
            for width, height in scene.sizes[-1:]
        ]
        if actions := list(keys.screen_actions(name)):
            parts += ["\n", _keys(actions)]
    return "".join(parts) + "\n" + _tail()


def _tail() -> str:
    """What is said of runs without screens; kept as it stands."""
    _, mark, rest = PAGE.read_text("utf-8").partition(_TAIL)
    return mark + rest


def _keys(actions: list[keys.Action]) -> str:
    rows = [
        f"| {' or '.join(f'`{keys.written(key)}`' for key in action.keys.split(','))}"
        f" | {action.does} | `{action.id}` |\n"
        for action in actions
    ]
    return "| key | what it does | name |\n|---|---|---|\n" + "".join(rows)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page(), "utf-8")
