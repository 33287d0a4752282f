"""Does stock transformers train a family in strict deterministic mode, and does a step repeat?

python docs/validation/deterministic_look.py OUT.json    on a CUDA device

Tiny models in the kinds of layers that matter. h200-deterministic-look.json is from this
script before it was tidied; the tidied form has not run on a GPU.
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

NUM_REPEATS = 50
SIZES = {
    "vocab_size": 512,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
}
FAMILIES = {
    "qwen2": {
        "num_hidden_layers": 2, "num_key_value_heads": 4, "hidden_size": 3584,
        "intermediate_size": 4096, "num_attention_heads": 28,
    },
    "qwen3_5_text": {
        "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 128,
        "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "gemma3_text": {
        "num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 128,
    },
}  # fmt: skip


def gradient_digest(model):
    """A sha256 of all gradients."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            digest.update(parameter.grad.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def look_at(model_type):
    """A strict step; then steps where strictness is only a warning, and how many differ."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SIZES | FAMILIES[model_type])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed" not in name)
    ids_BT = torch.randint(0, SIZES["vocab_size"], (1, 512), device="cuda")

    def step():
        model.zero_grad()
        loss = model(input_ids=ids_BT, labels=ids_BT).loss
        loss.backward()
        return float(loss.detach())

    record = {"class": type(model).__name__}
    torch.use_deterministic_algorithms(True)
    try:
        record["strict"] = step()
    except RuntimeError as error:
        record["strict_error"] = str(error)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record["warn_only"] = step()
    record["warnings"] = sorted({str(warning.message)[:160] for warning in caught})
    warnings.simplefilter("ignore")
    seen = {(step(), gradient_digest(model)) for _ in range(NUM_REPEATS)}
    record[f"distinct_of_{NUM_REPEATS}"] = len(seen)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
    names = {event.key[:110] for event in profiled.key_averages()}
    record["attention_kernels"] = sorted(n for n in names if "flash" in n or "fmha" in n)
    return record


if __name__ == "__main__":
    torch.backends.cuda.enable_cudnn_sdp(False)
    Path(sys.argv[1]).write_text(json.dumps({name: look_at(name) for name in FAMILIES}, indent=1))
