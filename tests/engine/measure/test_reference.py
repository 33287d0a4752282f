import re
import subprocess
import sys
from pathlib import Path

import poros.measure.reference

SCRIPT = Path(poros.measure.reference.__file__)


def test_the_reference_is_a_script_of_at_most_150_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 150


def test_the_reference_imports_nothing_of_this_project(tmp_path):
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='r0');"
        "print([name for name in sys.modules if name.partition('.')[0] == 'poros'])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip().endswith("[]")
    assert not re.search(r"^\s*(import|from) poros", SCRIPT.read_text(), re.MULTILINE)
