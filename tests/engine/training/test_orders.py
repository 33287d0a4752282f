"""A run that is watched and told what to do from outside makes the same run."""

import json
import queue
import socket
import threading
import time

import pytest
import torch

from poros import events
from poros.config import PorosConfig
from poros.control_socket import ControlSocket
from poros.training import session as session_module
from poros.training.session import Session
from tests.engine.training.tiny_run import results_of, tiny_settings

LIMIT_S = 60


@pytest.fixture
def settings(chat_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tiny_settings(chat_folder, tmp_path)
    torch.use_deterministic_algorithms(False)


class Outside:
    """A run in this process, and who tells it things from a thread of its own.

    Args:
        settings: The run's.
        act: Called in that thread once the run has made step 2.
    """

    def __init__(self, settings, act):
        self.seen, self.times_s, self.failure = [], [], None
        self.marks = queue.SimpleQueue()
        self.session = Session(PorosConfig(**settings), listeners=[self._listen])
        self._folder, self._act = settings["output_dir"], act
        self._thread = threading.Thread(target=self._run)

    def run(self):
        self._thread.start()
        self.finished = self.session.run()
        self._thread.join(LIMIT_S)
        if self.failure is not None:
            raise self.failure
        return self

    def _listen(self, event, line):
        self.times_s.append(time.monotonic())
        self.seen.append(event)
        if isinstance(event, events.StepFinished) and event.step == 2:
            self.marks.put("go")
            time.sleep(0.2)  # so that it is told before the next step ends

    def _run(self):
        try:
            self.marks.get(timeout=LIMIT_S)
            with socket.socket(socket.AF_UNIX) as self.socket:
                self.socket.settimeout(LIMIT_S)
                self.socket.connect(f"{self._folder}/control.sock")
                self.lines = self.socket.makefile("rb")
                self._act(self)
                self.lines.close()
        except BaseException as error:  # noqa: BLE001  raised in `run`
            self.failure = error
            self.session.control.stop("test")
            self.session.control.resume()

    def order(self, command):
        self.socket.sendall(json.dumps({"command": command}).encode() + b"\n")
        while "taken" not in (answer := json.loads(self.lines.readline())):
            pass
        return answer["taken"]

    def sample(self):
        while "sample" not in (answer := json.loads(self.lines.readline())):
            pass
        return answer["sample"]

    def kinds(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


def test_a_watched_paused_and_saved_run_has_the_bits_of_an_undisturbed_one(settings, tmp_path):
    Session(PorosConfig(**settings | {"output_dir": str(tmp_path / "whole")})).run()

    def act(outside):
        assert outside.order("watch")
        assert outside.order("pause")
        while (sample := outside.sample())["phase"] != "pause":
            assert sample["phase"] == "train"
        assert (sample["computing"], sample["direction"]) == (None, "")
        assert len(sample["blocks"]) == 2
        assert set(sample["blocks"]) <= {"r", "d", "."}
        assert sample["host_rss_bytes"] > 1e6
        assert sample["device"] is None
        paused_at = sample["step"]
        assert outside.order("checkpoint")
        while not any(e.step == paused_at for e in outside.kinds(events.CheckpointSaved)):
            time.sleep(0.01)
        time.sleep(0.4)
        assert outside.sample()["step"] == paused_at
        assert outside.order("resume")

    outside = Outside(settings, act).run()
    assert outside.finished.status == "finished"
    assert results_of(tmp_path / "out") == results_of(tmp_path / "whole")
    told = [event.command for event in outside.kinds(events.CommandAcknowledged)]
    assert told == ["pause", "checkpoint", "resume"]
    pauses = [e for e in outside.kinds(events.PhaseFinished) if e.phase == "pause"]
    assert sum(pause.duration_s for pause in pauses) > 0.4
    ended = outside.seen.index(pauses[-1])
    following = next(e for e in outside.seen[ended:] if isinstance(e, events.StepFinished))
    took_s = outside.times_s[outside.seen.index(following)] - outside.times_s[ended]
    assert following.duration_s <= took_s


@pytest.mark.parametrize(("order", "code", "saves"), [("stop", 0, True), ("stop_now", 130, False)])
def test_a_run_that_is_told_to_stop_can_go_on(settings, tmp_path, order, code, saves):
    whole = settings | {"output_dir": str(tmp_path / "whole"), "save_steps": 100}
    Session(PorosConfig(**whole)).run()
    settings["save_steps"] = 100
    outside = Outside(settings, lambda outside: outside.order(order)).run()
    assert (outside.finished.status, outside.finished.exit_code) == ("stopped", code)
    assert bool(outside.kinds(events.CheckpointSaved)) is saves
    assert not (tmp_path / "out" / "control.sock").exists()
    Session(PorosConfig(**settings)).run()
    assert results_of(tmp_path / "out") == results_of(tmp_path / "whole")


def test_a_run_where_nobody_can_connect_says_so_and_goes_on(settings, monkeypatch):
    def refuse(self):
        self.failure = "Operation not supported"

    monkeypatch.setattr(ControlSocket, "_listen", refuse)
    seen = []
    Session(PorosConfig(**settings), listeners=[lambda event, _: seen.append(event)]).run()
    warned = [e.message for e in seen if isinstance(e, events.Warned) and e.code == "W-control"]
    assert warned == ["the app can't tell this run anything (Operation not supported)"]
    assert seen[-1].status == "finished"


def test_the_heart_beats_while_somebody_watches(settings, monkeypatch):
    monkeypatch.setattr(session_module, "HEARTBEAT_S", 0.5)

    def act(outside):
        assert outside.order("watch")
        assert outside.order("pause")
        begun_s, num_samples = time.monotonic(), 0
        while [beat.phase for beat in outside.kinds(events.Heartbeat)].count("pause") < 2:
            outside.sample()
            num_samples += 1
        seconds = time.monotonic() - begun_s
        assert num_samples <= 4 * seconds + 2
        assert outside.order("resume")

    outside = Outside(settings, act).run()
    beats = outside.kinds(events.Heartbeat)
    assert {beat.phase for beat in beats} <= {"start", "load", "train", "pause", "save"}
    assert (beats[-1].device_total_bytes, beats[-1].device_others_bytes) == (0, None)
