from poros.measure.cells import (
    CPU_LEVELS,
    compiled_cells_are_few,
    coverable_pairs,
    covering_array,
    pairs_of,
)

ROWS = covering_array(CPU_LEVELS, compiled_cells_are_few)


def test_every_pair_of_levels_that_may_meet_is_covered():
    covered = set().union(*map(pairs_of, ROWS))
    assert coverable_pairs(CPU_LEVELS, compiled_cells_are_few) <= covered


def test_every_level_of_every_factor_is_covered():
    for factor, levels in CPU_LEVELS.items():
        assert {row[factor] for row in ROWS} == set(levels)


def test_few_cells_compile_and_all_are_allowed():
    assert all(map(compiled_cells_are_few, ROWS))
    assert sum(row["compile"] for row in ROWS) <= 3


def test_the_array_is_small_and_always_the_same():
    assert len(ROWS) <= 20
    assert covering_array(CPU_LEVELS, compiled_cells_are_few) == ROWS


def test_pairs_of_two_binary_factors_need_four_rows():
    rows = covering_array({"a": (0, 1), "b": (0, 1)}, lambda _: True)
    assert sorted((row["a"], row["b"]) for row in rows) == [(0, 0), (0, 1), (1, 0), (1, 1)]
