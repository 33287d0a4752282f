"""`PorosConfig`: every setting of a run, declared once.

The docstring below a field is its description in the JSON schema and in the wizard; ``group`` is
its section there. Values are never converted: a number in quotes is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from poros.config_errors import Locate, problems_of
from poros.config_guesses import meant
from poros.errors import PorosConfigError
from poros.typed_sizes import without_gb

_LARGEST_COUNT = 10**9

ALIASES = {"arch_check": "blockwise_arch_check"}
"""Another name of a key, to the key; every source may use either."""


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("no path holds a NUL")
    return text


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain_name(quantization: str) -> str:
    return "bf16" if quantization == "bf16_bitwise" else quantization


Text = Annotated[str, Field(min_length=1), AfterValidator(_refuse_nul)]
Count = Annotated[int, Field(ge=1, le=_LARGEST_COUNT)]
Gigabytes = Annotated[float, Field(gt=0), BeforeValidator(without_gb)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)]
Quantization = Annotated[
    Literal["nf4", "bf16", "fp16", "bf16_bitwise"], AfterValidator(_plain_name)
]


def _in(group: str, default: Any, **said: str) -> Any:
    """A field of a group; ``expected`` is what it takes in words, ``unit`` that of its number."""
    extra: dict[str, Any] = {"group": group} | said
    return Field(default, json_schema_extra=extra)


class PorosConfig(BaseModel):
    """All settings of a run; without arguments, the defaults.

    Raises:
        PorosConfigError: Carries every problem at once.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    model_name_or_path: Text = _in("model", "Qwen/Qwen2.5-7B")
    """Folder with config.json, tokenizer and safetensors, or the model's name on the Hub."""
    quantization: Quantization = _in("model", "nf4")
    """How the frozen base is stored; bf16_bitwise is another name of bf16."""
    torch_dtype: Literal["bfloat16", "float16", "float32"] = _in("model", "bfloat16")
    """Type the layers compute in; bf16 and fp16 bases compute in their own."""
    trust_remote_code: bool = _in("model", False)
    """Takes a model whose config names Python of its own; it is not run, a warning says so."""
    attn_implementation: Literal["sdpa", "eager"] = _in("model", "sdpa")
    """Attention that transformers uses."""
    blockwise_arch_check: Literal["error", "warn", "off"] = _in("model", "error")
    """Families outside the table: error refuses all but registered ones, warn and off run them."""

    block_size: Annotated[int, Field(ge=1, le=_LARGEST_COUNT)] | None = _in("streaming", None)
    """Layers that travel together; null is 1, the least memory. Changes no bit of the result."""
    num_slots: Annotated[int, Field(ge=2, le=_LARGEST_COUNT)] = _in("streaming", 2)
    """Travelling blocks on the device at once; vram_budget says which stay. Changes no bit."""
    enable_prefetch: bool = _in("streaming", True)
    """Copies the next block while this one computes. Changes no bit of the result."""
    vram_budget: Gigabytes | Literal["auto", "min"] = _in("streaming", "auto", unit="GB")
    """GB of the card for tensors; auto: what is free, min: the least. It changes no bit."""
    host_tier: Literal["auto", "registered", "pageable", "disk"] = _in("streaming", "auto")
    """Where blocks wait: pinned memory, plain memory, files; auto by room. Changes no bit."""
    preserve_rng_state: bool = _in("streaming", True)
    """Draws the same dropout in the recompute as in the forward pass."""
    freeze_embeddings: bool = _in("streaming", True)
    """The embeddings stay as they are; Poros trains adapters only."""
    freeze_lm_head: bool = _in("streaming", True)
    """The output head stays as it is; Poros trains adapters only."""
    nf4_load_strategy: Literal["auto", "block_streamed", "gpu"] = _in("streaming", "auto")
    """Quantises layer by layer (auto, block_streamed) or as stock transformers loads (gpu)."""
    nf4_cache: Text = _in("streaming", "auto", expected="auto, off or a folder")
    """Keeps quantised blocks for the next start: auto in the user's cache, off, or a folder."""

    lora_rank: Count = _in("adapter", 16)
    """Rank of the adapter matrices."""
    lora_alpha: Count = _in("adapter", 32)
    """The adapter's output is multiplied by lora_alpha / lora_rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = _in("adapter", 0.05)
    """Share of the adapter's inputs that a training step leaves out."""
    lora_target_modules: Text | Annotated[Texts, Field(min_length=1)] | None = _in("adapter", None)
    """Names of the linears that get an adapter; null takes all linears of the family's blocks."""
    adapter_dtype: Literal["float32", "bfloat16"] = _in("adapter", "float32")
    """Type of the adapter's weights."""

    learning_rate: Annotated[float, Field(gt=0)] = _in("optimizer", 2e-5)
    """Highest learning rate of the schedule."""
    weight_decay: Annotated[float, Field(ge=0)] = _in("optimizer", 0.01)
    """AdamW's decay of the adapter's weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = _in("optimizer", 1.0)
    """Gradients with a larger norm are scaled down to it."""
    warmup_steps: Annotated[int, Field(ge=0, le=_LARGEST_COUNT)] = _in("optimizer", 100)
    """Steps over which the learning rate rises from zero."""
    lr_scheduler: Literal["constant", "cosine", "linear"] = _in("optimizer", "cosine")
    """Course of the learning rate after the warm-up."""

    num_epochs: Count = _in("training", 1)
    """Times that every sample is seen; max_steps, where given, decides alone."""
    max_steps: Count | None = _in("training", None)
    """Optimizer steps of the whole run; null goes by num_epochs."""
    per_device_batch_size: Count = _in("training", 1)
    """Samples in a micro-batch."""
    gradient_accumulation_steps: Count = _in("training", 8)
    """Micro-batches in an optimizer step."""
    autocast: bool = _in("training", False)
    """Runs under bf16 autocast, as transformers' Trainer with bf16=True; faster, other bits."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = _in("training", 42)
    """Fixes adapter, dropout and the order of samples."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda:(0|[1-9][0-9]?))$")] = _in(
        "training", "auto", expected="auto, cpu or cuda:0, cuda:1, ..."
    )
    """Where it trains; auto takes the GPU with the most free memory, else the CPU."""
    cpu_threads: Annotated[int, Field(ge=1, le=1024)] | None = _in("training", None)
    """Threads that torch uses; null is one for each core. A run is resumed with the same number."""

    dataset: Text | None = _in("data", None)
    """JSONL, JSON, CSV or Parquet file, a name for `datasets`, or synthetic[:rows]."""
    eval_dataset: Text | None = _in("data", None)
    """Held-out rows, given as `dataset` is."""
    max_seq_length: Annotated[int, Field(ge=2, le=_LARGEST_COUNT)] = _in("data", 2048)
    """Most tokens in a sample."""
    train_on: Literal["completions", "everything"] = _in("data", "completions")
    """Tokens that carry a label."""
    overlong: Literal["truncate", "drop", "error"] = _in("data", "truncate")
    """What happens to a sample of more than max_seq_length tokens; each is counted."""
    packing: bool = _in("data", False)
    """Puts several samples into one row; none sees another."""
    on_bad_line: Literal["error", "skip"] = _in("data", "error")
    """What happens to a line that can't be read; skipped ones are listed."""

    output_dir: Text = _in("run", "./poros_output")
    """The run's folder: checkpoints, events and the adapter."""
    save_steps: Count = _in("run", 500)
    """Optimizer steps between checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=2, le=_LARGEST_COUNT)] = _in("run", 2)
    """Checkpoints kept; the oldest go first."""
    logging_steps: Count = _in("run", 10)
    """Optimizer steps between progress lines in a pipe or a log file; every step is an event."""
    eval_steps: Count | None = _in("run", None)
    """Optimizer steps between evaluations; null evaluates once, at the end."""
    samples: Texts = _in("run", ())
    """Prompts that the model answers before and after the training."""
    sample_tokens: Annotated[int, Field(ge=1, le=100_000)] = _in("run", 64)
    """Most tokens of such an answer."""
    resume: Text = _in("run", "auto", expected="auto, never or a checkpoint's folder")
    """auto goes on from the newest complete checkpoint of output_dir, never starts anew."""
    allow_inexact_resume: bool = _in("run", False)
    """Resumes though data, settings or machine differ; the run is marked as not exact for ever."""
    survive_hangup: bool = _in("run", False)
    """Goes on when the terminal closes."""

    @property
    def layers_per_block(self) -> int:
        """`block_size` with its default filled in."""
        return self.block_size or 1

    @model_validator(mode="wrap")
    @classmethod
    def _all_problems_at_once(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        locate: Locate = (info.context or {}).get("locate", _nowhere)
        data = _without_aliases(data, locate)
        try:
            config = handler(_with_implied_values(data))
        except ValidationError as error:
            problems = problems_of(error, field_schemas(), locate)
            known = cls.model_fields.keys()
            given = data if isinstance(data, dict) else {}
            wrong = {key for problem in problems for key in problem.keys}
            wrong |= {meant(key, known) for key in given if key not in known}
            rest = {key: value for key, value in given.items() if key in known - wrong}
            # What is left is held against itself too: not one problem after the other.
            problems += _contradictions(handler(_with_implied_values(rest)), locate, but=wrong)
            raise PorosConfigError.of(problems) from None
        if problems := _contradictions(config, locate):
            raise PorosConfigError.of(problems)
        return config


@cache
def field_schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of each field, by key."""
    properties: dict[str, dict[str, Any]] = PorosConfig.model_json_schema()["properties"]
    return properties


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, for editors and for `poros schema`."""
    schema = PorosConfig.model_json_schema()
    for alias, key in ALIASES.items():
        schema["properties"][alias] = schema["properties"][key] | {
            "description": f"Another name of {key}."
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def require_dataset(config: PorosConfig, where: str = "") -> None:
    """Refuse a config that cannot train, since it names no data."""
    if config.dataset is None:
        error = PorosConfigError(
            "dataset is missing",
            where=where,
            remediation="add `dataset: data.jsonl`, or --set dataset=data.jsonl",
        )
        error.keys = ("dataset",)
        raise error


def _contradictions(
    config: PorosConfig, locate: Locate, *, but: Collection[str] = ()
) -> list[PorosConfigError]:
    """Settings that can't both be meant, but for those with a part in something else."""
    rules = (rule for rule in _CONTRADICTIONS if not set(but).intersection(rule.keys))
    return [rule.error(locate) for rule in rules if rule.holds(config)]


