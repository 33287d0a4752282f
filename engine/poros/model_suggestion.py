"""A model that a person may want, as `poros models` tells of it and the app offers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["here", "known", "hub"]
Label = Literal["certified", "experimental", "unsupported", "unknown"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model that could be taken.

    Attributes:
        name: What a config's ``model_name_or_path`` takes.
        title: For people, where the name is a folder.
        place: ``here``: its files are on this machine; ``known``: one that this project knows;
            ``hub``: the Hub found it.
        model_type: Of the text model; empty: not known.
        label: What is proved of the family; ``unknown`` where the family is not known.
        num_params: In units of 10**9; None: not known.
        num_bytes: Of its weights, where they are here.
        is_gated: Terms must be accepted on the Hub first.
        is_demo: It is the demo's own.
    """

    name: str
    title: str
    place: Place
    model_type: str = ""
    label: Label = "unknown"
    num_params: float | None = None
    num_bytes: int | None = None
    is_gated: bool = False
    is_demo: bool = False
