"""What a user's own loop may do to a model: each gives everything that it trained, by name.

`EQUAL` must give the same bytes with `poros.prepare` and without it; what is in `REFUSED` works
without it, and is an error of these words with it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.engine.dropin.live import state_of

Seen = dict[str, Tensor]
Attack = Callable[[PeftModel], Seen]


def ids(num_tokens: int = 9, num_rows: int = 2) -> Tensor:
    return torch.randint(1, 128, (num_rows, num_tokens))


def loss_of(model: PeftModel, num_tokens: int = 9) -> Tensor:
    rows = ids(num_tokens)
    loss: Tensor = model(input_ids=rows, labels=rows).loss
    return loss


def layers(model: PeftModel) -> nn.ModuleList:
    return model.get_base_model().model.layers


def trained(model: PeftModel) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def grads(model: PeftModel) -> Seen:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def adamw(model: PeftModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained(model).values(), lr=1e-2)


def steps(model: PeftModel, optimizer: torch.optim.Optimizer | None = None) -> Seen:
    """Two steps."""
    optimizer = optimizer or adamw(model)
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state_of(trained(model), optimizer)


def after(model: PeftModel, *losses: Tensor) -> Seen:
    """The gradients of the losses' sum."""
    sum(losses[1:], losses[0]).backward()
    return grads(model)


def with_hook(where: str, hook: Callable[..., Any]) -> Attack:
    """Two steps with a forward hook on a module of the middle layer."""

    def attack(model: PeftModel) -> Seen:
        layers(model)[1].get_submodule(where).register_forward_hook(hook)
        return steps(model)

    return attack


def forwards_in_one_autocast(model: PeftModel) -> Seen:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [loss_of(model), 3 * loss_of(model, 7), 2 * loss_of(model, 5)]
    return after(model, *losses)


def backwards_apart_in_one_autocast(model: PeftModel) -> Seen:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = loss_of(model), loss_of(model, 7)
        with torch.autocast("cpu", enabled=False):
            third = loss_of(model, 5)
    first.backward()
    return after(model, second, third)


def evaluation_between(model: PeftModel) -> Seen:
    loss = loss_of(model)
    model.eval()
    with torch.inference_mode():
        held_out = loss_of(model, 11).clone()
    tokens = model.generate(input_ids=ids(), max_new_tokens=3, do_sample=True)
    loss.backward()
    model.train()
    return after(model, loss_of(model)) | {"held out": held_out, "tokens": tokens}


def adapters_in_turn(model: PeftModel) -> Seen:
    model.add_adapter("second", LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1))
    matrices = {n: p for n, p in model.named_parameters() if "lora_" in n}
    optimizer = torch.optim.AdamW(matrices.values(), lr=1e-2)
    for name in ("default", "second", "default"):
        model.set_adapter(name)
        with torch.no_grad(), model.disable_adapter():
            reference = loss_of(model)
        (loss_of(model) * reference).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in matrices.items()}


def frozen_by_turns(model: PeftModel) -> Seen:
    matrices = dict(trained(model))
    optimizer = torch.optim.AdamW(matrices.values(), lr=1e-2)
    for k in range(3):
        for i, matrix in enumerate(matrices.values()):
            matrix.requires_grad_((i + k) % 3 != 0)
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in matrices.items()}


def breaking_off(model: PeftModel) -> Seen:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    for where in ("register_forward_hook", "register_full_backward_hook"):
        handle = getattr(layers(model)[1].self_attn.v_proj, where)(fail)
        with contextlib.suppress(ZeroDivisionError):
            loss_of(model).backward()
        handle.remove()
    model.zero_grad()
    return steps(model)


def going_back(model: PeftModel) -> Seen:
    optimizer = adamw(model)
    after(model, loss_of(model))
    optimizer.step()
    moments = copy.deepcopy(optimizer.state_dict())
    adapter = copy.deepcopy(get_peft_model_state_dict(model))
    steps(model, optimizer)
    optimizer.load_state_dict(moments)
    set_peft_model_state_dict(model, adapter)
    return steps(model, optimizer)