def _nowhere(path: tuple[str | int, ...]) -> str:
    return ""


def _without_aliases(data: Any, locate: Locate) -> Any:
    """The values by the keys' own names.

    Raises:
        PorosConfigError: A key is given under both of its names.
    """
    for alias, key in ALIASES.items() if isinstance(data, dict) else ():
        if alias in data and key in data:
            raise PorosConfigError(
                f"{alias} and {key} are two names of one setting",
                where=locate((key,)),
                remediation=f"delete {alias}",
            )
        if alias in data:
            data = {key if name == alias else name: value for name, value in data.items()}
    return data


def _with_implied_values(data: Any) -> Any:
    """A 16-bit base computes in its own type unless the config says otherwise."""
    if isinstance(data, dict) and data.get("quantization") == "fp16":
        return {"torch_dtype": "float16"} | data
    return data


@dataclass(frozen=True)
class _Contradiction:
    """Two settings that cannot both be meant."""

    keys: tuple[str, ...]
    holds: Callable[[PorosConfig], bool]
    message: str
    remediation: str
    change: Mapping[str, Any]

    def error(self, locate: Locate) -> PorosConfigError:
        places = dict.fromkeys(filter(None, (locate((key,)) for key in self.keys)))
        where = ", ".join(places)
        error = PorosConfigError(self.message, where=where, remediation=self.remediation)
        error.keys, error.change = self.keys, self.change
        return error


