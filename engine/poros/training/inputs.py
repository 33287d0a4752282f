"""What a run reads before it trains: the device, the model's files, the tokenizer, the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from poros.arch_registry import find_architecture
from poros.config import PorosConfig, require_dataset
from poros.data.load import load_data
from poros.data.samples import Prepared
from poros.errors import PorosArchNotValidatedError, PorosConfigError, PorosModelError
from poros.events import Event, Warned
from poros.loading.byte_source import SafetensorsSource
from poros.loading.hub import resolve_model
from poros.model_config import check_config

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Inputs:
    """Everything that is read, before a weight is."""

    device: torch.device
    source: SafetensorsSource
    tokenizer: PreTrainedTokenizerBase
    train: Prepared
    held_out: Prepared | None


def read_inputs(config: PorosConfig, device: torch.device, emit: Emit) -> Inputs:
    """Find the model and tokenise the data.

    Raises:
        PorosError: The kind says which of them is wrong.
    """
    require_dataset(config)
    assert config.dataset is not None
    folder = resolve_model(config.model_name_or_path, emit)
    source = SafetensorsSource(folder, name=config.model_name_or_path)
    # Before the tokenizer is made: transformers looks into config.json for that, too.
    check_config(
        source.config,
        find_architecture(source.config.get("model_type")),
        where=source.name,
        trust_remote_code=config.trust_remote_code,
    )
    refuse_too_long(config, source.config)
    refuse_short_window(config, source.config)
    tokenizer = read_tokenizer(folder)

    def prepare(spec: str, split: str) -> Prepared:
        return load_data(
            spec,
            tokenizer,
            split=split,
            max_seq_length=config.max_seq_length,
            train_on=config.train_on,
            overlong=config.overlong,
            on_bad_line=config.on_bad_line,
            vocab_size=source.config["vocab_size"],
            emit=emit,
        )

    train = prepare(config.dataset, "train")
    held_out = prepare(config.eval_dataset, "validation") if config.eval_dataset else None
    return Inputs(device, source, tokenizer, train, held_out)


def choose_device(setting: str) -> torch.device:
    """``auto`` takes the GPU with the most free memory, or else the CPU.

    Raises:
        PorosConfigError: There is no such GPU.
    """
    num_gpus = torch.cuda.device_count() if setting != "cpu" else 0
    if setting == "cpu" or (setting == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if setting == "auto":
        index = max(range(num_gpus), key=lambda i: torch.cuda.mem_get_info(i)[0])
        return torch.device("cuda", index)
    device = torch.device(setting)
    if device.index >= num_gpus:
        raise PorosConfigError(
            f"there is no {setting}, torch sees {num_gpus} GPUs",
            where="device",
            remediation="set device: auto, or another index",
        )
    return device


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The model's tokenizer; no code of the repository runs.

    Raises:
        PorosModelError: There is none, or it is damaged.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the tokenizers library raises bare Exceptions
        if isinstance(error, MemoryError):
            raise
        reason = str(error).partition("\n")[0][:200]
        raise PorosModelError(
            f"the tokenizer can't be loaded: {reason}",
            where=str(folder),
            remediation="download the model again, with its tokenizer files",
        ) from error
    return tokenizer


def refuse_too_long(config: PorosConfig, model_config: dict[str, Any]) -> None:
    """Refuse samples beyond the model's positions, where transformers would go on silently.

    Raises:
        PorosConfigError: max_seq_length is larger.
    """
    positions = model_config.get("max_position_embeddings")
    if isinstance(positions, int) and config.max_seq_length > positions:
        raise PorosConfigError(
            f"max_seq_length {config.max_seq_length} is beyond the model's {positions} positions",
            where=config.model_name_or_path,
            remediation=f"set max_seq_length to {positions} or less",
        )


def refuse_short_window(config: PorosConfig, model_config: dict[str, Any]) -> None:
    """Refuse packing where a sliding window would be lost: the packed mask has none.

    Raises:
        PorosConfigError: The window is shorter than a packed row.
    """
    text_config = model_config.get("text_config", model_config)
    window = text_config.get("sliding_window")
    used = text_config.get("use_sliding_window", True)
    if config.packing and used and isinstance(window, int) and window < config.max_seq_length:
        raise PorosConfigError(
            f"packing rows of {config.max_seq_length} tokens would ignore the model's sliding"
            f" window of {window}",
            where=config.model_name_or_path,
            remediation=f"set packing: false, or max_seq_length to {window} or less",
        )


def check_status(status: str, setting: str, emit: Emit) -> None:
    """Apply ``blockwise_arch_check`` to a family's status.

    Raises:
        PorosArchNotValidatedError: The family is nobody's but the user's.
    """
    if status in ("target", "user_asserted") and setting == "error":
        raise PorosArchNotValidatedError(
            f"the family's status is {status}: no parity artifact stands behind it",
            remediation="set blockwise_arch_check: warn",
        )
    if status != "certified" and setting == "warn":
        emit(Warned(code="W-architecture", message=f"the family's status is {status}"))
