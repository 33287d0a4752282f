import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

import poros.measure.reference

SCRIPT = Path(poros.measure.reference.__file__)


def test_the_reference_is_a_script_of_at_most_150_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 150


@pytest.mark.filterwarnings("ignore")
def test_the_reference_imports_nothing_of_this_project(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "poros"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    with pytest.raises(ImportError):
        importlib.import_module("poros.measure.another")
    runpy.run_path(str(SCRIPT), run_name="r0")
    assert not re.search(r"^\s*(import|from) poros", SCRIPT.read_text(), re.MULTILINE)
