import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import poros
from poros.cli import cli

_SPEC = importlib.util.spec_from_file_location(
    "module_map", Path(__file__).parent / "module_map.py"
)
module_map = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(module_map)

ROOT = module_map.ROOT
ENGINE, APP = module_map.PACKAGES
SOURCES = sorted([*ENGINE.rglob("*.py"), *APP.rglob("*.py")])
HEAVY = {"torch", "transformers", "peft", "bitsandbytes", "safetensors", "datasets", "accelerate"}
MAX_LINES = 400


def in_subprocess(code: str) -> str:
    path = f"import sys; sys.path[:0] = [{str(ROOT / 'engine')!r}, {str(ROOT)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", path + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def name_of(path: Path) -> str:
    base = ENGINE.parent if ENGINE in path.parents else ROOT
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def lines_with(pattern: str, *, allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        if str(path.relative_to(ENGINE.parent.parent)) not in allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_file_is_longer_than_the_roof():
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    too_long = {str(p): n for p in files if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert too_long == {}


def test_files_directly_in_poros_and_the_app_run_without_torch():
    names = [name_of(path) for path in [*sorted(ENGINE.glob("*.py")), *sorted(APP.rglob("*.py"))]]
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)\n"
    loaded = in_subprocess(code + "print(*{name.partition('.')[0] for name in sys.modules})")
    assert HEAVY & set(loaded.split()) == set()


def test_import_poros_loads_no_submodule():
    loaded = in_subprocess("import poros\nprint(*[n for n in sys.modules if 'poros.' in n])")
    assert loaded.split() == ["poros._version"]


def test_all_public_names_resolve():
    assert set(poros.__all__) == {*poros._MODULE_OF, "__version__"}
    for name in poros.__all__:
        assert getattr(poros, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = poros.nonsense


def test_every_error_is_public():
    errors = importlib.import_module("poros.errors")
    kinds = {name for name in vars(errors) if re.fullmatch(r"Poros\w*Error", name)}
    assert kinds <= set(poros.__all__)


def test_tensor_data_is_assigned_in_one_file():
    # R0 imports nothing of ours and streams nothing.
    allowed = ("engine/poros/streaming/block.py", "engine/poros/measure/reference.py")
    assert lines_with(r"\.data\s*=(?!=)|setattr\([^)]*[\"']data[\"']", allowed=allowed) == []


def test_nothing_unpickles():
    assert lines_with(r"torch\.load\b|\bimport pickle|from pickle|pickle\.loads?\b") == []


def test_paths_of_the_app_are_typed_ones():
    """`Path` raises where this user may not look; one that is asked on a tick would end the app."""
    made = r"(?<!typed_path\()(?<!click\.)\b(?:Path(?:\.cwd|\.home)?|platformdirs\.\w+)\("
    app = f"{APP.relative_to(ROOT)}/"
    assert [line for line in lines_with(made) if line.startswith(app)] == []


def test_every_module_says_its_purpose():
    assert [str(path) for path in SOURCES if not module_map.purpose(path)] == []


@pytest.mark.parametrize("file", sorted(module_map.MAPS))
def test_maps_are_current(file):
    marker, content = module_map.MAPS[file]
    text = (ROOT / file).read_text()
    hint = "run: python tests/layout/module_map.py --write"
    assert text == module_map.with_map(text, marker, content()), hint


def test_agents_md_names_every_module():
    text = (ROOT / "AGENTS.md").read_text()
    assert [p.stem for p in module_map.modules() if not re.search(rf"\b{p.stem}\b", text)] == []


@pytest.mark.parametrize("file", ["README.md", "AGENTS.md"])
def test_commands_in_the_documents_exist(file):
    text = (ROOT / file).read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert named
    assert named <= targets
    commands = set(re.findall(r"(?:^|`)poros ([a-z]+)", text, re.MULTILINE))
    assert commands <= set(cli.commands)
    scripts = re.findall(r"`(\.ci/[a-z]+|tests/[\w/]+\.py)\b", text)
    assert [script for script in scripts if not (ROOT / script).exists()] == []
