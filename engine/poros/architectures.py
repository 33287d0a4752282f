"""The model families that Poros knows: where their layers lie, what stays resident, what adapts.

A table, not a search: one record a family. Adding one: docs/adding-a-model.md.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from poros.errors import PorosArchNotValidatedError

_ENDS = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Checkpoints of 2023 carry the rotary frequencies of every layer; the model computes its own.
_OLD_ROTARY = (r"\.rotary_emb\.inv_freq$",)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model family.

    Attributes:
        model_type: What ``config.json`` calls it.
        hf_class: The class of transformers that computes it.
        layers_path: The list of decoder layers inside the model.
        resident: Modules outside the layers; together with the layers they are all of the model.
        lora_targets: The linears that adapters go on by default.
        left_out: Patterns of checkpoint tensors that the model has no use for.
        status: ``certified``, ``experimental``, ``target`` or ``user_asserted``.
        notes: What a reader should know about the family.
    """

    model_type: str
    hf_class: str
    layers_path: str = "model.layers"
    resident: tuple[str, ...] = _ENDS
    lora_targets: tuple[str, ...] = _LINEARS
    left_out: tuple[str, ...] = _OLD_ROTARY
    status: str = "experimental"
    notes: str = ""


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(model_type="llama", hf_class="LlamaForCausalLM"),
    Architecture(
        model_type="qwen2",
        hf_class="Qwen2ForCausalLM",
        notes="q, k and v have biases; they travel with their block",
    ),
    Architecture(
        model_type="qwen3",
        hf_class="Qwen3ForCausalLM",
        notes="q and k pass through norms of their own",
    ),
    Architecture(model_type="mistral", hf_class="MistralForCausalLM"),
    Architecture(
        model_type="phi3",
        hf_class="Phi3ForCausalLM",
        lora_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        notes="q, k and v are one linear, gate and up another",
    ),
)


def find_architecture(model_type: object) -> Architecture:
    """The family's record.

    Raises:
        PorosArchNotValidatedError: The table has no such family; the nearest names are told.
    """
    known = {record.model_type: record for record in ARCHITECTURES}
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(str(model_type), known, n=3, cutoff=0.4)
    raise PorosArchNotValidatedError(
        f"no architecture entry for model_type {model_type!r}",
        where="config.json",
        remediation=(f"nearest: {', '.join(near)}; " if near else "")
        + f"known: {', '.join(known)}; adding one: docs/adding-a-model.md",
    )
