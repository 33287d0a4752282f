"""`prepare` and `unprepare`: one line that streams a loaded model, and one that gives it back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import nn

from poros.dropin.anatomy import Anatomy, take_apart
from poros.dropin.answers import Answers
from poros.dropin.card import Card, make_card
from poros.dropin.checkpointing import TakenOff
from poros.dropin.frozen_watch import FrozenWatch
from poros.dropin.habits import habits_of
from poros.dropin.held_settings import hold_determinism
from poros.dropin.open_graphs import refuse_open_graphs
from poros.dropin.refusals import (
    not_compiled,
    refuse_adapters,
    refuse_layers,
    refuse_several_processes,
    refuse_wrapped,
)
from poros.dropin.selection import move_rest, travelling_tensors
from poros.dropin.unfilled import UnfilledCaches
from poros.errors import PorosConfigError, PorosModelError, PorosOOMError
from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.host_tier import make_tier
from poros.streaming.live_checks import LiveChecks
from poros.streaming.shortage import free, is_shortage, let_go, shortage_of
from poros.told_sizes import told_size
from poros.training.kv_cache import is_kv_cache

Model = TypeVar("Model", bound=nn.Module)

_MARK = "_poros_prepared"
_CHECKS = ("error", "warn", "off")
_AVX_FLAG = "support_avx512bf16_for_cpu"
_CHECKPOINTING_IS_OFF = "gradient checkpointing is off in the streamed layers, until unprepare()"


@dataclass
class Prepared:
    """A prepared model's parts, and what it takes to give the model back.

    Attributes:
        anatomy: The model.
        settings: The arguments that it was prepared with.
        device: Where it computes.
        blocks: Its layers' frozen tensors.
        came_from: Where those of each block were.
        manager: The ring.
        attachment: The streamed forwards.
        card: What was printed.
        undo: Gives the model back, each change in the reverse of its order.
    """

    anatomy: Anatomy
    settings: dict[str, Any]
    device: torch.device
    blocks: list[Block]
    came_from: list[list[torch.device]]
    manager: BlockManager
    attachment: Attachment
    card: Card
    undo: contextlib.ExitStack


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
        PorosOOMError: The device has no room for what stays there; the model is as it was.
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
        PorosModelError, PorosArchNotValidatedError, PorosConfigError, PorosOOMError: As `prepare`.
    """
    settings = {
        "block_size": block_size,
        "enable_prefetch": enable_prefetch,
        "preserve_rng_state": preserve_rng_state,
        "arch_check": arch_check,
        "deterministic": deterministic,
        "managed_parameter_filter": managed_parameter_filter,
    }
    return prepare_on(model, None, settings)


def prepare_on(model: Model, device: torch.device | None, settings: dict[str, Any]) -> Model:
    """Prepare a model to compute on `device`; None: a GPU, if there is one, or where it lies."""
    _refuse_settings(settings["block_size"], settings["arch_check"])
    refuse_several_processes()
    refuse_wrapped(model)
    already = find_prepared(model)
    if already is not None:
        _refuse_other_settings(already, settings)
        return model
    anatomy = take_apart(model, arch_check=settings["arch_check"])
    refuse_adapters(anatomy.outer)
    refuse_layers(anatomy.base, list(anatomy.layers), anatomy.layers_path)
    device = device or _device_of(anatomy)
    with _shortage_told(device), contextlib.ExitStack() as undo:
        if settings["deterministic"]:
            hold_determinism(anatomy.base, device, undo)
        prepared = _stream(anatomy, settings, device, undo)
        # Until here an error gives the model back as it was.
        anatomy.base.__dict__[_MARK] = prepared
        prepared.undo = undo.pop_all()
    prepared.undo.callback(anatomy.base.__dict__.pop, _MARK)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # others on the card see what the layers left
    return model


@contextlib.contextmanager
def _shortage_told(device: torch.device) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        shortage = shortage_of(error, phase="prepare", device=device)
        raise PorosOOMError(
            f"{shortage.reason}: no room for what is to stay on the device",
            where="prepare()",
            remediation="load the model on the CPU and prepare it there: its layers then come to"
            " the device one by one",
            **shortage.sizes(),
        ) from error


def unprepare(model: Model) -> Model:
    """Give back a prepared model as it was: the same modules and bytes, the process's settings.

    Args:
        model: What `prepare` returned, or any model around it.

    Returns:
        The same model; its adapters are as trained.

    Raises:
        PorosModelError: It isn't prepared.
        PorosOOMError: The device has too little memory for all of it; the model stays prepared.
    """
    prepared = _prepared_of(model)
    _bring_back(prepared)
    prepared.undo.close()
    return model


