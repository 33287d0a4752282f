"""The wizard's answers: five questions that bring a preset, and what the user changed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from poros.check_memory import TextHeaders
from poros.config import PorosConfig
from poros.config_errors import unknown_key
from poros.demo_settings import NUM_STEPS, demo_settings, is_demo_data
from poros.errors import PorosConfigError, PorosOutputError
from poros.home_paths import typed_path
from poros.lora_targets import refuse_unknown_targets
from poros.run_folder import refuse_bad_place
from poros_tui.screens.config_cost import Computer, sizes_of
from poros_tui.screens.config_form import Checked, Form, Problem, fields, problem_of, shown
from poros_tui.screens.config_presets import (
    EFFORTS,
    HERE,
    USUAL,
    Preset,
    card_choices,
    effort_told,
    free_folder,
    preset,
)

DEMO = "the demo's own"
AS_GIVEN = "as it was"
"""The settings came from a file, a run, or the last session."""
_SIZED = ("max_seq_length", "per_device_batch_size", "gradient_accumulation_steps", "device")
"""What the answer about the card sets."""
ASKED = ("model_name_or_path", "dataset", "output_dir")
"""The settings that are questions."""


@dataclass(frozen=True)
class Known:
    """What was found out meanwhile; None: not known (yet).

    Attributes:
        model: The model's headers.
        num_rows: Of the data.
        computer: This machine.
        bad_lines: Of the data that can't be read, in words; empty: all can.
        prompts: Of the data, to be asked before and after the training.
    """

    model: TextHeaders | None = None
    num_rows: int | None = None
    computer: Computer = field(default_factory=Computer)
    bad_lines: str = ""
    prompts: tuple[str, ...] = ()


class Wizard:
    """Answers, and own changes on top of the preset that they stand for.

    Attributes:
        model: Name or folder; empty: not chosen.
        dataset: File or name; empty: not chosen.
        output_dir: The run's folder.
        effort: One of `efforts`.
        card: One of `cards`.
        own: Entries that differ from the preset, by key.
        known: What was found out.
    """

    def __init__(self, model: str = "", dataset: str = "") -> None:
        """Begin with what the screens before have chosen."""
        self.model, self.dataset = model, dataset
        self.output_dir = ""
        self._is_own_place = False
        self.card, self.effort = HERE, USUAL
        self.own: dict[str, str] = {}
        self.known = Known()
        self._given: Mapping[str, Any] | None = None
        self._origin = ""
        self.choose(model=model, dataset=dataset)

    @property
    def efforts(self) -> list[str]:
        """What may be answered to "how thorough"."""
        given = [AS_GIVEN] if self._given is not None else []
        demo = [DEMO] if is_demo_data(self.dataset) else []
        return [*given, *demo, *EFFORTS]

    @property
    def cards(self) -> list[str]:
        """What may be answered to "for which card"."""
        given = [AS_GIVEN] if self._given is not None else []
        return [*given, *card_choices(self.known.computer.total_bytes or None)]

    @property
    def effort_note(self) -> str:
        """What the chosen effort means."""
        if self.effort == AS_GIVEN:
            return self._origin
        if self.effort == DEMO:
            return f"{NUM_STEPS} steps on built-in data"
        return effort_told(self.effort, self.preset().settings)

    def choose(self, *, model: str | None = None, dataset: str | None = None) -> None:
        """Take what another screen chose; the folder follows, unless it was typed."""
        is_other = dataset is not None and dataset != self.dataset
        if model is not None and model != self.model:
            self.model = model
            is_other = is_other or _has_run(self.output_dir)
        if dataset is not None:
            was_demo = is_demo_data(self.dataset)
            if was_demo and dataset != self.dataset and self._given is not None:
                self._given, self.own = None, {}  # the demo's samples suit no other data
                self.card, self.effort = HERE, USUAL
            if dataset != self.dataset and self._given and self._has_prompts_of_data():
                self._given = {k: v for k, v in self._given.items() if k != "samples"}
            self.dataset = dataset
            if is_demo_data(dataset) and self._given is None:
                self.effort = DEMO
            elif was_demo and self.effort == DEMO:
                self.effort = USUAL
        if not self._is_own_place and (is_other or not self.output_dir):
            self.suggest_place()

    def suggest_place(self) -> None:
        """A folder for the run that is not there yet, by the data's name."""
        self.output_dir = free_folder(str(PurePath(self.output_dir).parent / self._folder_name()))
        self._is_own_place = False

    @property
    def is_place_used(self) -> bool:
        """The folder was not typed, and a run has ended well in it meanwhile."""
        folder = typed_path(self.output_dir)
        return not self._is_own_place and (folder / "adapter").is_dir()

    def give(self, settings: Mapping[str, Any], origin: str) -> list[Problem]:
        """Begin with settings of a file or a run; returns what of them is no setting.

        Args:
            settings: By key.
            origin: Where they come from, in words.
        """
        self._given, self._origin = dict(settings), origin
        self.own = {}
        self.effort = self.card = AS_GIVEN
        self.model = str(settings.get("model_name_or_path", self.model))
        self.dataset = str(settings.get("dataset") or self.dataset)
        self.output_dir = str(settings.get("output_dir", self.output_dir))
        self._is_own_place = False
        unknown = [key for key in settings if key not in fields()]
        errors = [unknown_key(key, fields(), where=origin) for key in unknown]
        return [Problem((), error.message, error.remediation) for error in errors]

    def enter(self, key: str, text: str) -> None:
        """Take an entry of the form; one that says what the preset says is no change."""
        if key in ASKED:
            if key == "model_name_or_path":
                self.choose(model=text)
            elif key == "dataset":
                self.choose(dataset=text)
            else:
                self.output_dir, self._is_own_place = text, True
            return
        if text == self._preset_text(key):
            self.own.pop(key, None)
        else:
            self.own[key] = text

    def reset(self, key: str) -> None:
        """Go back to the preset's value."""
        if key == "output_dir":
            self.suggest_place()
        else:
            self.own.pop(key, None)

    def drop_sizes(self) -> bool:
        """Go back to the preset's lengths and batches; whether there was anything to drop."""
        own = [key for key in _SIZED if key in self.own]
        for key in own:
            del self.own[key]
        return bool(own)

    def preset(self) -> Preset:
        """What the answers stand for."""
        computer, text = self.known.computer, self.known.model
        demo = self.effort == DEMO
        if demo:
            made = Preset(demo_settings(self.model, self.output_dir), ("the demo's own settings",))
        else:
            made = preset(
                self.model,
                self.dataset or None,
                self.output_dir,
                effort=self.effort if self.effort in EFFORTS else USUAL,
                card=HERE if self.card == AS_GIVEN else self.card,
                card_bytes=min(computer.total_bytes, computer.free_bytes) or None,
                sizes=sizes_of(text, 16) if text else None,
                num_rows=self.known.num_rows,
                prompts=self.known.prompts,
            )
        return self._over_given(made)

    def form(self) -> Form:
        """All entries: the preset's with the user's own on top."""
        form = Form(self.preset().settings)
        for key, text in (("model_name_or_path", self.model), ("output_dir", self.output_dir)):
            form.texts[key] = text
        form.texts.pop("dataset", None)
        if self.dataset:
            form.enter("dataset", self.dataset)
        for key, text in self.own.items():
            form.texts[key] = text
        return form

    def check(self) -> Checked:
        """All problems at once, those of missing answers in the wizard's words."""
        form = self.form()
        checked = form.check()
        problems = list(checked.problems)
        if not self.dataset:
            problems = [problem for problem in problems if problem.keys != ("dataset",)]
            told = Problem(("dataset",), "No data is chosen", "name a file, or press 4 for Data")
            problems.insert(0, told)
        if not self.model:
            keys = ("model_name_or_path",)
            problems = [problem for problem in problems if problem.keys != keys]
            problems.insert(0, Problem(keys, "No model is chosen", "press 3 for Model"))
        if self.known.bad_lines and form.text("on_bad_line") == "error":
            left_out = {"on_bad_line": "skip"}
            problems.append(Problem(("on_bad_line",), self.known.bad_lines, "", left_out))
        if self.output_dir and (place := _place_problem(self.output_dir)):
            problems.append(place)
        if not problems and checked.config is not None:
            problems += self._of_model(checked.config)
        return Checked(None if problems else checked.config, tuple(problems))

    def _of_model(self, config: PorosConfig) -> list[Problem]:
        """What does not go with the model, if that is known."""
        text = self.known.model
        if text is None:
            return []
        try:
            refuse_unknown_targets(config.lora_target_modules, text.headers, text.targets)
        except PorosConfigError as error:
            return [problem_of(error)]
        return []

    def _over_given(self, made: Preset) -> Preset:
        """Answers that were left as they were keep what was given."""
        if self._given is None:
            return made
        given = {key: value for key, value in self._given.items() if key in fields()}
        if self.effort == AS_GIVEN and self.card == AS_GIVEN:
            return Preset(given, (self._origin,))
        if self.effort == AS_GIVEN:
            taken = {key: value for key, value in made.settings.items() if key in _SIZED}
        else:
            kept = _SIZED if self.card == AS_GIVEN else ()
            taken = {key: value for key, value in made.settings.items() if key not in kept}
            if self.effort != DEMO and given.get("samples"):
                taken.pop("samples", None)
        return Preset(given | taken, made.notes)

    def _preset_text(self, key: str) -> str:
        return shown(self.preset().settings.get(key, fields()[key].default))

    def _has_prompts_of_data(self) -> bool:
        """The samples that were given are those that the chosen data bring, and no others do."""
        # As texts: a file may say anything of them.
        given = shown((self._given or {}).get("samples"))
        return bool(self.known.prompts) and given == shown(self.known.prompts)

    def _folder_name(self) -> str:
        if is_demo_data(self.dataset):
            return "poros_demo"
        stem = PurePath(self.dataset.partition(":")[0]).stem if self.dataset else "poros"
        return f"{stem}-run"


def _has_run(folder: str) -> bool:
    return bool(folder) and (typed_path(folder) / "run.json").is_file()


def _place_problem(folder: str) -> Problem | None:
    """What a start would say of the run's folder."""
    path = typed_path(folder)
    try:
        refuse_bad_place(path)
    except PorosOutputError as error:
        has_parent = path.parent.is_dir()
        place = free_folder(folder if has_parent else path.name)
        way_out = f"{error.remediation}, or" if not has_parent else ""
        return Problem(
            ("output_dir",), f"Where to: {error.message}", way_out, {"output_dir": place}
        )
    return None
