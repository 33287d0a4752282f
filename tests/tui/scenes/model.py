"""The states of the screen `model` that have pictures; reports are the engine's own."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from poros.check import check_model
from poros.check_memory import Wanted
from poros.check_table import fit_table, table_record
from poros.cli_check import record_of
from poros.doctor_cards import Gpu
from poros.memory_planner import Rates
from poros.model_names import suggestions
from poros.model_suggestion import Suggestion
from poros_tui.app import PorosApp
from poros_tui.state import AppState
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.tui.pilot import MACHINE, app_of
from tests.tui.recorded import RecordedTask, answers
from tests.tui.scene import Scene

NAME = "Qwen/Qwen2.5-7B-Instruct"
GATED = "meta-llama/Llama-3.1-8B-Instruct"
CARD = Gpu(0, MACHINE.card, 12_282_000_000, 10_382_000_000, (8, 9))
RATES = Rates(24.3e9, 71e12)


@cache
def report() -> dict[str, Any]:
    """Of a 7B model of the Hub, on a machine with a card of 12 GB."""
    wanted = Wanted(vram_gb=10.382)
    with tempfile.TemporaryDirectory() as folder:
        write_headers(Path(folder) / "m", QWEN_7B, qwen_tensors(QWEN_7B))
        found = check_model(str(Path(folder) / "m"))
        record = record_of(found, wanted, RATES, f"measured on {CARD.name}")
        assert found.memory is not None
        table = fit_table(found.memory, Wanted(), RATES, gpus=[CARD])
    return record | {
        "model": NAME,
        "folder": None,
        "labels": record["labels"] | {"stack": "certified"},
        "chat_template": True,
        "hub": {
            "name": NAME, "renamed": False, "commit": "a" * 40, "licence": "apache-2.0",
            "gated": None, "private": False, "download_bytes": 15_242_000_000,
        },
        "table": table_record(table),
    }  # fmt: skip


def refused(kind: str, message: str, way_out: str) -> dict[str, Any]:
    """A report with a refusal."""
    refusal = {
        "type": kind, "code": "E", "exit_code": 5, "message": message, "where": "",
        "remediation": way_out, "doc_url": "",
    }  # fmt: skip
    return report() | {"trains": False, "refusals": [refusal], "table": None, "needs": None,
                       "sizes": None, "plan": None, "chat_template": None, "model": GATED,
                       "model_type": "llama"}  # fmt: skip


def gated() -> dict[str, Any]:
    """A model whose terms were not accepted."""
    record = refused(
        "PorosHubError", "gated: its owner wants you to accept terms (HTTP 403)",
        f"open https://huggingface.co/{GATED} and accept them, then run `hf auth login`,"
        " or set HF_TOKEN",
    )  # fmt: skip
    return record | {"hub": record["hub"] | {"gated": "manual", "licence": "llama3.1"}}


def suggested() -> list[dict[str, Any]]:
    """What `poros models --json` says on a machine that is not this one."""
    here = [
        Suggestion("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "here", "qwen2",
                   "certified", None, 3_087_000_000),
        Suggestion("/home/sam/models/house-style", "house-style", "here", "olmo2",
                   "experimental", None, 14_600_000_000),
    ]  # fmt: skip
    known = [one for one in suggestions() if one.place == "known" and one.name != here[0].name]
    return [asdict(one) for one in [*here, *known]]


def model_app(
    answer: Callable[[], Any] | None = None, chosen: str = "", **task: Any
) -> Callable[[], PorosApp]:
    """An app whose check says what was recorded; nothing of this machine is looked at."""

    def make() -> PorosApp:
        records = [answer()] if answer is not None else []
        said = {
            "models --json": lambda words: RecordedTask(words, [suggested()]),
            "check": lambda words: RecordedTask(words, records, **task),
        }
        return app_of(AppState(model=chosen), make_task=answers(said))

    return make


SCENES = [
    Scene("model", "empty", model_app()),
    Scene("model", "busy", model_app(dict, NAME, goes_on=True), sizes=((80, 24),)),
    Scene("model", "ok", model_app(report, NAME)),
    Scene("model", "error", model_app(gated, GATED, exit_code=5)),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["ok"].without_colours(), by_state["ok"].in_light()]
