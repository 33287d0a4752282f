"""docs/errors.md against the code."""

import re

import pytest

from poros import errors
from poros.cli_guard import BROKEN_PIPE
from tests.faults.bench import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()


def below(kind):
    return [inner for sub in kind.__subclasses__() for inner in (sub, *below(sub))]


KINDS = [errors.PorosError, *below(errors.PorosError)]


def test_the_page_lists_every_exit_code():
    listed = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
    codes = {int(code) for cell in listed for code in cell.split(",")}
    signals = {errors.HUNG_UP, errors.INTERRUPTED, errors.TERMINATED}
    assert codes == {0, BROKEN_PIPE, *signals, *(kind.exit_code for kind in KINDS)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_has_its_row_and_the_section_that_its_address_names(kind):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {kind.exit_code} |"))
    assert kind.code in row
    path, _, anchor = kind("x").doc_url.partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]
