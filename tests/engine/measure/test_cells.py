from poros.measure.cells import (
    CPU_LEVELS,
    compiled_cells_are_few,
    coverable_pairs,
    covering_array,
    pairs_of,
    with_state_on_host,
    with_tiers,
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


def test_some_cells_have_their_state_on_the_host_the_first_one_never():
    rows = with_state_on_host(ROWS)
    assert not {"moments_on_host", "adapters_on_host"} & rows[0].keys()
    assert sum("moments_on_host" in row for row in rows) == 1
    chosen = [row for row in rows if "adapters_on_host" in row]
    assert {row["adapter_dtype"] for row in chosen} == {"float32", "bfloat16"}
    assert {row["autocast"] for row in chosen} == {None, "bfloat16"}
    assert {row["compile"] for row in chosen} == {False, True}
    assert {row["accumulation"] for row in chosen} == {2}
    assert {row["block_size"] for row in chosen} == {1}
    waiting = [row for row in rows if "boundaries_on_host" in row]
    assert {row["compile"] for row in waiting} == {False, True}
    assert {row["accumulation"] for row in waiting} == {1, 2}
    assert 30 not in {row["block_size"] for row in waiting}
    plain = [{k: v for k, v in row.items() if not k.endswith("_on_host")} for row in rows]
    assert plain == ROWS


def test_one_row_has_its_blocks_in_files_and_one_in_plain_memory():
    rows = with_tiers(covering_array(CPU_LEVELS, compiled_cells_are_few))
    assert "host_tier" not in rows[0]
    tiers = {row["host_tier"]: row for row in rows if "host_tier" in row}
    assert sorted(tiers) == ["disk", "pageable"]
    assert all(row["block_size"] <= 2 and not row["compile"] for row in tiers.values())
