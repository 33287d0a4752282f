"""Live models with adapters, and a user's own loops over them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from torch import Tensor, nn

from poros.training.determinism import enforce_determinism
from tests.engine.loading.tiny_models import CPU, open_stock, stock_4bit

STEPS = 3


def live_model(
    folder: Path,
    *,
    precision: str = "nf4",
    kbit: bool = False,
    adapter_dtype: torch.dtype = torch.float32,
    **lora: Any,
) -> PeftModel:
    """As a script makes it: the base by transformers, adapters by PEFT."""
    torch.manual_seed(5)
    base = stock_4bit(folder) if precision == "nf4" else open_stock(folder)
    if precision == "fp16":
        base = base.to(torch.float16)
    if kbit:
        base = prepare_model_for_kbit_training(base)
    settings = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"}
    config = LoraConfig(task_type="CAUSAL_LM", **(settings | lora))
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # at zero, half of the gradients would be
                parameter.normal_(0, 0.02)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(adapter_dtype)
    return model


def plain_loop(
    model: nn.Module, *, steps: int = STEPS, device: torch.device = CPU
) -> dict[str, Tensor]:
    """A user's loop; everything that it trained, by name, with losses and AdamW's moments."""
    enforce_determinism()
    torch.manual_seed(3)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    seen: dict[str, Tensor] = {}
    model.train()
    for step in range(steps):
        for half in range(2):
            ids = torch.randint(1, 128, (2, 9 + half)).to(device)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            seen[f"loss {step}.{half}"] = loss.detach()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return seen | state_of(trained, optimizer)


def state_of(trained: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights and moments by name, copied."""
    pairs = itertools.product(trained.items(), ("exp_avg", "exp_avg_sq"))
    moments = {f"{n} {key}": optimizer.state[p][key].clone() for (n, p), key in pairs}
    return {name: p.detach().clone() for name, p in trained.items()} | moments
