"""`prepare` and `unprepare`: one line that streams a loaded model, and one that gives it back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import nn

from poros.dropin.anatomy import Anatomy, take_apart
from poros.dropin.answers import Answers
from poros.dropin.card import Card, make_card
from poros.dropin.checkpointing import TakenOff
from poros.dropin.refusals import refuse_layers, refuse_several_processes, refuse_wrapped
from poros.dropin.selection import Manages, move_rest, travelling_tensors
from poros.errors import PorosConfigError, PorosModelError
from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.host_tier import make_tier
from poros.training.determinism import DeterminismSettings, enforce_determinism
from poros.training.kv_cache import is_kv_cache

Model = TypeVar("Model", bound=nn.Module)

_MARK = "_poros_prepared"
_CHECKS = ("error", "warn", "off")
_AVX_FLAG = "support_avx512bf16_for_cpu"


@dataclass
class Prepared:
    """A prepared model's parts, and what it takes to give the model back.

    Attributes:
        anatomy: The model.
        settings: The arguments that it was prepared with.
        blocks: Its layers' frozen tensors.
        came_from: Where each of them lay, by block.
        manager: The ring.
        attachment: The streamed forwards.
        checkpointing: Gradient checkpointing, taken off the layers.
        answers: Replaced methods.
        flags: Linears that were kept from repacking their weights for the CPU.
        determinism: The process's settings before; None: they were left alone.
        card: What was printed.
        device: Where the model computes.
        home: Where it lay before.
    """

    anatomy: Anatomy
    settings: dict[str, Any]
    blocks: list[Block]
    came_from: list[list[torch.device]]
    manager: BlockManager
    attachment: Attachment
    checkpointing: TakenOff
    answers: Answers
    flags: list[tuple[nn.Module, bool]]
    determinism: DeterminismSettings | None
    card: Card
    device: torch.device
    home: torch.device

    def undo(self) -> None:
        """Give the model back."""
        self.manager.forget()
        self.attachment.detach()
        self.answers.restore()
        for block, devices in zip(self.blocks, self.came_from, strict=True):
            block.dissolve(devices)
        if self.home != self.device:
            _move(self.anatomy, self.home)
        self.checkpointing.put_back()
        for linear, flag in self.flags:
            setattr(linear, _AVX_FLAG, flag)
        if self.determinism is not None:
            self.determinism.restore()
        del self.anatomy.base.__dict__[_MARK]


def prepare(model: Model, **settings: Any) -> Model:
    """Stream the layers of a loaded model from now on, and print what is claimed of it.

    Learning rate, adapter, optimizer, data and loop stay as they are.

    Args:
        model: Of transformers, with or without PEFT's adapters: NF4, bf16 or fp16, on the GPU or
            on the CPU. It is changed in place.
        settings: As for `patch_hf_model`.

    Returns:
        The same model.

    Raises:
        PorosModelError: The model can't be streamed exactly; with the line to change.
        PorosArchNotValidatedError: Its family is neither known nor registered.
        PorosConfigError: The process can't: several processes, or CUDA that runs already otherwise.
    """
    patch_hf_model(model, **settings)
    sys.stdout.write(f"{_prepared_of(model).card}\n")
    return model


def patch_hf_model(
    model: Model,
    *,
    block_size: int | None = None,
    enable_prefetch: bool = True,
    preserve_rng_state: bool = True,
    arch_check: Literal["error", "warn", "off"] = "error",
    deterministic: bool = True,
    managed_parameter_filter: Callable[[str, nn.Parameter], bool] | None = None,
) -> Model:
    """Do what `prepare` does, and print nothing.

    Args:
        model: As for `prepare`.
        block_size: Layers that travel together; None: 1, the least memory. Never changes a bit.
        enable_prefetch: Copy the next block while one computes.
        preserve_rng_state: Repeat dropout in the recompute; without it gradients are not exact.
        arch_check: What happens to a family that is neither in the table nor registered: it is
            refused, or runs with a warning or without one, and nothing is claimed of it.
        deterministic: Set the process's determinism (`enforce_determinism`), until `unprepare`.
        managed_parameter_filter: Called with name and parameter of each frozen one in a layer;
            what it returns False for stays on the device.

    Returns:
        The same model.

    Raises:
        PorosModelError, PorosArchNotValidatedError, PorosConfigError: As `prepare`.
    """
    settings = {
        "block_size": block_size,
        "enable_prefetch": enable_prefetch,
        "preserve_rng_state": preserve_rng_state,
        "arch_check": arch_check,
        "deterministic": deterministic,
        "managed_parameter_filter": managed_parameter_filter,
    }
    _refuse_settings(block_size, arch_check)
    refuse_several_processes()
    refuse_wrapped(model)
    already = find_prepared(model)
    if already is not None:
        _refuse_other_settings(already, settings)
        return model
    anatomy = take_apart(model, arch_check=arch_check)
    refuse_layers(anatomy.base, list(anatomy.layers), anatomy.layers_path)
    determinism = DeterminismSettings.now() if deterministic else None
    device = _device_of(anatomy)
    if deterministic:
        enforce_determinism(device)
    anatomy.base.__dict__[_MARK] = _stream(anatomy, settings, device, determinism)
    return model


def unprepare(model: Model) -> Model:
    """Give back a prepared model as it was: the same modules and bytes, the process's settings.

    Args:
        model: What `prepare` returned, or any model around it.

    Returns:
        The same model; its adapters are as trained.

    Raises:
        PorosModelError: It isn't prepared.
    """
    _prepared_of(model).undo()
    return model


def find_prepared(model: nn.Module) -> Prepared | None:
    """The parts of a prepared model; None: it isn't one."""
    for module in model.modules():
        if _MARK in module.__dict__:
            prepared: Prepared = module.__dict__[_MARK]
            return prepared
    return None


