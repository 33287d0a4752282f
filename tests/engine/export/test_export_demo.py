"""The demo's own model: a merge into it loads in stock transformers, as near as rounding allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from poros.demo.model import demo_model_folder
from poros.export.export import export
from poros.export.logit_check import PROMPTS, prompt_ids
from poros.training.inputs import read_tokenizer
from tests.engine.export.adapters import adapted_fp32, logits, open_fp32, write_adapter


def silent(event: object) -> None:
    del event


@pytest.mark.long
def test_the_merge_is_as_near_as_rounding_and_stock_opens_it(tmp_path: Path) -> None:
    base = demo_model_folder(silent)
    adapter = write_adapter(tmp_path / "adapter", base, r=16, target_modules="all-linear")
    done = export(str(adapter), tmp_path / "out", emit=silent, max_shard_size="50MB", dtype="bf16")
    assert done.num_files > 3
    ids = prompt_ids(read_tokenizer(base), PROMPTS)
    unmerged = adapted_fp32(base, adapter)
    expected = [logits(unmerged, prompt) for prompt in ids]
    rounded = unmerged.merge_and_unload().bfloat16().float()
    merged = open_fp32(tmp_path / "out")
    for prompt, theirs, told in zip(ids, expected, done.logits, strict=True):
        ours = (logits(merged, prompt) - theirs).abs().max()
        bound = (logits(rounded, prompt) - theirs).abs().max()
        assert 0 < ours <= 2 * bound
        assert told.largest_difference == pytest.approx(float(ours), rel=0.1)
        assert torch.isfinite(theirs).all()
