"""`poros export`: stock loads it, it says what base and adapter say, nothing is written over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from poros.errors import (
    PorosConfigError,
    PorosError,
    PorosModelError,
    PorosOutputError,
    PorosStorageError,
)
from poros.export import export as module
from poros.export import row_reader
from poros.export.export import export
from poros.export.logit_check import PROMPTS, prompt_ids
from poros.export.shards import parse_size
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.export.adapters import (
    KINDS,
    adapted_fp32,
    logits,
    open_fp32,
    silent,
    write_adapter,
    write_base,
)
from tests.engine.loading.tiny_models import open_stock
from tests.engine.loading.tiny_wholes import write_whole

IDS = torch.arange(2, 40)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "adapter", base)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        k: t for file in sorted(folder.glob("*.safetensors")) for k, t in load_file(file).items()
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_every_kind_merges_as_peft_does_in_float32_and_is_rounded_once(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    biases = {"attention_bias": True} if kind == "bias" else {}
    base = write_base(tmp_path / "base", tie_word_embeddings=tied, num_hidden_layers=2, **biases)
    adapter = write_adapter(tmp_path / "adapter", base, **KINDS[kind])
    done = export(str(adapter), tmp_path / "out", emit=silent)
    unmerged = adapted_fp32(base, adapter)
    expected = logits(unmerged, IDS)
    alone = tied and kind in ("embedding", "head", "whole head")
    assert bool(done.untied) == alone
    merged = open_stock(tmp_path / "out")
    if not alone:  # stock's merge changes both of two tied tensors
        stock = unmerged.merge_and_unload().state_dict()
        found = merged.state_dict()
        assert stock.keys() == found.keys()
        assert [k for k in stock if not torch.equal(stock[k].bfloat16(), found[k])] == []
    largest = (logits(merged.float(), IDS) - expected).abs().max()
    assert 0 < largest < 0.02 * expected.abs().max()
    assert [compared.same_next_token for compared in done.logits] == [True] * len(PROMPTS)


def test_bf16_is_at_most_twice_as_far_as_rounding_the_float32_merge(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    done = export(str(adapter), tmp_path / "out", emit=silent, dtype="bf16")
    expected = logits(adapted_fp32(base, adapter), IDS)
    rounded = adapted_fp32(base, adapter).merge_and_unload().bfloat16().float()
    bound = (logits(rounded, IDS) - expected).abs().max()
    ours = (logits(open_fp32(tmp_path / "out"), IDS) - expected).abs().max()
    assert 0 < ours <= 2 * bound
    assert done.dtype == "bfloat16"


def test_the_reported_differences_are_those_of_stock_models(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    done = export(str(adapter), tmp_path / "out", emit=silent)
    adapted, merged = adapted_fp32(base, adapter), open_fp32(tmp_path / "out")
    for found, ids in zip(done.logits, prompt_ids(tiny_tokenizer(), PROMPTS), strict=True):
        ours, theirs = logits(merged, ids), logits(adapted, ids)
        assert found.num_tokens == ids.shape[1]
        assert found.largest_difference == pytest.approx(
            float((ours - theirs).abs().max()), rel=0.1
        )
        assert found.largest_logit == pytest.approx(float(theirs.abs().max()), rel=1e-4)


def test_tokenizer_template_and_settings_come_along(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    export(str(adapter), tmp_path / "out", emit=silent, compared=False)
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", base))
    assert ours.chat_template == theirs.chat_template
    assert ours("Ein <|im_end|>")["input_ids"] == theirs("Ein <|im_end|>")["input_ids"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == json.loads((base / "config.json").read_text())
    assert (tmp_path / "out" / "generation_config.json").read_bytes() == (
        base / "generation_config.json"
    ).read_bytes()
    assert "FROM .\n" in (tmp_path / "out" / "Modelfile").read_text()


def test_an_adapters_own_tokenizer_goes_first(base: Path, adapter: Path, tmp_path: Path) -> None:
    own = shutil.copytree(adapter, tmp_path / "own")
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.save_pretrained(own)
    export(str(own), tmp_path / "out", emit=silent, compared=False)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert found.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("size", ["1", "30KB", "1GB"])
def test_files_of_any_size_hold_the_same_tensors(
    size: str, base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    export(str(adapter), one, emit=silent, compared=False)
    monkeypatch.setattr(row_reader, "CHUNK_ELEMENTS", 100)
    done = export(str(adapter), many, emit=silent, max_shard_size=size, compared=size == "30KB")
    files = sorted(many.glob("*.safetensors"))
    assert done.num_files == len(files)
    expected, found = tensors_of(one), tensors_of(many)
    assert expected.keys() == found.keys()
    assert [k for k in expected if not torch.equal(expected[k], found[k])] == []
    if size == "30KB":
        assert all(file.stat().st_size < 35_000 or len(load_file(file)) == 1 for file in files)
        AutoModelForCausalLM.from_pretrained(many)


@pytest.mark.parametrize(("dtype", "stored"), [("fp16", torch.float16), ("fp32", torch.float32)])
def test_the_type_can_be_chosen(
    dtype: str, stored: torch.dtype, adapter: Path, tmp_path: Path
) -> None:
    export(str(adapter), tmp_path / "out", emit=silent, dtype=dtype)
    assert {tensor.dtype for tensor in tensors_of(tmp_path / "out").values()} == {stored}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == stored


def test_a_value_beyond_float16_is_refused_and_nothing_is_left(
    adapter: Path, tmp_path: Path
) -> None:
    large = shutil.copytree(adapter, tmp_path / "large")
    weights = load_file(large / "adapter_model.safetensors")
    weights = {k: t * 1e9 if "lora_B" in k else t for k, t in weights.items()}
    save_file(weights, large / "adapter_model.safetensors")
    with pytest.raises(PorosModelError, match=r"no float16 numbers.*--dtype bf16"):
        export(str(large), tmp_path / "out", emit=silent, dtype="fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]


def test_nothing_is_written_over(adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(PorosOutputError, match="nothing is written over"):
        export(str(adapter), tmp_path / "out", emit=silent)
    (tmp_path / "file").write_text("")
    with pytest.raises(PorosOutputError, match="nothing is written over"):
        export(str(adapter), tmp_path / "file", emit=silent)
    with pytest.raises(PorosOutputError, match="mkdir -p"):
        export(str(adapter), tmp_path / "no" / "out", emit=silent)


def test_a_full_disk_is_seen_before_anything_is_written(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.atomic, "free_bytes", lambda folder: 1000)
    with pytest.raises(PorosStorageError, match="1000 are free"):
        export(str(adapter), tmp_path / "out", emit=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_run_and_its_last_checkpoint_are_found(adapter: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(adapter, run / "checkpoints" / "step-000010")
    shutil.copytree(adapter, run / "checkpoints" / "step-000020")
    (run / "run.json").write_text('{"format": 1, "run_id": "abcdef"}')
    said: list[object] = []
    done = export(str(run), tmp_path / "first", emit=said.append, compared=False)
    assert done.adapter == str(run / "checkpoints" / "step-000020")
    assert any("has not ended" in getattr(event, "message", "") for event in said)
    shutil.copytree(adapter, run / "adapter")
    done = export(str(run), tmp_path / "second", emit=silent, compared=False)
    assert done.adapter == str(run / "adapter")


def broken(adapter: Path, folder: Path, **changes: object) -> str:
    shutil.copytree(adapter, folder)
    config = json.loads((folder / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "of type IA3, not LORA"),
        ({"init_lora_weights": "pissa"}, "changed the base"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much'"),
        ({"base_model_name_or_path": None}, "--base MODEL"),
        ({"base_model_name_or_path": "/not/there"}, "no such folder"),
    ],
)
def test_what_cannot_be_merged_is_told_in_a_line(
    changes: dict[str, object], said: str, adapter: Path, tmp_path: Path
) -> None:
    name = broken(adapter, tmp_path / "bad", **changes)
    with pytest.raises(PorosError, match=said) as caught:
        export(name, tmp_path / "out", emit=silent)
    assert len(caught.value.lines()) == 1
    assert not (tmp_path / "out").exists()


def test_damaged_weights_are_told_in_a_line(adapter: Path, tmp_path: Path) -> None:
    name = Path(broken(adapter, tmp_path / "bad"))
    file = name / "adapter_model.safetensors"
    whole = load_file(file)
    first = next(key for key in whole if "lora_A" in key)
    for change, said in (
        ({first: whole[first] * torch.nan}, "NaN or infinity"),
        ({"strange": torch.ones(2)}, "no tensor of a LoRA adapter"),
        ({first.replace("layers.0", "layers.9"): whole[first]}, "has only"),
    ):
        save_file({k: t.clone() for k, t in (whole | change).items()}, file)
        with pytest.raises(PorosModelError, match=said):
            export(str(name), tmp_path / "out", emit=silent)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(PorosModelError, match="cut short"):
        export(str(name), tmp_path / "out", emit=silent)
    file.rename(name / "adapter_model.bin")
    with pytest.raises(PorosModelError, match="a pickle"):
        export(str(name), tmp_path / "out", emit=silent)


def test_another_base_is_refused(adapter: Path, tmp_path: Path) -> None:
    wider = write_base(tmp_path / "wider", hidden_size=32)
    with pytest.raises(PorosModelError, match=r"belongs to another model: it has \[64, 160\]"):
        export(str(adapter), tmp_path / "out", emit=silent, base=str(wider))
    fewer = write_base(tmp_path / "fewer", num_hidden_layers=1)
    with pytest.raises(PorosModelError, match="another model"):
        export(str(adapter), tmp_path / "out", emit=silent, base=str(fewer))
    config = json.loads((fewer / "config.json").read_text())
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    text = json.dumps(config | {"quantization_config": quantised})
    (fewer / "config.json").write_text(text)
    with pytest.raises(PorosModelError, match="4-bit already"):
        export(str(adapter), tmp_path / "out", emit=silent, base=str(fewer))


def test_a_multimodal_models_text_part_becomes_a_text_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_whole(base, "gemma3")
    text = AutoModelForCausalLM.from_config(open_text_config(base), dtype=torch.float32)
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    model = get_peft_model(text, LoraConfig(task_type="CAUSAL_LM", **chosen))
    model.save_pretrained(tmp_path / "adapter")
    said: list[object] = []
    done = export(str(tmp_path / "adapter"), tmp_path / "out", emit=said.append, base=str(base))
    assert done.logits == []
    assert any("no Modelfile" in getattr(event, "message", "") for event in said)
    found = open_stock(tmp_path / "out")
    assert type(found).__name__ == "Gemma3ForCausalLM"
    whole, ours = tensors_of(base), found.state_dict()
    # The adapter's first values add nothing.
    assert torch.equal(
        ours["model.layers.0.self_attn.q_proj.weight"],
        next(
            t
            for k, t in whole.items()
            if k.endswith(".layers.0.self_attn.q_proj.weight") and "language" in k
        ),
    )
    assert not any("vision" in name for name in tensors_of(tmp_path / "out"))


def open_text_config(folder: Path) -> PretrainedConfig:
    """The text model's own, of a multimodal folder."""
    return AutoConfig.from_pretrained(folder).get_text_config()


def test_no_folder_and_no_run_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(PorosConfigError, match="no folder, and no run"):
        export("nothing-of-that-name", tmp_path / "out", emit=silent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PorosModelError, match=r"has no adapter_config.json"):
        export(str(tmp_path / "empty"), tmp_path / "out", emit=silent)


def test_sizes_are_read_in_both_units() -> None:
    assert [parse_size(text) for text in ("4GB", "250 mb", "1GiB", "77", "1.5kB")] == [
        4 * 10**9,
        250 * 10**6,
        2**30,
        77,
        1500,
    ]
    for text in ("", "GB", "-1GB", "0", "4 parsecs"):
        with pytest.raises(PorosConfigError, match="is no size"):
            parse_size(text)