def _prepared_of(model: nn.Module) -> Prepared:
    prepared = find_prepared(model)
    if prepared is None:
        raise PorosModelError(
            "the model is not prepared", where="unprepare()", remediation="leave the line out"
        )
    return prepared


def _stream(
    anatomy: Anatomy,
    settings: dict[str, Any],
    device: torch.device,
    determinism: DeterminismSettings | None,
) -> Prepared:
    size = settings["block_size"] or 1
    home = next(anatomy.base.parameters()).device
    manages: Manages = settings["managed_parameter_filter"] or _all
    groups = travelling_tensors(
        anatomy.outer, list(anatomy.layers), layers_per_block=size, manages=manages
    )
    came_from = [[entry.value.device for entry in group] for group in groups]
    flags = [(m, m.__dict__[_AVX_FLAG]) for m in anatomy.layers.modules() if _repacks(m)]
    for linear, _ in flags:
        setattr(linear, _AVX_FLAG, False)
    checkpointing = TakenOff(anatomy.base, list(anatomy.layers))
    blocks = _lay_out(groups, device)
    if home != device:
        _move(anatomy, device)
    manager = BlockManager(blocks, device=device, prefetch=settings["enable_prefetch"])
    attachment = attach(
        list(anatomy.layers),
        manager,
        device=device,
        layers_per_block=size,
        drop=is_kv_cache,
        preserve_rng=settings["preserve_rng_state"],
        rules=SideRules(
            per_layer_input=anatomy.spec.per_layer_input,
            shared_states=anatomy.spec.shared_states,
        ),
        model=anatomy.outer,
    )
    answers = Answers()
    answers.replace(
        anatomy.around, list(anatomy.layers), blocks, layers_per_block=size, device=device
    )
    notes = ("gradient checkpointing is off in the streamed layers, until unprepare()",)
    exact = settings["deterministic"] and settings["preserve_rng_state"]
    card = make_card(
        anatomy,
        block_size=size,
        deterministic=exact,
        notes=notes if checkpointing.was_on else (),
    )
    return Prepared(
        anatomy=anatomy,
        settings=settings,
        blocks=blocks,
        came_from=came_from,
        manager=manager,
        attachment=attachment,
        checkpointing=checkpointing,
        answers=answers,
        flags=flags,
        determinism=determinism,
        card=card,
        device=device,
        home=home,
    )


def _lay_out(groups: Sequence[Sequence[FrozenTensor]], device: torch.device) -> list[Block]:
    tier = make_tier("registered", device)
    return [Block.lay_out(k, g, device=device, tier=tier) for k, g in enumerate(groups)]


def _device_of(anatomy: Anatomy) -> torch.device:
    lies_on = next(anatomy.base.parameters()).device
    if lies_on.type == "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return lies_on


def _move(anatomy: Anatomy, device: torch.device) -> None:
    """Bring what is resident to `device`; `Params4bit.to` would bring its statistics as well."""
    move_rest(anatomy.outer, device)
    if hasattr(anatomy.base, "hf_device_map"):
        anatomy.base.__dict__["hf_device_map"] = {"": device}


def _repacks(module: nn.Module) -> bool:
    return isinstance(module, Linear4bit) and bool(module.__dict__.get(_AVX_FLAG))


def _all(_: str, __: nn.Parameter) -> bool:
    return True


def _refuse_settings(block_size: int | None, arch_check: str) -> None:
    if block_size is not None and (type(block_size) is not int or block_size < 1):
        raise PorosConfigError(
            f"block_size is {block_size!r}, expected a whole number above 0",
            where="prepare()",
            remediation="leave it out: one layer at a time takes the least memory",
        )
    if arch_check not in _CHECKS:
        raise PorosConfigError(
            f"arch_check is {arch_check!r}",
            where="prepare()",
            remediation=f"one of {', '.join(_CHECKS)}",
        )


def _refuse_other_settings(already: Prepared, settings: dict[str, Any]) -> None:
    other = [name for name, value in settings.items() if already.settings[name] != value]
    if other:
        raise PorosConfigError(
            f"the model is prepared already, with another {', '.join(other)}",
            where="prepare()",
            remediation="poros.unprepare(model) first",
        )
