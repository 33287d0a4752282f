"""No field of the config may be read by nothing: each is changed alone, and its effect seen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from poros.config import PorosConfig
from poros.errors import (
    PorosArchNotValidatedError,
    PorosConfigError,
    PorosDataError,
    PorosModelError,
    PorosOutputError,
    PorosResumeError,
)
from poros.events import (
    CheckpointSaved,
    DataPrepared,
    EvaluationFinished,
    ModelLoaded,
    RunStarted,
    SampleGenerated,
)
from poros.training.run_inputs import NUMERIC
from tests.engine.training.watched_run import Bench, Seen

HERE = "HERE"
"""Stands for the bench's folder in a row's values."""

Effect = Callable[[Seen, Seen], bool]


@dataclass(frozen=True)
class Row:
    """A field's other value, and what the run with it (b) does that the baseline (a) does not."""

    value: Any
    effect: Effect
    base: dict[str, Any] = field(default_factory=dict)
    """Settings of both runs, for a field that says nothing without them."""
    after: dict[str, Any] | None = None
    """Both runs start in the folder of a run with these settings."""
    same_bits: bool = False


def refused(kind: type[Exception], word: str, exit_code: int) -> Effect:
    """Only the changed run is refused, with a line that names the field."""
    return lambda a, b: a.error is None and is_refused(b, kind, word, exit_code)


def accepted(kind: type[Exception], word: str, exit_code: int, warning: str) -> Effect:
    """Only the baseline is refused; the changed run trains, with a warning."""
    return lambda a, b: is_refused(a, kind, word, exit_code) and warning in b.warnings()


def is_refused(seen: Seen, kind: type[Exception], word: str, exit_code: int) -> bool:
    error = seen.error
    right_kind = isinstance(error, kind) and error.exit_code == exit_code
    return right_kind and word in str(error) and not seen.steps("step")


def shapes(seen: Seen) -> set[int]:
    return {min(tensor.shape) for tensor in seen.adapter().values()}


def dtypes(seen: Seen) -> set[torch.dtype]:
    return {tensor.dtype for tensor in seen.adapter().values()}


def rates(seen: Seen) -> list[float]:
    return [round(rate, 5) for rate in seen.steps("learning_rate")]


def loaded(seen: Seen) -> ModelLoaded:
    return seen.one(ModelLoaded)


def data(seen: Seen) -> DataPrepared:
    return seen.all(DataPrepared)[0]


def evaluated(seen: Seen) -> list[int]:
    return [event.step for event in seen.all(EvaluationFinished)]


def answers(seen: Seen) -> list[str]:
    return [event.text for event in seen.all(SampleGenerated)]


def dropout_of(seen: Seen) -> set[float]:
    model = seen.parts().model
    return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}


HELD_OUT = {"eval_dataset": f"{HERE}/held-out.jsonl"}
ASKED = {"samples": ("why?",), "sample_tokens": 8}

