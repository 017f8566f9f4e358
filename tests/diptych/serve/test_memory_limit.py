"""Where the limit of a process's memory is found."""

from pathlib import Path

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest.environment import process_settings
from diptych.serve.memory_limit import memory_limit

MI = 2**20


def machine(root: Path, cgroup: str, **limits: str) -> Path:
    """Lay out `/proc` and `/sys` as a kernel does; `limits` are files below `/sys/fs/cgroup`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_version_2_in_a_container_of_its_own(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n", **{"memory.max": f"{512 * MI}\n"})
    assert memory_limit(tmp_path) == 512 * MI


def test_version_2_takes_the_smallest_limit_of_all_above(tmp_path: Path) -> None:
    limits = {
        "memory.max": "max",
        "pods/memory.max": str(256 * MI),
        "pods/one/memory.max": str(512 * MI),
    }
    machine(tmp_path, "0::/pods/one\n", **limits)
    assert memory_limit(tmp_path) == 256 * MI


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    machine(
        tmp_path,
        "5:cpu,cpuacct:/pods/one\n4:memory:/pods/one\n0::/\n",
        **{"memory/pods/one/memory.limit_in_bytes": str(512 * MI)},
    )
    assert memory_limit(tmp_path) == 512 * MI


@pytest.mark.parametrize("said", ["max", "nonsense"])
def test_without_a_limit_it_is_half_of_the_machine(tmp_path: Path, said: str) -> None:
    machine(tmp_path, "4:memory:/\n0::/\n", **{"memory.max": said})
    assert memory_limit(tmp_path) > 128 * MI
    assert memory_limit(tmp_path / "nothing") == memory_limit(tmp_path)


@pytest.mark.parametrize("text", ["much", "0.5Gi", "10Mi"])
def test_what_is_no_quantity_or_too_little_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="MEMORY_LIMIT: must be"):
        process_settings({"MEMORY_LIMIT": text})
