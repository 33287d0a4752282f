"""Models that a person may want: those that are on this machine, known ones, what the Hub finds.

Nothing is imported or loaded for it; only `search_hub` asks anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from poros.arch_registry import architectures
from poros.certified import certified_cells
from poros.demo_settings import HUB_COPY_FILE, MODEL_FOLDER
from poros.errors import PorosError
from poros.experts import is_mixture
from poros.hub_client import HubClient
from poros.hub_errors import not_the_hubs
from poros.hub_names import HubName, cached_folder, hub_cache
from poros.model_config import read_config, text_config
from poros.model_suggestion import Label, Suggestion
from poros.user_cache import user_cache

MOST_FOUND = 20
"""Of what the Hub finds."""


_KNOWN: tuple[tuple[str, str, float, bool], ...] = (
    ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 0.5, False),
    ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1.5, False),
    ("Qwen/Qwen2.5-7B-Instruct", "qwen2", 7.6, False),
    ("Qwen/Qwen2.5-14B-Instruct", "qwen2", 14.8, False),
    ("Qwen/Qwen2.5-32B-Instruct", "qwen2", 32.8, False),
    ("Qwen/Qwen2.5-72B-Instruct", "qwen2", 72.7, False),
    ("Qwen/Qwen3-0.6B", "qwen3", 0.6, False),
    ("Qwen/Qwen3-1.7B", "qwen3", 1.7, False),
    ("Qwen/Qwen3-4B", "qwen3", 4.0, False),
    ("Qwen/Qwen3-8B", "qwen3", 8.2, False),
    ("Qwen/Qwen3-14B", "qwen3", 14.8, False),
    ("Qwen/Qwen3-32B", "qwen3", 32.8, False),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 0.135, False),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "llama", 0.36, False),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 1.7, False),
    ("meta-llama/Llama-3.2-1B-Instruct", "llama", 1.2, True),
    ("meta-llama/Llama-3.2-3B-Instruct", "llama", 3.2, True),
    ("meta-llama/Llama-3.1-8B-Instruct", "llama", 8.0, True),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", 7.2, False),
    ("microsoft/Phi-3.5-mini-instruct", "phi3", 3.8, False),
    ("microsoft/phi-4", "phi3", 14.7, False),
    ("google/gemma-3-1b-it", "gemma3_text", 1.0, True),
    ("google/gemma-3-4b-it", "gemma3_text", 4.3, True),
    ("google/gemma-3-12b-it", "gemma3_text", 12.2, True),
)
"""Name, family, parameters in units of 10**9, whether it is gated: a start for who has none."""


def suggestions(words: str = "") -> list[Suggestion]:
    """Models of this machine, then known ones of certified families, smaller ones first.

    Args:
        words: Each must be in the name, whatever its case; empty: all.
    """
    here = list(models_here())
    taken = {one.name for one in here}
    known = [
        Suggestion(name, name, "known", family, label_of(family), size, None, gated)
        for name, family, size, gated in _KNOWN
        if name not in taken
    ]
    return [one for one in [*here, *known] if _fits(one, words)]


def models_here() -> Iterator[Suggestion]:
    """The demo's model if it is here, then the models in the Hub's cache, the latest first."""
    demo = demo_folder()
    if demo is not None:
        found = _of_folder(demo, str(demo), "the demo's model, SmolLM2-135M-Instruct")
        yield replace(found, is_demo=True)
    for repository in _repositories():
        name = repository.name.removeprefix("models--").replace("--", "/")
        folder = cached_folder(HubName(name))
        if folder is not None and folder != demo and (folder / "config.json").is_file():
            found = _of_folder(folder, name, name)
            if found.num_bytes:
                yield found


def demo_folder() -> Path | None:
    """Where the demo's model lies; None: it was not fetched yet."""
    models = user_cache() / "models"
    folder = models / MODEL_FOLDER
    if (folder / "config.json").is_file():
        return folder
    try:
        record = json.loads((models / HUB_COPY_FILE).read_text("utf-8"))
        copy = Path(record["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return copy if (copy / "config.json").is_file() else None


def label_of(model_type: str) -> Label:
    """What is proved of a family, in a word."""
    if any(c.model_type == model_type and c.precision == "nf4" for c in certified_cells()):
        return "certified"
    return "experimental" if model_type in architectures() else "unsupported"


def search_hub(words: str, *, timeout_s: float = 10.0) -> list[Suggestion]:
    """Models of the Hub with these words in their names, the most fetched first.

    Raises:
        PorosHubError: The Hub says no, can't be reached, or something else answers.
    """
    client = HubClient(HubName(words), timeout_s=timeout_s)
    query = f"search={quote(words)}&filter=text-generation&sort=downloads&limit={MOST_FOUND}"
    found = client.ask(f"/api/models?{query}&expand[]=config&expand[]=gated&expand[]=safetensors")
    if not isinstance(found, list):
        raise not_the_hubs("no list of models", f"a search for {words!r}", client.endpoint)
    return [one for record in found if (one := _of_record(record)) is not None]


def _of_record(record: object) -> Suggestion | None:
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        return None
    config = record.get("config")
    family = config.get("model_type") if isinstance(config, dict) else None
    family = family if isinstance(family, str) else ""
    tensors = record.get("safetensors")
    total = tensors.get("total") if isinstance(tensors, dict) else None
    return Suggestion(
        record["id"],
        record["id"],
        "hub",
        family,
        _label_of_config(config) if isinstance(config, dict) and family else "unknown",
        total / 1e9 if isinstance(total, int) else None,
        None,
        bool(record.get("gated")),
    )


def _label_of_config(config: dict[str, object]) -> Label:
    if is_mixture(config):
        return "unsupported"
    try:
        text, _ = text_config(config, where="")
    except PorosError:
        return "unsupported"
    return label_of(str(text.get("model_type")))


def _of_folder(folder: Path, name: str, title: str) -> Suggestion:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.exists())
    try:
        config = read_config(folder)
        label = _label_of_config(config)
        family = str(config.get("model_type", ""))
    except PorosError:
        family, label = "", "unknown"
    return Suggestion(name, title, "here", family, label, None, size)


def _repositories() -> list[Path]:
    try:
        found = [path for path in hub_cache().iterdir() if path.name.startswith("models--")]
        return sorted(found, key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []


def _fits(one: Suggestion, words: str) -> bool:
    text = f"{one.name} {one.title} {one.model_type}".lower()
    return all(word in text for word in words.lower().split())
