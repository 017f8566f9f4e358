"""The cluster that the cases run against: the one in KUBECONFIG, or one made for them.

KUBECONFIG      a cluster that is there already; it is left as it was found
E2E_IMAGE       an image that the cluster has or can pull, or that docker has and kind can load;
                else one is built, and loaded by kind
E2E_KEEP=1      leave the cluster that was made, and the release in it, for a look
"""

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.commands import CommandFailed, output
from harness.sharing import Run
from harness.telling import say

ROOT = Path(__file__).parent.parent.parent
_TOOLS = ROOT / "tools"
_KIND = "kind-"


@dataclass(frozen=True)
class Cluster:
    """`env` leads kubectl and helm to it; `kind` is its name where it is one of kind's."""

    env: Mapping[str, str]
    kind: str | None
    is_ours: bool

    def image(self) -> str:
        """Give an image's name that pods of the cluster can use."""
        if given := os.environ.get("E2E_IMAGE"):
            say(f"image {given} of E2E_IMAGE, {'loaded' if self.load(given) else 'not loaded'}")
            return given
        if self.kind is None:
            raise RuntimeError("this cluster is not kind's: push the image, and set E2E_IMAGE")
        say("building the image ...")
        began = time.monotonic()
        image = output(str(_TOOLS / "image"), timeout=900).strip()
        self.load(image)
        say(f"image {image} is built and loaded, {time.monotonic() - began:.0f} s")
        return image

    def load(self, image: str) -> bool:
        """Bring an image of docker's into the cluster; False if that cannot be done."""
        if self.kind is None or not _docker_has(image):
            return False
        output(str(_TOOLS / "cluster"), "load", self.kind, image, timeout=300)
        return True


def cluster(run: Run) -> Cluster:
    """Find or make the cluster of a run; says what is used."""
    return Cluster(**run.once("cluster", lambda: asdict(_found() or _made(run))))


def end(run: Run) -> None:
    """Delete the cluster that was made for a run, if there is one."""
    if not (name := run.noted("cluster-name")):
        return
    if keeps():
        say(f"cluster {name} stays; delete it with: tools/cluster down {name}")
    else:
        output(str(_TOOLS / "cluster"), "down", name)
        say(f"cluster {name} is deleted")


def keeps() -> bool:
    return bool(os.environ.get("E2E_KEEP"))


def _found() -> Cluster | None:
    """Give the cluster that KUBECONFIG names, if it is set."""
    if not (given := os.environ.get("KUBECONFIG")):
        return None
    env = {"PATH": _path_for("kubectl", "helm"), "KUBECONFIG": given}
    context = output("kubectl", "config", "current-context", env=env).strip()
    say(f"the cluster of KUBECONFIG, context {context}")
    kind = context.removeprefix(_KIND) if context.startswith(_KIND) else None
    return Cluster(env, kind, is_ours=False)


def _made(run: Run) -> Cluster:
    name = f"diptych-e2e-{os.getpid()}"
    say(f"making cluster {name}, by {output(str(_TOOLS / 'cluster'), 'which').strip()} ...")
    began = time.monotonic()
    run.note("cluster-name", name)  # before it is there, so that half a cluster is deleted as well
    config = output(str(_TOOLS / "cluster"), "up", name, timeout=600).strip().splitlines()[-1]
    say(f"cluster {name} is up, {time.monotonic() - began:.0f} s")
    env = {"PATH": output(str(_TOOLS / "cluster"), "path").strip(), "KUBECONFIG": config}
    return Cluster(env, name, is_ours=True)


def _path_for(*programs: str) -> str:
    """Give a PATH on which programs are, without need of kind."""
    if all(map(shutil.which, programs)):
        return os.environ["PATH"]
    return output(str(_TOOLS / "cluster"), "path").strip()


def _docker_has(image: str) -> bool:
    try:
        output("docker", "image", "inspect", image)
    except (CommandFailed, FileNotFoundError):
        return False
    return True
