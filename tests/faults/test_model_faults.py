"""Faults 12 to 20: files of a model are refused by name, and nothing in them runs."""

import json
import struct

import pytest

from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.faults.bench import Case, edit_json, expect, refuse

Q = "model.layers.0.self_attn.q_proj.weight"


def template(text):
    def plant(bench):
        (bench.model / "chat_template.jinja").unlink(missing_ok=True)
        edit_json(bench.model / "tokenizer_config.json", chat_template=text)

    return plant


def tokenizer(**changes):
    return lambda bench: tiny_tokenizer(**changes).save_pretrained(bench.model)


def config(**changes):
    return lambda bench: edit_json(bench.model / "config.json", **changes)


def weights(change):
    """The weights file's bytes, changed."""

    def plant(bench):
        path = bench.model / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return plant


def header(change):
    """The weights file's header, changed; the bytes behind it stay."""

    def change_bytes(raw):
        (size,) = struct.unpack("<Q", raw[:8])
        entries = json.loads(raw[8 : 8 + size])
        change(entries)
        text = json.dumps(entries).encode()
        return struct.pack("<Q", len(text)) + text + raw[8 + size :]

    return weights(change_bytes)


def renamed(old, new):
    return header(lambda entries: entries.update({new: entries.pop(old)}))


def entry(**changes):
    return header(lambda entries: entries[Q].update(changes))


def shards(change):
    """Two files and an index, in place of one; ``change`` gets the folder."""

    def plant(bench):
        from safetensors.torch import load_file, save_file

        path = bench.model / "model.safetensors"
        tensors = load_file(path)
        path.unlink()
        names = sorted(tensors)
        weight_map = {}
        for number, part in enumerate((names[::2], names[1::2]), start=1):
            file = f"model-0000{number}-of-00002.safetensors"
            save_file({name: tensors[name] for name in part}, bench.model / file)
            weight_map |= dict.fromkeys(part, file)
        index = bench.model / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        change(bench.model)

    return plant


def index_without(folder):
    path = folder / "model.safetensors.index.json"
    weight_map = json.loads(path.read_text())["weight_map"]
    del weight_map[Q]
    edit_json(path, weight_map=weight_map)


def pickles_only(bench):
    (bench.model / "model.safetensors").unlink()
    evil = f"cos\nsystem\n(S'touch {bench.folder / 'canary'}'\ntR.".encode()
    for name in ("pytorch_model.bin", "model.pt", "model.ckpt"):
        (bench.model / name).write_bytes(evil)


def evil_code(**asked):
    """Python beside the weights, and a config that asks for it."""

    def plant(bench):
        for name in ("evil.py", "configuration_evil.py", "tokenization_evil.py"):
            (bench.model / name).write_text(f"open({str(bench.folder / 'canary')!r}, 'w')\n")
        config(**asked)(bench)

    return plant


def gone(name):
    return lambda bench: (bench.model / name).unlink()


HTML = b"<!DOCTYPE html><html>Please sign in</html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
MAP = {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "configuration_evil.Evil"}

