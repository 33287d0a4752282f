"""engine/poros/leaderboard.json from the artifacts of docs/validation.

python tests/layout/leaderboard.py --write   makes it anew

Older records do not say what was asked for. `ASKED` says it for them, from the commands that stand
in docs/validation/README.md; a record that has a request of its own needs no entry.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [] if str(ROOT / "engine") in sys.path else [str(ROOT / "engine")]

from poros.leaderboard import as_record, rows_of  # noqa: E402 - the path comes first
from poros.leaderboard_row import Row  # noqa: E402

VALIDATION = ROOT / "docs" / "validation"
JSON = ROOT / "engine" / "poros" / "leaderboard.json"


def _of(model: str, seq_len: int = 512, cap_gb: float | None = None, layers: int | None = None):
    cap_bytes = None if cap_gb is None else round(cap_gb * 1e9)
    return {"model": model, "seq_len": seq_len, "cap_bytes": cap_bytes, "num_layers": layers}


ASKED: dict[str, dict[str, Any]] = {
    "h200-qwen2.5-32b": _of("qwen2.5-32b", cap_gb=7.5),
    "h200-qwen2.5-7b-files": _of("qwen2.5-7b", cap_gb=4.5),
    "h200-qwen2.5-7b-4-layers": _of("qwen2.5-7b", cap_gb=4.5, layers=4),
    "h200-qwen2.5-7b": _of("qwen2.5-7b", cap_gb=4.5),
    "h200-memory-qwen2.5-7b": _of("qwen2.5-7b", cap_gb=2.1),
    "h200-memory-qwen2.5-32b": _of("qwen2.5-32b", cap_gb=3.2),
    "h200-memory-qwen2.5-72b": _of("qwen2.5-72b", cap_gb=4.9),
    "h200-memory-qwen2.5-7b-16k": _of("qwen2.5-7b", 16384, cap_gb=10),
    "h200-memory-qwen2.5-32b-8k": _of("qwen2.5-32b", 8192, cap_gb=16),
    "h200-memory-qwen2.5-32b-disk": _of("qwen2.5-32b", cap_gb=3.2),
    **{
        f"h200-{name}-8-layers": _of(name, layers=8)
        for name in (
            "qwen3-32b", "qwen3.5-27b", "gemma-3-27b", "gemma-4-31b", "gemma-4-e4b",
            "llama-3.1-8b", "mistral-7b", "phi-4",
        )
    },
}  # fmt: skip


def rows() -> list[Row]:
    """Every row of every artifact, by the artifact's name."""
    found = []
    for path in sorted(VALIDATION.glob("*/gate.json")):
        record, name = json.loads(path.read_text("utf-8")), path.parent.name
        if "request" not in record and name in ASKED:
            record["request"] = ASKED[name]
        found += rows_of(record, name)
    return found


def json_text() -> str:
    """The file's text."""
    records = [{k: v for k, v in as_record(row).items() if k != "tokens_per_s"} for row in rows()]
    return json.dumps({"rows": records}, indent=1) + "\n"


if __name__ == "__main__" and "--write" in sys.argv:
    JSON.write_text(json_text())
