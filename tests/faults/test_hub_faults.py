"""Faults 21 and 22: the Hub and the network; more in tests/engine/loading/test_hub.py."""

import shutil

import pytest

from tests.engine.loading.hub_stub import REPOSITORY
from tests.faults.bench import Case, expect
from tests.faults.conftest import TOKEN


def from_hub(failure="", plant="quick_hub", name=REPOSITORY):
    def put(bench):
        # The library keeps what a Hub answered, nonsense too.
        shutil.rmtree(bench.environ["HF_HOME"], ignore_errors=True)
        bench.settings["model_name_or_path"] = name
        bench.plant = plant
        return failure

    return put


CASES = [
    Case(21, "a wrong token", from_hub("401"), 5, (REPOSITORY, "hf auth login")),
    Case(21, "a gated model", from_hub("gated"), 5, (REPOSITORY, "accept")),
    Case(21, "no such model", from_hub("404"), 5, (REPOSITORY, "private")),
    Case(21, "no such revision", from_hub("revision", name=f"{REPOSITORY}@v9"), 5, ("'v9'",)),
    Case(22, "a Hub that fails", from_hub("503"), 5, ("HTTP 503", "try again")),
    Case(22, "a page in place of an answer", from_hub("html"), 5, ("not the Hub's",)),
    Case(22, "another answer", from_hub("json"), 5, ("not the Hub's",)),
    Case(22, "no network", from_hub("offline", "offline_hub"), 5, ("HF_HUB_OFFLINE is set",)),
    Case(22, "a name that is none", from_hub(name="a b"), 4, ("neither a folder",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hub_that_says_no_is_one_line_without_the_token(case, bench, hub):
    failure = case.plant(bench)
    hub.failure, num_asked = failure.replace("offline", ""), len(hub.asked)
    try:
        with bench.unchanged():
            ended = bench.run()
    finally:
        hub.failure = ""
    expect(ended, case.code, *case.words)
    assert TOKEN not in ended.stdout + ended.stderr
    if failure == "offline":
        assert len(hub.asked) == num_asked


def test_a_download_that_breaks_is_one_line_and_the_next_start_trains(bench, hub):
    hub.files = {p.name: p.read_bytes() for p in bench.model.iterdir() if p.is_file()}
    from_hub()(bench)
    bench.settings["max_steps"] = 1
    hub.failure, hub.fail_files_only = "cut", True
    try:
        with bench.unchanged():
            expect(bench.run(), 5, REPOSITORY, "resumes where it stopped")
        hub.failure = ""
        expect(bench.run(), 0, num_errors=0)
    finally:
        hub.failure, hub.fail_files_only, hub.files = "", False, {}
