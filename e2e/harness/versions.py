"""Another version of the project: an image and a chart of it, for a release beside the first.

E2E_OTHER_IMAGE, E2E_OTHER_CHART   a version that was built, such as an older one; else one is
                                   made: the same code as another version, so that its operator
                                   wants pods of another image with other labels
"""

import os
import shutil
from pathlib import Path

import yaml
from harness.clusters import Cluster
from harness.commands import output
from harness.release import CHART

NUMBER = "0.99.0"
_DOCKERFILE = """\
FROM {image}
USER root
RUN sed -i 's/^Version: .*/Version: {number}/' /opt/diptych/lib/*/*/diptych-*.dist-info/METADATA
USER 65532:65532
LABEL org.opencontainers.image.version={number}
"""


def other_image(cluster: Cluster, image: str) -> str:
    """Give an image of another version, in the cluster."""
    if given := os.environ.get("E2E_OTHER_IMAGE"):
        cluster.load(given)
        return given
    if cluster.kind is None:
        raise RuntimeError("this cluster is not kind's: push another image; set E2E_OTHER_IMAGE")
    made = _DOCKERFILE.format(image=image, number=NUMBER)
    return built_image(cluster, f"diptych:{NUMBER}-{image.rpartition('-')[2]}", made)


def built_image(cluster: Cluster, name: str, dockerfile: str) -> str:
    """Build an image, which may install packages, and bring it into the cluster."""
    output(
        *("docker", "build", "--network", "host", "--tag", name, "-"),
        stdin=dockerfile,
        timeout=300,
    )
    cluster.load(name)
    return name


def other_chart(folder: Path) -> tuple[str, str]:
    """Give the chart of another version, and its number."""
    if given := os.environ.get("E2E_OTHER_CHART"):
        return given, _versions(Path(given))["appVersion"]
    chart = folder / "diptych"
    shutil.copytree(CHART, chart)
    of_it = _versions(chart) | {"version": NUMBER, "appVersion": NUMBER}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(of_it, sort_keys=False))
    return str(chart), NUMBER


def _versions(chart: Path) -> dict[str, str]:
    return dict(yaml.safe_load((chart / "Chart.yaml").read_text()))
