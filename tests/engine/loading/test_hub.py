from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from poros.errors import PorosModelError
from poros.loading.hub import resolve_model
from tests.engine.loading.hub_stub import COMMIT, REPOSITORY, Stub, running_stub

TOKEN = "hf_secretsecretsecretsecret"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"again",
    "README.md": b"#",
}
PROGRAM = """
import sys, time
time.sleep = lambda seconds: None  # the Hub's library waits between its tries
from poros.errors import PorosError
from poros.loading.hub import resolve_model
emit = lambda event: print("event", event.name, getattr(event, "code", ""))
try:
    print("folder", resolve_model(sys.argv[1], emit))
except PorosError as error:
    print(error.line(), file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as stub:
        stub.files = dict(FILES)
        yield stub


@dataclass
class Outcome:
    code: int
    stdout: str
    stderr: str


def resolve(stub: Stub, home: Path, name: str = REPOSITORY, **variables: str) -> Outcome:
    """Run `resolve_model` as its own process: the Hub's library reads its environment once."""
    environment = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
    environment |= {
        "HF_ENDPOINT": stub.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert TOKEN not in done.stdout + done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def folder_of(outcome: Outcome) -> Path:
    assert outcome.code == 0, outcome.stderr
    return Path(outcome.stdout.splitlines()[-1].removeprefix("folder "))


def test_only_config_tokenizer_and_weights_are_fetched_of_one_commit(
    stub: Stub, tmp_path: Path
) -> None:
    folder = folder_of(resolve(stub, tmp_path))
    assert folder.name == COMMIT
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    resolved = [path for path in stub.asked if "/resolve/" in path]
    assert all(COMMIT in path for path in resolved)


def test_offline_mode_takes_the_cached_copy_and_asks_nobody(stub: Stub, tmp_path: Path) -> None:
    folder = folder_of(resolve(stub, tmp_path))
    stub.asked.clear()
    assert folder_of(resolve(stub, tmp_path, HF_HUB_OFFLINE="1")) == folder
    assert stub.asked == []


def test_an_outage_falls_back_on_the_copy_fetched_before_with_a_warning(
    stub: Stub, tmp_path: Path
) -> None:
    folder = folder_of(resolve(stub, tmp_path))
    stub.failure = "503"
    outcome = resolve(stub, tmp_path)
    assert folder_of(outcome) == folder
    assert "event warned hub-unreachable" in outcome.stdout


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("401", ["hf auth login", "HF_TOKEN"]),
        ("token", ["the Hub refuses access (HTTP 401)", "hf auth login"]),
        ("gated", ["gated", f"/{REPOSITORY} and accept", "hf auth login"]),
        ("404", ["no such model on the Hub, or it is private"]),
        ("revision", ["no revision 'v9'"]),
        ("503", ["HTTP 503", "try again later"]),
        ("cut", ["the connection to the Hub broke off", "or give the folder of a copy"]),
        ("html", ["the answer is not the Hub's", "HF_ENDPOINT"]),
        ("json", ["the answer is not the Hub's", "HF_ENDPOINT"]),
    ],
)
def test_a_refusal_of_the_hub_is_one_line_that_says_what_to_do(
    failure: str, told: list[str], stub: Stub, tmp_path: Path
) -> None:
    stub.failure = failure
    outcome = resolve(stub, tmp_path, f"{REPOSITORY}@v9")
    assert outcome.code == 5
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("poros: error[E-hub]: ")
    assert f"model {REPOSITORY} at revision v9" in line
    for text in told:
        assert text in line


@pytest.mark.parametrize("failure", ["503", "cut", "401"])
def test_a_download_that_fails_keeps_the_line_short_and_resumes(
    failure: str, stub: Stub, tmp_path: Path
) -> None:
    stub.failure, stub.fail_files_only = failure, True
    outcome = resolve(stub, tmp_path)
    assert outcome.code == 5
    assert outcome.stderr.splitlines()[-1].startswith("poros: error[E-hub]: ")
    stub.failure = ""
    assert folder_of(resolve(stub, tmp_path)).name == COMMIT


def test_a_download_cut_at_random_bytes_goes_on_where_it_stopped(
    stub: Stub, tmp_path: Path
) -> None:
    random = Random(0)
    content = random.randbytes(25_000_000)
    stub.files["model.safetensors"] = content
    stub.lfs = {"model.safetensors"}
    # The library writes pieces of 10 MiB, and loses the one that it was cut in.
    stub.cuts = [random.randrange(11_000_000, 14_000_000), random.randrange(1, 9_000_000)]
    outcome = resolve(stub, tmp_path)
    while stub.cuts and outcome.code == 5:
        outcome = resolve(stub, tmp_path)
    assert (folder_of(outcome) / "model.safetensors").read_bytes() == content
    starts = [int(r.removeprefix("bytes=").partition("-")[0]) for r in stub.ranges]
    assert len(starts) == 2
    assert min(starts) > 10_000_000


def test_a_file_that_arrives_damaged_is_told_and_fetched_anew(stub: Stub, tmp_path: Path) -> None:
    stub.lfs = {"model.safetensors"}
    flipped = bytearray(FILES["model.safetensors"])
    flipped[3333] ^= 1
    stub.damaged = {"model.safetensors": bytes(flipped)}
    outcome = resolve(stub, tmp_path)
    assert outcome.code == 4
    [line] = outcome.stderr.splitlines()
    assert "model.safetensors: arrived damaged" in line
    stub.damaged = {}
    folder = folder_of(resolve(stub, tmp_path))
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_nobody_listening_is_one_line(stub: Stub, tmp_path: Path) -> None:
    outcome = resolve(stub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert outcome.code == 5
    assert "can't be reached: the connection was refused" in outcome.stderr.splitlines()[-1]


def test_offline_without_a_copy_is_one_line(stub: Stub, tmp_path: Path) -> None:
    outcome = resolve(stub, tmp_path, HF_HUB_OFFLINE="1")
    assert outcome.code == 5
    assert "HF_HUB_OFFLINE is set" in outcome.stderr
    assert stub.asked == []


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(
    stub: Stub, tmp_path: Path
) -> None:
    stub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    outcome = resolve(stub, tmp_path)
    assert outcome.code == 4
    assert "Poros never unpickles" in outcome.stderr
    assert not [path for path in stub.asked if "/resolve/" in path]


def test_what_the_disk_has_no_room_for_is_refused_before_anything_is_fetched(
    stub: Stub, tmp_path: Path
) -> None:
    stub.sizes = {"model.safetensors": 10**17}
    outcome = resolve(stub, tmp_path)
    assert outcome.code == 8
    assert "100000000.00 GB are to be downloaded" in outcome.stderr
    assert not [path for path in stub.asked if "/resolve/" in path]


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert resolve_model(str(tmp_path), lambda event: None) == tmp_path


@pytest.mark.parametrize(
    "name",
    ["/no/such/model", "./model", "../model", "~/no-such-model", "models/", "a/b/c", "C:\\model",
     "model.gguf", "tests/no-such-model"],
)  # fmt: skip
def test_a_mistyped_path_is_called_a_missing_folder(name: str) -> None:
    with pytest.raises(PorosModelError, match="no such folder") as caught:
        resolve_model(name, lambda event: None)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["", "a b", "org/na me", "-x/y", "hf_token secret"])
def test_what_is_neither_path_nor_name_is_refused(name: str) -> None:
    with pytest.raises(PorosModelError):
        resolve_model(name, lambda event: None)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(PorosModelError, match="a file, not a folder"):
        resolve_model(str(path), lambda event: None)
