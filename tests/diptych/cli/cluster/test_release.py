"""Where the chart is found, and how versions are compared."""

from pathlib import Path

import pytest

from diptych.cli.cluster import release
from diptych.cli.cluster.release import is_newer, packaged_chart
from diptych.errors import ConfigError

ROOT = Path(__file__).parents[4]


def test_the_chart_of_a_checkout_is_beside_the_code() -> None:
    with packaged_chart() as chart:
        assert chart.samefile(ROOT / "charts" / "diptych")


def test_the_chart_of_a_wheel_is_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "Chart.yaml").write_text("version: 1")
    monkeypatch.setattr(release, "files", lambda _package: tmp_path)
    with packaged_chart() as chart:
        assert chart == tmp_path / "chart"


def test_an_installation_without_the_chart_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a" / "b" / "c" / "d" / "e.py"
    monkeypatch.setattr(release, "files", lambda _package: tmp_path)
    monkeypatch.setattr(release, "__file__", str(place))
    with (
        pytest.raises(ConfigError, match="the chart is not part of this installation"),
        packaged_chart(),
    ):
        pass


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.2.0", "0.1.9", True),
        ("0.10.0", "0.9.0", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
        ("v1.0.0", "0.9.0-rc1", True),
        ("strange", "0.1.0", False),
    ],
)
def test_versions_are_compared_by_number(one: str, other: str, newer: bool) -> None:
    assert is_newer(one, than=other) is newer
