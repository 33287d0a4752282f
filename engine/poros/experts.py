"""Mixtures of experts, which Poros refuses: their fused weights are not NF4-quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASON = (
    "a mixture of experts: transformers fuses the experts into 3-dimensional tensors, which "
    "bitsandbytes does not quantise to NF4"
)
MEND = "use a dense model"

_NAMES = frozenset(
    {
        "aria_text", "dbrx", "deepseek_v2", "deepseek_v3", "deepseek_v4", "flex_olmo", "gpt_oss",
        "grok", "jamba", "jetmoe", "kimi_linear", "llama4", "llama4_text", "longcat_flash",
        "mimo_v2_flash", "minimax", "minimax_m2", "mixtral", "qwen3_next",
    }
)  # fmt: skip
_DENSE_TOO = frozenset({"granitemoehybrid"})
"""Types with a name of mixtures, some of whose models have no experts."""
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SWITCHES = ("enable_moe_block", "is_moe")


def is_mixture_type(model_type: str) -> bool:
    """Whether every model of the type is one, by its name."""
    return model_type in _NAMES or ("moe" in model_type and model_type not in _DENSE_TOO)


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes one, in its text part or as a whole."""
    parts = [config, *(v for v in config.values() if isinstance(v, Mapping))]
    return any(_has_experts(part) for part in parts)


def _has_experts(part: Mapping[str, Any]) -> bool:
    if is_mixture_type(str(part.get("model_type", ""))):
        return True
    if any(part.get(switch) is False for switch in _SWITCHES):
        return False
    counts = [part.get(key) for key in _COUNTS]
    return part.get("enable_moe_block") is True or any(
        isinstance(count, int) and count > 1 for count in counts
    )
