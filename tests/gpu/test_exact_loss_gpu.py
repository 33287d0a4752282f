"""The chunked loss on the device: stock's bits at the widths of real vocabularies, and its peak."""

from __future__ import annotations

import pytest
import torch

from poros.measure.fingerprint import same_bits
from poros.training.exact_loss import CHUNK_BYTES
from tests.engine.training.test_exact_loss import OPS, our_loss, problem, stock_loss

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

WORDS = (152064, 152063, 151936, 262144, 49153, 32000, 1023)
"""Odd ones too: their rows begin at any multiple of four bytes."""


@pytest.fixture(autouse=True)
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def on_device(shape, **settings):
    head, hidden, labels = problem(shape, **settings)
    return head.cuda(), hidden.cuda(), labels.cuda()


def results(make_loss, given, ops, num_items, *rows, autocast):
    head, hidden, labels = given
    hidden = hidden.clone().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = make_loss(head, hidden * 1, labels, ops, num_items, *rows)
    loss.backward()
    return loss.detach(), hidden.grad


@pytest.mark.parametrize("num_words", WORDS)
@pytest.mark.parametrize("ops", OPS)
def test_loss_and_gradient_are_stocks(num_words, ops):
    for num_tokens in (1, 15, 97, 512):
        given = on_device((1, num_tokens, num_words))
        for autocast in (False, True):
            stock = results(stock_loss, given, OPS[ops], 7, autocast=autocast)
            for rows in (16, 48, None):
                ours = results(our_loss, given, OPS[ops], 7, rows, autocast=autocast)
                assert all(map(same_bits, stock, ours)), (num_tokens, autocast, rows)


def test_the_mean_and_a_float_head_are_stocks():
    for dtype, num_items in ((torch.float32, 9), (torch.bfloat16, None), (torch.float16, 9)):
        given = on_device((2, 200, 50257), dtype=dtype, bias=True)
        stock = results(stock_loss, given, (), num_items, autocast=False)
        ours = results(our_loss, given, (), num_items, None, autocast=False)
        assert all(map(same_bits, stock, ours)), dtype


def test_the_peak_is_the_logits_and_a_few_chunks():
    num_tokens, num_words = 2048, 152064
    given = on_device((1, num_tokens, num_words))
    results(our_loss, given, (), 7, autocast=False)  # cuBLAS takes its workspace once
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results(our_loss, given, (), 7, autocast=False)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= 2 * num_tokens * num_words + 4 * CHUNK_BYTES + 32 * 2**20
