"""Faults 23 to 30: disks, folders and what lies in them."""

import json
import shutil
import subprocess

import pytest

from poros.training.checkpoint import verify
from tests.engine.training.tiny_run import results_of
from tests.faults.bench import Case, expect, refuse

IN_A_SAVE = (
    "checkpoint.begin", "checkpoint.adapter", "checkpoint.tensors", "atomic.begin",
    "atomic.written", "atomic.file_fsync", "atomic.manifest", "atomic.dir_fsync", "atomic.rename",
)  # fmt: skip

QUICK = ("checkpoint.tensors", "atomic.rename", "checkpoint.rotate")


def temps(bench):
    return [path for path in bench.folder.rglob(".tmp-*") if "cache" not in path.parts]


def whole(world):
    return results_of(world.folder / "whole" / "out")


@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_a_save_that_the_disk_refuses_three_times_ends_the_run(action, bench):
    """Faults 23 and 24: the checkpoint before stays."""
    bench.settings["save_steps"] = 1
    bench.environ["POROS_FAILPOINT"] = f"checkpoint.tensors:{action}@2+"
    ended = bench.run()
    expect(ended, 8, "disk full" if action == "enospc" else "write failed", "step-000004", "free")
    assert bench.checkpoints() == [1]
    assert temps(bench) == []
    for step in (2, 3, 4):
        assert f"no checkpoint of step {step}, going on" in ended.stdout


def test_one_refused_save_is_told_and_outlived(bench, world):
    bench.environ["POROS_FAILPOINT"] = "checkpoint.tensors:enospc@2"
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert "no checkpoint of step 4, going on: disk full" in ended.stdout
    assert "needed" in ended.stdout
    assert bench.checkpoints() == [2, 6]
    assert results_of(bench.out) == whole(world)


def test_a_final_save_that_the_disk_refuses_is_an_error(bench):
    bench.environ["POROS_FAILPOINT"] = "checkpoint.tensors:enospc@3+"
    expect(bench.run(), 8, "disk full", "step-000006")
    assert bench.checkpoints() == [2, 4]
    assert not (bench.out / "adapter").exists()


def test_an_adapter_that_the_disk_refuses_is_an_error(bench):
    bench.environ["POROS_FAILPOINT"] = "checkpoint.tensors:enospc@4"
    expect(bench.run(), 8, "disk full", "adapter")
    assert bench.checkpoints() == [4, 6]
    assert temps(bench) == []


def test_a_disk_full_before_the_first_file_leaves_no_folder(bench):
    bench.environ["POROS_FAILPOINT"] = "atomic.begin:enospc"
    with bench.unchanged():
        expect(bench.run(), 8, "disk full", "run.json")


@pytest.fixture
def mounted(bench):
    """A small tmpfs at the bench's run folder, mounted as asked."""
    places = []

    def mount(options):
        bench.out.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(bench.out)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            bench.out.rmdir()
            return False
        places.append(bench.out)
        return True

    yield mount
    for place in places:
        subprocess.run(["umount", str(place)], check=True)


def test_a_real_small_disk_keeps_the_checkpoints_that_fit(bench, mounted):
    if not mounted("size=1M"):
        bench.environ["POROS_FAILPOINT"] = "checkpoint.tensors:enospc@2+"
    bench.settings |= {"save_steps": 1, "lora_rank": 16}
    expect(bench.run(), 8, "disk full")
    assert bench.checkpoints()
    assert temps(bench) == []


def test_a_read_only_disk_is_refused_at_the_start(bench, mounted):
    if not mounted("ro"):
        bench.settings["output_dir"] = "/proc/out"
    with bench.unchanged():
        expect(bench.run(), 7, "output_dir")


@pytest.mark.parametrize("point", [
    pytest.param(point, marks=[] if point in QUICK else [pytest.mark.long])
    for point in (*IN_A_SAVE, "atomic.parent_fsync", "checkpoint.rotate")
])  # fmt: skip
def test_a_kill_inside_a_save_costs_at_most_that_save(point, bench, world):
    """Faults 25 and 26; the random kills are in tests/kill_resume.py, the order in test_atomic."""
    bench.environ |= {"SEND": "SIGKILL", "SEND_AT": point}
    bench.plant = "signal_in_second_save"
    assert bench.run().code == -9
    assert bench.checkpoints() in ([2], [2, 4, 6])
    bench.plant = ""
    expect(bench.run(), 0, num_errors=0)
    assert results_of(bench.out) == whole(world)
    assert temps(bench) == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def to_link(path):
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def later_format(checkpoint):
    manifest = checkpoint / "poros_state" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}) + "\n")


def climbing(checkpoint):
    manifest = checkpoint / "poros_state" / "manifest.json"
    about = json.loads(manifest.read_text())
    about["files"]["../../config.yaml"] = {"num_bytes": 0, "sha256": ""}
    manifest.write_text(json.dumps(about) + "\n")


def other_run(checkpoint):
    for name in ("manifest.json", "trainer.json"):
        path = checkpoint / "poros_state" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "f" * 16}) + "\n")


