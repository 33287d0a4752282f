"""The replay of the allocator's trace, on traces written by hand after torch's format."""

from poros.training.memory_replay import BEFORE, FreeParts, Notes, find_peak

MB = 2**20


def part(size, state="active_allocated"):
    return {"size": size, "requested_size": size, "state": state, "frames": []}


def segment(address, *parts, expandable=False):
    return {
        "address": address,
        "total_size": sum(p["size"] for p in parts),
        "blocks": list(parts),
        "is_expandable": expandable,
    }


def alloc(addr, size, name="make"):
    frames = [{"filename": "a.py", "line": 1, "name": name}]
    return {"action": "alloc", "addr": addr, "size": size, "frames": frames}


def freed(addr):
    return [requested(addr), {"action": "free_completed", "addr": addr, "size": 0}]


def requested(addr):
    return {"action": "free_requested", "addr": addr, "size": 0}


def test_the_peak_is_the_moment_with_most_in_use():
    start = [segment(0, part(512), part(2 * MB - 512, "inactive"))]
    trace = [alloc(512, 100), alloc(1024, 1000), *freed(1024), alloc(1024, 10), *freed(512)]
    peak = find_peak(start, trace)
    assert peak.num_bytes == 512 + 512 + 1024
    assert [a.address for a in peak.allocations] == [0, 512, 1024]
    assert [a.order for a in peak.allocations] == [BEFORE, 0, 1]
    assert peak.last is not None
    assert peak.last.order == 1
    assert peak.num_guessed == 0


def test_what_was_there_before_counts_though_the_trace_frees_it():
    start = [segment(0, part(4 * MB), part(16 * MB, "inactive"))]
    peak = find_peak(start, [*freed(0), alloc(0, 2 * MB)])
    assert peak.num_bytes == 4 * MB
    assert peak.last is None


def test_a_free_part_is_used_whole_if_no_more_than_a_megabyte_would_be_left():
    start = [segment(0, part(20 * MB, "inactive"))]
    trace = [alloc(0, 19 * MB)]
    assert find_peak(start, trace).num_bytes == 20 * MB
    trace = [alloc(0, 19 * MB - 512)]
    assert find_peak(start, trace).num_bytes == 19 * MB - 512


def test_with_expandable_segments_all_is_cut():
    start = [segment(0, part(20 * MB, "inactive"), expandable=True)]
    assert find_peak(start, [alloc(0, 19 * MB + 1)]).num_bytes == 19 * MB + 512


def test_mapped_memory_joins_the_free_part_before_it():
    start = [segment(0, part(20 * MB, "inactive"), expandable=True)]
    trace = [
        {"action": "segment_map", "addr": 20 * MB, "size": 20 * MB},
        alloc(0, 30 * MB),
        *freed(0),
        {"action": "segment_unmap", "addr": 20 * MB, "size": 20 * MB},
        alloc(0, 20 * MB),
    ]
    peak = find_peak(start, trace)
    assert (peak.num_bytes, peak.num_guessed) == (30 * MB, 0)
    assert peak.reserved_bytes == 40 * MB


def test_freed_parts_join_their_neighbours_and_segments_do_not():
    start = [segment(0, part(20 * MB, "inactive"))]
    trace = [
        {"action": "segment_alloc", "addr": 20 * MB, "size": 20 * MB},
        alloc(0, 4 * MB),
        alloc(4 * MB, 4 * MB),
        *freed(0),
        *freed(4 * MB),
        alloc(0, 20 * MB),
        alloc(20 * MB, 20 * MB),
    ]
    peak = find_peak(start, trace)
    assert (peak.num_bytes, peak.num_guessed) == (40 * MB, 0)


def test_what_another_stream_may_still_read_is_told_apart():
    start = [segment(0, part(20 * MB, "inactive"))]
    trace = [
        alloc(0, 8 * MB),
        requested(0),
        alloc(8 * MB, 9 * MB),
        {"action": "free_completed", "addr": 0, "size": 0},
    ]
    peak = find_peak(start, trace)
    assert peak.num_bytes == 9 * MB
    assert [a.num_bytes for a in peak.awaiting] == [8 * MB]
    assert peak.max_active_bytes == 17 * MB


def test_a_step_that_ran_out_is_shown_as_it_was_then():
    start = [segment(0, part(20 * MB, "inactive"))]
    trace = [
        alloc(0, 8 * MB),
        *freed(0),
        alloc(0, 4 * MB),
        {"action": "oom", "size": 64 * MB, "device_free": 0},
        *freed(0),
    ]
    peak = find_peak(start, trace, ran_out=True)
    assert (peak.num_bytes, peak.asked_bytes) == (4 * MB, 64 * MB)


def test_a_size_that_cannot_be_known_is_counted_as_guessed():
    peak = find_peak([], [alloc(4096, 3 * MB + 1)])
    assert (peak.num_bytes, peak.num_guessed) == (3 * MB + 512, 1)


def test_an_address_has_the_name_of_whoever_lived_there_then():
    start = [segment(0, part(512), part(2 * MB - 512, "inactive"))]
    trace = [alloc(512, 512), *freed(512), alloc(512, 512), alloc(1024, 512)]
    notes = Notes()
    notes.add("slot", 0, 0)
    notes.add("first", 512, 1)
    notes.add("second", 512, 2)
    notes.add("late", 0, 3)
    peak = find_peak(start, trace)
    assert notes.names(peak.allocations, trace) == ["slot", "second", None]
    early = find_peak(start, trace[:1])
    assert notes.names(early.allocations, trace) == ["slot", "first"]


def test_free_parts_give_back_a_piece():
    parts = FreeParts()
    parts.add(0, 100)
    parts.remove(40, 20)
    assert parts.sizes == {0: 40, 60: 40}
    parts.add(40, 20)
    assert parts.sizes == {0: 100}
