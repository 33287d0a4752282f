"""What a run may take of the host's memory: what the system has free, and what a cgroup leaves."""

from pathlib import Path

import pytest

from poros import host_room


@pytest.fixture
def cgroups(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(host_room, "_CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    monkeypatch.setattr(host_room, "_OWN_CGROUP", own)
    monkeypatch.setattr(
        host_room.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000})
    )
    return tmp_path


def limit(folder: Path, most: str, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {cache}\ninactive_file 0\n")


def test_without_a_limit_it_is_what_the_system_has(cgroups):
    assert host_room.available_bytes() == 1000
    limit(cgroups / "outer", "max", 10)
    assert host_room.available_bytes() == 1000


def test_the_tightest_limit_counts_and_page_cache_is_room(cgroups):
    limit(cgroups / "outer", "500", 300, cache=100)
    assert host_room.available_bytes() == 300
    limit(cgroups / "outer" / "inner", "400", 350)
    assert host_room.available_bytes() == 50
    limit(cgroups / "outer" / "inner", "400", 450)
    assert host_room.available_bytes() == 0


def test_an_old_cgroup_counts_too(cgroups):
    old = cgroups / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("600")
    (old / "memory.usage_in_bytes").write_text("100")
    assert host_room.available_bytes() == 500


@pytest.mark.parametrize(
    ("setting", "needed", "on_disk", "tier"),
    [
        ("auto", 10, True, "registered"),
        ("auto", 10**9, True, "disk"),
        ("auto", 10**9, False, "registered"),
        ("pageable", 10**9, True, "pageable"),
        ("registered", 10**9, True, "registered"),
        ("disk", 10, True, "disk"),
    ],
)
def test_the_tier_is_the_setting_or_goes_by_room(setting, needed, on_disk, tier, monkeypatch):
    free = host_room.ROOM_BESIDE_BYTES + 1000
    monkeypatch.setattr(host_room, "available_bytes", lambda: free)
    assert host_room.wanted_tier(setting, needed_bytes=needed, on_disk=on_disk) == tier
