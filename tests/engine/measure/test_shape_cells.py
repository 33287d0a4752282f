from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from poros import cli_parity
from poros.cli import cli
from poros.errors import PorosConfigError
from poros.measure import gate_jobs, shape_cells, shapes
from poros.measure.arm_measurements import peak_rss_bytes
from poros.measure.plan import Plan, read_plan
from poros.measure.prepare import prepare
from poros.measure.request import Request, read_request, write_request
from tests.engine.data.tiny_tokenizers import tiny_tokenizer

ALL = ("random", "autocast", "padding", "packing")


def test_the_command_line_offers_every_variant():
    assert set(cli_parity.VARIANTS) == set(shape_cells.VARIANTS)


def test_a_wrong_variant_is_named(tmp_path):
    result = CliRunner().invoke(cli, ["parity", "--shape", "qwen2.5-7b", "--variants", "random,x"])
    assert result.exit_code == 2
    assert "'x' is none of random, autocast, padding, packing" in result.output


def test_chat_data_needs_a_tokenizer(tmp_path):
    request = Request(target="shape", folder=str(tmp_path), model="qwen2.5-7b", variants=ALL)
    with pytest.raises(PorosConfigError, match="chat data needs a tokenizer"):
        shape_cells.shape_cells(request)


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    folder, words = tmp_path_factory.mktemp("variants"), tmp_path_factory.mktemp("words")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(words)
    config = shapes.shape_config("tiny-llama", num_layers=2)
    request = Request(
        target="shape", folder=str(folder), model="tiny-chat", variants=ALL, num_steps=2,
        seq_len=512, tokenizer=str(words), quick=True, accumulation=1,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, "tiny-chat", config | {"vocab_size": len(tokenizer)})
        prepare(read_request(write_request(request)))
    return read_plan(folder)


def test_each_variant_is_a_cell_of_the_same_weights(plan):
    assert [cell.name for cell in plan.cells] == [f"tiny-chat-{name}" for name in ALL]
    assert len({cell.base_folder for cell in plan.cells}) == 1
    assert [cell.autocast for cell in plan.cells] == [None, "bfloat16", None, None]


def test_chat_rows_have_their_real_lengths_and_only_answers_are_learned(plan):
    padded = load_file(plan.folder / plan.cells[2].batches)
    mask_BT, labels_BT = padded["0.0.attention_mask"], padded["0.0.labels"]
    lengths = mask_BT.sum(1).tolist()
    assert len(lengths) == shape_cells.CHAT_ROWS
    assert len(set(lengths)) > 1
    assert bool((labels_BT[:, 0] == -100).all())
    assert bool((labels_BT != -100).any(1).all())
    packed = load_file(plan.folder / plan.cells[3].batches)
    assert packed["0.0.input_ids"].shape == (1, 512)
    assert int((packed["0.0.position_ids"] == 0).sum()) > 1
    assert packed["0.0.attention_mask"].dtype == torch.bool


def test_each_cell_of_a_shape_has_a_process_of_its_own_in_either_arm(plan):
    names = [job.name for job in gate_jobs.jobs_of(plan, mutants=False)]
    assert names == [f"{arm}.alone-{c.name}" for c in plan.cells for arm in gate_jobs.COMPARED]


def test_the_peak_is_what_the_process_once_had():
    before = peak_rss_bytes()
    ballast = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert peak_rss_bytes() - before > ballast.numel() // 2
    del ballast
    assert peak_rss_bytes() > before
