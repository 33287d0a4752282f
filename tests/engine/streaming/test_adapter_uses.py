import torch
from torch import nn

from poros.streaming.adapter_uses import find_uses
from poros.streaming.shared_casts import SharedCasts

CPU = torch.device("cpu")


def weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 4)) for _ in range(3)] + [nn.Parameter(torch.randn(4))]


def result_of(given):
    once, twice, by_hand, bias = given
    hidden = nn.functional.linear(torch.ones(2, 4), once, bias)
    hidden = nn.functional.linear(nn.functional.linear(hidden, twice), twice)
    return nn.functional.linear(hidden, by_hand.to(torch.bfloat16).to(hidden.dtype))


def test_uses_are_counted_and_only_casts_that_autocast_keeps_are_its_own():
    given = weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        uses = find_uses([result_of(given)], given, torch.bfloat16)
    assert uses.counts == (1, 2, 1, 1)
    assert uses.cast == (torch.bfloat16, torch.bfloat16, None, torch.bfloat16)
    uses = find_uses([result_of(given)], given, None)
    assert uses.counts == (1, 2, 1, 1)
    assert uses.cast == (None,) * 4


def test_what_is_not_used_has_no_use():
    given = weights()
    uses = find_uses([result_of(given)], [*given, nn.Parameter(torch.ones(2))], None)
    assert uses.counts[-1] == 0


def test_a_cast_is_shared_until_autocast_is_left():
    casts, given = SharedCasts(CPU), weights()
    assert casts.of(given) == [None] * 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, again = casts.of(given), casts.of(given)
        assert all(a is b for a, b in zip(first, again, strict=True))
        with torch.autocast("cpu", enabled=False):
            assert casts.of(given) == [None] * 4
        assert casts.of(given)[0] is first[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert casts.of(given)[0] is not first[0]
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert casts.of(given) == [None] * 4
    assert [cast.dtype for cast in first] == [torch.bfloat16] * 4
    assert first[0].untyped_storage().nbytes() == 2  # one zero stands for all


def test_gradients_meet_at_the_cast_in_its_type():
    casts, given = SharedCasts(CPU), weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = casts.of(given)[0]
    (256 * cast.sum() + cast.sum()).backward()
    assert given[0].grad.dtype == torch.float32
    assert given[0].grad.unique().tolist() == [256.0]  # in bfloat16 one more is nothing
