"""The errors of kubectl, each turned into one sentence for a person. Pure.

Log lines, prefixes and hints that span several lines are left out.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping

from diptych.core.errors import ConfigError, DiptychError

_NOT_INSTALLED = (
    "this cluster has no Agent CRD; install it and the operator with helm: "
    "charts/diptych/README.md says how"
)


class ClusterError(DiptychError):
    """The cluster cannot be reached, or refused a request; the message is for a person."""


class NotFound(ClusterError):
    """The object does not exist."""


class Forbidden(ClusterError):
    """The person is not permitted to do this."""


class NotReady(ClusterError):
    """The Agent exists, and none of its pods is ready."""


class CrdNotInstalled(ClusterError):
    """The cluster has no Agent CRD."""

    def __init__(self) -> None:
        super().__init__(_NOT_INSTALLED)


_LOG_LINE = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:\d\d")
_PREFIX = re.compile(r"^([Ee]rror|Error in configuration): ")
_FROM_SERVER = re.compile(r"^Error from server \((\w+)\): ")
_UNREACHABLE = re.compile(r"^Unable to connect to the server: (?P<why>.*)")
_CONNECTION_REFUSED = re.compile(r"^The connection to the server (?P<where>\S+) was refused")
_NO_CONTEXT = re.compile(
    r"context was not found for specified context: (?P<a>\S+)"
    r"|cannot locate context \"?(?P<b>[^\"]+)|context \"(?P<c>[^\"]*)\" does not exist"
)
_NO_KIND = re.compile(
    r"the server doesn't have a resource type \"agents\"|no matches for kind \"Agent\""
    r"|the server could not find the requested resource"
)
_UNAUTHORIZED = re.compile(r"must be logged in to the server|Unauthorized")
_BAD_CONFIG = re.compile(r"error loading config file|^stat .*: no such file|^invalid configuration")
_NO_CREDENTIALS = re.compile(r"getting credentials: (?P<why>.*)")
_NO_TOKEN = re.compile(r"^failed to create token: (?P<why>.*)")
_NO_CLUSTER = "localhost:8080"  # where kubectl connects without a kubeconfig


def error_from(program: str, stderr: str) -> DiptychError:
    """Return the error that the stderr of a failed program means."""
    message = _message(stderr)
    if server := _FROM_SERVER.match(message):
        return _server_error(server[1], message[server.end() :])
    for pattern, error in _ERRORS.items():
        if match := pattern.search(message):
            return error(message, match)
    return ClusterError(f"{program}: {message or 'it failed, and did not say why'}")


def _message(stderr: str) -> str:
    """Give the first line that is no log entry, with the list that follows a colon."""
    lines = _without_log_entries(stderr)
    message = _PREFIX.sub("", next(lines, ""))
    if message.endswith(":"):
        message = " ".join((message, *itertools.takewhile(str.strip, lines)))
    return message


def _without_log_entries(stderr: str) -> Iterator[str]:
    in_entry = False
    for line in stderr.strip().splitlines():
        if in_entry:
            in_entry = line.strip() != ">"
        elif _LOG_LINE.match(line):
            in_entry = line.endswith("err=<")
        elif not line.lower().startswith("warning:"):
            yield line.strip()


def _server_error(reason: str, message: str) -> DiptychError:
    if _NO_KIND.search(message):
        return CrdNotInstalled()
    match reason:
        case "NotFound":
            return NotFound(f"the cluster says: {message}")
        case "Forbidden":
            return Forbidden(f"the cluster does not allow it: {message}")
        case _:
            return ClusterError(f"the cluster says: {message}")


def _no_context(_message: str, match: re.Match[str]) -> DiptychError:
    name = match["a"] or match["b"] or match["c"]
    return ConfigError(
        f"--context {name}: the kubeconfig has no such context; "
        "`kubectl config get-contexts` lists those that it has"
    )


def _unreachable(_message: str, match: re.Match[str]) -> DiptychError:
    why = match["why"]
    if context := _NO_CONTEXT.search(why):
        return _no_context(why, context)
    if _BAD_CONFIG.search(why):
        return _bad_config(why, match)
    return ClusterError(f"the cluster cannot be reached: {why}")


def _connection_refused(_message: str, match: re.Match[str]) -> DiptychError:
    if match["where"] == _NO_CLUSTER:
        return ConfigError(
            "no cluster is configured: set KUBECONFIG, or give --kubeconfig and --context"
        )
    return ClusterError(f"the cluster cannot be reached: {match['where']} refuses the connection")


def _bad_config(message: str, _match: re.Match[str]) -> DiptychError:
    return ConfigError(f"the kubeconfig cannot be used: {message}")


def _unauthorized(_message: str, _match: re.Match[str]) -> DiptychError:
    return ClusterError("the cluster does not accept your credentials; log in to it again")


def _no_token(_message: str, match: re.Match[str]) -> DiptychError:
    why = match["why"]
    if " is forbidden: " in why:
        return Forbidden(f"the cluster does not allow it: {why}")
    kind = NotFound if why.endswith(" not found") else ClusterError
    return kind(f"the cluster makes no token: {why}")


def _no_credentials(_message: str, match: re.Match[str]) -> DiptychError:
    return ClusterError(f"the cluster's credentials cannot be had: {match['why']}")


_ERRORS: Mapping[re.Pattern[str], Callable[[str, re.Match[str]], DiptychError]] = {
    _UNAUTHORIZED: _unauthorized,
    _NO_TOKEN: _no_token,
    _NO_CREDENTIALS: _no_credentials,
    _UNREACHABLE: _unreachable,
    _CONNECTION_REFUSED: _connection_refused,
    _NO_CONTEXT: _no_context,
    _NO_KIND: lambda _message, _match: CrdNotInstalled(),
    _BAD_CONFIG: _bad_config,
}
"""The first pattern that matches decides."""
