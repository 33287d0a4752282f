from array import array
from itertools import islice, pairwise

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from poros.data.batches import StepBatches, batches_in_order
from poros.data.samples import IGNORED, Sample
from poros.errors import PorosDataError
from tests.engine.data.tiny_samples import make_samples

CPU = torch.device("cpu")
LENGTHS = (5, 9, 2, 7, 3, 8, 4)
GOLDEN = [[(3, 4), (1, 6)], [(0, 5), (2,)], [(4, 2), (6, 0)]]


def step_batches(lengths=LENGTHS, **changed):
    options = {"batch_size": 2, "accumulation": 2, "seed": 42, "packing": False}
    options |= {"max_seq_length": 16, "pad_token_id": 0} | changed
    samples = lengths if isinstance(lengths, list) else make_samples(lengths)
    return StepBatches(samples, **options)


def steps(batches, count):
    return [batches.next_step() for _ in range(count)]


def ids(step):
    return [batch.sample_ids for batch in step]


def tensors(step):
    fields = ("input_ids_BT", "labels_BT", "attention_mask", "position_ids_BT")
    found = [getattr(batch, field) for batch in step for field in fields]
    return [None if t is None else (t.dtype, t.shape, t.numpy().tobytes()) for t in found]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_every_epoch_holds_every_sample_once(packing, batch_size, accumulation):
    batches = step_batches(packing=packing, batch_size=batch_size, accumulation=accumulation)
    orders = []
    for epoch in range(3):
        assert batches.cursor == {"epoch": epoch, "position": 0}
        epoch_steps = steps(batches, batches.steps_per_epoch)
        seen = [i for step in epoch_steps for micro in ids(step) for i in micro]
        assert sorted(seen) == list(range(len(LENGTHS)))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_the_last_step_of_an_epoch_is_kept_short():
    sizes = [[len(micro) for micro in ids(step)] for step in steps(step_batches(), 4)]
    assert sizes == [[2, 2], [2, 1], [2, 2], [2, 1]]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("done", range(9))
def test_a_cursor_continues_with_the_same_bytes(packing, done):
    batches = step_batches(packing=packing, batch_size=1)
    steps(batches, done)
    cursor = dict(batches.cursor)
    expected = [tensors(step) for step in steps(batches, 9)]
    resumed = step_batches(packing=packing, batch_size=1)
    resumed.seek(cursor)
    assert resumed.cursor == cursor
    assert [tensors(step) for step in steps(resumed, 9)] == expected


@pytest.mark.parametrize("cursor", [(0, 7), (0, 3), (0, -4), (-1, 0), (0, 8)])
def test_a_cursor_of_no_step_is_refused(cursor):
    with pytest.raises(ValueError, match="no step begins"):
        step_batches().seek({"epoch": cursor[0], "position": cursor[1]})


def test_the_order_never_changes_between_versions():
    assert [ids(step) for step in steps(step_batches(), 3)] == GOLDEN


def test_short_rows_are_filled_up_masked_and_not_learned():
    (batch,) = batches_in_order(make_samples((5, 3)), batch_size=2, pad_token_id=9)
    short = make_samples((5, 3))[1]
    assert batch.input_ids_BT[1].tolist() == [*short.input_ids, 9, 9]
    assert batch.labels_BT[1].tolist() == [*short.labels, IGNORED, IGNORED]
    assert batch.attention_mask.tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch.attention_mask.dtype == torch.int64
    assert (batch.num_tokens, batch.num_padding_tokens) == (8, 2)
    assert set(batch.model_inputs(CPU)) == {"input_ids", "attention_mask"}


def test_rows_of_one_length_need_no_mask():
    (batch,) = batches_in_order(make_samples((5, 5)), batch_size=2, pad_token_id=9)
    assert batch.attention_mask is None
    assert list(batch.model_inputs(CPU)) == ["input_ids"]


def test_label_tokens_are_counted_the_same_packed_and_not():
    samples = make_samples(LENGTHS)
    expected = sum(sample.num_label_tokens for sample in samples)
    for packing in (False, True):
        batches = step_batches(packing=packing)
        epoch = [batch for step in steps(batches, batches.steps_per_epoch) for batch in step]
        assert sum(batch.num_label_tokens for batch in epoch) == expected
        assert sum(batch.num_tokens for batch in epoch) == sum(LENGTHS)


def test_packed_rows_have_one_width_and_no_blind_token():
    batches = step_batches(packing=True)
    for batch in batches.next_step():
        rows = len(batch.input_ids_BT)
        assert batch.input_ids_BT.shape == batch.position_ids_BT.shape == (rows, 16)
        assert batch.attention_mask.shape == (rows, 1, 16, 16)
        assert batch.attention_mask.any(dim=-1).all()
        starts = batch.position_ids_BT == 0
        assert (batch.labels_BT[starts] == IGNORED).all()
        assert set(batch.model_inputs(CPU)) == {"input_ids", "attention_mask", "position_ids"}


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([], "no samples"),
        ([Sample(0, array("i", [1, 2]), array("i", [IGNORED] * 2), 7)], "nothing to learn"),
        ([Sample(0, array("i", [1, 2]), array("i", [1, 2]), 7)], "learns token 0"),
        (make_samples((17,)), "17 tokens, more than"),
    ],
    ids=range(4),
)
def test_samples_that_would_harm_a_model_are_refused(samples, problem):
    with pytest.raises(PorosDataError, match=problem):
        step_batches(samples)


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
        attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def packed_logits(model, samples):
    batches = step_batches(samples, packing=True, batch_size=1, accumulation=1)
    (batch,) = batches.next_step()
    assert len(batch.sample_ids) == len(samples)
    with torch.no_grad():
        logits_TV = model(**batch.model_inputs(CPU)).logits[0]
    starts = [0]
    for sample_id in batch.sample_ids:
        starts.append(starts[-1] + len(samples[sample_id]))
    bounds = pairwise(starts)
    return dict(zip(batch.sample_ids, (logits_TV[a:b] for a, b in bounds), strict=True))


def changed(sample):
    tokens = array("i", (token % 60 + 1 for token in sample.input_ids))
    return Sample(sample.sample_id, tokens, sample.labels, sample.line)


@pytest.mark.parametrize("which", range(3))
def test_changing_one_packed_document_changes_no_logit_of_another(llama, which):
    samples = make_samples((5, 6, 4))
    before = packed_logits(llama, samples)
    samples[which] = changed(samples[which])
    after = packed_logits(llama, samples)
    for number in range(3):
        same = before[number].numpy().tobytes() == after[number].numpy().tobytes()
        assert same == (number != which)
        assert after[number].isfinite().all()


def test_a_packed_document_gets_the_loss_of_the_same_document_alone(llama):
    samples = make_samples((5, 6, 4))
    packed = packed_logits(llama, samples)
    for batch, sample in zip(
        batches_in_order(samples, batch_size=1, pad_token_id=0), samples, strict=True
    ):
        with torch.no_grad():
            alone_TV = llama(**batch.model_inputs(CPU)).logits[0]
        # Other kernels at another width: equal to rounding, far below the effect of a neighbour.
        assert (alone_TV - packed[sample.sample_id]).abs().max() < 1e-5


def test_epochs_follow_without_an_end():
    batches = step_batches((5,), batch_size=4, accumulation=4)
    assert [ids(step) for step in islice(iter(batches.next_step, None), 3)] == [[(0,)]] * 3
    assert batches.cursor == {"epoch": 3, "position": 0}
