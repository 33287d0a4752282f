"""The maps of README.md and AGENTS.md, made from the first line of each module's docstring.

python tests/layout/module_map.py --write   puts them into the files, between their markers
"""

import ast
import re
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "engine" / "poros", ROOT / "poros_tui")
_SILENT = {"__init__.py", "__main__.py", "_version.py"}


def modules() -> list[Path]:
    """All modules with something to say, in order."""
    found = (path for package in PACKAGES for path in package.rglob("*.py"))
    return sorted(path for path in found if path.name not in _SILENT)


def purpose(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def tree() -> str:
    """README's tree: a line for each file, files before folders."""
    lines = ["```"]
    for package in PACKAGES:
        lines.append(_line(f"{package.relative_to(ROOT)}/", package / "__init__.py"))
        files = [path for path in modules() if path.parent == package]
        lines += [_line(f"  {path.name}", path) for path in files]
        for folder in sorted({p.parent for p in modules() if package in p.parent.parents}):
            lines.append(_line(f"  {folder.relative_to(package)}/", folder / "__init__.py"))
            inside = [path for path in modules() if path.parent == folder]
            lines += [_line(f"    {path.name}", path) for path in inside]
    return "\n".join([*lines, "```"])


def floors() -> str:
    """AGENTS.md's floors: the modules by the import contracts, high to low, the app's above."""
    app, engine = _floors("The app's floors", PACKAGES[1]), _floors("Engine floors", PACKAGES[0])
    return "\n".join(["```", "poros_tui:", *app, "", "poros:", *engine, "```"])


def _floors(contract: str, package: Path) -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c for c in contracts["contracts"] if c["name"] == contract)["layers"]
    lines: list[str] = []
    for layer in layers:
        names = sorted(re.findall(r"\w+", layer))
        files = [name for name in names if (package / f"{name}.py").exists()]
        lines += textwrap.wrap(" ".join(files), 96)
        for folder in (package / name for name in names if (package / name).is_dir()):
            inside = " ".join(p.stem for p in modules() if p.parent == folder)
            lines += textwrap.wrap(f"{folder.name}/  {inside}", 96, subsequent_indent="    ")
    return lines


MAPS = {"README.md": ("tree", tree), "AGENTS.md": ("floors", floors)}


def with_map(text: str, marker: str, content: str) -> str:
    """The text with what stands between a marker's two comments replaced."""
    begin, end = f"<!-- {marker} -->\n", f"\n<!-- /{marker} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return head + begin + content + end + tail


def _line(name: str, path: Path) -> str:
    return f"{name:<26} {purpose(path)}"


if __name__ == "__main__" and "--write" in sys.argv:
    for file, (marker, content) in MAPS.items():
        path = ROOT / file
        path.write_text(with_map(path.read_text(), marker, content()))
