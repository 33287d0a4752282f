"""`poros report`: one file that needs nothing else, says what it lacks, and lets no text act."""

import json
import re
import shutil
import time
from html.parser import HTMLParser

import pytest

from poros import events, run_registry
from poros.cli import cli
from poros.cli_guard import Guard
from poros.home_paths import with_tilde
from poros.report_facts import read_facts
from poros.report_view import view_of
from poros.run_folder import holding
from tests.engine.test_runs import FAILED, finished, make, stepped

EVIL = "</script><img src=x onerror=alert(1)>\u202e```|\x1b[31m"


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def poros(*words) -> int:
    return Guard().run(cli, [str(word) for word in words], name="poros")


def add(folder, *more, raw: bytes = b""):
    """Further lines in a run's events."""
    path = folder / "events.jsonl"
    lines = [events.to_line(event, seq=99, time_s=2.0).encode() for event in more]
    path.write_bytes(path.read_bytes() + b"".join(lines) + raw)


def sample(stage="before", prompt="Why?", text="So.", step=0):
    return events.SampleGenerated(step=step, stage=stage, prompt=prompt, text=text)


class Page(HTMLParser):
    """What a browser would make of a page: its tags, their attributes and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._in = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in.append(tag)

    def handle_endtag(self, tag):
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self._in and "style" not in self._in:
            self.text.append(data)


def report(folder, *words) -> Page:
    assert poros("report", folder, *words) == 0
    return Page((folder / "report.html").read_text())


def notes_of(folder) -> str:
    view = view_of(read_facts(str(folder)))
    return " ".join([view.lead, *view.notes])


def test_what_is_sent_to_others_names_no_home_and_its_times_their_zone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    make(tmp_path / "a", dataset=str(tmp_path / "data.jsonl"))
    try:
        page = report(tmp_path / "a")
        assert poros("report", tmp_path / "a", "--md") == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    texts = [" ".join(page.text), (tmp_path / "a" / "report.md").read_text()]
    for text in texts:
        assert str(tmp_path) not in text
        assert "~/data.jsonl" in text.replace("\\", "")
        assert "(UTC+05:30)" in text


def test_a_home_is_only_told_from_whole_names(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert with_tilde("in /home/ann/x and '/home/ann'") == "in ~/x and '~'"
    for other in ("/home/anna/x", "/mnt/home/ann/x", "/home/ann.old", "sub-/home/ann"):
        assert with_tilde(other) == other
    monkeypatch.setenv("HOME", "/")
    assert with_tilde("/a") == "/a"


def test_a_finished_run_has_its_curves_tiles_and_config(tmp_path, capsys):
    make(tmp_path / "a", learning_rate=3e-4)
    page = report(tmp_path / "a")
    text = " ".join(page.text)
    num_bytes = (tmp_path / "a" / "report.html").stat().st_size
    assert capsys.readouterr().out == f"{tmp_path}/a/report.html ({num_bytes / 1e3:.0f} kB)\n"
    assert "The run finished all 3 steps." in text
    assert "1.0000" in text
    assert "learning_rate" in text
    assert "0.0003" in text
    paths = [attrs["d"] for tag, attrs in page.tags if tag == "path"]
    assert [d.count("L") for d in paths[:2]] == [2, 2]  # three steps, raw and smoothed
    [readings, *_] = [attrs["data-readings"] for tag, attrs in page.tags if tag == "figure"]
    assert json.loads(readings)["rows"][0] == [1, {"0": "3", "1": "3"}]


def test_nothing_leaves_the_file(tmp_path):
    make(tmp_path / "a")
    page = report(tmp_path / "a")
    sources = [a.get(k) for _, a in page.tags for k in ("src", "href", "action") if a.get(k)]
    assert sources == ["data:,"]
    text = (tmp_path / "a" / "report.html").read_text()
    assert re.findall(r"https?://|@import|url\(", text) == []
    [policy] = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_texts_of_models_and_data_never_act(tmp_path):
    make(tmp_path / "a", dataset=EVIL.replace("\x1b", ""))
    failed = events.RunFailed(
        step=1, type=EVIL, code=EVIL, message=EVIL, where=EVIL, remediation=EVIL, exit_code=3
    )
    warned = events.Warned(code=EVIL, message=EVIL)
    add(tmp_path / "a", sample(prompt=EVIL, text=EVIL), sample(EVIL), warned, failed)
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    about["identity"] = {"model": EVIL, "dataset": EVIL}
    (tmp_path / "a" / "run.json").write_text(json.dumps(about))
    page = report(tmp_path / "a")
    assert [tag for tag, _ in page.tags if tag in ("img", "iframe", "object")] == []
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert [key for _, attrs in page.tags for key in attrs if key.startswith("on")] == []
    assert "".join(page.text).count("onerror=alert(1)") >= 6


def test_markdown_lets_texts_break_out_of_nothing(tmp_path):
    make(tmp_path / "a")
    add(
        tmp_path / "a",
        sample(prompt=EVIL, text="````\n# out"),
        events.Warned(code="c", message=EVIL),
    )
    assert poros("report", tmp_path / "a", "--md") == 0
    text = (tmp_path / "a" / "report.md").read_text()
    assert "`````text\n````\n# out\n`````\n" in text
    [row] = [line for line in text.splitlines() if line.startswith("| c |")]
    assert r"\<img src=x" in row
    assert row.count("|") - row.count(r"\|") == 3
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (finished("stopped"), "stopped at step 3 of 3"),
        (FAILED, "failed at step 3 of 3: bad row -> mend it"),
        (stepped(4, 1.0), "ended without a word (killed, or the machine went down) at step 4 of 3"),
    ],
)
def test_how_it_ended_stands_first(tmp_path, end, sentence):
    make(tmp_path / "a", end=end)
    assert sentence in notes_of(tmp_path / "a")


def test_a_run_that_failed_before_it_began_says_so(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "a" / "events.jsonl").write_text(events.to_line(FAILED, seq=0, time_s=1.0))
    assert "The run failed at its start: bad row -> mend it" in notes_of(tmp_path / "a")
    report(tmp_path / "a")


def test_a_run_at_work_has_a_report_too(tmp_path):
    make(tmp_path / "a", end=stepped(2, 2.0))
    with holding(tmp_path / "a"):
        assert "The run is at work; this is what it had told by step 2 of 3." in notes_of(
            tmp_path / "a"
        )
        report(tmp_path / "a")


def test_many_answers_are_all_there_those_between_folded(tmp_path):
    make(tmp_path / "a")
    add(tmp_path / "a", *(sample("during", text=f"answer {k}", step=k) for k in range(9)))
    page = report(tmp_path / "a")
    text = "".join(page.text)
    assert [text.count(f"answer {k}") for k in range(9)] == [1] * 9
    assert "3 answers between" in text


def test_a_run_without_a_step_says_so(tmp_path):
    make(tmp_path / "a", losses=())
    assert "No step was finished" in notes_of(tmp_path / "a")
    page = report(tmp_path / "a")
    assert [tag for tag, _ in page.tags if tag == "svg"] == []


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe garbage\n",
        b"{not json\n",
        b"[1, 2]\n",
        b'{"event": "step_finished"}\n',
        b'{"event": "step_finished", "step": 1e999}\n',
        b'{"event": "step_finished", "step": -5}\n',
        b'{"event": {}}\n',
        b'{"event": "memory_mapped", "device_bytes": 3}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["bytes", "no json", "list", "fields", "inf", "negative", "kind", "types", "deep"],
)
def test_a_garbled_line_is_counted_and_passed_over(tmp_path, line):
    make(tmp_path / "a")
    add(tmp_path / "a", raw=line)
    add(tmp_path / "a", stepped(4, 0.5), raw=b'{"event": "step_fin')
    facts = read_facts(str(tmp_path / "a"))
    assert facts.bad_lines == [6]
    assert list(facts.steps) == [1, 2, 3, 4]
    assert "1 line of events.jsonl can't be read and was left out (line 6)" in notes_of(
        tmp_path / "a"
    )


@pytest.mark.parametrize("value", ['"3"', "null", "NaN", "1e999", "1e300", "true", "[]", "{}"])
def test_what_is_no_number_is_a_gap_in_the_curve(tmp_path, value):
    make(tmp_path / "a")
    path = tmp_path / "a" / "events.jsonl"
    path.write_text(path.read_text().replace('"loss": 2.0', f'"loss": {value}'))
    assert read_facts(str(tmp_path / "a")).steps[2]["loss"] is None
    assert "not a finite number at step 2" in notes_of(tmp_path / "a")
    page = report(tmp_path / "a")
    assert next(a["d"] for t, a in page.tags if t == "path").count("M") == 2


def test_a_run_that_is_gone_or_was_never_there_is_one_line(tmp_path, capsys):
    known = make(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert poros("report", known.run_id) == 2
    assert "the run's folder was moved or deleted" in capsys.readouterr().err
    assert poros("report", tmp_path / "nowhere") == 2
    assert "no run folder" in capsys.readouterr().err
    run_registry.forget(known.run_id)
    assert poros("report", tmp_path / "b") == 0
    (tmp_path / "b" / "events.jsonl").unlink()
    assert poros("report", tmp_path / "b") == 2
    error = capsys.readouterr().err
    assert "the run's events can't be read (No such file or directory)" in error
    assert "Traceback" not in error


def test_only_a_report_is_written_over(tmp_path, capsys):
    make(tmp_path / "a")
    mine = tmp_path / "mine.html"
    mine.write_text("<!DOCTYPE html>\nmine")
    assert poros("report", tmp_path / "a", "-o", mine) == 7
    assert "the file is there and is no report" in capsys.readouterr().err
    assert mine.read_text() == "<!DOCTYPE html>\nmine"
    assert poros("report", tmp_path / "a", "-o", mine, "--force") == 0
    assert poros("report", tmp_path / "a", "-o", mine) == 0
    assert poros("report", tmp_path / "a", "-o", tmp_path) == 7
    assert poros("report", tmp_path / "a", "-o", tmp_path / "no" / "r.html") == 7
    assert "Traceback" not in capsys.readouterr().err


def test_json_says_what_was_written_and_stdout_takes_the_report(tmp_path, capsys):
    make(tmp_path / "a", end=FAILED)
    assert poros("report", tmp_path / "a", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["state"], record["format"]) == ("failed", "html")
    assert record["path"] == str(tmp_path / "a" / "report.html")
    assert poros("report", tmp_path / "a", "--md", "-o", "-") == 0
    assert capsys.readouterr().out.startswith("<!-- poros report -->\n# ")
    assert poros("report", tmp_path / "a", "--json", "-o", "-") == 2


def test_undecodable_paths_do_not_stop_a_report(tmp_path):
    make(tmp_path / "a")
    add(tmp_path / "a", raw=b'{"event": "warned", "code": "c", "message": "\\udcff"}\n')
    assert "?" in "".join(report(tmp_path / "a").text)


def test_the_memory_map_file_beats_the_event_and_a_damaged_one_does_not(tmp_path):
    make(tmp_path / "a")
    mapped = events.MemoryMapped(
        step=1, path="m", ran_out=False, activations_seen=True, peak_bytes=1, reserved_bytes=1,
        device_bytes={"slots": 5}, host_bytes={"blocks": 7},
    )  # fmt: skip
    add(tmp_path / "a", mapped)
    path = tmp_path / "a" / "memory_map.json"
    for text in ("{", '{"groups": [1]}', '{"groups": [], "host": 3}'):
        path.write_text(text)
        assert read_facts(str(tmp_path / "a")).memory["device"] == {"slots": 5}
    path.write_text('{"groups": [{"name": "head", "num_bytes": 9}], "host": {"blocks": 1}}')
    facts = read_facts(str(tmp_path / "a"))
    assert facts.memory == {"device": {"head": 9}, "host": {"blocks": 1}}
    assert "together" in "".join(report(tmp_path / "a").text)
