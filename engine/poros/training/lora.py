"""Adapters, by PEFT: attach them to the streamed base, save them as PEFT's standard files."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from bitsandbytes.nn.modules import Linear4bit
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.bnb import Linear4bit as LoraLinear4bit
from peft.utils import get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from poros.errors import PorosConfigError, PorosModelError, escape_control
from poros.loading.base_model import BaseModel
from poros.loading.tensor_writer import write_tensors
from poros.streaming.block import seen_on_host

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def attach_lora(
    base: BaseModel,
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.05,
    targets: Sequence[str] | str | None = None,
    seed: int = 42,
    adapter_path: Path | None = None,
    dtype: torch.dtype = torch.float32,
    on_host: bool = False,
) -> PeftModel:
    """Put adapters on the base's linears.

    Args:
        base: Its frozen tensors may be placeholders.
        rank: Rank of the adapter's matrices.
        alpha: The adapter's output is multiplied by ``alpha / rank``.
        dropout: Share of an adapter's inputs left out in training.
        targets: Names of linears, or one pattern; None: all linears of the family's layers.
        seed: Fixes the first weights; the process's generators are left where they are.
        adapter_path: Take settings and weights from this PEFT folder instead.
        dtype: Type of the adapter's weights.
        on_host: The blocks' adapters are made on the host and stay there, their first values the
            same: all of them on the device, if only for a moment, may be more than it has.

    Raises:
        PorosConfigError: The targets match nothing.
        PorosModelError: The folder is no PEFT adapter in safetensors.
    """
    if adapter_path is None:
        wanted = _default_targets(base) if targets is None else targets
        _refuse_unmatched(base, wanted)
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            lora_dropout=dropout,
            target_modules=wanted if isinstance(wanted, str) else list(wanted),
            task_type="CAUSAL_LM",
        )
    else:
        config = _read_config(adapter_path)
    # PEFT makes the values on the host, then moves them to where the linear's weight is.
    place = seen_on_host(base.blocks) if on_host else contextlib.nullcontext()
    with torch.random.fork_rng(devices=[]), place:
        torch.default_generator.manual_seed(seed)
        model: PeftModel = get_peft_model(base.model, config)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.lora_A.to(dtype)
            module.lora_B.to(dtype)
    if adapter_path is not None:
        _fill(model, adapter_path)
    _check_layers(model)
    return model


def trainable_params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and weights of what is trained, in the model's order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Write PEFT's standard files."""
    # What PEFT's save_pretrained does, without a copy of all weights in memory.
    folder.mkdir(parents=True, exist_ok=True)
    model.create_or_update_model_card(str(folder))
    # The adapter's weights alone: the base's tensors may be away, and its state_dict reads them.
    # save_embedding_layers: "auto" would ask the Hub about the base model.
    weights: dict[str, Tensor] = get_peft_model_state_dict(
        model, state_dict=dict(trainable_params(model)), save_embedding_layers=False
    )
    write_tensors(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = copy.copy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(str(folder))


def _read_config(folder: Path) -> LoraConfig:
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise _refused(folder, f"the adapter has no {name}")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError) as error:
        raise _refused(folder, f"{CONFIG_FILE} is not usable: {error}") from error
    if not isinstance(config, LoraConfig):
        raise _refused(folder, f"the adapter is of type {config.peft_type}, not LORA")
    config.inference_mode = False
    return config


def _fill(model: PeftModel, folder: Path) -> None:
    """Give the adapter its saved weights, each exactly once."""
    # Not PEFT's loader: it reads the base's state_dict, and the base's tensors may be away.
    try:
        saved = load_file(folder / WEIGHTS_FILE)
    except SafetensorError as error:
        raise _refused(folder, f"{WEIGHTS_FILE} is damaged: {error}") from error
    params = {name.replace(".default.", "."): p for name, p in trainable_params(model)}
    if params.keys() != saved.keys():
        raise _of_another_model(folder, params, saved)
    for name, parameter in params.items():
        if parameter.shape != saved[name].shape:
            found, expected = list(saved[name].shape), list(parameter.shape)
            reason = f"{name} has shape {found}, this base wants {expected}"
            raise _refused(folder, f"the adapter belongs to another model: {reason}")
        with torch.no_grad():
            parameter.copy_(saved[name])


def _of_another_model(
    folder: Path, params: Mapping[str, Tensor], saved: Mapping[str, Tensor]
) -> PorosModelError:
    extra, missing = sorted(saved.keys() - params.keys()), sorted(params.keys() - saved.keys())
    told = []
    if extra:
        told.append(f"{len(extra)} tensors that this base has no place for, as {extra[0]}")
    if missing:
        told.append(f"none of {len(missing)} that it wants, as {missing[0]}")
    return _refused(folder, f"the adapter belongs to another model: it has {' and '.join(told)}")


def _refused(folder: Path, reason: str) -> PorosModelError:
    return PorosModelError(
        reason,
        where=escape_control(str(folder)),
        remediation="give a LoRA folder of this model that PEFT's save_pretrained wrote",
    )


def _linears(base: BaseModel) -> list[str]:
    return [
        name
        for name, module in base.model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("lm_head")
    ]


def _default_targets(base: BaseModel) -> list[str]:
    """The family's linears, those among them that this model has."""
    linears = _linears(base)
    return [target for target in base.architecture.lora_targets if _ends(linears, target)]


def _refuse_unmatched(base: BaseModel, targets: Sequence[str] | str) -> None:
    linears = _linears(base)
    if isinstance(targets, str):
        unmatched = [] if any(re.fullmatch(targets, name) for name in linears) else [targets]
        unmatched = [] if targets == "all-linear" else unmatched
    else:
        endings = {name.rpartition(".")[2] for name in linears}
        unmatched = [t for t in targets if t not in endings and not _ends(linears, t)]
    if unmatched:
        known = sorted({name.rpartition(".")[2] for name in linears})
        raise PorosConfigError(
            f"no linear is named {', '.join(unmatched)}",
            where="lora_target_modules",
            remediation=f"names in this model: {', '.join(known)}",
        )


def _ends(linears: Sequence[str], target: str) -> bool:
    return any(name.endswith(f".{target}") for name in linears)


def _check_layers(model: PeftModel) -> None:
    """PEFT must have taken its own 4-bit layer, or the arithmetic is not stock's."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and isinstance(module.get_base_layer(), Linear4bit):
            assert type(module) is LoraLinear4bit, f"{name} is a {type(module)}"
