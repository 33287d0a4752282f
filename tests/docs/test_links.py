"""Every link of the documents leads somewhere, and the site has every page."""

import re

import pytest
from ruamel.yaml import YAML

from poros import errors
from poros.cli import cli
from tests.docs.pages import ROOT, anchors, links, pages, slug


@pytest.mark.parametrize("page", pages())
def test_links_and_anchors_resolve(page):
    lost = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        there = found.exists() and ROOT in found.resolve().parents
        if not there or (anchor and anchor not in anchors(str(found.resolve().relative_to(ROOT)))):
            lost.append(target)
    assert lost == []


def test_a_heading_becomes_the_anchor_that_readers_see():
    assert slug("E-host-memory") == "e-host-memory"
    assert slug("What `auto` means, and why") == "what-auto-means-and-why"


@pytest.mark.parametrize("page", pages())
def test_commands_named_in_a_sentence_exist(page):
    named = set(re.findall(r"`poros ([a-z]+)", (ROOT / page).read_text()))
    assert named <= set(cli.commands)


def in_nav(entry):
    if isinstance(entry, dict):
        return [page for inner in entry.values() for page in in_nav(inner)]
    return (
        [page for inner in entry for page in in_nav(inner)] if isinstance(entry, list) else [entry]
    )


def test_the_site_leads_to_every_page_once():
    named = in_nav(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"])
    docs = ROOT / "docs"
    written = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(named) == sorted(written)


def test_pages_of_the_site_link_inside_it():
    outside = [
        (page, target)
        for page in pages()
        if page.startswith("docs/")
        for target in links(page)
        if ROOT / "docs" not in (ROOT / page).parent.joinpath(target).resolve().parents
        and not re.match("#", target)
    ]
    assert outside == []


def below(kind):
    return [inner for sub in kind.__subclasses__() for inner in (sub, *below(sub))]


def test_troubleshooting_has_a_row_for_every_error():
    rows = (ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
    ours = [kind for kind in below(errors.PorosError) if kind.__module__ == errors.__name__]
    for kind in (errors.PorosError, *ours):
        row = next(row for row in rows if row.startswith(f"| `{kind.__name__}` |"))
        assert f"| {kind.exit_code} |" in row
        assert f"(errors.md#{kind.code.lower()})" in row
