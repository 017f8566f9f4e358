"""Loads the functions of a Python file that are to be tools."""

import importlib.metadata
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from diptych.core.errors import ConfigError
from diptych.core.text import one_line
from diptych.manifest.settings import ToolFunction

_MODULE = "diptych_tools"


def load_functions(file: Path, packages: Iterable[str] = ()) -> list[ToolFunction]:
    """Run a file and return its functions, but for those whose names begin with `_`.

    Modules beside it can be imported. Raises `ConfigError` with the line and column of a mistake,
    and for missing `packages`.
    """
    if missing := [package for package in packages if not _is_installed(package)]:
        raise ConfigError(
            *(
                f"package {package} is not installed; use an image that has it "
                f"(RUN pip install {package})"
                for package in missing
            )
        )
    try:
        code = compile(file.read_bytes(), str(file), "exec")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        place = f"line {error.lineno}, column {error.offset}"
        raise ConfigError(f"{file.name}: {place}: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{file.name}: {error}") from error
    module = ModuleType(_MODULE)
    module.__file__ = str(file)
    sys.modules[_MODULE] = module
    sys.path.append(str(file.resolve().parent))
    try:
        exec(code, module.__dict__)  # noqa: S102 - the author's own file
    except BaseException as error:  # for example, sys.exit
        raise ConfigError(_failure(file, error)) from error
    functions: list[ToolFunction] = [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == _MODULE
        and not name.startswith("_")
    ]
    if not functions:
        raise ConfigError(f"{file.name}: has no function whose name does not begin with _")
    return functions


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _failure(file: Path, error: BaseException) -> str:
    """Return an import's failure, and its place in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if frame.filename == str(file)), None)
    where = f"line {frame.lineno}, column {(frame.colno or 0) + 1}: " if frame else ""
    return f"{file.name}: {where}{type(error).__name__}: {one_line(str(error), 300)}"
