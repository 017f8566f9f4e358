"""What kubectl and helm said when they failed, as one sentence for a person. Pure.

Their log lines, hints over several lines and prefixes are left out.
Not here: starting them (`programs`).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping

from diptych.errors import ConfigError, DiptychError

NOT_INSTALLED = (
    "this cluster knows no Agents yet: the Agent CRD is not installed; "
    "`diptych install` installs it, and the operator"
)


class ClusterError(DiptychError):
    """The cluster cannot be asked, or says no; the message is for a person."""


class Missing(ClusterError):
    """The cluster has no such object."""


class Forbidden(ClusterError):
    """The cluster does not allow it to this person."""


class NotReady(ClusterError):
    """The Agent is there, and takes no work."""


class NotInstalled(ClusterError):
    """The cluster does not know what an Agent is."""

    def __init__(self) -> None:
        super().__init__(NOT_INSTALLED)


_LOG_LINE = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:\d\d")
_PREFIX = re.compile(r"^([Ee]rror|Error in configuration): ((UPGRADE|INSTALLATION) FAILED: )?")
_FROM_SERVER = re.compile(r"^Error from server \((\w+)\): ")
_UNREACHABLE = re.compile(
    r"^(Unable to connect to the server|Kubernetes cluster unreachable): (?P<why>.*)"
)
_REFUSED = re.compile(r"^The connection to the server (?P<where>\S+) was refused")
_NO_CONTEXT = re.compile(
    r"context was not found for specified context: (?P<a>\S+)"
    r"|cannot locate context \"?(?P<b>[^\"]+)|context \"(?P<c>[^\"]*)\" does not exist"
)
_NO_KIND = re.compile(
    r"the server doesn't have a resource type \"agents\"|no matches for kind \"Agent\""
    r"|the server could not find the requested resource"
)
_LOGGED_OUT = re.compile(r"must be logged in to the server|Unauthorized")
_BAD_CONFIG = re.compile(r"error loading config file|^stat .*: no such file|^invalid configuration")
_NO_CREDENTIALS = re.compile(r"getting credentials: (?P<why>.*)")
_NOT_OURS = re.compile(
    r"(?P<what>\w+ \"[^\"]+\") in namespace \"[^\"]*\" exists and cannot be imported into the "
    r"current release: .*?(current value is \"(?P<owner>[^\"]+)\"|$)"
)
_UNSET = "localhost:8080"  # where kubectl looks when nothing tells it of a cluster


def refusal(program: str, stderr: str) -> DiptychError:
    """Give the error that a program's last words mean. `program` is its name."""
    said = _sentence(stderr)
    if server := _FROM_SERVER.match(said):
        return _of_server(server[1], said[server.end() :])
    for pattern, meaning in _MEANINGS.items():
        if found := pattern.search(said):
            return meaning(said, found)
    return ClusterError(f"{program}: {said or 'it failed, and did not say why'}")


def _sentence(stderr: str) -> str:
    """Give the first line that is no log entry, and the list that follows it if it has one."""
    lines = _without_log(stderr)
    said = _PREFIX.sub("", next(lines, ""))
    if said.endswith(":"):
        said = " ".join((said, *itertools.takewhile(str.strip, lines)))
    return said


def _without_log(stderr: str) -> Iterator[str]:
    in_entry = False
    for line in stderr.strip().splitlines():
        if in_entry:
            in_entry = line.strip() != ">"
        elif _LOG_LINE.match(line):
            in_entry = line.endswith("err=<")
        elif not line.lower().startswith("warning:"):
            yield line.strip()


def _of_server(reason: str, message: str) -> DiptychError:
    if _NO_KIND.search(message):
        return NotInstalled()
    match reason:
        case "NotFound":
            return Missing(f"the cluster says: {message}")
        case "Forbidden":
            return Forbidden(f"the cluster does not allow it: {message}")
        case _:
            return ClusterError(f"the cluster says: {message}")


def _no_context(_said: str, found: re.Match[str]) -> DiptychError:
    name = found["a"] or found["b"] or found["c"]
    return ConfigError(
        f"--context {name}: the kubeconfig has no such context; "
        "`kubectl config get-contexts` lists those that it has"
    )


def _unreachable(_said: str, found: re.Match[str]) -> DiptychError:
    why = found["why"]
    if context := _NO_CONTEXT.search(why):
        return _no_context(why, context)
    if _BAD_CONFIG.search(why):
        return _bad_config(why, found)
    return ClusterError(f"the cluster cannot be reached: {why}")


def _refused(_said: str, found: re.Match[str]) -> DiptychError:
    if found["where"] == _UNSET:
        return ConfigError(
            "no cluster is configured: set KUBECONFIG, or give --kubeconfig and --context"
        )
    return ClusterError(f"the cluster cannot be reached: {found['where']} refuses the connection")


def _not_ours(_said: str, found: re.Match[str]) -> DiptychError:
    owner = found["owner"]
    whose = (
        f"to {owner}; give --namespace {owner} to upgrade that one" if owner else "to no release"
    )
    return ClusterError(f"{found['what']} is there already, and belongs {whose}")


def _bad_config(said: str, _found: re.Match[str]) -> DiptychError:
    return ConfigError(f"the kubeconfig cannot be used: {said}")


def _logged_out(_said: str, _found: re.Match[str]) -> DiptychError:
    return ClusterError("the cluster does not accept your credentials; log in to it again")


def _no_credentials(_said: str, found: re.Match[str]) -> DiptychError:
    return ClusterError(f"the cluster's credentials cannot be had: {found['why']}")


_MEANINGS: Mapping[re.Pattern[str], Callable[[str, re.Match[str]], DiptychError]] = {
    _LOGGED_OUT: _logged_out,
    _NO_CREDENTIALS: _no_credentials,
    _UNREACHABLE: _unreachable,
    _REFUSED: _refused,
    _NO_CONTEXT: _no_context,
    _NO_KIND: lambda _said, _found: NotInstalled(),
    _BAD_CONFIG: _bad_config,
    _NOT_OURS: _not_ours,
}
"""In this order: the first that is found in what was said decides."""
