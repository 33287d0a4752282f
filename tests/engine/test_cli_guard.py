import importlib.util
import os
import sys
from pathlib import Path

import click
import pytest

from poros.cli_guard import Guard, call_engine
from poros.errors import PorosConfigError, PorosOutputError, PorosStorageError


def command(body):
    return click.Command("work", callback=body)


def failing(error: BaseException):
    def body() -> None:
        raise error

    return command(body)


def test_the_command_s_own_code_is_the_exit_code():
    assert Guard().run(command(lambda: 5), [], name="work") == 5
    assert Guard().run(command(lambda: None), [], name="work") == 0


@pytest.mark.parametrize(
    ("kind", "told"),
    [(click.FloatRange(min=0), "is not a number"), (click.INT, "is not a whole number")],
)
def test_a_number_that_is_none_is_told_in_plain_words(capsys, kind, told):
    work = click.Command("work", params=[click.Option(["--vram"], type=kind)])
    assert Guard().run(work, ["--vram", "12GB"], name="work") == 2
    assert f"'12GB' {told}, work -> see work --help" in capsys.readouterr().err


def test_an_error_s_lines_go_to_stderr(capsys):
    assert Guard().run(failing(PorosStorageError("disk full")), [], name="work") == 8
    several = PorosConfigError.of([PorosConfigError("a"), PorosConfigError("b")])
    assert Guard().run(failing(several), [], name="work") == 2
    assert capsys.readouterr().err == (
        "poros: error[E-storage]: disk full\nporos: error[E-config]: a\nporos: error[E-config]: b\n"
    )


def test_variables_that_nobody_reads_are_told_by_every_command(monkeypatch, capsys):
    for name in ("POROS_CACH", "POROS_OWN\n", "POROS_SEED", "POROS_FAILPOINT"):
        monkeypatch.setenv(name, "")
    assert Guard().run(command(lambda: None), [], name="work") == 0
    assert capsys.readouterr().err == (
        "poros: warning: nothing reads POROS_CACH: did you mean POROS_CACHE?\n"
        "poros: warning: nothing reads POROS_OWN\\n: it is no variable of Poros\n"
    )
    # train reads settings, and refuses a name that is alike.
    Guard().run(command(lambda: None), ["train"], name="work")
    assert "POROS_CACH:" not in capsys.readouterr().err


@pytest.mark.parametrize("in_run_folder", [True, False])
def test_a_bug_leaves_a_crash_file_and_one_line(tmp_path, monkeypatch, capsys, in_run_folder):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "run").mkdir()
    guard = Guard(tmp_path / "run" if in_run_folder else None)
    assert guard.run(failing(ZeroDivisionError("by\nzero")), [], name="work") == 1
    logs = tmp_path / ("run" if in_run_folder else "cache") / "logs"
    (crash,) = logs.glob("crash-*.txt")
    assert "Traceback" in crash.read_text()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    assert str(crash) in shown


def test_a_bug_with_nowhere_to_write_shows_its_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "file"))
    assert Guard().run(failing(ZeroDivisionError()), [], name="work") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_that_went_away_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    code = Guard().run(command(lambda: print(Path("x").absolute())), [], name="poros")
    assert code == PorosOutputError.exit_code
    told = "poros: error[E-output]: the folder you are in was deleted -> cd to one that is there\n"
    assert capsys.readouterr().err == told


def test_an_interrupt_is_130_without_a_traceback(capsys):
    assert Guard().run(failing(KeyboardInterrupt()), [], name="work") == 130
    assert capsys.readouterr().err == "poros: interrupted\n"


@pytest.mark.parametrize(("package", "kind"), [("torch", PorosConfigError), ("x", ImportError)])
def test_a_missing_package_of_the_train_extra_is_named(tmp_path, monkeypatch, package, kind):
    module = f"needs_{package}"
    (tmp_path / f"{module}.py").write_text(
        f"raise ModuleNotFoundError('No module named {package}', name='{package}.sub')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=package) as caught:
        call_engine(module, "run")
    if kind is PorosConfigError:
        assert caught.value.remediation == 'pip install "poros-tui[train]"'


def test_libraries_start_as_a_command_wants_them(monkeypatch):
    for name in ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    assert call_engine("os", "getpid") == os.getpid()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert importlib.util.find_spec("kernels") is None
    monkeypatch.delitem(sys.modules, "kernels")
