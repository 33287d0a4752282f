"""Random scripts of keys, clicks, pastes and sizes; the same number gives the same script."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

KEYS = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "shift+tab": "\x1b[Z", "space": " ",
    "backspace": "\x7f", "delete": "\x1b[3~", "home": "\x1b[H", "end": "\x1b[F",
    "pageup": "\x1b[5~", "pagedown": "\x1b[6~", "up": "\x1b[A", "down": "\x1b[B",
    "right": "\x1b[C", "left": "\x1b[D", "f1": "\x1bOP", "f2": "\x1bOQ", "f5": "\x1b[15~",
    "f6": "\x1b[17~", "f7": "\x1b[18~", "f8": "\x1b[19~", "ctrl+c": "\x03", "ctrl+n": "\x0e",
    "ctrl+o": "\x0f", "ctrl+p": "\x10", "ctrl+q": "\x11", "ctrl+r": "\x12", "ctrl+s": "\x13",
    "ctrl+t": "\x14", "ctrl+z": "\x1a",
}  # fmt: skip
"""Keys that are no character, and what a terminal sends for them."""

SIGNS = "abcdefghijklmnopqrstuvwxyzRPN12345678900/?.+-=[]_ü漢🌊"
WORDS = ("lora", "tiny", "1e-4", "train.yaml", "data.jsonl", "no/such/model", "who are you")
SIZES = ((1, 1), (2, 80), (20, 5), (59, 19), (60, 20), (80, 24), (100, 30), (140, 45), (200, 60))

_WEIGHT = {
    "enter": 9.0, "escape": 5.0, "tab": 4.0, "down": 5.0, "up": 3.0, "space": 2.0,
    # Ways out of the app, and to the end of the run: some scripts find them, most go on.
    "q": 0.15, "ctrl+q": 0.1, "ctrl+c": 0.15, "s": 0.5, "x": 0.5, "d": 0.5, "ctrl+z": 0.2,
}  # fmt: skip
_ALL = (*KEYS, *SIGNS)
_WEIGHTS = [_WEIGHT.get(key, 1.0) for key in _ALL]


@dataclass(frozen=True)
class Step:
    """One thing a script does; fields that are empty are not done.

    Attributes:
        keys: All at once, as a person who is faster than the app.
        paste: A text at once, as terminals paste.
        size: Columns and rows of the window from now on.
        click: A column and a row.
        wait_s: Seconds, at the end.
    """

    keys: tuple[str, ...] = ()
    paste: str = ""
    size: tuple[int, int] | None = None
    click: tuple[int, int] | None = None
    wait_s: float = 0.0


def script(seed: int, num_steps: int = 25) -> Iterator[Step]:
    """The script of a number."""
    draw = random.Random(seed)
    for _ in range(num_steps):
        kind = draw.random()
        if kind < 0.68:
            keys = draw.choices(_ALL, _WEIGHTS, k=draw.choice((1, 1, 1, 2, 3, 6)))
            yield Step(keys=tuple(keys), wait_s=draw.choice((0.0, 0.0, 0.02, 0.15)))
        elif kind < 0.73:
            yield Step(keys=tuple(draw.choice(WORDS).replace(" ", "_")))
        elif kind < 0.75:
            yield Step(paste=draw.choice((*WORDS, "two\nlines", "x" * 3_000)))
        elif kind < 0.88:
            for size in _storm(draw):
                yield Step(size=size, wait_s=draw.choice((0.0, 0.0, 0.03)))
        elif kind < 0.94:
            yield Step(click=(draw.randrange(100), draw.randrange(30)))
        else:
            yield Step(wait_s=draw.choice((0.1, 0.3, 0.6)))


def _storm(draw: random.Random) -> list[tuple[int, int]]:
    any_size = (draw.randint(1, 180), draw.randint(1, 60))
    sizes = draw.choices((*SIZES, any_size), k=draw.choice((1, 2, 6)))
    # Most of what follows is done in a window that shows something.
    return sizes if draw.random() < 0.2 else [*sizes, draw.choice(((80, 24), (120, 40)))]


def bytes_of(step: Step) -> str:
    """What a terminal sends for it, but for the size."""
    sent = "".join(KEYS.get(key, key) for key in step.keys)
    if step.paste:
        sent += f"\x1b[200~{step.paste}\x1b[201~"
    if step.click:
        column, row = step.click[0] + 1, step.click[1] + 1
        sent += f"\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"
    return sent
