"""The model families that Poros knows: where their layers lie, what stays resident, what adapts.

A table, not a search: one record a family. Adding one: docs/adding-a-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

_ENDS = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Checkpoints of 2023 carry the rotary frequencies of every layer; the model computes its own.
_OLD_ROTARY = (r"\.rotary_emb\.inv_freq$",)


@dataclass(frozen=True, kw_only=True)
class ArchSpec:
    """One model family.

    Attributes:
        model_type: What ``config.json`` calls it; of a multimodal checkpoint, its text part.
        hf_class: The class of transformers that computes it.
        layers_path: The list of decoder layers inside the model.
        resident: Modules outside the layers; together with the layers they are all of the model.
        resident_if_present: More such modules, which only some of the family's configs have.
        lora_targets: The linears that adapters go on by default.
        left_out: Patterns of checkpoint tensors that the model has no use for.
        renames: Beginnings of stored names that some versions of transformers write, and what
            the model calls them; used where the model has the second and not the first.
        per_layer_input: Each layer takes a differentiable tensor of its own beside hidden states.
        shared_states: Layers write tensors into a mapping that later layers read.
        recurrent: Some layers carry a state along the sequence, so documents can't be packed.
        attentions: Values of the setting ``attn_implementation`` that transformers has for it.
        head_softcap: Config field: logits become ``c * tanh(logits / c)``; empty: none.
        head_multiplier: Config field that the logits are multiplied by; empty: none.
        head_divisor: Config field that the logits are divided by; empty: none.
        min_transformers: The first version that computes it as Poros needs it; empty: the oldest
            that Poros takes.
        notes: What a reader should know about the family.
    """

    model_type: str
    hf_class: str
    layers_path: str = "model.layers"
    resident: tuple[str, ...] = _ENDS
    resident_if_present: tuple[str, ...] = ()
    lora_targets: tuple[str, ...] = _LINEARS
    left_out: tuple[str, ...] = _OLD_ROTARY
    renames: tuple[tuple[str, str], ...] = ()
    per_layer_input: bool = False
    shared_states: bool = False
    recurrent: bool = False
    attentions: tuple[str, ...] = ("sdpa", "eager")
    head_softcap: str = ""
    head_multiplier: str = ""
    head_divisor: str = ""
    min_transformers: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        """Refuse a text where a tuple belongs: a comma was forgotten.

        Raises:
            TypeError: With the field.
        """
        for field in fields(self):
            if str(field.type).startswith("tuple") and isinstance(getattr(self, field.name), str):
                raise TypeError(
                    f"{self.model_type}: {field.name} is a text; a tuple ends in a comma"
                )


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A multimodal model type, of which Poros trains the text part.

    Attributes:
        model_type: What ``config.json`` calls the whole.
        hf_classes: What ``architectures`` may say.
        text_types: The families that its ``text_config`` may be; the first, if it doesn't say.
        prefixes: Beginnings of stored names of text tensors, and what the text model calls them;
            of two that fit, the longer one counts.
        left_out: Patterns of stored tensors that belong to the other parts.
        text_sizes: What a size is that ``text_config`` leaves out: transformers 4 did not write
            values that are its own defaults.
    """

    model_type: str
    hf_classes: tuple[str, ...]
    text_types: tuple[str, ...]
    prefixes: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    text_sizes: tuple[tuple[str, int], ...] = ()


