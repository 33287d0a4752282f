"""Rows of packages and variables."""

import pytest

from poros.certified import Stack
from poros.doctor_software import (
    environment_rows,
    needed_packages,
    numbers,
    package_rows,
    stack_row,
)

NEEDED = {"torch": "2.10", "transformers": "5.5"}
PROVED = Stack(torch="2.11", transformers="5.17", bitsandbytes="0.50.2", compute_capability="9.0")


def ids(environ: dict[str, str]) -> dict[str, str]:
    return {row.id: row.state for row in environment_rows(environ)}


def test_all_there_is_one_row():
    [row] = package_rows(NEEDED, {"torch": "2.13.0+cu130", "transformers": "5.24.0"}.get)
    assert (row.id, row.state) == ("packages", "ok")


def test_missing_packages_are_named_with_the_command():
    [row] = package_rows(NEEDED, {}.get)
    assert row.state == "warn"
    assert "torch, transformers" in row.what
    assert row.fix == 'pip install "poros-tui[train]"'


def test_an_old_package_is_bad():
    [row] = package_rows(NEEDED, {"torch": "2.9.1", "transformers": "5.5.0"}.get)
    assert (row.id, row.state) == ("package_torch", "bad")
    assert "2.10" in row.meaning


def test_what_is_needed_is_what_the_distribution_declares():
    lines = [
        "click>=8.1",
        'torch>=2.10; extra == "train"',
        "x; extra == 'train'",
        'y; extra == "dev"',
    ]
    assert needed_packages(lines) == {"torch": "2.10", "x": "0"}
    assert "torch" in needed_packages([])


def test_versions_are_compared_as_numbers():
    assert numbers("2.10.0+cu130") > numbers("2.9.1")
    assert numbers("5.5.0.dev0") == (5, 5, 0)


def test_a_proved_stack_is_ok_and_another_names_the_nearest():
    assert stack_row(PROVED, {PROVED}).state == "ok"
    other = Stack(torch="2.11", transformers="5.24", bitsandbytes="", compute_capability="")
    row = stack_row(other, {PROVED})
    assert (row.state, row.fix) == ("warn", "poros parity --demo proves it here")
    assert str(PROVED) in row.meaning
    none = Stack(torch="", transformers="", bitsandbytes="", compute_capability="")
    assert stack_row(none, {PROVED}).state == "unknown"


def test_a_clean_environment_is_one_row():
    assert ids({"HF_HOME": "/models"}) == {"environment": "ok"}


@pytest.mark.parametrize(
    ("environ", "row"),
    [
        ({"HF_HOME": ""}, "env_HF_HOME"),
        ({"HF_HOME": "models"}, "env_HF_HOME"),
        ({"HF_HUB_CACHE": "/data/~/hub"}, "env_HF_HUB_CACHE"),
        ({"HF_HOME": "/a", "HF_HUB_CACHE": "/b/hub"}, "env_two_caches"),
        ({"TRANSFORMERS_CACHE": "/a"}, "env_TRANSFORMERS_CACHE"),
        ({"HF_HUB_OFFLINE": "1"}, "env_HF_HUB_OFFLINE"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "env_CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "env_CUDA_VISIBLE_DEVICES"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "env_CUDA_LAUNCH_BLOCKING"),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, "env_CUBLAS_WORKSPACE_CONFIG"),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, "env_LD_LIBRARY_PATH"),
    ],
)
def test_a_trap_has_its_row(environ, row):
    [found] = environment_rows(environ)
    assert (found.id, found.state) == (row, "warn")
    assert found.fix


@pytest.mark.parametrize(
    "environ",
    [
        {"HF_HOME": "/a", "HF_HUB_CACHE": "/a/hub"},
        {"HF_HUB_OFFLINE": "0"},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        {"LD_LIBRARY_PATH": "/opt/lib"},
        {"HF_TOKEN": "hf_secret"},
    ],
)
def test_an_ordinary_value_is_no_trap(environ):
    assert ids(environ) == {"environment": "ok"}
