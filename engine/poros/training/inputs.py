"""What a run reads before it trains: the device, the model's files, the tokenizer, the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import CERTIFIED, USER_ASSERTED, label_of
from poros.arch_table import ArchSpec
from poros.config import PorosConfig, require_dataset
from poros.data.load import load_data
from poros.data.samples import Prepared
from poros.errors import PorosConfigError, PorosModelError
from poros.events import Event, Warned
from poros.loading.byte_source import ByteSource
from poros.loading.hub import resolve_model
from poros.loading.probe import architecture_of
from poros.loading.record_check import check_transformers
from poros.loading.text_part import open_source
from poros.model_config import check_config, is_prequantised
from poros.training.ahead import Ahead

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Inputs:
    """Everything that is read, before a weight is."""

    device: torch.device
    architecture: ArchSpec
    source: ByteSource
    tokenizer: PreTrainedTokenizerBase
    train: Prepared
    held_out: Prepared | None
    hashing: Ahead | None = None


def read_inputs(config: PorosConfig, device: torch.device, emit: Emit) -> Inputs:
    """Find the model and tokenise the data.

    Raises:
        PorosError: The kind says which of them is wrong.
    """
    require_dataset(config)
    assert config.dataset is not None
    folder = resolve_model(config.model_name_or_path, emit)
    source = open_source(folder, name=config.model_name_or_path)
    hashing = Ahead(source.digest)  # gigabytes, while the data are read
    # Before the tokenizer is made: transformers looks into config.json for that, too.
    spec = architecture_of(source.config, where=source.name, arch_check=config.blockwise_arch_check)
    check_config(
        source.config,
        spec,
        where=source.name,
        trust_remote_code=config.trust_remote_code,
    )
    check_transformers(spec)
    is_prequantised(source.config, where=source.name)  # refuses GPTQ and its like
    warn_unproved(spec, config.blockwise_arch_check, emit)
    refuse_too_long(config, source.config)
    refuse_short_window(config, source.config)
    refuse_attention(config, spec, where=config.model_name_or_path)
    refuse_recurrent_packing(config, spec, where=config.model_name_or_path)
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
    return Inputs(device, spec, source, tokenizer, train, held_out, hashing)


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
    positions = _whole_config(model_config).get("max_position_embeddings")
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
    text_config = _whole_config(model_config.get("text_config", model_config))
    window = text_config.get("sliding_window")
    used = text_config.get("use_sliding_window", True)
    if config.packing and used and isinstance(window, int) and window < config.max_seq_length:
        raise PorosConfigError(
            f"packing rows of {config.max_seq_length} tokens would ignore the model's sliding"
            f" window of {window}",
            where=config.model_name_or_path,
            remediation=f"set packing: false, or max_seq_length to {window} or less",
        )


def _whole_config(model_config: dict[str, Any]) -> dict[str, Any]:
    """The settings, with transformers' own where the file leaves them out."""
    model_type = str(model_config.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        return model_config
    own = {key: value for key, value in model_config.items() if key != "auto_map"}
    try:
        whole: dict[str, Any] = CONFIG_MAPPING[model_type].from_dict(own).to_dict()
    except Exception:  # noqa: BLE001 - in any way; the load, which builds the model, tells how
        return model_config
    return whole


def refuse_attention(config: PorosConfig, spec: ArchSpec, *, where: str) -> None:
    """Refuse a kind of attention that transformers has not for this family.

    Raises:
        PorosConfigError: Says which there are.
    """
    if config.attn_implementation not in spec.attentions:
        raise PorosConfigError(
            f"{spec.model_type} has no {config.attn_implementation} attention in transformers",
            where=where,
            remediation=f"set attn_implementation: {' or '.join(spec.attentions)}",
        )


def refuse_recurrent_packing(config: PorosConfig, spec: ArchSpec, *, where: str) -> None:
    """Refuse packing where a layer's state would run from one document into the next.

    Raises:
        PorosConfigError: The family has such layers.
    """
    if config.packing and spec.recurrent:
        raise PorosConfigError(
            f"{spec.model_type} can't be packed: its linear attention carries a state along the"
            " row, from one document into the next",
            where=where,
            remediation="set packing: false",
        )


def warn_unproved(spec: ArchSpec, setting: str, emit: Emit) -> None:
    """Say that no artifact stands behind a family.

    Args:
        spec: The family's record.
        setting: ``blockwise_arch_check``: ``off`` says nothing, ``error`` only of families that
            the user vouches for, ``warn`` of all.
        emit: Takes the warning.
    """
    label = label_of(spec)
    if label == USER_ASSERTED and setting != "off":
        message = (
            f"{spec.model_type} is user_asserted: you vouch for it, it is not in Poros's table, "
            "and nothing is claimed to be exact"
        )
        emit(Warned(code="W-architecture", message=message))
    elif label != CERTIFIED and setting == "warn":
        message = f"{spec.model_type} is {label}: no committed artifact stands behind it"
        emit(Warned(code="W-architecture", message=message))
