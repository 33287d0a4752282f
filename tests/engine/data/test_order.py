from collections import Counter
from itertools import islice

from poros.data.order import below, permutation, random_words

WORDS = [7138415436909018950, 16995303060395781456, 1533225871787718299]
ORDER = [5, 1, 9, 6, 7, 2, 4, 0, 8, 3]


def test_the_words_never_change():
    assert list(islice(random_words(42, 0), 3)) == WORDS
    assert permutation(10, 42, 0) == ORDER


def test_a_permutation_holds_every_number_once():
    for length in (0, 1, 2, 3, 100):
        assert sorted(permutation(length, 7, 3)) == list(range(length))


def test_seed_and_epoch_each_change_the_order():
    orders = {tuple(permutation(20, seed, epoch)) for seed in range(-2, 10) for epoch in range(12)}
    assert len(orders) == 144


def test_every_order_of_four_is_about_as_likely():
    counts = Counter(tuple(permutation(4, 1, epoch)) for epoch in range(2400))
    assert len(counts) == 24
    assert 60 < min(counts.values()) <= max(counts.values()) < 140


def test_bounded_words_cover_the_range():
    assert {below(word, 5) for word in islice(random_words(1), 100)} == set(range(5))
    assert below((1 << 64) - 1, 7) == 6