def _bring_back(prepared: Prepared) -> None:
    """Have the layers' tensors where they were, before anything of the model changes."""
    num_slots, shortage = prepared.manager.lay_down(), None
    try:
        for block, devices in zip(prepared.blocks, prepared.came_from, strict=True):
            block.bring_back(devices)
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        shortage = shortage_of(error, phase="unprepare", device=prepared.device)
        let_go(error)
    else:
        num_slots = 0  # they are not needed any more
    finally:
        if num_slots:
            for block in prepared.blocks:
                block.stay()
            free(prepared.device)
            prepared.manager.take_up(num_slots)
    if shortage is None:
        return
    num_bytes = sum(block.num_bytes for block in prepared.blocks)
    raise PorosOOMError(
        f"{shortage.reason}: the layers take {told_size(num_bytes)} of the device; the model stays"
        " prepared",
        where="unprepare()",
        remediation="delete the optimizer and what else is on the device and call it again, or save"
        " the adapter with model.save_pretrained(...)",
        **shortage.sizes(),
    )


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
    anatomy: Anatomy, settings: dict[str, Any], device: torch.device, undo: contextlib.ExitStack
) -> Prepared:
    layers, size = list(anatomy.layers), settings["block_size"] or 1
    groups = travelling_tensors(
        anatomy.outer,
        layers,
        layers_per_block=size,
        manages=settings["managed_parameter_filter"] or _all,
    )
    refuse_open_graphs(groups)
    _keep_from_repacking(anatomy.layers, undo)
    checkpointing = TakenOff(anatomy.base, layers)
    undo.callback(checkpointing.put_back)
    came_from = [[entry.value.device for entry in group] for group in groups]
    blocks = _lay_out(groups, came_from, device, undo)
    home = next(anatomy.base.parameters()).device
    if home != device:
        undo.callback(_move, anatomy, home)
        _move(anatomy, device)
    manager = BlockManager(blocks, device=device, prefetch=settings["enable_prefetch"])
    undo.callback(manager.forget)
    for layer in layers:
        undo.callback(_put_back_forward, layer, layer.__dict__.get("forward"))
    attachment = _attach(anatomy, manager, device, settings)
    undo.callback(setattr, attachment.turn, "closed", True)
    _guard(anatomy, blocks, attachment)
    answers = Answers()
    undo.callback(answers.restore)
    answers.replace(
        anatomy.around,
        layers,
        blocks,
        layers_per_block=size,
        device=device,
        turn=attachment.turn,
    )
    card = make_card(
        anatomy,
        block_size=size,
        deterministic=settings["deterministic"] and settings["preserve_rng_state"],
        notes=(_CHECKPOINTING_IS_OFF,) if checkpointing.was_on else (),
    )
    return Prepared(anatomy, settings, device, blocks, came_from, manager, attachment, card, undo)


def _attach(
    anatomy: Anatomy, manager: BlockManager, device: torch.device, settings: dict[str, Any]
) -> Attachment:
    return attach(
        list(anatomy.layers),
        manager,
        device=device,
        layers_per_block=settings["block_size"] or 1,
        drop=is_kv_cache,
        preserve_rng=settings["preserve_rng_state"],
        rules=SideRules(
            per_layer_input=anatomy.spec.per_layer_input,
            shared_states=anatomy.spec.shared_states,
        ),
        model=anatomy.outer,
        live=LiveChecks(
            habits_of,
            exact=settings["deterministic"],
            repeats=settings["preserve_rng_state"],
            device=device,
        ),
    )


def _guard(anatomy: Anatomy, blocks: Sequence[Block], attachment: Attachment) -> None:
    """Look at each call of a layer before it is streamed."""
    caches = UnfilledCaches()
    for streamed in attachment.streamed:
        streamed.look = FrozenWatch(blocks[streamed.block_index], streamed).look
        streamed.layer.forward = not_compiled(caches.noticed(streamed, streamed.layer.forward))


def _put_back_forward(layer: nn.Module, own: Callable[..., Any] | None) -> None:
    layer.__dict__.pop("forward", None)
    if own is not None:
        layer.forward = own


def _lay_out(
    groups: Sequence[Sequence[FrozenTensor]],
    came_from: Sequence[Sequence[torch.device]],
    device: torch.device,
    undo: contextlib.ExitStack,
) -> list[Block]:
    tier, blocks = make_tier("registered", device), []
    for index, group in enumerate(groups):
        block = Block.lay_out(index, group, device=device, tier=tier)
        undo.callback(block.dissolve, came_from[index])
        blocks.append(block)
    return blocks


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


def _keep_from_repacking(layers: nn.Module, undo: contextlib.ExitStack) -> None:
    """Keep linears from repacking their weights for the CPU, which has no gradient."""
    for module in layers.modules():
        if isinstance(module, Linear4bit) and module.__dict__.get(_AVX_FLAG):
            undo.callback(setattr, module, _AVX_FLAG, True)
            setattr(module, _AVX_FLAG, False)


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