ROWS: dict[str, Row] = {
    "model_name_or_path": Row(
        f"{HERE}/other",
        lambda a, b: (
            b.one(RunStarted).model.endswith("other") and a.steps("loss") != b.steps("loss")
        ),
    ),
    "quantization": Row(
        "bf16", lambda a, b: min(loaded(b).block_bytes) > 3 * max(loaded(a).block_bytes)
    ),
    "torch_dtype": Row(
        "float32",
        lambda a, b: (
            [s.parts().model.dtype for s in (a, b)] == [torch.bfloat16, torch.float32]
            and a.steps("loss") != b.steps("loss")
        ),
    ),
    "trust_remote_code": Row(
        True,
        accepted(PorosModelError, "auto_map", 4, "remote-code"),
        base={"model_name_or_path": f"{HERE}/with-code"},
    ),
    "attn_implementation": Row(
        "eager",
        lambda a, b: (
            [s.parts().model.config._attn_implementation for s in (a, b)] == ["sdpa", "eager"]
        ),
    ),
    "blockwise_arch_check": Row(
        "warn",
        accepted(PorosArchNotValidatedError, "no architecture entry", 4, "W-architecture"),
        base={"model_name_or_path": f"{HERE}/unknown"},
    ),
    "block_size": Row(
        2, lambda a, b: [loaded(s).num_blocks for s in (a, b)] == [3, 2], same_bits=True
    ),
    "num_slots": Row(
        3, lambda a, b: [loaded(s).num_slots for s in (a, b)] == [2, 3], same_bits=True
    ),
    "enable_prefetch": Row(
        False,
        # Copies that are queued once the first block is bound: with its successor, or alone.
        lambda a, b: [s.copies_at_binds[0] for s in (a, b)] == [2, 1],
        same_bits=True,
    ),
    "vram_budget": Row(
        0.2,
        lambda a, b: [loaded(s).num_slots for s in (a, b)] == [2, 0],
        base={"device": "auto"},
        same_bits=True,
    ),
    "host_tier": Row(
        "disk",
        lambda a, b: (
            [loaded(s).host_tier for s in (a, b)] == ["memory", "disk"]
            and loaded(b).disk_bytes > 0 == loaded(a).disk_bytes
            and loaded(b).host_bytes < loaded(a).host_bytes
            and "host-tier" in b.warnings()
        ),
        same_bits=True,
    ),
    "preserve_rng_state": Row(
        False,
        lambda a, b: b.error is None and a.num_random_states > b.num_random_states,
        base={"lora_dropout": 0.0},
        same_bits=True,
    ),
    "freeze_embeddings": Row(False, refused(PorosConfigError, "freeze_embeddings", 2)),
    "freeze_lm_head": Row(False, refused(PorosConfigError, "freeze_lm_head", 2)),
    "nf4_load_strategy": Row(
        "gpu",
        lambda a, b: (
            [s.num_stock_loads for s in (a, b)] == [0, 1] and a.base_bytes() == b.base_bytes()
        ),
        same_bits=True,
    ),
    "nf4_cache": Row(
        f"{HERE}/nf4-2", lambda a, b: is_cached_in(b, "nf4-2") > is_cached_in(a, "nf4-2"),
        same_bits=True,
    ),
    "lora_rank": Row(2, lambda a, b: (shapes(a), shapes(b)) == ({4}, {2})),
    "lora_alpha": Row(
        64, lambda a, b: [s.adapter_settings()["lora_alpha"] for s in (a, b)] == [32, 64]
    ),
    "lora_dropout": Row(0.5, lambda a, b: (dropout_of(a), dropout_of(b)) == ({0.05}, {0.5})),
    "lora_target_modules": Row(
        ("q_proj", "v_proj"),
        lambda a, b: [loaded(s).num_adapter_tensors for s in (a, b)] == [3 * 7 * 2, 3 * 2 * 2],
    ),
    "adapter_dtype": Row(
        "bfloat16", lambda a, b: (dtypes(a), dtypes(b)) == ({torch.float32}, {torch.bfloat16})
    ),
    "learning_rate": Row(
        5e-3, lambda a, b: (rates(a), rates(b)) == ([0.01, 0.01, 0.005], [0.005, 0.005, 0.0025])
    ),
    "weight_decay": Row(
        0.5, lambda a, b: b.parts().optimizer.param_groups[0]["weight_decay"] == 0.5
    ),
    "max_grad_norm": Row(
        1e-3,
        # The same first step up to the clip, other weights after it.
        lambda a, b: (
            a.steps("grad_norm")[0] == b.steps("grad_norm")[0] > 1e-3
            and a.steps("loss")[2] != b.steps("loss")[2]
        ),
    ),
    "warmup_steps": Row(2, lambda a, b: rates(b) == [0.005, 0.01, 0.01] != rates(a)),
    "lr_scheduler": Row("constant", lambda a, b: rates(b) == [0.01] * 3 != rates(a)),
    "num_epochs": Row(
        2, lambda a, b: [s.steps("epoch") for s in (a, b)] == [[0] * 3, [0] * 3 + [1] * 3]
    ),
    "max_steps": Row(1, lambda a, b: [s.steps("step") for s in (a, b)] == [[1, 2, 3], [1]]),
    "per_device_batch_size": Row(
        3, lambda a, b: [len(s.steps("step")) for s in (a, b)] == [3, 2]
    ),
    "gradient_accumulation_steps": Row(
        3, lambda a, b: [sum(a.steps("num_tokens"))] == b.steps("num_tokens")
    ),
    "autocast": Row(True, lambda a, b: a.steps("loss") != b.steps("loss")),
    "seed": Row(7, lambda a, b: a.steps("num_tokens") != b.steps("num_tokens")),
    "device": Row("cuda:0", refused(PorosConfigError, "there is no cuda:0", 2)),
    "cpu_threads": Row(
        2, lambda a, b: (a.num_threads, b.num_threads) == (1, 2), base={"max_steps": 1}
    ),
    "dataset": Row(
        f"{HERE}/other.jsonl", lambda a, b: data(a).num_label_tokens < data(b).num_label_tokens
    ),
    "eval_dataset": Row(HELD_OUT["eval_dataset"], lambda a, b: evaluated(b) == [0, 3]),
    "max_seq_length": Row(
        60, lambda a, b: sum(b.steps("num_tokens")) == sum(a.steps("num_tokens")) - 20
    ),
    "train_on": Row(
        "everything", lambda a, b: data(b).num_label_tokens > 2 * data(a).num_label_tokens
    ),
    "overlong": Row(
        "drop", lambda a, b: [data(s).num_dropped for s in (a, b)] == [0, 1]
    ),
    "packing": Row(True, lambda a, b: len(b.steps("step")) < len(a.steps("step"))),
    "on_bad_line": Row(
        "skip",
        accepted(PorosDataError, "broken.jsonl:7", 3, "W-data-dropped"),
        base={"dataset": f"{HERE}/broken.jsonl"},
    ),
    "output_dir": Row(
        f"{HERE}/elsewhere", lambda a, b: b.one(RunStarted).output_dir.endswith("elsewhere")
    ),
    "save_steps": Row(
        1,
        lambda a, b: (
            [[e.step for e in s.all(CheckpointSaved)] for s in (a, b)] == [[2, 3], [1, 2, 3]]
        ),
        same_bits=True,
    ),
    "keep_checkpoints": Row(
        3,
        lambda a, b: [len(s.saved()) for s in (a, b)] == [2, 3],
        base={"save_steps": 1},
        same_bits=True,
    ),
    "logging_steps": Row(
        1, lambda a, b: [len(s.printed) for s in (a, b)] == [2, 3], same_bits=True
    ),
    "eval_steps": Row(
        1,
        lambda a, b: [evaluated(s) for s in (a, b)] == [[0, 3], [0, 1, 2, 3]],
        base=HELD_OUT,
        same_bits=True,
    ),
    "samples": Row(
        ("why?",), lambda a, b: [len(answers(s)) for s in (a, b)] == [0, 2], same_bits=True
    ),
    "sample_tokens": Row(
        2,
        lambda a, b: all(len(x) > len(y) for x, y in zip(answers(a), answers(b), strict=True)),
        base=ASKED,
        same_bits=True,
    ),
    "resume": Row(
        "never", refused(PorosOutputError, "never", 7), after={"max_steps": 3}
    ),
    "allow_inexact_resume": Row(
        True,
        accepted(PorosResumeError, "learning_rate", 6, "W-inexact"),
        base={"learning_rate": 2e-2},
        after={"max_steps": 1},
    ),
    "survive_hangup": Row(
        True,
        lambda a, b: callable(a.on_hangup) and b.on_hangup == signal.SIG_IGN,
        same_bits=True,
    ),
}  # fmt: skip


def is_cached_in(seen: Seen, name: str) -> bool:
    entry = seen.parts().base.cache_entry
    return entry is not None and entry.parent.name == name and (entry / "config.json").exists()


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield Bench(folder)


def placed(value, folder: Path):
    if isinstance(value, dict):
        return {key: placed(inner, folder) for key, inner in value.items()}
    return value.replace(HERE, os.fspath(folder)) if isinstance(value, str) else value


def test_every_field_has_a_row():
    assert list(ROWS) == list(PorosConfig.model_fields)


@pytest.mark.parametrize("key", ROWS)
def test_changing_a_field_alone_has_its_effect(bench, key):
    row = ROWS[key]
    base, value = placed(row.base, bench.folder), placed(row.value, bench.folder)
    a = bench.run(base, after=row.after)
    b = bench.run(base | {key: value}, after=row.after)
    assert row.effect(a, b), (a.error, b.error)
    assert not row.effect(a, a), "the row would not see a dead field"
    if row.same_bits:
        assert a.bits() == b.bits() is not None
    elif key in NUMERIC:
        assert None is not a.bits() != b.bits() is not None
