"""A checkpoint is stock PEFT's folder and an exact state, and anything tampered with is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from poros.errors import PorosNonFiniteError, PorosResumeError
from poros.measure.fingerprint import same_bits
from poros.training import checkpoint
from poros.training.checkpoint import (
    TrainerState,
    load_checkpoint,
    save_checkpoint,
    verify,
)
from poros.training.determinism import rng_state, seed_all
from poros.training.lora import trainable_params
from poros.training.optimizer import make_optimizer
from poros.training.train_step import train_step
from tests.engine.loading.tiny_models import stock_4bit
from tests.engine.training.tiny_run import CPU, streamed, tiny_batches

FILES = [
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "poros_state/manifest.json",
    "poros_state/optimizer.safetensors",
    "poros_state/rng.safetensors",
    "poros_state/trainer.json",
]
STATE = TrainerState(
    run_id="aa",
    step=2,
    cursor={"epoch": 0, "position": 8},
    events_bytes=10,
    loss=1.5,
    exact=True,
    inputs={"seed": 1},
)


def trained(folder):
    model, _ = streamed(folder)
    params = trainable_params(model)
    optimizer = make_optimizer(params, weight_decay=0.01)
    batches = tiny_batches()
    seed_all(1)
    for _ in range(2):
        train_step(
            model, params, optimizer, batches.next_step(),
            device=CPU, learning_rate=1e-2, max_grad_norm=1.0,
        )  # fmt: skip
    return model, params, optimizer


def save(folder, model, params, optimizer):
    return save_checkpoint(
        folder, model=model, params=params, optimizer=optimizer, device=CPU, state=STATE
    )


@pytest.fixture(scope="module")
def saved(tiny_folder, tmp_path_factory):
    """A checkpoint, and what was saved."""
    folder = tmp_path_factory.mktemp("saved") / "step-000002"
    parts = trained(tiny_folder)
    save(folder, *parts)
    return folder, parts, rng_state(CPU)


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved[0], tmp_path / "step-000002"))


def test_the_layout_is_complete_and_says_what_it_is(saved):
    found = [str(p.relative_to(saved[0])) for p in sorted(saved[0].rglob("*")) if p.is_file()]
    assert found == FILES
    assert verify(saved[0]) == STATE


def test_weights_moments_and_random_states_come_back_bit_for_bit(saved, tiny_folder):
    folder, (_, params, optimizer), state = saved
    model, _ = streamed(tiny_folder, adapter_path=folder)
    again = trainable_params(model)
    second = make_optimizer(again, weight_decay=0.01)
    seed_all(99)
    load_checkpoint(folder, params=again, optimizer=second, device=CPU)
    num_compared = 0
    for (name, one), (same_name, other) in zip(params, again, strict=True):
        assert name == same_name
        assert same_bits(one, other)
        for kind in ("step", "exp_avg", "exp_avg_sq"):
            assert same_bits(optimizer.state[one][kind], second.state[other][kind])
            num_compared += 1
    assert num_compared == 28 * 3
    now = rng_state(CPU)
    assert all(same_bits(state[key], now[key]) for key in state)


def test_stock_peft_opens_it_on_the_stock_base_with_equal_logits(saved, tiny_folder):
    folder, (model, _, _), _ = saved
    stock = PeftModel.from_pretrained(stock_4bit(tiny_folder), folder)
    ids_BT = tiny_batches().next_step()[0].input_ids_BT
    model.eval()
    with torch.no_grad():
        assert same_bits(stock.eval()(ids_BT).logits, model(ids_BT).logits)
    model.train()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "empty", "link"])
def test_every_damaged_file_is_refused_by_name(copy, name, damage):
    path = copy / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "link":
        other = copy.parent / "elsewhere"
        other.write_bytes(content)
        path.symlink_to(other)
    with pytest.raises(PorosResumeError) as caught:
        verify(copy)
    assert caught.value.exit_code == 6
    # The manifest is its own witness: a change of it shows in what it says of the others.
    assert name in str(caught.value) or name == "poros_state/manifest.json"


@pytest.mark.parametrize("name", ["extra.json", "poros_state/evil.pkl", "adapter_model.bin"])
def test_a_file_too_many_is_refused(copy, name):
    (copy / name).write_bytes(b"x")
    with pytest.raises(PorosResumeError, match="not in the manifest"):
        verify(copy)


def test_a_pickle_is_refused_even_with_a_manifest_that_names_it(copy):
    (copy / "adapter_model.bin").write_bytes(b"x")
    path = copy / checkpoint.MANIFEST
    manifest = json.loads(path.read_text())
    entry = {"num_bytes": 1, "sha256": checkpoint.atomic.sha256_of(copy / "adapter_model.bin")}
    manifest["files"]["adapter_model.bin"] = entry
    path.write_text(json.dumps(manifest) + "\n")
    with pytest.raises(PorosResumeError, match="neither safetensors nor JSON"):
        verify(copy)


def test_swapped_files_and_another_runs_state_are_refused(copy):
    one, two = (copy / "poros_state" / f"{name}.safetensors" for name in ("optimizer", "rng"))
    one.rename(copy / "x")
    two.rename(one)
    (copy / "x").rename(two)
    with pytest.raises(PorosResumeError, match="optimizer"):
        verify(copy)


@pytest.mark.parametrize(("key", "value"), [("format", 2), ("run_id", "bb"), ("step", 3)])
def test_a_later_format_or_another_runs_manifest_is_refused(copy, key, value):
    path = copy / checkpoint.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}) + "\n")
    with pytest.raises(PorosResumeError, match="later version" if key == "format" else "different"):
        verify(copy)


def test_a_non_finite_weight_is_never_saved(tiny_folder, tmp_path):
    model, params, optimizer = trained(tiny_folder)
    with torch.no_grad():
        params[2][1].view(-1)[0] = float("inf")
    with pytest.raises(PorosNonFiniteError, match=params[2][0]):
        save(tmp_path / "step-000002", model, params, optimizer)
    assert list(tmp_path.iterdir()) == []
