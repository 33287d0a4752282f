"""The chunked loss has stock's bits, in less memory."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.loss.loss_utils import ForCausalLMLoss

from poros.measure.fingerprint import same_bits
from poros.training.exact_loss import (
    MEAN,
    ROW_QUANTUM,
    SUM,
    LossCall,
    exact_loss,
    fitting_rows,
    row_chunks,
)

D = 24
OPS = {
    "plain": (),
    "softcap": (lambda x: x / 30.0, torch.tanh, lambda x: x * 30.0),
    "multiplier": (lambda x: x * 0.0625,),
    "divisor": (lambda x: x / 7.3,),
}
PATTERNS = ("none", "some", "all but one", "all")


class Visit:
    """Counts who is there."""

    def __init__(self):
        self.num_present = 0

    def __call__(self):
        self.num_present += 1
        return self

    def end(self):
        self.num_present -= 1


def problem(shape, *, dtype=torch.bfloat16, bias=False, ignored="some"):
    num_rows, num_tokens, num_words = shape
    torch.manual_seed(num_tokens * num_words)
    head = nn.Linear(D, num_words, bias=bias).to(dtype).requires_grad_(False)
    with torch.no_grad():
        head.weight.mul_(8)
    labels = torch.randint(0, num_words, (num_rows, num_tokens))
    if ignored == "some":
        labels[torch.rand(labels.shape) < 0.4] = -100
    elif ignored != "none":
        labels[:] = -100
    if ignored == "all but one":
        labels[0, -1] = 3
    return head, torch.randn(num_rows, num_tokens, D).to(dtype), labels


def loss_call(head, labels, ops, num_items, rows, visit=None):
    target = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    reduction = MEAN if num_items is None else SUM
    return LossCall(head, visit or Visit(), ops, target, reduction, num_chunk_rows=rows)


def stock_loss(head, hidden, labels, ops, num_items):
    logits = head(hidden)
    for op in ops:
        logits = op(logits)
    return ForCausalLMLoss(logits, labels, head.out_features, num_items_in_batch=num_items)


def our_loss(head, hidden, labels, ops, num_items, rows=None):
    loss = exact_loss(hidden, loss_call(head, labels, ops, num_items, rows))
    return loss if num_items is None else loss / num_items


def results(make_loss, problem, *rest, autocast):
    head, hidden, labels = problem
    hidden = hidden.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = make_loss(head, hidden * 1, labels, *rest)
        with torch.no_grad():
            evaluated = make_loss(head, hidden, labels, *rest)
    loss.backward()
    return loss.detach(), hidden.grad, evaluated


def assert_equal(given, ops, num_items, *, autocast, rows):
    stock = results(stock_loss, given, ops, num_items, autocast=autocast)
    for num_rows in rows:
        ours = results(our_loss, given, ops, num_items, num_rows, autocast=autocast)
        assert all(map(same_bits, stock, ours)), num_rows


@pytest.mark.parametrize("ignored", PATTERNS)
@pytest.mark.parametrize("shape", [(1, 1, 33), (1, 2, 32), (2, 17, 301), (1, 70, 256), (3, 16, 7)])
def test_loss_and_gradient_of_every_shape_and_pattern_are_stocks(shape, ignored):
    given = problem(shape, ignored=ignored)
    for num_items, autocast in itertools.product((None, 5, torch.tensor(5)), (False, True)):
        assert_equal(given, (), num_items, autocast=autocast, rows=(1, 7, 16, None))


@pytest.mark.parametrize("num_words", [1000, 1537])
def test_700_tokens_are_stocks_whatever_the_chunk(num_words):
    given = problem((1, 700, num_words))
    assert_equal(given, (), 9, autocast=False, rows=(16, 48, 699, 700, 701))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("ops", OPS)
def test_what_families_do_to_their_logits_has_stocks_bits(ops, dtype):
    for bias, autocast in itertools.product((False, True), repeat=2):
        given = problem((2, 29, 333), dtype=dtype, bias=bias)
        assert_equal(given, OPS[ops], 11, autocast=autocast, rows=(16, 32, None))


def test_the_heads_visit_lasts_to_the_backward_and_without_gradients_to_the_loss():
    head, hidden, labels = problem((1, 9, 40))
    visit = Visit()
    call = loss_call(head, labels, (), 3, None, visit)
    exact_loss(hidden, call)
    assert visit.num_present == 0
    loss = exact_loss(hidden.requires_grad_(), call)
    assert visit.num_present == 1
    loss.backward(retain_graph=True)
    assert visit.num_present == 0
    with pytest.raises(RuntimeError, match="differentiated before"):
        loss.backward()


def test_a_head_that_fails_has_left():
    head, hidden, labels = problem((1, 9, 40))
    visit = Visit()
    call = loss_call(head, labels, (lambda logits: logits.nothing,), 3, None, visit)
    with pytest.raises(AttributeError):
        exact_loss(hidden.requires_grad_(), call)
    with pytest.raises(AttributeError), torch.no_grad():
        exact_loss(hidden, call)
    assert visit.num_present == 0


def test_chunks_cover_all_rows_once_and_begin_where_wide_rows_would():
    rows = fitting_rows(152064)
    assert rows % ROW_QUANTUM == 0
    assert fitting_rows(10**9) == ROW_QUANTUM
    chunks = list(row_chunks(700, rows))
    assert [k for chunk in chunks for k in range(chunk.start, chunk.stop)] == list(range(700))
    assert len(chunks) == -(-700 // rows)


class _Peak(TorchDispatchMode):
    """The most bytes of new tensors that were alive at once."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            t.untyped_storage()._cdata for t in tree_leaves(args) if isinstance(t, torch.Tensor)
        }
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        num_bytes = storage.nbytes()
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, num_bytes)

    def _gone(self, num_bytes):
        self.now -= num_bytes


@pytest.mark.parametrize("ops", ["plain", "softcap"])
def test_the_peak_is_the_logits_and_a_few_chunks(ops):
    num_tokens, num_words, rows = 512, 2048, 16
    head, hidden, labels = problem((1, num_tokens, num_words))
    peaks = []
    for make_loss, rest in ((stock_loss, (9,)), (our_loss, (9, rows))):
        leaf = hidden.clone().requires_grad_()
        with _Peak() as measured:
            make_loss(head, leaf, labels, OPS[ops], *rest).backward()
        peaks.append(measured.peak)
    logits_bytes, chunk_bytes = num_tokens * num_words * 2, rows * num_words * 4
    slack = 4 * num_tokens * D * 2 + 16 * num_tokens * 8
    assert peaks[1] <= logits_bytes + 4 * chunk_bytes + slack
    assert peaks[0] >= 5 * logits_bytes
