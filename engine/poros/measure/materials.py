"""What both arms of the gate are fed: token batches and an adapter that is not zero anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

# B batch, T tokens
IGNORED = -100

TEXT = """\
The ferry left the island before dawn, and nobody on the quay could say why. A lamp still burned
in the harbour office, where the night clerk had written three lines and crossed out two of them.
Rain had fallen for nine days; the gutters ran brown, and every cellar in the lower town smelled of
apples and wet rope. When the baker opened her shutters she found the street full of gulls. They
did not move. She counted forty, swept the step, and went back to her ovens, because bread does
not wait for explanations. By noon the wind had turned, the gulls were gone, and a small boat with
a green sail lay against the wall as if it had been there for years.
"""


def rows_of_text(tokenizer: Any) -> list[list[int]]:
    """The built-in text as rows of 10 to 20 real tokens, of unequal lengths."""
    ids: list[int] = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    cuts, length = [0], 10
    while cuts[-1] + length <= len(ids):
        cuts.append(cuts[-1] + length)
        length = 10 + (length - 10 + 4) % 11
    return [ids[a:b] for a, b in pairwise(cuts)]


def random_rows(vocab_size: int, *, num_rows: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Rows of exactly `num_tokens` random tokens."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(num_tokens)] for _ in range(num_rows)]


def write_batches(
    path: Path, rows: Sequence[list[int]], *, form: str, num_steps: int, accumulation: int,
    batch_size: int = 2, same_shape: bool = False,
) -> Path:  # fmt: skip
    """Write every step's micro-batches as ``step.micro_batch.input``; returns `path`.

    Args:
        path: The safetensors file.
        rows: Token ids; used in turn.
        form: ``padding`` (unequal lengths, a mask), ``packing`` (several rows in one, a
            block-diagonal mask, positions that restart) or ``none`` (equal lengths, no mask).
        num_steps: Optimizer steps.
        accumulation: Micro-batches a step.
        batch_size: Rows a micro-batch.
        same_shape: Every micro-batch as large as the others: a compiled layer is compiled once.
    """
    width = max(map(len, rows)) if same_shape else 0
    if same_shape and form != "padding":
        rows = [row[: min(map(len, rows))] for row in rows]
    supply = _endless(rows)
    tensors = {}
    for step in range(num_steps):
        for micro_batch in range(accumulation):
            chosen = [next(supply) for _ in range(batch_size)]
            for key, tensor in _FORMS[form](chosen, width).items():
                tensors[f"{step}.{micro_batch}.{key}"] = tensor.contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def _endless(rows: Sequence[list[int]]) -> Iterator[list[int]]:
    while True:
        yield from rows


def _padded(rows: list[list[int]], width: int) -> dict[str, Tensor]:
    # Every second row on the left: what is causal never sees padding on the right, so a mask that
    # got lost would not show.
    width = max(width, *map(len, rows))
    ids_BT = torch.zeros(len(rows), width, dtype=torch.int64)
    mask_BT = torch.zeros_like(ids_BT)
    labels_BT = torch.full_like(ids_BT, IGNORED)
    for k, row in enumerate(rows):
        first = width - len(row) if k % 2 else 0
        ids_BT[k, first : first + len(row)] = torch.tensor(row)
        mask_BT[k, first : first + len(row)] = 1
        labels_BT[k, first + 3 : first + len(row)] = torch.tensor(row[3:])
    return {"input_ids": ids_BT, "labels": labels_BT, "attention_mask": mask_BT}


def _packed(rows: list[list[int]], _: int) -> dict[str, Tensor]:
    ids_T = torch.tensor([token for row in rows for token in row])
    document_T = torch.tensor([k for k, row in enumerate(rows) for _ in row])
    position_T = torch.tensor([t for row in rows for t in range(len(row))])
    labels_T = ids_T.masked_fill(position_T == 0, IGNORED)
    mask_TT = (document_T[:, None] == document_T[None, :]).tril()
    return {
        "input_ids": ids_T[None],
        "labels": labels_T[None],
        "attention_mask": mask_TT[None, None],
        "position_ids": position_T[None],
    }


def _plain(rows: list[list[int]], _: int) -> dict[str, Tensor]:
    width = min(map(len, rows))
    ids_BT = torch.tensor([row[:width] for row in rows])
    return {"input_ids": ids_BT, "labels": ids_BT.clone()}


_FORMS = {"padding": _padded, "packing": _packed, "none": _plain}


def write_adapter(
    folder: Path, config: dict[str, Any], *, targets: Sequence[str] | str, rank: int,
    dropout: float, alpha: int | None = None, seed: int = 0,
) -> Path:  # fmt: skip
    """Write a PEFT adapter of random values for a model that need not exist; returns `folder`.

    lora_B is random too: with PEFT's zeros the gradient of lora_A is zero whatever the code does.
    """
    model_config = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
        lora = LoraConfig(
            r=rank,
            lora_alpha=alpha or 2 * rank,
            lora_dropout=dropout,
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
        )
        named = get_peft_model_state_dict(get_peft_model(model, lora))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(tensor.shape, generator=generator) * 0.02
        for name, tensor in sorted(named.items())
    }
    folder.mkdir(parents=True, exist_ok=True)
    lora.inference_mode = True
    lora.save_pretrained(str(folder))
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder
