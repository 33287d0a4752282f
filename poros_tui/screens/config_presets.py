"""Settings to begin with: sized for a card by the planner, and by how thorough the run is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from poros.demo_settings import demo_settings, is_demo_data
from poros.home_paths import typed_path
from poros.init_file import Sized, size_for, usual_epochs
from poros.memory_sizes import ModelSizes

CARDS_GB = (4, 6, 8, 10, 12, 16, 24, 32, 48, 80)
"""As cards are sold, in units of 2**30 bytes."""

HERE = "this machine"
CPU = "CPU only"

QUICK, USUAL, THOROUGH = "quick look", "usual", "thorough"
EFFORTS: Mapping[str, Mapping[str, Any]] = {
    QUICK: {"lora_rank": 8, "lora_alpha": 16, "learning_rate": 2e-4},
    USUAL: {"learning_rate": 2e-4},
    THOROUGH: {"lora_rank": 32, "lora_alpha": 64, "learning_rate": 2e-4},
}
"""How much is learned, each with its settings but for the length. The rate is the one that QLoRA's
authors took for models of up to 13 billion parameters."""
_QUICK_STEPS = 30
_THOROUGH = 3
"""Times as long as the usual."""
_WARMUP_PART = 10
_USUAL_WARMUP = 100


@dataclass(frozen=True)
class Preset:
    """Settings that answers stand for.

    Attributes:
        settings: By key; what is not there has its default.
        notes: Why they are so, for people.
    """

    settings: dict[str, Any]
    notes: tuple[str, ...] = ()


def card_choices(card_bytes: int | None) -> list[str]:
    """The cards to choose from, this machine's own first.

    Args:
        card_bytes: Of the card here; None: there is none.
    """
    own = HERE if card_bytes else CPU
    return [own, *(f"{size} GB" for size in CARDS_GB), *([CPU] if card_bytes else [])]


def preset(
    model: str,
    dataset: str | None,
    output_dir: str,
    *,
    effort: str = "usual",
    card: str = HERE,
    card_bytes: int | None = None,
    sizes: ModelSizes | None = None,
    num_rows: int | None = None,
    prompts: Sequence[str] = (),
) -> Preset:
    """The settings for these answers.

    Args:
        model: Its name or folder.
        dataset: File or name.
        output_dir: The run's folder.
        effort: One of `EFFORTS`.
        card: One of `card_choices`.
        card_bytes: Of the card here; None: there is none.
        sizes: Of the model; None: not known.
        num_rows: Of the data; None: not known.
        prompts: Of the data, to be asked before and after, which changes no bit.
    """
    if is_demo_data(dataset):
        return Preset(demo_settings(model, output_dir), ("the demo's own settings",))
    settings: dict[str, Any] = {"model_name_or_path": model, "output_dir": output_dir}
    if dataset is not None:
        settings["dataset"] = dataset
    sized = _sized(sizes, _bytes_of(card, card_bytes))
    settings |= {**sized.settings, **EFFORTS[effort]}
    settings |= _length(effort, settings, num_rows)
    if prompts:
        settings["samples"] = tuple(prompts)
    if card == CPU and card_bytes:
        settings["device"] = "cpu"
    warmup = _warmup(settings, num_rows)
    return Preset(settings | warmup, tuple(sized.notes))


def free_folder(wanted: str) -> str:
    """A run's folder that is not there yet: the wanted one, or the next free name like it."""
    from poros.run_folder import free_name

    path = typed_path(wanted)
    return str(free_name(path)) if path.exists() else wanted


@lru_cache(64)
def _sized(sizes: ModelSizes | None, card_bytes: int | None) -> Sized:
    # Dozens of plans, and the answer is asked for at each key that is pressed.
    return size_for(sizes, card_bytes)


def _bytes_of(card: str, own: int | None) -> int | None:
    if card == CPU:
        return None
    return own if card == HERE else int(card.partition(" ")[0]) * 2**30


def effort_told(effort: str, settings: Mapping[str, Any]) -> str:
    """What an effort means, in a few words.

    Args:
        effort: One of `EFFORTS`.
        settings: Of its preset.
    """
    if effort == QUICK:
        return f"{settings['max_steps']} steps: shows that all works, learns little"
    times = settings.get("num_epochs", 1)
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    return f"every example {often}" + ", a larger adapter" * (effort == THOROUGH)


def _length(effort: str, settings: Mapping[str, Any], num_rows: int | None) -> dict[str, Any]:
    """How long an effort is: a quick look is never longer than the usual."""
    in_step = _in_step(settings)
    if effort == QUICK:
        once = -(-num_rows // in_step) if num_rows else _QUICK_STEPS
        return {"max_steps": min(_QUICK_STEPS, once)}
    usual = usual_epochs(num_rows, in_step) if num_rows else 1
    return {"num_epochs": usual * (_THOROUGH if effort == THOROUGH else 1)}


def _in_step(settings: Mapping[str, Any]) -> int:
    batch = settings.get("per_device_batch_size", 1)
    return int(batch * settings.get("gradient_accumulation_steps", 8))


def _warmup(settings: Mapping[str, Any], num_rows: int | None) -> dict[str, Any]:
    """A tenth of a short run; the default of a hundred steps would be all of it."""
    steps = settings.get("max_steps")
    if steps is None and num_rows is not None:
        steps = settings.get("num_epochs", 1) * -(-num_rows // _in_step(settings))
    if steps is None or steps >= _WARMUP_PART * _USUAL_WARMUP:
        return {}
    return {"warmup_steps": steps // _WARMUP_PART}
