"""Writes docs/api.md from the docstrings: ``python tests/layout/api_page.py --write``."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "engine")]

import poros  # noqa: E402 - the path comes first

HEAD = """# Python API

Made from the docstrings by `python tests/layout/api_page.py --write`. `import poros` loads no
torch; a name loads what it needs.

```python
from poros import PorosTrainer

trainer = PorosTrainer.from_pretrained("Qwen/Qwen2.5-7B-Instruct", lora_rank=16)
trainer.train("data.jsonl", steps=200, seq_len=512)
trainer.save("./adapter")
```

## Where it differs from the first description

- `block_size=None` is 1, not 4: one layer takes the least memory.
- `bf16_bitwise` is another name of `bf16`: 16-bit bases are streamed bit for bit as NF4 is.
- Weights are loaded by the first call that needs them, since where they lie depends on the data
  (`PorosTrainer`).
- A run that was broken off in `output_dir` goes on by itself; `resume_from` is for any other
  folder that `save` wrote.
- `adapter_backend="native"` is refused: adapters are PEFT's, whose bits a resident run has.
- Trainable base weights, `freeze_embeddings=False` and `freeze_lm_head=False` are refused, not
  warned of.
- `merge_and_unload` gives the base back on the host, since it may not fit the device.
- Extra: `PorosTrainer.generate`, `.model`, `.tokenizer`, `.listeners`; `PorosModel.load`,
  `.save`, `.generate`, `.tokenizer`; metrics
  `eval_loss`, `eval_perplexity`, `adapter_path`, `output_dir`.
- `save` writes into nothing or in place of an adapter; a folder with other things is refused.

"""


def page() -> str:
    """The whole page."""
    sections = "".join(_section(name) for name in poros.__all__ if name != "__version__")
    return (HEAD + sections).rstrip() + "\n"


def _section(name: str) -> str:
    value = getattr(poros, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"## {name}\n\nA {type(value).__name__} of {len(value)} names.\n\n"
    text = f"## {name}\n\n{_doc(value)}"
    if inspect.isfunction(value):
        return f"## {name}\n\n{_signature(name, value)}{_doc(value)}"
    if name == "PorosConfig":
        rows = [
            f"| `{key}` | `{field.default!r}` | {field.description} |"
            for key, field in value.model_fields.items()
        ]
        return text + "\n".join(["| field | default | |", "|---|---|---|", *rows]) + "\n\n"
    if issubclass(value, Exception) and name != "PorosError":
        return text + f"Code `{value.code}`, exit code {value.exit_code}.\n\n"
    return text + _members(name, value)


def _members(name: str, value: type) -> str:
    text = ""
    for key, member in vars(value).items():
        if key.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, classmethod) else member
        if inspect.isfunction(function):
            text += f"### {name}.{key}\n\n{_signature(key, function)}{_doc(function)}"
        elif isinstance(member, property):
            text += f"### {name}.{key}\n\n{_doc(member)}"
    return text


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = [
        str(parameter).replace("~", "")
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    kinds = [p.kind for p in signature.parameters.values() if p.name not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    inside = "".join(f"    {part},\n" for part in shown)
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}"
    lines = f"{name}(\n{inside}){arrow}" if shown else f"{name}(){arrow}"
    return f"```text\n{lines}\n```\n\n"


def _doc(value: Any) -> str:
    """The docstring; its sections become lists."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Attributes):", line):
            lines += [f"**{line[:-1]}**", ""]
            inside = True
        elif inside and (found := re.match(r"    (\w+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            lines.append(f"  {line.strip()}" if inside and line.strip() else line)
    return "\n".join(lines).rstrip() + "\n\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        (ROOT / "docs" / "api.md").write_text(page())
