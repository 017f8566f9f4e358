"""Where sessions are kept on a laptop: the folder of `--data`, or one for each manifest."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_state_path

from diptych.manifest.settings import DataFolder

MEMORY = "none"


def data_folder(given: str | None, files: Sequence[Path]) -> DataFolder | None:
    """Return the folder that `--data` names, else the files' default; None is memory.

    In a pod, and for an agent that is made of the environment, there is no default.
    """
    if given == MEMORY:
        return None
    if given is not None:
        return DataFolder(Path(given).expanduser())
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if is_in_pod or not files or not all(file.is_file() for file in files):
        return None
    paths = "\n".join(str(file.resolve()) for file in files)
    digest = hashlib.sha256(paths.encode(errors="surrogateescape")).hexdigest()[:12]
    folder = user_state_path("diptych", appauthor=False) / f"{files[0].stem}-{digest}"
    return DataFolder(folder, is_default=True)