CASES = [
    Case(12, "no chat template", template(None), 4, ("no chat template",)),
    Case(12, "a template's syntax error", template("{% for %}"), 4, ("syntax error",)),
    Case(12, "a template that leaves the sandbox", template(
        "{{ messages.__class__.__mro__ }}"), 4, ("sandbox",)),
    Case(12, "a template that shows nothing", template(
        "{{ messages[0]['nope'] }}"), 4, ("leaves out what is said",)),
    Case(12, "a template that raises", template(
        "{{ raise_exception('no\nway') }}"), 4, ("chat template", "no\\nway")),
    Case(13, "a token beyond the vocabulary", config(vocab_size=258), 4, ("for 258 tokens",)),
    Case(13, "no tokenizer", gone("tokenizer.json"), 4, ("tokenizer",)),
    Case(13, "a cut tokenizer", lambda b: (b.model / "tokenizer.json").write_text("{"), 4, (
        "the tokenizer can't be loaded", "model")),
    Case(14, "an empty file", weights(lambda raw: b""), 4, ("model.safetensors", "empty")),
    Case(14, "a cut header", weights(lambda raw: raw[:100]), 4, ("cut short: 100 bytes",)),
    Case(14, "a cut tensor", weights(lambda raw: raw[:-1]), 4, ("cut short", "download")),
    Case(14, "a Git LFS pointer", weights(lambda raw: LFS), 4, ("Git LFS pointer", "git lfs pull")),
    Case(14, "an HTML page", weights(lambda raw: HTML), 4, ("HTML page",)),
    Case(14, "a longer file", weights(lambda raw: raw + b"x"), 4, ("1 bytes behind the last",)),
    Case(14, "a config cut short", lambda b: (b.model / "config.json").write_text("{"), 4, (
        "config.json", "JSON")),
    Case(14, "no config", gone("config.json"), 4, ("no config.json",)),
    Case(16, "no weights", gone("model.safetensors"), 4, ("no model.safetensors",)),
    Case(16, "a missing shard", shards(lambda folder: (
        folder / "model-00002-of-00002.safetensors").unlink()), 4, (
        "1 of 2 shards are missing: model-00002-of-00002.safetensors",)),
    Case(16, "a tensor that the index lacks", shards(index_without), 4, (
        f"{Q} in a shard but not in the index",)),
    Case(16, "a missing and an unknown tensor", renamed(Q, "model.layers.0.odd"), 4, (
        f"missing: {Q}", "model.layers.0.odd")),
    Case(17, "a type relabelled", entry(dtype="I16"), 4, (f"{Q} is I16", "BF16")),
    Case(17, "a shape swapped", entry(shape=[32, 128]), 4, (f"{Q} is [32, 128]", "[64, 64]")),
    Case(17, "a shape that the bytes deny", entry(shape=[64, 65]), 4, (Q, "8192 bytes")),
    Case(17, "offsets that overlap", entry(data_offsets=[0, 8192]), 4, ("byte range begins",)),
    Case(17, "an unknown type", entry(dtype="Q4"), 4, ("unknown dtype 'Q4'",)),
    Case(17, "GPTQ weights", config(quantization_config={"quant_method": "gptq"}), 4, (
        "quantised already (gptq)",)),
    Case(18, "a family that is not in the table", config(model_type="lama"), 4, ("lama", "llama")),
    Case(18, "no family", config(model_type=None), 4, ("model_type",)),
    Case(18, "another family's class", config(architectures=["Qwen2ForCausalLM"]), 4, (
        "architectures says Qwen2ForCausalLM",)),
    Case(18, "fewer layers", config(num_hidden_layers=1), 4, (
        "2 layers stored, 1 expected",)),
    Case(18, "more layers", config(num_hidden_layers=3), 4, ("2 layers stored, 3 expected",)),
    Case(18, "another width", config(hidden_size=128), 4, ("expected", "from the config")),
    Case(18, "a size that is none", config(hidden_size="64"), 4, ("hidden_size is '64'",)),
    Case(18, "a vocabulary that is none", config(vocab_size=None), 4, ("vocab_size",)),
    Case(19, "pickles only", pickles_only, 4, ("Poros never unpickles", "pytorch_model.bin")),
    Case(19, "a pickle with a safetensors name", weights(lambda raw: b"\x80\x02K\x01."), 4, (
        "a pickle with a safetensors name",)),
    Case(20, "auto_map", evil_code(auto_map=MAP), 4, ("auto_map", "evil.Evil")),
    Case(20, "auto_map of an unknown family", evil_code(
        auto_map=MAP, model_type="evil"), 4, ("evil",)),
    Case(20, "a kernel as attention", evil_code(_attn_implementation="kernels-community/x"), 4, (
        "_attn_implementation", "kernels-community/x")),
    Case(20, "a kernel deep inside", evil_code(text_config={
        "attn_implementation_internal": "someone/x"}), 4, ("someone/x",)),
    Case(20, "other weights than the index's", evil_code(transformers_weights="x"), 4, (
        "transformers_weights",)),
    Case(22, "a path that is no folder", lambda b: b.settings.update(
        model_name_or_path="./modle"), 4, ("no such folder", "./modle")),
    Case(22, "a file for a folder", lambda b: b.settings.update(
        model_name_or_path="data.jsonl"), 4, ("a file, not a folder",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_model_is_one_line_and_nothing_is_made_or_run(case, bench):
    refuse(case, bench)
    assert not (bench.folder / "canary").exists()


def test_a_weights_file_cut_at_any_byte_of_its_header_is_refused(bench):
    """The whole sweep is in tests/engine/test_weights_index.py; here the ends of the parts."""
    path = bench.model / "model.safetensors"
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    for length in (1, 7, 8, 9, 8 + size - 1, 8 + size, 8 + size + 1):
        path.write_bytes(raw[:length])
        with bench.unchanged():
            expect(bench.run(), 4, "model.safetensors", "cut short")


def test_one_flipped_bit_under_a_run_is_found(finished):
    """Fault 15: without a hash from the Hub, our own manifest knows the bytes."""
    path = finished.model / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    with finished.unchanged():
        expect(finished.run(), 6, "base model sha256")


def test_a_tokenizer_without_pad_takes_its_end_and_resizes_nothing(bench):
    tokenizer(pad=None)(bench)
    bench.settings["max_steps"] = 1
    expect(bench.run(), 0, num_errors=0)


def test_code_of_a_tokenizer_never_runs(bench):
    evil_code()(bench)
    auto_map = {"AutoTokenizer": ["tokenization_evil.Evil", None]}
    edit_json(bench.model / "tokenizer_config.json", auto_map=auto_map)
    bench.settings["max_steps"] = 1
    ended = bench.run()
    assert ended.code in (0, 4), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (bench.folder / "canary").exists()


@pytest.mark.parametrize("flags", [(), ("--trust-remote-code",)])
def test_pickles_and_code_beside_good_weights_are_never_opened(bench, flags):
    evil_code(auto_map=MAP if flags else None)(bench)
    for name in ("pytorch_model.bin", "training_args.bin", "adapter_model.bin"):
        canary = bench.folder / "canary"
        (bench.model / name).write_bytes(f"cos\nsystem\n(S'touch {canary}'\ntR.".encode())
    bench.settings["max_steps"] = 1
    bench.flags = list(flags)
    expect(bench.run(), 0, num_errors=0)
    assert not (bench.folder / "canary").exists()
