"""`poros check`: what is said of a model's folder, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poros import arch_registry
from poros.arch_registry import VARIABLE, find_architecture
from poros.check import UNKNOWN, check_model
from poros.cli_check import record_of
from poros.errors import PorosError, PorosHubError, PorosModelError
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, Tensors, qwen_tensors, write_headers
from tests.engine.test_cli import poros

ROOT = Path(__file__).parents[2]
SMALL = QWEN_7B | {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(arch_registry, "_registered", {})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def small(folder: Path, tensors: Tensors | None = None, **changes: object) -> Path:
    return write_headers(
        folder, SMALL | changes, qwen_tensors(SMALL) if tensors is None else tensors
    )


def reason(folder: Path) -> str:
    """The only reason why it is refused."""
    [error] = check_model(str(folder)).refusals
    return str(error)


def test_a_real_model_has_the_sizes_that_were_measured(folder):
    gate = json.loads((ROOT / "docs/validation/h200-qwen2.5-7b/gate.json").read_text())
    measured = gate["measurements"][1]
    report = check_model(str(write_headers(folder, QWEN_7B, qwen_tensors(QWEN_7B))))
    assert report.refusals == []
    assert report.sizes is not None
    assert report.sizes.num_params == 7_615_616_512
    assert report.sizes.num_layers == 28
    # The slot's last tensor is not padded.
    assert 0 <= report.sizes.nf4_layer_bytes - measured["streaming_proof"]["slot_bytes"] < 256
    # Beside the ends, the rotary table is resident.
    assert abs(report.sizes.ends_bytes - measured["resident_bytes"]) < 1000
    assert report.sizes.nf4_bytes == 28 * report.sizes.nf4_layer_bytes + report.sizes.ends_bytes
    assert report.sizes.largest_linear is not None
    assert report.sizes.largest_linear.shape == (18944, 3584)
    assert not report.sizes.tied


def test_what_a_plan_needs_is_told_from_headers(folder):
    write_headers(folder, QWEN_7B, qwen_tensors(QWEN_7B))
    small_card = ("--vram", "3.5", "--seq-len", "512")
    ended = poros_here("check", str(folder), *small_card)
    assert ended.returncode == 0
    assert "least memory  peak 1." in ended.stdout
    assert "of 28 blocks resident, on the host head" in ended.stdout
    record = json.loads(poros_here("check", str(folder), *small_card, "--json").stdout)["plan"]
    assert record["fits"]
    assert record["peak_bytes"] < record["device_bytes"] <= 3.5e9
    assert 0 < len(record["resident"]) < record["num_blocks"] == 28
    long = ("--vram", "3.5", "--seq-len", "16384", "--json")
    ended = poros_here("check", str(folder), *long)
    record = json.loads(ended.stdout)
    assert (ended.returncode, record["trains"], record["plan"]["fits"]) == (10, True, False)
    assert "tokens a micro-batch would fit" in record["plan"]["remediation"]
    ended = poros_here("check", str(folder), *long[:-1])
    told = "1 x 16384 tokens take 9.73 to 11.3 GB of the card"
    assert f"does not fit: {told}; 2950 tokens" in ended.stdout
    assert ended.stdout.rstrip().endswith("trains  not in 3.5 GB with these samples")
    line = f"poros: error[E-device-memory]: {told}, --vram 3.5 -> 2950 tokens a micro-batch would"
    assert ended.stderr == f"{line} fit\n"


def test_a_proved_family_is_certified_with_the_artifacts_behind_it(folder):
    report = check_model(str(small(folder)))
    assert report.labels.architecture == "certified"
    assert report.notes == find_architecture("qwen2").notes
    assert "h200-qwen2.5-7b" in report.why
    assert "random weights" in report.why


def test_an_unknown_family_is_refused_with_the_way_to_run_it(folder):
    small(folder, model_type="olmo", architectures=["OlmoForCausalLM"])
    assert f"{VARIABLE}=olmo" in reason(folder)
    report = check_model(str(folder))
    assert report.labels.architecture == UNKNOWN
    assert report.sizes is not None
    assert report.sizes.num_layers == 3


def test_a_registered_family_is_user_asserted(folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, "olmo")
    small(folder, model_type="olmo", architectures=["OlmoForCausalLM"])
    report = check_model(str(folder))
    assert report.refusals == []
    assert report.labels.architecture == "user_asserted"
    assert "nothing is claimed to be exact" in report.why


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3_moe", "num_experts": 128},
        {"model_type": "mixtral"},
        {"model_type": "gpt_oss", "num_local_experts": 32},
        {"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 128},
        {"model_type": "qwen3_5_moe", "text_config": {"num_experts": 256}},
    ],
)
def test_a_mixture_of_experts_is_refused_with_the_reason(folder, changes):
    assert "fuses the experts" in reason(small(folder, **changes))


@pytest.mark.parametrize("changes", [{"num_experts": None}, {"enable_moe_block": False}])
def test_a_dense_config_with_keys_of_mixtures_is_no_mixture(folder, changes):
    assert check_model(str(small(folder, **changes))).refusals == []


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8"])
def test_other_quantisations_are_refused_by_their_name(folder, method):
    small(folder, quantization_config={"quant_method": method, "bits": 4})
    assert f"quantised already ({method})" in reason(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4, the weights have 3 at model.layers"),
        ({"vocab_size": 100}, "lm_head.weight is [128, 64], expected [100, 64]"),
        ({"hidden_size": 32}, "hidden_size is 32, model.layers.[0-2].input_layernorm.weight"),
        ({"architectures": ["LlamaForCausalLM"]}, "belongs to Qwen2ForCausalLM"),
    ],
)
def test_a_config_that_belongs_to_other_weights_is_refused_by_name(folder, changes, words):
    assert words in reason(small(folder, **changes))


def test_tensors_are_told_with_their_own_shapes(folder):
    told = reason(small(folder, hidden_size=32, vocab_size=7))
    assert "input_layernorm.weight" in told.split(" is [64], ")[0]
    assert "o_proj.weight is [64, 64], model.layers.[0-2].mlp.down_proj.weight is [64, 160]" in told
    assert "no embeddings have as many rows: model.embed_tokens.weight is [" in told


def test_a_file_is_no_model_folder(folder):
    small(folder)
    with pytest.raises(PorosModelError, match="a file, not a folder"):
        check_model(str(folder / "config.json"))


def test_a_missing_head_and_a_missing_layer_are_told(folder):
    tensors = qwen_tensors(SMALL)
    del tensors["lm_head.weight"]
    tensors = {name: t for name, t in tensors.items() if ".1." not in name}
    line = reason(small(folder, tensors))
    assert "the weights have 2 at model.layers" in line
    assert "tie_word_embeddings is false, but the weights have no head" in line


def test_a_tied_head_is_counted_once_even_where_it_is_stored(folder):
    untied = check_model(str(small(folder / "a"))).sizes
    tied = check_model(str(small(folder / "b", tie_word_embeddings=True))).sizes
    assert untied is not None
    assert tied is not None
    assert tied.tied
    assert untied.num_params - tied.num_params == 128 * 64


def test_of_a_multimodal_model_the_text_part_is_looked_at(folder):
    text = SMALL | {"model_type": "gemma3_text", "architectures": None, "layer_types": None}
    tensors = qwen_tensors(SMALL, prefix="model.language_model.")
    tensors["model.vision_tower.patch.weight"] = ("BF16", (32, 8))
    whole = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": False,
    }
    report = check_model(str(write_headers(folder, whole, tensors)))
    assert report.refusals == []
    assert (report.model_type, report.whole) == ("gemma3_text", "gemma3")
    assert report.left_out_bytes == {"model.vision_tower.patch.weight": 512}
    alone = check_model(str(small(folder / "alone"))).sizes
    assert report.sizes is not None
    assert alone is not None
    assert report.sizes.num_params == alone.num_params


def test_a_packed_checkpoint_has_the_sizes_of_its_original(folder):
    tensors: Tensors = {}
    for name, (dtype, shape) in qwen_tensors(SMALL).items():
        if "layers" in name and len(shape) == 2:
            num_params = shape[0] * shape[1]
            tensors[name] = ("U8", (num_params // 2, 1))
            tensors[f"{name}.absmax"] = ("U8", (num_params // 64,))
            tensors[f"{name}.quant_map"] = ("F32", (16,))
            tensors[f"{name}.quant_state.bitsandbytes__nf4"] = ("U8", (100,))
        else:
            tensors[name] = (dtype, shape)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    packed = check_model(str(small(folder / "packed", tensors, quantization_config=settings)))
    original = check_model(str(small(folder / "original")))
    assert packed.refusals == []
    assert packed.prequantised
    assert packed.sizes is not None
    assert original.sizes is not None
    assert packed.sizes.nf4_bytes == original.sizes.nf4_bytes
    assert packed.sizes.num_params == original.sizes.num_params


def test_a_folder_without_weights_still_says_what_its_config_does(folder):
    small(folder)
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in reason(folder)
    assert check_model(str(folder)).labels.architecture == "certified"


NONSENSE = (None, -1, 2**70, 1.5, "x", [1], {"a": 1}, True, [None], {"model_type": 3})


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("inside", [False, True])
def test_no_value_of_a_config_crashes_it(folder, value, inside):
    keys = (
        "model_type", "architectures", "num_hidden_layers", "hidden_size", "vocab_size",
        "tie_word_embeddings", "quantization_config", "layer_types", "num_experts",
        "num_kv_shared_layers", "enable_moe_block", "text_config",
    )  # fmt: skip
    whole = {"model_type": "gemma4", "text_config": SMALL | {"model_type": "gemma4_text"}}
    for key in keys:
        text = SMALL | {key: value}
        config = whole | {"text_config": text, "architectures": None} if inside else text
        write_headers(folder, config, qwen_tensors(SMALL, prefix="model.language_model."))
        report = check_model(str(folder))
        assert all(isinstance(error, PorosError) for error in report.refusals)
        json.dumps(record_of(report))


@pytest.mark.parametrize("shape", [(), (0,), (64,), (2, 3, 4)])
def test_no_shape_of_a_tensor_crashes_it(folder, shape):
    for name in qwen_tensors(SMALL):
        tensors = qwen_tensors(SMALL) | {name: ("BF16", shape)}
        report = check_model(str(small(folder, tensors)))
        assert all(isinstance(error, PorosError) for error in report.refusals)


def test_a_layer_number_beyond_all_bounds_is_no_layer(folder):
    tensors = qwen_tensors(SMALL) | {f"model.layers.{'9' * 5000}.x.weight": ("BF16", (2, 2))}
    assert check_model(str(small(folder, tensors))).sizes.num_layers == 3


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_config_is_refused(folder, content):
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(PorosModelError):
        check_model(str(folder))


def test_a_model_of_the_hub_is_found_in_its_cache_only(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(PorosHubError, match="Hub's cache has no model"):
        check_model("some/model")
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    small(cached / "snapshots" / "abc")
    assert check_model("some/model").folder == cached / "snapshots" / "abc"


def test_the_report_is_printed_and_the_exit_code_says_whether_it_trains(folder):
    good = poros_here("check", str(small(folder / "good")))
    assert good.returncode == 0
    assert "certified" in good.stdout
    assert good.stdout.rstrip().endswith("trains  yes")
    assert good.stderr == ""
    bad = poros_here("check", str(small(folder / "bad", model_type="mixtral")))
    assert bad.returncode == 4
    assert "refused" in bad.stdout
    assert bad.stderr.startswith("poros: error[E-architecture]:")
    assert bad.stderr.count("\n") == 1
    absent = poros("check", "some/model", HF_HUB_CACHE=str(folder))
    assert (absent.returncode, absent.stdout) == (5, "")


def test_the_report_as_json_has_the_refusals_too(folder):
    good = json.loads(poros_here("check", "--json", str(small(folder / "good"))).stdout)
    assert good["trains"] is True
    assert good["labels"]["architecture"] == "certified"
    assert good["sizes"]["num_layers"] == 3
    done = poros_here("check", "--json", str(small(folder / "bad", num_hidden_layers=9)))
    bad = json.loads(done.stdout)
    assert done.returncode == 4
    assert bad["trains"] is False
    assert [r["code"] for r in bad["refusals"]] == ["E-model"]
    assert "num_hidden_layers is 9" in bad["refusals"][0]["message"]


def test_a_variable_that_names_nonsense_is_a_config_error(folder):
    done = poros_here("check", str(small(folder)), **{VARIABLE: "a b"})
    assert done.returncode == 2
    assert VARIABLE in done.stderr


def test_other_adapters_are_sized_from_the_same_headers(tmp_path: Path) -> None:
    folder = write_headers(tmp_path / "model", QWEN_7B, qwen_tensors(QWEN_7B))
    report = check_model(str(folder))
    text = report.text
    assert text is not None
    assert text.sizes(rank=16) == report.memory == check_model(str(folder), rank=16).memory
    one = text.sizes(rank=8, targets=("q_proj",), adapter_weight_bytes=2)
    assert one is not None
    assert one.num_adapter_weights == 8 * 28 * 2 * QWEN_7B["hidden_size"]
    assert one.adapter_weight_bytes == 2
    blocks, dense = text.sizes(rank=16, layers_per_block=5), text.sizes(rank=16, is_dense=True)
    assert blocks is not None
    assert dense is not None
    assert len(blocks.block_bytes) == 6
    assert sum(blocks.block_bytes) == sum(report.memory.block_bytes)
    assert sum(dense.block_bytes) > 3 * sum(report.memory.block_bytes)
