"""Tiny bases with tokenizers, and adapters on them that PEFT itself wrote."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "patterns, rslora": {
        "use_rslora": True,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"layers.1.mlp.down_proj": 3},
    },
    "dora": {"use_dora": True},
    "bias": {"target_modules": ["q_proj"], "lora_bias": True},
    "embedding": {"target_modules": ["embed_tokens", "v_proj"]},
    "head": {"target_modules": ["lm_head", "v_proj"]},
    "whole head": {"modules_to_save": ["lm_head"]},
}


def write_base(folder: Path, **changes: Any) -> Path:
    """A base of several files, with a tokenizer that has a chat template."""
    tokenizer = tiny_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 256}
    write_model(folder, shard_size="100KB", **(sizes | changes))
    tokenizer.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, base: Path, **settings: Any) -> Path:
    """An adapter whose every weight is random, saved by PEFT."""
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]} | settings
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied weights, which is what is tried here
        model = get_peft_model(open_fp32(base), LoraConfig(task_type="CAUSAL_LM", **chosen))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    spread = 0.02 if "magnitude" in name or "modules_to_save" in name else 0.1
                    parameter.add_(torch.randn_like(parameter) * spread)
        model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def open_fp32(folder: Path) -> PreTrainedModel:
    """`from_pretrained` in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def adapted_fp32(base: Path, adapter: Path) -> PeftModel:
    """Base and adapter by stock, unmerged, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(open_fp32(base), str(adapter)).eval()


def logits(model: Any, ids_BT: Tensor) -> Tensor:
    """Of a forward without gradients."""
    with torch.no_grad():
        return model(input_ids=ids_BT).logits.float()


def silent(event: object) -> None:
    """Listen to nothing."""
    del event
