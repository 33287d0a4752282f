"""Stand-ins for what goes wrong at a first run: broken stacks, odd models, data; and a look at it.

The commands are the real ones, run in this process; those that a broken stack would take down have
a process of their own.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from textual.pilot import Pilot

from poros_tui.app import PorosApp
from poros_tui.engine.tasks import Task
from tests.engine.command_line import poros_here
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.training.tiny_run import write_chat_model
from tests.tui.recorded import RecordedTask

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0

NVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlSystemGetDriverVersion(): return "580.65"
def nvmlSystemGetCudaDriverVersion(): return 13000
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=12 * 10**9, free=11 * 10**9)
def nvmlDeviceGetCudaComputeCapability(handle): return {capability}
def nvmlDeviceGetName(handle): return "a card"
def nvmlDeviceGetComputeRunningProcesses(handle): return []
nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetComputeRunningProcesses
def nvmlDeviceGetMigMode(handle): return [0, 0]
def __getattr__(name):
    if not name.startswith("nvml"): raise AttributeError(name)
    def fails(*_): raise NVMLError("Not Supported")
    return fails
"""
TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0"
version = SimpleNamespace(cuda={build!r})
cuda = SimpleNamespace(is_available=lambda: {sees}, get_arch_list=lambda: {archs!r})
"""


def stack(
    folder: Path,
    *,
    capability: tuple[int, int] = (12, 0),
    build: str = "12.6",
    sees: bool = True,
    archs: Sequence[str] = ("sm_80", "sm_90"),
    bitsandbytes: str = '__version__ = "0.50.2"',
) -> Path:
    """A folder of packages: a driver's library with one card, a torch, a bitsandbytes."""
    files = {
        "pynvml.py": NVML.replace("{capability}", repr(capability)),
        "torch/__init__.py": TORCH.format(build=build, sees=sees, archs=list(archs)),
        "bitsandbytes/__init__.py": bitsandbytes,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def on_stack(folder: Path) -> Callable[..., Task]:
    """Runs commands in processes that find these packages first."""
    paths = os.pathsep.join(map(str, (folder, ROOT / "engine", ROOT)))
    variables = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    return lambda words, **options: Task(words, environ=variables, **options)


def here(words: Sequence[str], **_: Any) -> RecordedTask:
    """A command of `poros` in this process, which has ended; only a fetch never comes to an end.

    Enter in the list of models asks for the demo's, which would come over the network.
    """
    if words[0] == "demo":
        return RecordedTask(words, goes_on=True)
    ended = poros_here(*words)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("{", "["))]
    return RecordedTask(
        words,
        [json.loads(line) for line in lines],
        exit_code=ended.returncode,
        stderr=ended.stderr.splitlines(),
    )


class Models:
    """Tiny models, each with one thing wrong; made once."""

    def __init__(self, folder: Path) -> None:
        """The good one is made."""
        self._folder = folder
        self.good = write_chat_model(folder / "good")

    def with_tokenizer(self, name: str, **of: Any) -> Path:
        """The good one with another tokenizer."""
        folder = self._copied(name)
        for file in folder.glob("chat_template*"):
            file.unlink()
        tiny_tokenizer(**of).save_pretrained(folder)
        return folder

    def with_nan(self, tensor: str) -> Path:
        """The good one with one value that is no number."""
        folder = self._copied("nan")
        weights = load_file(folder / "model.safetensors")
        weights[tensor].view(-1)[7] = torch.nan
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def packed(self) -> Path:
        """The good one, said to be 4-bit already."""
        folder = self._copied("packed")
        config = json.loads((folder / "config.json").read_text())
        quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        config["quantization_config"] = quantised | {"bnb_4bit_quant_type": "nf4"}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def _copied(self, name: str) -> Path:
        folder = self._folder / name
        shutil.copytree(self.good, folder, dirs_exist_ok=True)
        return folder


def rows(path: Path, *of: dict[str, Any]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in of))
    return path


def talks(path: Path, *, asked: str = "q", num: int = 10) -> Path:
    """Conversations of one question."""
    return rows(
        path,
        *(
            {"messages": [{"role": "user", "content": f"{asked} {i}"},
                          {"role": "assistant", "content": f"a {i}"}]}
            for i in range(num)
        ),
    )  # fmt: skip


class Seen:
    """What a screen says in the end.

    Attributes:
        said: The verdict.
        way_out: What mends it.
        went_to: The screen on which Enter ends.
        text: All that the screen shows.
    """

    def __init__(self, app: PorosApp, mode: str) -> None:
        """Read a verdict line."""
        self.said = shown(app, f"#{mode}-verdict .said")
        self.way_out = shown(app, f"#{mode}-verdict .way-out")
        self.text, self.went_to = on_screen(app), ""


async def looked(app: PorosApp, pilot: Pilot[Any], mode: str, *, is_taken: bool = True) -> Seen:
    """Wait for the verdict of Model or Data, then press Enter, unless it is not to be taken."""
    await until(app, pilot, lambda: is_told(app, mode))
    seen = Seen(app, mode)
    if not is_taken:
        return seen
    await pilot.press("enter")
    await pilot.pause()
    seen.went_to = app.current_mode
    return seen


def is_told(app: PorosApp, mode: str) -> bool:
    """There is a verdict, and nothing is being looked at."""
    said = shown(app, f"#{mode}-verdict .said")
    return bool(said.strip()) and "x cancels" not in said


async def until(app: PorosApp, pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Tick until something holds."""
    limit_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit_s, on_screen(app)
        await pilot.pause(0.02)
        await app.tick()
    await pilot.pause()


def shown(app: PorosApp, of: str) -> str:
    """A widget's text."""
    return str(app.screen.query_one(of).render())


def on_screen(app: PorosApp) -> str:
    """All that is drawn, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)
