"""A tiny Gemma 4 of all its kinds of layers, with adapters, for streaming tests."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.training.kv_cache import is_kv_cache

CPU = torch.device("cpu")
DECLARED = SideRules(per_layer_input=True, shared_states=True)
TARGETS = [
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"),
]


def make_model(
    *,
    num_kv_shared_layers: int = 3,
    attn_implementation: str = "sdpa",
    dropout: float = 0.1,
    adapter_dtype: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.bfloat16,
) -> PeftModel:
    """The same model every time, in training mode, its KV cache on as by default."""
    torch.manual_seed(1)
    config = Gemma4TextConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=8,
        num_kv_shared_layers=num_kv_shared_layers,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=97,
        attn_implementation=attn_implementation,
    )
    model = Gemma4ForCausalLM(config).to(dtype)
    peft = get_peft_model(
        model,
        LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules=TARGETS),
    )
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                parameter.data = (
                    torch.randn_like(parameter, dtype=torch.float32).to(adapter_dtype) / 8
                )
    return peft.train()


def stream(model: PeftModel, rules: SideRules = DECLARED, num_slots: int = 2) -> Attachment:
    """Put the model's layers on a ring of one block a layer."""
    base = model.get_base_model()
    layers = list(base.model.layers)
    blocks = []
    for index, layer in enumerate(layers):
        frozen = [
            FrozenTensor(f"{index}.{name}", parameter, "data")
            for name, parameter in layer.named_parameters()
            if not parameter.requires_grad
        ]
        blocks.append(Block.lay_out(index, frozen, device=CPU))
    manager = BlockManager(blocks, device=CPU, num_slots=num_slots, poison=True)
    return attach(layers, manager, device=CPU, drop=is_kv_cache, rules=rules, model=model)


def gradients(model: PeftModel, *, autocast: bool = False, steps: int = 2) -> dict[str, Tensor]:
    """Loss and gradients of each step by name, on sequences over the sliding window."""
    torch.manual_seed(3)
    items: dict[str, Tensor] = {}
    for step in range(steps):
        ids_BT = torch.randint(0, 97, (2, 21))
        mask_BT = torch.ones_like(ids_BT)
        mask_BT[1, 15:] = 0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids_BT, attention_mask=mask_BT, labels=ids_BT).loss
        loss.backward()
        items[f"{step}.loss"] = loss.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                items[f"{step}.{name}"] = parameter.grad
                parameter.grad = None
    return items
