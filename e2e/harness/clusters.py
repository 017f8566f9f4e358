"""The cluster that the cases run against: the one in KUBECONFIG, or one made for them.

    KUBECONFIG      a cluster that is there already; it is left as it was found
    E2E_IMAGE       an image that the cluster has or can pull; else one is built, and loaded by kind
    E2E_KEEP=1      leave the cluster that was made, and the release in it, for a look

Not here: what is installed in it (`release`).
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.commands import CommandFailed, output

ROOT = Path(__file__).parent.parent.parent
_TOOLS = ROOT / "tools"


@dataclass(frozen=True)
class Cluster:
    """`env` leads kubectl and helm to it; `kind` is its name where it is one of kind's."""

    env: Mapping[str, str]
    kind: str | None
    is_ours: bool

    def image(self) -> str:
        """Give an image's name that pods of the cluster can use."""
        if given := os.environ.get("E2E_IMAGE"):
            return given
        if self.kind is None:
            raise RuntimeError("this cluster is not kind's: push the image, and set E2E_IMAGE")
        say("building the image ...")
        image = output(str(_TOOLS / "image"), timeout=900).strip()
        self.load(image)
        say(f"image {image} is loaded")
        return image

    def load(self, image: str) -> bool:
        """Bring an image of docker's into the cluster; False if that cannot be done."""
        if self.kind is None or not _docker_has(image):
            return False
        output(str(_TOOLS / "cluster"), "load", self.kind, image, timeout=300)
        return True


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Find or make a cluster; one that was made is deleted after. Says what is used."""
    path = {"PATH": output(str(_TOOLS / "cluster"), "path").strip()}
    if given := os.environ.get("KUBECONFIG"):
        env = {**path, "KUBECONFIG": given}
        context = output("kubectl", "config", "current-context", env=env).strip()
        say(f"the cluster of KUBECONFIG, context {context}")
        yield Cluster(
            env, context.removeprefix("kind-") if "kind-" in context else None, is_ours=False
        )
        return
    name = f"diptych-e2e-{os.getpid()}"
    say(f"making cluster {name}, by {output(str(_TOOLS / 'cluster'), 'which').strip()} ...")
    try:
        config = output(str(_TOOLS / "cluster"), "up", name, timeout=600).strip().splitlines()[-1]
        yield Cluster({**path, "KUBECONFIG": config}, name, is_ours=True)
    finally:
        if keeps():
            say(f"cluster {name} stays; delete it with: tools/cluster down {name}")
        else:
            output(str(_TOOLS / "cluster"), "down", name)
            say(f"cluster {name} is deleted")


def keeps() -> bool:
    return bool(os.environ.get("E2E_KEEP"))


def say(sentence: str) -> None:
    """Tell the person who waits; pytest shows it at once, whatever it captures."""
    print(f"e2e: {sentence}", file=sys.__stderr__, flush=True)


def _docker_has(image: str) -> bool:
    try:
        output("docker", "image", "inspect", image)
    except (CommandFailed, FileNotFoundError):
        return False
    return True
