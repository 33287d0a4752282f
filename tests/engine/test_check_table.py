"""`poros check --table`: lengths by cards, held to what the planner says of each."""

import json

import pytest

from poros.check import check_model
from poros.check_memory import DEVICE_BAND, Wanted, planned
from poros.check_table import fit_table, longest, table_lines
from poros.doctor_cards import Gpu
from poros.errors import PorosOOMError
from poros.memory_planner import Rates
from poros.memory_sizes import device_level_bytes
from poros.plan_history import About, Measured
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers

CARD = Gpu(0, "NVIDIA Card", 12_000_000_000, 9_000_000_000, (8, 9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_headers(tmp_path_factory.mktemp("m") / "m", QWEN_7B, qwen_tensors(QWEN_7B))


@pytest.fixture(scope="module")
def sizes(folder):
    return check_model(str(folder)).memory


def test_a_cell_is_the_plan_for_that_length_and_card(sizes):
    table = fit_table(sizes, Wanted(), lengths=(512, 16384))
    at = [column.name for column in table.columns].index("8 GB")
    short, long = table.cells[0][at], table.cells[1][at]
    found = planned(sizes, Wanted(vram_gb=table.columns[at].room_bytes / 1e9, seq_len=512))
    assert short.verdict == "fits"
    assert short.num_resident == len(found.plan.resident) > 0
    assert short.device_bytes == [round(found.device_bytes * end) for end in DEVICE_BAND]
    assert long.verdict == "no"
    assert long.device_bytes[0] > table.columns[at].room_bytes


def test_tight_is_what_fits_but_for_the_estimates_error(sizes):
    least = planned(sizes, Wanted(seq_len=4096)).device_bytes
    for room_gb, verdict in (
        (least / 1e9 * 0.99, "no"),
        (least / 1e9 * 1.01, "tight"),
        (least / 1e9 * 1.06, "fits"),
    ):
        table = fit_table(sizes, Wanted(vram_gb=room_gb), lengths=(4096,))
        assert table.cells[0][0].verdict == verdict


def test_the_longest_sample_fits_and_a_longer_one_does_not(sizes):
    room = 8_000_000_000
    tokens = longest(sizes, Wanted(), room)
    planned(sizes, Wanted(vram_gb=room / 1e9, seq_len=tokens - 64))
    with pytest.raises(PorosOOMError):
        planned(sizes, Wanted(vram_gb=room / 1e9, seq_len=tokens + 128))
    assert longest(sizes, Wanted(), 10**9) == 0


def test_a_card_of_this_machine_is_a_column_as_free_as_it_is(sizes):
    table = fit_table(sizes, Wanted(), Rates(25e9, 100e12), gpus=[CARD], lengths=(2048,))
    assert (table.columns[0].name, table.columns[0].room_bytes) == (CARD.name, CARD.free_bytes)
    assert [column.here for column in table.columns].count(True) == 1
    assert table.cells[0][0].step_s[0] < table.cells[0][0].step_s[1]
    assert table_lines(table)[0].split()[:2] == ["tokens", "here"]


def test_what_a_run_measured_goes_before_the_estimate_of_the_same_plan_and_card(sizes):
    room_gb = CARD.free_bytes / 1e9
    found = planned(sizes, Wanted(vram_gb=room_gb, seq_len=512))
    run = Measured(
        plan=found.plan, estimated_bytes=found.peak_bytes, peak_bytes=found.peak_bytes - 10**8,
        reserved_bytes=found.peak_bytes, step_s=0.75, whole=True,
    )  # fmt: skip
    history = [(About(model="m", card=CARD.name, num_rows=512, rank=16), run)]
    table = fit_table(
        sizes, Wanted(), Rates(25e9, 100e12), gpus=[CARD], lengths=(512, 1024), history=history
    )
    cell = table.cells[0][0]
    assert cell.measured
    assert cell.step_s == [0.75, 0.75]
    assert cell.device_bytes == [device_level_bytes(run.peak_bytes)] * 2
    others = [table.cells[1][0], *table.cells[0][1:]]
    assert not any(other.measured for other in others)
    plain = fit_table(sizes, Wanted(), Rates(25e9, 100e12), gpus=[CARD], lengths=(512, 1024))
    assert [plain.cells[1][0], *plain.cells[0][1:]] == others


def test_the_command_prints_it_and_has_it_in_json(folder):
    printed = poros_here("check", str(folder), "--table").stdout.splitlines()
    head = next(k for k, line in enumerate(printed) if line.split()[:2] == ["tokens", "4"])
    assert printed[head + 5].split()[:3] == ["8,192", "no", "tight"]
    assert max(map(len, printed[head:])) <= 100
    record = json.loads(poros_here("check", str(folder), "--table", "--json").stdout)
    assert record["table"]["cells"][4][0]["verdict"] == "no"
    assert record["table"]["lengths"][4] == 8192
    for row in record["table"]["cells"]:
        for cell in row:
            low, high = cell["device_bytes"]
            assert low < sum(cell["parts"].values()) < high


def test_a_model_that_is_refused_has_no_table(tmp_path):
    config = QWEN_7B | {"model_type": "mixtral"}
    folder = write_headers(tmp_path / "m", config, qwen_tensors(QWEN_7B))
    ended = poros_here("check", str(folder), "--table", "--json")
    assert json.loads(ended.stdout)["table"] is None
    assert ended.returncode == 4