_CONTRADICTIONS = (
    _Contradiction(
        ("preserve_rng_state", "lora_dropout"),
        lambda c: c.lora_dropout > 0 and not c.preserve_rng_state,
        "lora_dropout needs preserve_rng_state: the recompute would drop other inputs",
        "set preserve_rng_state: true or lora_dropout: 0",
        {"preserve_rng_state": True},
    ),
    _Contradiction(
        ("torch_dtype", "quantization"),
        lambda c: (
            {"bf16": "bfloat16", "fp16": "float16"}.get(c.quantization, c.torch_dtype)
            != c.torch_dtype
        ),
        "torch_dtype is not the type of the base that quantization asks for",
        "leave torch_dtype out, or use quantization: nf4",
        {"quantization": "nf4"},
    ),
    _Contradiction(
        ("freeze_embeddings",),
        lambda c: not c.freeze_embeddings,
        "freeze_embeddings: false is not supported, Poros trains adapters on a frozen base",
        "delete the line",
        {"freeze_embeddings": True},
    ),
    _Contradiction(
        ("freeze_lm_head",),
        lambda c: not c.freeze_lm_head,
        "freeze_lm_head: false is not supported, Poros trains adapters on a frozen base",
        "delete the line",
        {"freeze_lm_head": True},
    ),
    _Contradiction(
        ("eval_steps", "eval_dataset"),
        lambda c: c.eval_steps is not None and c.eval_dataset is None,
        "eval_steps without eval_dataset evaluates nothing",
        "add eval_dataset: PATH or delete eval_steps",
        {"eval_steps": None},
    ),
    _Contradiction(
        ("nf4_cache", "quantization"),
        lambda c: c.quantization != "nf4" and c.nf4_cache not in ("auto", "off"),
        "nf4_cache names a folder but nothing is quantised to NF4",
        "delete nf4_cache, or use quantization: nf4",
        {"nf4_cache": "auto"},
    ),
    _Contradiction(
        ("nf4_load_strategy", "quantization"),
        lambda c: c.quantization != "nf4" and c.nf4_load_strategy != "auto",
        "nf4_load_strategy is set but nothing is quantised to NF4",
        "delete nf4_load_strategy, or use quantization: nf4",
        {"nf4_load_strategy": "auto"},
    ),
    _Contradiction(
        ("packing", "attn_implementation"),
        lambda c: c.packing and c.attn_implementation == "eager",
        "packing needs attn_implementation: sdpa, eager would let documents see each other",
        "delete attn_implementation, or set packing: false",
        {"attn_implementation": "sdpa"},
    ),
    _Contradiction(
        ("vram_budget", "device"),
        lambda c: c.device == "cpu" and c.vram_budget not in ("auto", "min"),
        "vram_budget is a GPU's memory but device is cpu",
        "delete vram_budget, or name a cuda device",
        {"vram_budget": "auto"},
    ),
)
