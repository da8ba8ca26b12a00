"""Damage to any file of a folder is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmrl.system.files import NAME, find_damage, write_checksums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "trainer" / "state.json").write_text("{}")
    write_checksums(tmp_path, tmp_path / "trainer")
    return tmp_path


def test_a_whole_folder_has_no_damage_and_one_without_checksums_is_not_examined(
    folder: Path,
) -> None:
    assert find_damage(folder, folder / "trainer") is None
    (folder / "README.md").write_text("added later")
    assert find_damage(folder, folder / "trainer") is None
    (folder / "trainer" / NAME).unlink()
    (folder / "weights.bin").unlink()
    assert find_damage(folder, folder / "trainer") is None


CASES = [
    (name, harm)
    for name in ("weights.bin", "trainer/state.json", f"trainer/{NAME}")
    for harm in ("cut", "emptied", "flipped", "removed")
    if (name, harm) != (f"trainer/{NAME}", "removed")  # the checkpoint's format says it has some
]


@pytest.mark.parametrize(("name", "harm"), CASES)
def test_every_damage_is_found_and_its_file_named(folder: Path, name: str, harm: str) -> None:
    file = folder / name
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:middle], "emptied": b"", "flipped": flipped}[harm])
    found = find_damage(folder, folder / "trainer")
    # A flip within the checksums blames the file whose entry was changed.
    assert found and (name in found or (harm == "flipped" and NAME in name))
