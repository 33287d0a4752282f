import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import poros
from poros.errors import PorosError
from tests.engine.api import surface
from tests.engine.test_config_liveness import ROWS
from tests.layout import api_page

ROOT = Path(__file__).parents[3]


def named(path: str) -> Any:
    found: Any = poros
    for part in path.split("."):
        found = inspect.getattr_static(found, part) if found is not poros else getattr(poros, part)
    return found.__func__ if isinstance(found, classmethod) else found


@pytest.mark.parametrize("name", surface.SIGNATURES)
def test_a_signature_is_the_one_described(name):
    by_place, by_name = surface.SIGNATURES[name]
    found: tuple[dict[str, object], dict[str, object]] = {}, {}
    for parameter in inspect.signature(named(name)).parameters.values():
        if parameter.name in ("self", "cls") or parameter.kind is parameter.VAR_KEYWORD:
            continue
        default = surface.NEEDED if parameter.default is parameter.empty else parameter.default
        found[parameter.kind is parameter.KEYWORD_ONLY][parameter.name] = default
    assert found == (by_place, by_name)
    assert list(found[0]) == list(by_place)


def test_every_name_and_property_is_there():
    assert set(surface.OTHER_NAMES) <= set(poros.__all__)
    assert all(isinstance(named(name), property) for name in surface.PROPERTIES)


def test_every_field_has_its_default_and_its_effect():
    config = poros.PorosConfig()
    assert {name: getattr(config, name) for name in surface.FIELDS} == surface.FIELDS
    assert surface.FIELDS.keys() <= ROWS.keys()


def test_every_parameter_has_a_test_that_exists():
    described = {name: {**a, **b}.keys() for name, (a, b) in surface.SIGNATURES.items()}
    for name, effects in surface.SEEN.items():
        assert effects.keys() == described[name], name
        for words, test in effects.values():
            file, _, function = test.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            assert words
            assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test
    assert {name for name, parameters in described.items() if parameters} == surface.SEEN.keys()


def test_every_error_has_its_parts_and_a_section_of_the_documents():
    kinds = [getattr(poros, name) for name in poros.__all__ if re.fullmatch(r"Poros\w*Error", name)]
    assert len(kinds) == 14
    for kind in kinds:
        error = kind("what", where="here", remediation="mend it")
        assert isinstance(error, PorosError)
        assert (error.type, error.message, error.remediation) == (kind.__name__, "what", "mend it")
        assert isinstance(error.exit_code, int)
        file, _, anchor = error.doc_url.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
        assert anchor in [heading.lower() for heading in headings], error.doc_url


def test_the_page_is_current():
    hint = "run: python tests/layout/api_page.py --write"
    assert (ROOT / "docs" / "api.md").read_text() == api_page.page(), hint
