"""Killed and resumed runs have the bits of uninterrupted ones (tests/kill_resume.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_resume.py")


def run(*flags: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_five_killed_runs_equal_the_uninterrupted_one():
    run("--runs", "5")


@pytest.mark.long
def test_mutants_of_writer_and_resume_are_found():
    run("--prove")
