"""The colours: one accent, quiet lines, and three for verdicts."""

from __future__ import annotations

from textual.theme import Theme

_QUIET = {
    "border-blurred": "#3a4550",
    "footer-background": "#182027",
    "footer-key-foreground": "#6cc5c9",
    "quiet": "#7f8d97",
    "block-cursor-foreground": "#f2f6f8",
    "block-cursor-background": "#1f4449",
    "block-cursor-text-style": "none",
    "block-cursor-blurred-foreground": "#d7dee3",
    "block-cursor-blurred-background": "#1a242b",
    "block-cursor-blurred-text-style": "none",
    "block-hover-background": "#182229",
    "input-selection-background": "#6cc5c9 35%",
}

DARK = Theme(
    name="dark",
    primary="#6cc5c9",
    secondary="#8fa3b0",
    accent="#6cc5c9",
    foreground="#d7dee3",
    background="#10161b",
    surface="#10161b",
    panel="#182027",
    success="#7fc98f",
    warning="#e5b567",
    error="#e8746a",
    dark=True,
    variables=_QUIET,
)
LIGHT = Theme(
    name="light",
    primary="#0b6b74",
    secondary="#50616d",
    accent="#0b6b74",
    foreground="#1d262c",
    background="#fbfaf7",
    surface="#fbfaf7",
    panel="#eceae4",
    success="#1f7a3a",
    warning="#8a5a00",
    error="#b3261e",
    dark=False,
    variables=_QUIET
    | {
        "border-blurred": "#c4c1b8",
        "footer-background": "#eceae4",
        "footer-key-foreground": "#0b6b74",
        "quiet": "#6a7780",
        "block-cursor-foreground": "#12191d",
        "block-cursor-background": "#c5e0e0",
        "block-cursor-blurred-foreground": "#1d262c",
        "block-cursor-blurred-background": "#efede7",
        "block-hover-background": "#f0eee8",
        "input-selection-background": "#0b6b74 25%",
    },
)
COLOUR_BLIND = Theme(
    name="colour-blind",
    primary="#56b4e9",
    secondary="#9aa7b0",
    accent="#56b4e9",
    foreground="#dde3e7",
    background="#10151a",
    surface="#10151a",
    panel="#19212a",
    success="#56b4e9",
    warning="#f0e442",
    error="#e8793a",
    dark=True,
    variables=_QUIET
    | {
        "footer-key-foreground": "#56b4e9",
        "block-cursor-background": "#1c4360",
        "input-selection-background": "#56b4e9 35%",
    },
)
"""Blue, yellow and orange stay apart for all common kinds of colour blindness."""

OWN = (DARK, LIGHT, COLOUR_BLIND)
TEXTUALS = {"ansi": "ansi-dark", "ansi-light": "ansi-light"}
"""Themes of the terminal's own sixteen colours, which Textual brings, by our names."""
NAMES = ("dark", "light", "ansi", "ansi-light", "colour-blind")


def without_colours(dark: bool) -> dict[str, str]:
    """What stands for the colours that say "wrong" where there are none (`NO_COLOR`).

    As greys, the reds would be fainter than what is fine; so errors have the strongest contrast.
    """
    strongest = "#ffffff" if dark else "#000000"
    return {"error": strongest, "text-error": strongest}


def textual_name(name: str) -> str:
    """The name under which Textual knows a theme of ours."""
    return TEXTUALS.get(name, name)
