"""screens.md names every screen, every action and every picture."""

from tests.tui import screens_page


def test_screens_md_is_current():
    hint = "run: python tests/tui/screens_page.py --write"
    assert screens_page.PAGE.read_text("utf-8") == screens_page.page(), hint
