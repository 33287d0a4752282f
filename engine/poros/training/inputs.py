"""What a run reads before it trains: the device, the model's files, the tokenizer, the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import CERTIFIED, USER_ASSERTED, label_of
from poros.arch_table import ArchSpec
from poros.config import PorosConfig, require_dataset
from poros.data.given import GivenBatches, held_out_of
from poros.data.load import load_data
from poros.data.samples import Prepared
from poros.data.tokens import choose_pad_token
from poros.errors import PorosConfigError, PorosModelError
from poros.events import Event, Warned
from poros.loading.byte_source import ByteSource
from poros.loading.hub import resolve_model
from poros.loading.probe import architecture_of
from poros.loading.record_check import check_transformers
from poros.loading.text_part import open_source
from poros.lora_targets import refuse_unknown_targets
from poros.model_config import check_config, is_prequantised
from poros.training.ahead import Ahead

Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Given:
    """Data handed over in Python, in place of what the config names: data sets or loaders."""

    train: object = None
    held_out: object = None


@dataclass(frozen=True)
class Inputs:
    """Everything that is read, before a weight is.

    Attributes:
        batches: The batches of a loader that was handed over; the samples of `train` are then none.
    """

    device: torch.device
    architecture: ArchSpec
    source: ByteSource
    tokenizer: PreTrainedTokenizerBase
    train: Prepared
    held_out: Prepared | None
    hashing: Ahead | None = None
    batches: GivenBatches | None = None


def read_inputs(
    config: PorosConfig, device: torch.device, emit: Emit, given: Given | None = None
) -> Inputs:
    """Find the model and tokenise the data.

    Raises:
        PorosError: The kind says which of them is wrong.
    """
    require_dataset(config)
    assert config.dataset is not None
    opened = open_model(config, emit)
    source, spec = opened.source, opened.architecture
    hashing = Ahead(source.digest)  # gigabytes, while the data are read
    refuse_settings(config, source.config, spec)
    refuse_unknown_targets(config.lora_target_modules, source.names(), spec.lora_targets)
    tokenizer = read_tokenizer(opened.folder)
    reader = DataReader(config, tokenizer, source.config["vocab_size"], emit)
    given = given or Given()
    batches = None
    if isinstance(given.train, DataLoader):
        batches, train = reader.batches(given.train)
    else:
        train = reader.samples(config.dataset, given.train, "train")
    held_out = None
    if config.eval_dataset:
        held_out = reader.samples(config.eval_dataset, given.held_out, "validation")
    return Inputs(device, spec, source, tokenizer, train, held_out, hashing, batches)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's folder, its bytes, and its family's record."""

    folder: Path
    source: ByteSource
    architecture: ArchSpec


def open_model(config: PorosConfig, emit: Emit) -> OpenedModel:
    """Find the model, fetch it if need be, and see whether Poros can train it; no weight is read.

    Raises:
        PorosError: The kind says what is wrong.
    """
    folder = resolve_model(config.model_name_or_path, emit)
    source = open_source(folder, name=config.model_name_or_path)
    # Before the tokenizer is made: transformers looks into config.json for that, too.
    spec = accepted_architecture(config, source.config, where=source.name, emit=emit)
    return OpenedModel(folder, source, spec)


def accepted_architecture(
    config: PorosConfig, model_config: dict[str, Any], *, where: str, emit: Emit
) -> ArchSpec:
    """The family's record, if Poros can train this model as a config wants it.

    Raises:
        PorosError: It can't.
    """
    spec = architecture_of(model_config, where=where, arch_check=config.blockwise_arch_check)
    check_config(model_config, spec, where=where, trust_remote_code=config.trust_remote_code)
    check_transformers(spec)
    is_prequantised(model_config, where=where)  # refuses GPTQ and its like
    warn_unproved(spec, config.blockwise_arch_check, emit)
    refuse_attention(config, spec, where=config.model_name_or_path)
    return spec


@dataclass(frozen=True)
class DataReader:
    """Reads data for a config and a model's tokenizer.

    Attributes:
        config: Lengths, labels, what becomes of bad lines.
        tokenizer: The model's.
        vocab_size: Rows of its embedding.
        emit: Takes the events.
    """

    config: PorosConfig
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    emit: Emit

    def samples(self, name: str, given: object, split: str) -> Prepared:
        """Samples of what the name says, or of the data set or the loader that is given."""
        config = self.config
        if isinstance(given, DataLoader):
            return held_out_of(
                given,
                split=split,
                max_seq_length=config.max_seq_length,
                vocab_size=self.vocab_size,
                pad=choose_pad_token(self.tokenizer, self.vocab_size),
            )
        return load_data(
            name,
            self.tokenizer,
            split=split,
            max_seq_length=config.max_seq_length,
            train_on=config.train_on,
            overlong=config.overlong,
            on_bad_line=config.on_bad_line,
            vocab_size=self.vocab_size,
            emit=self.emit,
            given=given,
        )

    def batches(self, loader: DataLoader[Any]) -> tuple[GivenBatches, Prepared]:
        """The training batches of a loader, and the account of them.

        Raises:
            PorosConfigError: They are to be packed.
        """
        config = self.config
        if config.packing:
            raise PorosConfigError(
                "packing packs samples, and a DataLoader gives whole batches",
                where="packing",
                remediation="set packing: false, or give the data set",
            )
        batches = GivenBatches(
            loader,
            num_passes=config.num_epochs,
            max_steps=config.max_steps,
            accumulation=config.gradient_accumulation_steps,
            seed=config.seed,
            max_seq_length=config.max_seq_length,
            vocab_size=self.vocab_size,
        )
        pad = choose_pad_token(self.tokenizer, self.vocab_size)
        prepared = batches.prepared(split="train", pad=pad)
        self.emit(prepared.report.event())
        return batches, prepared


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


def refuse_settings(config: PorosConfig, model_config: dict[str, Any], spec: ArchSpec) -> None:
    """Refuse settings that don't go with the model.

    Raises:
        PorosConfigError: Says which, and why.
    """
    refuse_too_long(config, model_config)
    refuse_short_window(config, model_config)
    refuse_recurrent_packing(config, spec, where=config.model_name_or_path)


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
