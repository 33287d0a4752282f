"""The scripts of somebody who knows PEFT: a plain loop, a Trainer, TRL's SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments

from tests.engine.dropin.live import state_of

STEPS = 10
SAVED = 5
NUM_WORDS = 400
"""Token ids are below it, so that any model takes them."""


class Rows(Dataset):
    """Random rows, the same ones every time."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        seeded = torch.Generator().manual_seed(index)
        ids = torch.randint(1, NUM_WORDS, (self._num_tokens,), generator=seeded)
        return {"input_ids": ids, "labels": ids}


def with_adapter(base: PreTrainedModel, dtype: torch.dtype = torch.float32) -> PeftModel:
    """PEFT's adapter on the base's linears, the same first values every time."""
    torch.manual_seed(5)
    config = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            if "lora_B" in name:  # at zero, half of the gradients would be
                nn.init.normal_(parameter, 0, 0.01)
            parameter.data = parameter.data.to(dtype)
    return model


def plain_loop(model: PeftModel, rows: Dataset, out: Path) -> dict[str, Tensor]:
    """AdamW by hand, the KV cache left at its default."""
    del out
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for step in range(STEPS):
        picked = [rows[(2 * step + k) % len(rows)]["input_ids"] for k in range(2)]
        ids = torch.stack(picked).to(model.device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return _trained(model, optimizer)


def by_trainer(
    model: PeftModel, rows: Dataset, out: Path, *, bf16: bool, resume: Path | None = None
) -> dict[str, Tensor]:
    """`Trainer`, with evaluation and saving in the middle."""
    args = TrainingArguments(bf16=bf16, gradient_accumulation_steps=2, **_settings(model, out))
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return _trained(model, trainer.optimizer.optimizer)


def by_sft(
    model: PeftModel, rows: Dataset, out: Path, *, tokenizer: Any, resume: Path | None = None
) -> dict[str, Tensor]:
    """TRL's SFTTrainer: bfloat16 and gradient checkpointing are its own defaults."""
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    ids = [rows[k]["input_ids"].tolist() for k in range(len(rows))]
    table = Table.from_list([{"input_ids": of_row} for of_row in ids])
    args = SFTConfig(**_settings(model, out))
    trainer = SFTTrainer(
        model, args, train_dataset=table, eval_dataset=table, processing_class=tokenizer
    )
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return _trained(model, trainer.optimizer.optimizer)


def _settings(model: PeftModel, out: Path) -> dict[str, Any]:
    return {
        "output_dir": str(out),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "save_steps": SAVED,
        "eval_strategy": "steps",
        "eval_steps": SAVED,
        "report_to": [],
        "use_cpu": model.device.type == "cpu",
        "disable_tqdm": True,
    }


def _trained(model: PeftModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return state_of({n: p for n, p in model.named_parameters() if p.requires_grad}, optimizer)