def checkpointed(model: PeftModel) -> Seen:
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    return after(model, checkpoint(lambda: loss_of(model), use_reentrant=False))


def kept_graph(model: PeftModel) -> Seen:
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    some = list(trained(model).values())[3:7]
    loss.backward(inputs=some, retain_graph=True)
    found = torch.autograd.grad(loss, some)
    return grads(model) | {str(k): gradient for k, gradient in enumerate(found)}


def odd_shapes(model: PeftModel) -> Seen:
    for num_tokens, num_rows in ((9, 2), (1, 1), (30, 3), (1, 4), (2, 1)):
        logits = model(input_ids=ids(num_tokens, num_rows)).logits
        logits.float().pow(2).mean().backward()
    return grads(model)


def step_in_backward(model: PeftModel) -> Seen:
    optimizers = {p: torch.optim.SGD([p], lr=1e-2) for p in trained(model).values()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    loss_of(model).backward()
    loss_of(model).backward()
    return {name: p.detach().clone() for name, p in trained(model).items()}


def hooks_on_hidden_states(model: PeftModel) -> Seen:
    seen: Seen = {}

    def double(_: nn.Module, given: tuple[Tensor, ...], __: Any) -> tuple[Tensor, ...]:
        seen["given"] = given[0].clone()
        return 2 * given[0], *given[1:]

    layers(model)[1].register_full_backward_hook(double)
    layers(model)[0].register_forward_hook(lambda *call: call[-1] * 1.5)
    layers(model)[2].register_forward_hook(lambda *call: call[-1].mul_(2))
    return steps(model) | seen


def threads(model: PeftModel) -> Seen:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    matrices, seen = trained(model), {}
    rows = [ids(24) for _ in range(3)]

    def work(k: int) -> None:
        for _ in range(3):
            loss = model(input_ids=rows[k], labels=rows[k]).loss
            for name, gradient in zip(
                matrices, torch.autograd.grad(loss, list(matrices.values())), strict=True
            ):
                seen[f"{name} {k}"] = gradient
            seen[f"base {k}"] = (
                layers(model)[1].state_dict()["mlp.up_proj.base_layer.weight"].clone()
            )

    workers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.setswitchinterval(interval)
    return dict(sorted(seen.items()))


def in_float16_scaled(model: PeftModel) -> Seen:
    scaler, optimizer = torch.amp.GradScaler("cpu"), adamw(model)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(trained(model).values(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return state_of(trained(model), optimizer)


EQUAL: dict[str, Attack] = {
    "forwards in one autocast": forwards_in_one_autocast,
    "backwards apart in one autocast": backwards_apart_in_one_autocast,
    "evaluation between": evaluation_between,
    "adapters in turn": adapters_in_turn,
    "frozen by turns": frozen_by_turns,
    "breaking off": breaking_off,
    "going back": going_back,
    "checkpointed": checkpointed,
    "kept graph": kept_graph,
    "odd shapes": odd_shapes,
    "step in backward": step_in_backward,
    "hooks on hidden states": hooks_on_hidden_states,
    "a hook inside": with_hook("self_attn.q_proj", lambda *call: call[-1] * 1.5),
    "threads": threads,
    "scaled": in_float16_scaled,
}


def between(change: Callable[[PeftModel], Any]) -> Attack:
    """A change between forward and backward."""

    def attack(model: PeftModel) -> Seen:
        loss = loss_of(model)
        change(model)
        return after(model, loss)

    return attack


def first(change: Callable[[PeftModel], Any]) -> Attack:
    """A change before a step."""

    def attack(model: PeftModel) -> Seen:
        change(model)
        return after(model, loss_of(model))

    return attack


def each(kind: type[Any] | str, change: Callable[[Any], Any]) -> Callable[[PeftModel], None]:
    """The change, to each module of a kind, or with an attribute of that name."""

    def changed(model: PeftModel) -> None:
        for module in model.modules():
            if hasattr(module, kind) if isinstance(kind, str) else isinstance(module, kind):
                change(module)

    return changed


def into_loss(where: str) -> Attack:
    """What a hook takes from a module of a layer, in the loss."""

    def attack(model: PeftModel) -> Seen:
        taken: list[Tensor] = []
        module = model.get_base_model().get_submodule(where)
        module.register_forward_hook(lambda *call: taken.append(call[-1]))
        loss = loss_of(model)
        return after(model, loss, taken[0].float().pow(2).mean())

    return attack


def decoded_by_hand(*, decodes_with_grad: bool) -> Attack:
    def attack(model: PeftModel) -> Seen:
        cache = model(input_ids=ids(), use_cache=True).past_key_values
        with torch.set_grad_enabled(decodes_with_grad):
            return {"logits": model(input_ids=ids(1), past_key_values=cache).logits}

    return attack


def norm(model: PeftModel) -> Tensor:
    weight: Tensor = layers(model)[1].input_layernorm.weight
    return weight


def assign(model: PeftModel) -> None:
    matrix = next(iter(trained(model).values()))
    matrix.data = 2 * matrix.data


def base_weights(model: PeftModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


counter = itertools.count()
REFUSED: dict[str, tuple[Attack, str]] = {
    "a counting hook": (
        with_hook("self_attn.q_proj", lambda *call: call[-1] * (1 + 0.1 * next(counter))),
        "other results when it was computed again",
    ),
    "Python's random numbers": (
        with_hook("mlp.up_proj", lambda *call: call[-1] * random.random()),
        "other results when it was computed again",
    ),
    "an inner tensor in the loss": (
        into_loss("model.layers.1.mlp.up_proj"),
        "taken from inside it",
    ),
    "the first layer's": (into_loss("model.layers.0.self_attn.q_proj"), "taken from inside it"),
    "a layer's result in the loss": (into_loss("model.layers.1"), "isn't the only one that reads"),
    "scaling between": (
        between(each("set_scale", lambda m: m.set_scale("default", 7.0))),
        "was changed between forward and backward",
    ),
    "dropout between": (
        between(each(nn.Dropout, lambda m: setattr(m, "p", 0.5))),
        "was changed between forward and backward",
    ),
    "attention between": (
        between(lambda m: m.get_base_model().set_attn_implementation("eager")),
        "was changed between forward and backward",
    ),
    "an adapter's tensor between": (between(assign), "was changed between forward and backward"),
    "another adapter between": (
        between(lambda m: m.base_model.disable_adapter_layers()),
        "adapters were switched on or off",
    ),
    "a base weight is written": (
        first(lambda m: norm(m).detach().mul_(2)),
        "a base weight that was written to, 0.input_layernorm.weight",
    ),
    "a base weight is assigned": (
        first(lambda m: setattr(norm(m), "data", torch.ones(64, dtype=torch.bfloat16))),
        "a base weight that was written to, 0.input_layernorm.weight",
    ),
    "a base weight is trained": (
        first(lambda m: norm(m).requires_grad_(True)),
        "a base weight that is to be trained, 0.input_layernorm.weight",
    ),
    "base weights are loaded": (
        first(lambda m: m.load_state_dict(base_weights(m))),
        "base weights of a prepared model's layers can't be loaded",
    ),
    "decoding by hand": (
        decoded_by_hand(decodes_with_grad=True),
        "a KV cache again that it didn't fill",
    ),
    "decoding after a start with gradients": (
        decoded_by_hand(decodes_with_grad=False),
        "a KV cache again that it didn't fill",
    ),
    "one layer's merge": (
        first(lambda m: layers(m)[2].mlp.up_proj.merge()),
        "can't take its adapter in",
    ),
}
