"""`poros cache`: quantised models, listed and removed."""

import json
import os

import pytest

from poros import cache_entries
from poros.cache_hold import alone, hold, is_in_use
from poros.errors import PorosConfigError
from tests.engine.command_line import poros_here

DAY_S = 86400


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    for number, (model, size) in enumerate([("m/old", 100), ("m/mid", 200), ("m/new", 300)], 1):
        make(tmp_path / "nf4", f"nf4-{number}{number:031x}", model, size, used_s=number * DAY_S)
    return tmp_path / "nf4"


def make(cache, name, model, size, used_s):
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\0" * size)
    about = {"model": model, "files": {"model.safetensors": {"num_bytes": size}}}
    (folder / cache_entries.MANIFEST).write_text(json.dumps(about))
    stamps = folder / cache_entries.STAMPS
    stamps.write_text("{}")
    os.utime(stamps, (used_s, used_s))


def names(cache) -> list[str]:
    return [entry.model for entry in cache_entries.entries(cache)]


def pruned(cache, **limits) -> list[str]:
    return [entry.model for entry in cache_entries.to_prune(cache, **limits)]


def test_entries_are_listed_by_their_last_use(cache):
    assert names(cache) == ["m/old", "m/mid", "m/new"]
    assert all(entry.whole for entry in cache_entries.entries(cache))


def test_an_entry_without_its_files_is_shown_so(cache):
    next(cache.glob("nf4-1*/model.safetensors")).unlink()
    assert [entry.whole for entry in cache_entries.entries(cache)] == [False, True, True]
    assert "files are missing" in poros_here("cache", "ls").stdout


def test_pruning_removes_what_was_used_longest_ago(cache):
    total = sum(entry.num_bytes for entry in cache_entries.entries(cache))
    assert pruned(cache, keep_bytes=total - 1) == ["m/old"]
    assert pruned(cache, keep_bytes=total) == []


def test_pruning_spares_what_was_used_since(cache):
    assert pruned(cache, unused_since_s=2.5 * DAY_S) == ["m/old", "m/mid"]


def test_a_dry_run_removes_nothing(cache):
    answer = json.loads(poros_here("cache", "prune", "--keep", "0", "--dry-run", "--json").stdout)
    assert [entry["model"] for entry in answer["would_remove"]] == ["m/old", "m/mid", "m/new"]
    assert len(names(cache)) == 3


def test_an_entry_is_named_by_its_folder_its_beginning_or_its_model(cache):
    for name in (f"nf4-2{2:031x}", "nf4-2000", "2000", "m/mid"):
        assert cache_entries.find_entry(cache, name).model == "m/mid"
    with pytest.raises(PorosConfigError, match="no entry is called nonsense"):
        cache_entries.find_entry(cache, "nonsense")


def test_a_model_with_two_entries_needs_more_than_its_name(cache):
    make(cache, "nf4-4444", "m/new", 10, used_s=DAY_S)
    with pytest.raises(PorosConfigError, match="2 entries are meant"):
        cache_entries.find_entry(cache, "m/new")


def test_pruning_wants_to_be_told_what_may_stay(cache):
    refused = poros_here("cache", "prune", "-y")
    assert (refused.returncode, "--keep GB or --unused-days DAYS" in refused.stderr) == (2, True)
    assert len(names(cache)) == 3
    assert poros_here("cache", "prune", "--unused-days", "1", "-y").returncode == 0
    assert names(cache) == []


def test_nothing_is_removed_without_a_yes(cache):
    for arguments in (("rm", "m/old"), ("prune", "--keep", "0")):
        refused = poros_here("cache", *arguments)
        assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert len(names(cache)) == 3
    assert poros_here("cache", "rm", "m/old", "-y").returncode == 0
    assert names(cache) == ["m/mid", "m/new"]
    assert poros_here("cache", "prune", "--keep", "0", "-y").returncode == 0
    assert names(cache) == []


def test_the_list_as_json_holds_the_rest_of_the_cache_too(cache):
    (cache.parent / "plans").mkdir()
    (cache.parent / "plans" / "x.json").write_text("12345")
    answer = json.loads(poros_here("cache", "ls", "--json").stdout)
    assert [entry["model"] for entry in answer["entries"]] == ["m/old", "m/mid", "m/new"]
    assert [other["num_bytes"] for other in answer["others"]] == [5]


def test_another_folder_can_be_named(tmp_path):
    make(tmp_path / "mine", "nf4-9999", "m/mine", 10, used_s=DAY_S)
    answer = json.loads(
        poros_here("cache", "ls", "--json", "--cache", str(tmp_path / "mine")).stdout
    )
    assert [entry["model"] for entry in answer["entries"]] == ["m/mine"]


def test_an_empty_cache_is_no_error(tmp_path):
    done = poros_here("cache", "ls", POROS_CACHE=str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout.startswith("0 quantised models")) == (0, True)


def test_an_entry_in_use_is_shown_and_stays(cache):
    [path] = cache.glob("nf4-1*")
    held, another = hold(path), hold(path)
    assert held is not None
    assert another is not None
    listed = json.loads(poros_here("cache", "ls", "--json").stdout)["entries"]
    assert [entry["in_use"] for entry in listed] == [True, False, False]
    refused = poros_here("cache", "rm", "m/old", "-y")
    assert (refused.returncode, "a run is using" in refused.stderr) == (7, True)
    assert poros_here("cache", "prune", "--keep", "0", "-y").returncode == 0
    assert names(cache) == ["m/old"]
    held.release()
    assert is_in_use(path)
    del another
    assert not is_in_use(path)
    assert poros_here("cache", "rm", "m/old", "-y").returncode == 0
    assert names(cache) == []


def test_an_entry_that_is_being_removed_is_no_runs(cache):
    [path] = cache.glob("nf4-1*")
    with alone(path) as free:
        assert free
        assert hold(path) is None
    assert hold(path) is not None


def test_what_can_not_be_locked_holds_nothing(tmp_path):
    assert hold(tmp_path / "nowhere") is None
    assert not is_in_use(tmp_path / "nowhere")
