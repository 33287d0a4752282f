"""The row of `poros doctor` about the terminal: can it show the screens of `poros-tui`?"""

from __future__ import annotations

from collections.abc import Mapping

from poros.doctor_rows import Row

_ID = "terminal"


def terminal_row(environ: Mapping[str, str]) -> Row:
    """By the variables that terminals, SSH and tmux set, since the output may go elsewhere."""
    term = environ.get("TERM", "")
    if term in ("", "dumb"):
        return Row(
            _ID, "warn", f"TERM is {term or 'not set'}",
            "screens can't open here; poros-tui --no-ui trains in lines",
            "export TERM=xterm-256color, in a terminal that knows it",
        )  # fmt: skip
    what = ", ".join([term, *_around(environ)])
    if (words := _locale(environ)) and not _is_utf8(words):
        return Row(
            _ID, "warn", f"{what}, locale {words}",
            "signs and curves are drawn in plain ASCII",
            "export LANG=C.UTF-8",
        )  # fmt: skip
    if "SSH_CONNECTION" in environ:
        return Row(
            _ID, "ok", what,
            "a dropped connection ends no run; poros-tui attach finds it again",
        )  # fmt: skip
    if not ("256" in term or environ.get("COLORTERM")):
        return Row(_ID, "ok", what, "sixteen colours: the theme ansi (f2) suits it best")
    return Row(_ID, "ok", what, "it shows the screens of poros-tui")


def _around(environ: Mapping[str, str]) -> list[str]:
    """What lies between the person and the process."""
    found = []
    if environ.get("TMUX"):
        found.append("in tmux")
    elif environ.get("STY"):
        found.append("in screen")
    if "SSH_CONNECTION" in environ:
        found.append("over SSH")
    return found


def _locale(environ: Mapping[str, str]) -> str:
    """The one that decides which characters there are; empty: the system's."""
    return next((environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(n)), "")


def _is_utf8(locale: str) -> bool:
    return locale.partition(".")[2].lower().replace("-", "").startswith("utf8")