TABLE: tuple[ArchSpec, ...] = (
    ArchSpec(model_type="llama", hf_class="LlamaForCausalLM"),
    ArchSpec(
        model_type="qwen2",
        hf_class="Qwen2ForCausalLM",
        notes="q, k and v have biases; they travel with their block",
    ),
    ArchSpec(
        model_type="qwen3",
        hf_class="Qwen3ForCausalLM",
        notes="q and k pass through norms of their own",
    ),
    ArchSpec(model_type="mistral", hf_class="MistralForCausalLM"),
    ArchSpec(
        model_type="phi3",
        hf_class="Phi3ForCausalLM",
        lora_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        notes="Phi-3 and Phi-4; q, k and v are one linear, gate and up another",
    ),
    ArchSpec(
        model_type="qwen3_5_text",
        hf_class="Qwen3_5ForCausalLM",
        lora_targets=(
            *_LINEARS,
            "in_proj_qkv",
            "in_proj_z",
            "in_proj_b",
            "in_proj_a",
            "out_proj",
        ),
        left_out=(*_OLD_ROTARY, r"^mtp\."),
        renames=(("model.language_model.", "model."),),
        recurrent=True,
        notes="three layers of linear attention to one of full attention; strict deterministic "
        "mode needs no exception with transformers' own linear attention",
    ),
    ArchSpec(
        model_type="gemma2",
        hf_class="Gemma2ForCausalLM",
        attentions=("eager",),
        head_softcap="final_logit_softcapping",
        notes="sliding and full attention in turn; needs attn_implementation: eager",
    ),
    ArchSpec(
        model_type="gemma3_text",
        hf_class="Gemma3ForCausalLM",
        head_softcap="final_logit_softcapping",
        notes="five layers of sliding attention to one of full attention",
    ),
    ArchSpec(
        model_type="gemma4_text",
        hf_class="Gemma4ForCausalLM",
        resident_if_present=(
            "model.embed_tokens_per_layer",
            "model.per_layer_model_projection",
            "model.per_layer_projection_norm",
        ),
        lora_targets=(*_LINEARS, "per_layer_input_gate", "per_layer_projection"),
        # The last layers take keys and values of earlier ones; some checkpoints keep their own.
        left_out=(*_OLD_ROTARY, r"\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\."),
        per_layer_input=True,
        shared_states=True,
        head_softcap="final_logit_softcapping",
        min_transformers="5.17",
        notes="two head sizes; the E-forms share keys and values and take per-layer inputs",
    ),
    ArchSpec(model_type="ministral3", hf_class="Ministral3ForCausalLM"),
    ArchSpec(model_type="olmo2", hf_class="Olmo2ForCausalLM"),
    ArchSpec(model_type="olmo3", hf_class="Olmo3ForCausalLM"),
    ArchSpec(model_type="granite", hf_class="GraniteForCausalLM", head_divisor="logits_scaling"),
    ArchSpec(model_type="smollm3", hf_class="SmolLM3ForCausalLM"),
    ArchSpec(
        model_type="glm4",
        hf_class="Glm4ForCausalLM",
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    ),
    ArchSpec(model_type="cohere2", hf_class="Cohere2ForCausalLM", head_multiplier="logit_scale"),
    ArchSpec(
        model_type="starcoder2",
        hf_class="Starcoder2ForCausalLM",
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
    ),
    ArchSpec(
        model_type="gpt_neox",
        hf_class="GPTNeoXForCausalLM",
        layers_path="gpt_neox.layers",
        resident=(
            "gpt_neox.embed_in",
            "gpt_neox.emb_dropout",
            "gpt_neox.rotary_emb",
            "gpt_neox.final_layer_norm",
        ),
        resident_if_present=("lm_head", "embed_out"),
        lora_targets=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        left_out=(*_OLD_ROTARY, r"\.attention\.(bias|masked_bias)$"),
        renames=(("embed_out.", "lm_head."), ("lm_head.", "embed_out.")),
        notes="files call the head embed_out; transformers 5.5 does so, 5.17 calls it lm_head",
    ),
)

# The third is what transformers 5.5 writes.
_LLAVA_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("model.language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
)

WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper(
        model_type="qwen3_5",
        hf_classes=("Qwen3_5ForConditionalGeneration",),
        text_types=("qwen3_5_text",),
        prefixes=(
            ("model.language_model.", "model."),
            # transformers 5.5 writes its own prefix again and again
            ("model.language_model.language_model.language_model.", "model."),
            ("lm_head.", "lm_head."),
        ),
        left_out=(r"^model\.(language_model\.)?visual\.", r"^mtp\."),
    ),
    Wrapper(
        model_type="gemma3",
        hf_classes=("Gemma3ForConditionalGeneration",),
        text_types=("gemma3_text",),
        prefixes=_LLAVA_PREFIXES,
        left_out=(r"^(model\.)?vision_tower\.", r"^(model\.)?multi_modal_projector\."),
        text_sizes=(
            ("num_hidden_layers", 26),
            ("hidden_size", 2304),
            ("num_attention_heads", 8),
            ("vocab_size", 262208),
        ),
    ),
    Wrapper(
        model_type="gemma4",
        hf_classes=("Gemma4ForConditionalGeneration",),
        text_types=("gemma4_text",),
        prefixes=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
        left_out=(r"^model\.(vision_tower|audio_tower|embed_vision|embed_audio)\.",),
    ),
    Wrapper(
        model_type="mistral3",
        hf_classes=("Mistral3ForConditionalGeneration",),
        text_types=("mistral", "ministral3"),
        prefixes=_LLAVA_PREFIXES,
        left_out=(r"^(model\.)?vision_tower\.", r"^(model\.)?multi_modal_projector\."),
    ),
)
