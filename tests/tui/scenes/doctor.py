"""The states of the screen `doctor` that have pictures; rows are made by the engine's own code."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from poros.certified import Stack
from poros.doctor_cards import Driver, Gpu, User
from poros.doctor_child import probe_rows
from poros.doctor_gpu import gpu_rows
from poros.doctor_host import Disk, Memory, disk_row, limit_row, lock_row, memory_row, wsl_row
from poros.doctor_hub import Heard, hub_row
from poros.doctor_power import Power
from poros.doctor_probe import Outcome
from poros.doctor_rows import Row
from poros.doctor_software import environment_rows, package_rows, stack_row
from poros.doctor_terminal import terminal_row
from poros_tui.app import PorosApp
from poros_tui.engine.machine import Machine
from tests.tui.pilot import app_of
from tests.tui.recorded import RecordedTask, answers
from tests.tui.scene import Scene

GB = 1_000_000_000
HOT = Power(98.0, 110.0, 200.0, 88, 90, is_hot=True)
STACK = Stack(torch="2.13", transformers="5.24", bitsandbytes="0.50.2", compute_capability="8.9")
CARD = Gpu(
    0, "NVIDIA GeForce RTX 4070", 12_282_000_000, 10_382_000_000, (8, 9), (4, 16, 4, 16),
    (User(1234, "Xorg", 310_000_000), User(2345, "firefox", 420_000_000)),
    power=Power(31.0, 200.0, 200.0, 46, 90),
)  # fmt: skip
PACKAGES = {"torch": "2.13.0", "transformers": "5.24.0", "peft": "0.21.2", "bitsandbytes": "0.50.2"}
PROBES: dict[str, dict[str, Any]] = {
    "torch": {"version": "2.13.0", "cuda_build": "13.0", "cuda_available": True,
              "archs": ["sm_80", "sm_89", "sm_90"]},
    "bitsandbytes": {"version": "0.50.2"},
    "bf16": {"device": "cuda:0"},
    "nf4": {"device": "cuda:0"},
    "pinned": {"num_bytes": 2**28},
    "link": {"bytes_per_s": 24.3e9},
    "arithmetic": {"operations_per_s": 71e12},
}  # fmt: skip


def quick(card: Gpu = CARD, free_bytes: int = 212 * GB, environ: dict[str, str] | None = None):
    """Rows that are known at once."""
    memory = Memory(33_500_000_000, 24_100_000_000)
    home = Path("/home/sam")
    yield wsl_row("6.8.0-45-generic")
    yield memory_row(memory)
    yield limit_row(memory)
    yield lock_row(None, is_wsl=False)
    for name, purpose, place in (
        ("disk_hub", "downloaded models", home / ".cache/huggingface/hub"),
        ("disk_cache", "quantised blocks", home / ".cache/poros"),
        ("disk_output", "checkpoints", home / "tuning"),
    ):
        yield disk_row(Disk(name, purpose, place, "export HF_HOME=/a/larger/disk"), free_bytes)
    yield from gpu_rows(Driver("580.95", "13.0", (card,)))
    yield from package_rows(dict.fromkeys(PACKAGES, "0"), PACKAGES.get)
    yield stack_row(STACK, {STACK})
    yield from environment_rows(environ or {})
    yield terminal_row({"TERM": "xterm-256color", "LANG": "en_GB.UTF-8"})


def probes(**changes: dict[str, Any]) -> Iterable[Row]:
    """Rows of the child."""
    found = {name: {"probe": name, "state": "done"} | said for name, said in PROBES.items()}
    for name, said in changes.items():
        found[name] = {"probe": name, **said}
    return probe_rows(Outcome(found), CARD.capability)


def lines(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """As the command prints them."""
    return [{"kind": "row", **asdict(row)} for row in rows]


HUB = [
    Row("hub_token", "ok", "a token is kept", "models with terms, and private ones, want a token"),
    hub_row(Heard(200, "sam"), has_token=True),
]
VERDICT = {"kind": "verdict", "fit": True, "counts": {}}
GOOD = [*lines([*quick(), *probes(), *HUB]), VERDICT]
BROKEN = [
    *lines(
        [
            *quick(
                replace(CARD, link=(4, 4, 4, 16), power=HOT), 9 * GB, {"CUDA_LAUNCH_BLOCKING": "1"}
            ),
            *probes(
                torch={"state": "done", **PROBES["torch"], "archs": ["sm_70", "sm_75"]},
                nf4={"state": "failed", "error": "RuntimeError: no kernel image is available"},
            ),
        ]
    ),
    VERDICT | {"fit": False},
]
RUNNING = [*lines(quick()), *lines(list(probes())[:3]),
           {"kind": "trying", "id": "nf4", "what": "a 4-bit product"}]  # fmt: skip


def doctor_app(records: Sequence[Any], **task: Any) -> Callable[[], PorosApp]:
    """An app whose doctor says what was recorded."""

    def make() -> PorosApp:
        doctor = {"doctor": lambda words: RecordedTask(words, records, **task)}
        return app_of(make_task=answers(doctor))

    return make


def doctor_without_card() -> PorosApp:
    """An app on a machine without a card and without torch."""
    from poros.doctor_child import rows_without_torch

    rows = [row for row in quick() if not row.id.startswith(("gpu", "driver", "packages", "stack"))]
    rows += [*gpu_rows(Driver(hardware=False)), *package_rows({"torch": "2.10"}, lambda _: None)]
    rows += [stack_row(replace(STACK, torch=""), set()), *rows_without_torch("torch", gpu=False)]
    doctor = {"doctor": lambda words: RecordedTask(words, [*lines(rows), VERDICT])}
    return app_of(machine=Machine(), make_task=answers(doctor))


SCENES = [
    Scene("doctor", "empty", doctor_without_card),
    Scene("doctor", "running", doctor_app(RUNNING, goes_on=True), sizes=((120, 40),)),
    Scene("doctor", "ok", doctor_app(GOOD)),
    Scene("doctor", "error", doctor_app(BROKEN, exit_code=1)),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["error"].without_colours(), by_state["error"].in_light()]