TENSORS = "adapter_model.safetensors"
OPTIMIZER = "poros_state/optimizer.safetensors"
DAMAGES = {
    "a file is missing": (lambda c: (c / TENSORS).unlink(), TENSORS),
    "the manifest is missing": (lambda c: (c / "poros_state/manifest.json").unlink(), "manifest"),
    "a file is cut": (lambda c: cut(c / OPTIMIZER), OPTIMIZER),
    "a bit is flipped": (lambda c: flip(c / OPTIMIZER), OPTIMIZER),
    "a bit of the adapter is flipped": (lambda c: flip(c / TENSORS), TENSORS),
    "a file is added": (lambda c: (c / "odd.json").write_text("{}"), "odd.json"),
    "a pickle is added": (lambda c: (c / "training_args.bin").write_bytes(b"\x80"), ".bin"),
    "two files are swapped": (
        lambda c: shutil.copy(c / "poros_state/rng.safetensors", c / OPTIMIZER),
        OPTIMIZER,
    ),
    "a file is a link": (lambda c: to_link(c / TENSORS), "is a link"),
    "a name climbs out": (climbing, "../config.yaml"),
    "a later version wrote it": (later_format, "format 99"),
    "it is of another run": (other_run, "poros_state/trainer.json"),
    "the trainer's state is empty": (
        lambda c: (c / "poros_state/trainer.json").write_text(""),
        "trainer.json",
    ),
}


@pytest.mark.parametrize("title", DAMAGES)
def test_a_damaged_checkpoint_that_is_named_is_refused(title, stopped):
    """Fault 27."""
    damage, word = DAMAGES[title]
    damage(stopped.out / "checkpoints" / "step-000004")
    stopped.flags = ["--resume", "out/checkpoints/step-000004"]
    with stopped.unchanged():
        expect(stopped.run(), 6, "checkpoints/step-000004", word)
    assert verify(stopped.out / "checkpoints" / "step-000002").step == 2


@pytest.mark.parametrize("title", ["a file is missing", "a bit is flipped"])
def test_auto_passes_over_a_damaged_checkpoint_with_a_warning(title, stopped, world):
    damage, word = DAMAGES[title]
    damage(stopped.out / "checkpoints" / "step-000004")
    ended = stopped.run()
    expect(ended, 0, num_errors=0)
    assert "warning[W-checkpoint-skipped]" in ended.stderr
    assert word in ended.stderr
    assert results_of(stopped.out) == whole(world)


def test_auto_refuses_when_all_checkpoints_are_damaged(stopped):
    for name in ("step-000002", "step-000004"):
        flip(stopped.out / "checkpoints" / name / TENSORS)
    with stopped.unchanged():
        expect(stopped.run(), 6, TENSORS, "--resume never")


def out_is(place):
    return lambda bench: bench.settings.update(output_dir=place)


def foreign(bench):
    bench.out.mkdir()
    (bench.out / "thesis.tex").write_text("x")


CASES = [
    Case(28, "no parent", out_is("no/such/out"), 7, ("no/such/out", "mkdir -p no/such")),
    Case(28, "a file's name", out_is("data.jsonl"), 7, ("data.jsonl", "data.jsonl-2")),
    Case(28, "files of others", foreign, 7, ("thesis.tex", "out-2")),
    Case(28, "a folder of the kernel", out_is("/proc/poros"), 7, ("/proc/poros",)),
    Case(28, "a parent that is a file", out_is("data.jsonl/out"), 7, ("data.jsonl/out",)),
    Case(29, "a name of 256 bytes", out_is("x" * 256), 7, ("File name too long",)),
    Case(29, "a path of 5000 bytes", out_is("x/" * 2500), 7, ("x/",)),
    Case(29, "a name that is not UTF-8", lambda b: b.flags.extend(
        ["--output-dir", b"\xff".decode("utf-8", "surrogateescape")]), 2, ("UTF-8",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_place_is_one_line_and_nothing_is_made(case, bench):
    refuse(case, bench)


@pytest.mark.parametrize("change", [
    {"dataset": "other.jsonl"},
    {"resume": "never"},
    {"resume": "out/checkpoints/step-000009"},
])  # fmt: skip
def test_another_run_s_folder_stays_as_it_is(change, finished):
    shutil.copy(finished.data, finished.folder / "other.jsonl")
    finished.settings |= change
    with finished.unchanged():
        ended = finished.run()
    expect(ended, 6 if "step-" in str(change) else 7)
    assert finished.checkpoints() == [4, 6]


@pytest.mark.parametrize(
    "name",
    [
        "spaces and 'quotes\" and $(touch x)",
        pytest.param("\u4f60\u597d \U0001f30a \u05d0", marks=pytest.mark.long),
        "new\nline\x1b[31m",
        "y" * 255,
    ],
    ids=["quotes", "unicode", "control", "255 bytes"],
)
def test_a_run_works_in_a_folder_of_any_name(name, bench, world):
    """Fault 29."""
    bench.flags = ["--output-dir", name]
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert "\x1b" not in ended.stdout
    found = results_of(bench.folder / name)
    assert found == whole(world)
    bench.flags += ["--resume", "auto"]
    expect(bench.run(), 0, num_errors=0)


def test_a_second_run_in_the_folder_is_refused_with_the_first_one_s_name(bench):
    """Fault 30; the lock goes with its holder, though a child of it lives on."""
    bench.environ["POROS_FAILPOINT"] = "train.step:sleep=30@4"
    bench.plant = "fork_that_outlives_us"
    first = bench.start()
    first.wait_for_step(3)
    bench.plant = ""
    expect(bench.run(), 7, f"pid {first.pid} on", "since", "out-2")
    first.kill()
    assert first.wait().code == -9
    del bench.environ["POROS_FAILPOINT"]
    expect(bench.run(), 0, num_errors=0)
    assert bench.checkpoints() == [4, 6]


def test_where_the_failpoints_of_a_save_are_tried_is_the_list_of_them():
    from poros import failpoints

    of_a_save = {p for p in failpoints.POINTS if p.startswith(("checkpoint.", "atomic."))}
    assert of_a_save == {*IN_A_SAVE, "atomic.parent_fsync", "checkpoint.rotate"}
