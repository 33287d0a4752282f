"""The config that is being put together: one for the app, whatever screen adds to it.

Data asks it how long samples may be, Train and Runs begin it anew from a run's config, and Config
shows all of it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.config import PorosConfig
from poros.config_yaml import read_document
from poros_tui.engine.machine import Machine
from poros_tui.screens.config_facts import Lookups
from poros_tui.screens.config_form import Problem, fields
from poros_tui.screens.config_presets import free_folder
from poros_tui.screens.config_wizard import Wizard
from poros_tui.state import AppState

SETTLED_S = 1.0
"""A name that is typed is looked up when no key came for so long."""


@dataclass(frozen=True)
class Lengths:
    """How long the samples of some data are, as the Data screen had them counted.

    Attributes:
        data: File or name.
        model: Whose tokenizer counted.
        limit: ``max_seq_length`` when they were.
        below: Lengths of the samples up to the limit, in tokens.
        above: Those of the others, before any cut.
    """

    data: str
    model: str
    limit: int
    below: Sequence[int]
    above: Sequence[int]

    def num_over(self, most: int) -> int:
        """Samples with more tokens."""
        return sum(length > most for length in (*self.below, *self.above))


class Draft:
    """One for the app, as ``shell.draft``.

    Attributes:
        wizard: The answers, and own changes.
        lookups: What is looked up of model, data and machine.
        lengths: Of the samples of the data that was counted last; None: none was.
        version: Grows when all entries may be others.
    """

    def __init__(self) -> None:
        """Nothing is chosen."""
        self.wizard = Wizard()
        self.lookups = Lookups()
        self.lengths: Lengths | None = None
        self.version = 0
        self._wrote: dict[str, Any] | None = None
        self._chosen = ("", "")
        self._typed = ("", 0.0)

    def take_over(self, state: AppState) -> bool:
        """Take what other screens chose since the last call; whether that changed anything."""
        wizard = self.wizard
        given = bool(state.values) and state.values != self._wrote
        if given:
            wizard.give(state.values, "as it was given")
            self._wrote = dict(state.values)
        chosen, self._chosen = self._chosen, (state.model, state.data)
        model, data = (
            now if now and (given or now != before) else own
            for now, before, own in zip(
                self._chosen, chosen, (wizard.model, wizard.dataset), strict=True
            )
        )
        is_other = given or (model, data) != (wizard.model, wizard.dataset)
        if is_other:
            wizard.choose(model=model, dataset=data)
        if wizard.is_place_used:
            wizard.suggest_place()
            is_other = True
        if is_other:
            self._changed()
        return is_other

    def leave(self, state: AppState, config: PorosConfig) -> None:
        """Leave the settings for the other screens, and for the next session."""
        settings = {
            key: getattr(config, key)
            for key, each in fields().items()
            if getattr(config, key) != each.default
        }
        self._wrote = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        model, data = config.model_name_or_path, config.dataset or ""
        self._chosen = (model, data)
        state.update(values=dict(self._wrote), model=model, data=data)

    def enter(self, key: str, text: str) -> None:
        """Change a setting from another screen than Config."""
        self.wizard.enter(key, text)
        self._changed()

    def give(self, settings: Mapping[str, Any], origin: str) -> list[Problem]:
        """Begin with the settings of a file; returns what of them is no setting."""
        problems = self.wizard.give(settings, origin)
        self._changed()
        return problems

    def begin_from(self, run: Path, origin: str, changes: Sequence[str] = ()) -> list[Problem]:
        """Begin another run with the settings of one that was.

        Args:
            run: Its folder.
            origin: What it is to the person, in words.
            changes: ``key=value`` texts that go before its settings.

        Raises:
            PorosConfigError: Its config can't be read.
        """
        problems = self.wizard.give(read_document(run / "config.yaml").values, origin)
        self.wizard.output_dir = free_folder(str(run))
        for change in changes:
            key, _, text = change.partition("=")
            self.wizard.enter(key, text)
        self._changed()
        return problems

    def values(self, dataset: str = "") -> dict[str, Any]:
        """The settings, by key, as they would be with other data; what is not there is default."""
        wizard = self.wizard
        if dataset and dataset != wizard.dataset:
            wizard = copy.copy(wizard)
            wizard.own = dict(wizard.own)
            wizard.choose(dataset=dataset)
        return wizard.form().settings()[0]

    def look_up(self, machine: Machine, *, typed: str = "", now_s: float | None = None) -> bool:
        """Ask for what is not known yet; whether anything new has come.

        Args:
            machine: As it was sampled last.
            typed: Key of the entry that has the keyboard: its name is looked up once it stands.
            now_s: Monotonic; None: now.
        """
        wizard, now_s = self.wizard, time.monotonic() if now_s is None else now_s
        name = {"model_name_or_path": wizard.model, "dataset": wizard.dataset}.get(typed, "")
        if name != self._typed[0]:
            self._typed = (name, now_s)
        waits = typed if name and now_s - self._typed[1] < SETTLED_S else ""
        known = self.lookups.known_of(wizard.model, wizard.dataset, machine, waits)
        if known is not None:
            wizard.known = known
        return known is not None

    @property
    def unchecked(self) -> str:
        """``model`` or ``data`` while it is not known whether that can be trained; else empty."""
        if self.wizard.model and self.wizard.model not in self.lookups.models.answers:
            return "model"
        is_known = not self.wizard.dataset or self.wizard.dataset in self.lookups.data.answers
        return "" if is_known else "data"

    @property
    def why_not(self) -> str:
        """What was found wrong with model or data; empty: nothing."""
        return self.lookups.why_not(self.wizard.model, self.wizard.dataset)[1]

    @property
    def wrong_key(self) -> str:
        """The setting that `why_not` is about."""
        return self.lookups.why_not(self.wizard.model, self.wizard.dataset)[0]

    def check_again(self) -> None:
        """What was found wrong is looked at anew: a network may be back, a file be there now."""
        models, data = self.lookups.models, self.lookups.data
        model, rows = models.answers.get(self.wizard.model), data.answers.get(self.wizard.dataset)
        if model is not None and model.is_wrong:
            models.forget(self.wizard.model)
        if rows is not None and (rows.is_wrong or rows.bad_lines):
            data.forget(self.wizard.dataset)

    @property
    def known_lengths(self) -> Lengths | None:
        """Those of the data and model that are chosen; None: they were not counted."""
        found, wizard = self.lengths, self.wizard
        is_of_these = found and (found.data, found.model) == (wizard.dataset, wizard.model)
        return found if is_of_these else None

    def _changed(self) -> None:
        self.version += 1
        self.lookups.look_again()
