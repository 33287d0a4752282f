"""The memory map's lines."""

from poros.measure.map_report import headline, memory_map_lines


def group(name, num_bytes, **places):
    return {
        "name": name, "num_bytes": num_bytes, "count": 2, "largest_bytes": num_bytes,
        "places": places,
    }  # fmt: skip


RECORD = {
    "step": 2,
    "activations_seen": True,
    "peak_bytes": 1_000_001_000,
    "torch_peak_bytes": 1_000_001_000,
    "asked_bytes": 0,
    "reserved_bytes": 1_100_000_000,
    "max_reserved_bytes": 1_200_000_000,
    "peak_made_by": {"name": "loss: logits", "place": "exact_loss.py:120"},
    "groups": [group("slots", 900_000_000), group("MLP", 100_000_000, a=1, b=9), group("x", 1000)],
    "awaiting_free": [group("MLP", 5_000_000)],
    "host": {"blocks": 2_000_000_000},
}


def test_a_map_is_a_table_with_its_sum():
    lines = memory_map_lines({"cell": RECORD})
    assert lines[0] == (
        "cell: memory at the peak of step 2, last came: loss: logits (exact_loss.py:120)"
    )
    assert lines[1:6] == [
        "on the device:",
        "       900.0 MB  slots (2, largest 900.0 MB)",
        "       100.0 MB  MLP (2, largest 100.0 MB; b)",
        "      0.0010 MB  1 smaller groups",
        "     1,000.0 MB  together",
    ]
    assert lines[-1].startswith("freed, but waiting for another stream: 5.0 MB; had")


def test_a_sum_that_is_not_the_allocators_is_told():
    assert "DIFFER" in headline(RECORD | {"torch_peak_bytes": 7})
    assert "DIFFER" not in headline(RECORD)


def test_a_step_that_ran_out_is_called_so():
    line = headline(RECORD | {"asked_bytes": 64_000_000, "torch_peak_bytes": 7})
    assert line.startswith("memory when step 2 ran out of it, asking for 64.0 MB")
