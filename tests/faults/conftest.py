import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.loading.hub_stub import Stub, running_stub
from tests.engine.training.tiny_run import write_chat_model, write_rows
from tests.faults.bench import ROOT, SETTINGS, Bench, TrialServer, expect

TOKEN = "hf_secretsecretsecretsecret"


@dataclass
class World:
    """What all benches share."""

    folder: Path
    server: TrialServer
    environ: dict[str, str]

    def bench(self, name: str, folder: Path) -> Bench:
        """A copy of the world's folder ``name``."""
        shutil.copytree(self.folder / name, folder, dirs_exist_ok=True)
        return Bench(folder, self.server, dict(self.environ))


@pytest.fixture(scope="session")
def hub() -> Iterator[Stub]:
    """A Hub on the loopback interface."""
    with running_stub() as stub:
        yield stub


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, hub: Stub) -> Iterator[World]:
    """A tiny model and data, one whole run, one stopped at step 4."""
    folder = tmp_path_factory.mktemp("world")
    environ = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "engine"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HOME": str(folder / "hub"),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": TOKEN,
        "NO_PROXY": "127.0.0.1",
    }
    environ.pop("POROS_FAILPOINT", None)
    (folder / "fresh").mkdir()
    write_chat_model(folder / "fresh" / "model")
    write_rows(folder / "fresh" / "data.jsonl")
    server = TrialServer(environ)
    world = World(folder, server, environ)
    whole = world.bench("fresh", folder / "whole")
    assert whole.settings == SETTINGS
    ended = whole.run()
    assert ended.code == 0, ended.stderr
    stopped = world.bench("fresh", folder / "stopped")
    stopped.environ["POROS_FAILPOINT"] = "train.step:term@4"
    expect(stopped.run(), 143, num_errors=0)
    assert stopped.checkpoints() == [2, 4]
    yield world
    server.close()


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Bench:
    """Model, data and config; no run folder yet."""
    return world.bench("fresh", tmp_path / "bench")


@pytest.fixture
def finished(world: World, tmp_path: Path) -> Bench:
    """With a finished run of 6 steps, checkpoints at 4 and 6."""
    return world.bench("whole", tmp_path / "finished")


@pytest.fixture
def stopped(world: World, tmp_path: Path) -> Bench:
    """With a run stopped by SIGTERM at step 4, checkpoints at 2 and 4."""
    return world.bench("stopped", tmp_path / "stopped")
