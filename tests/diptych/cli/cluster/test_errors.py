"""What kubectl 1.34 really says when it fails, and the sentence made of it."""

import pytest

from diptych.cli.cluster.errors import (
    ClusterError,
    CrdNotInstalled,
    Forbidden,
    NotFound,
    error_from,
)
from diptych.core.errors import ConfigError, DiptychError

LOGGED = (
    'E1121 15:04:50.919025   15801 memcache.go:265] "Unhandled Error" err="couldn\'t get current '
    'server API group list: Get \\"http://localhost:8080/api?timeout=32s\\": dial tcp: refused"\n'
)
PLUGIN = """E1121 15:04:51.198965   15835 memcache.go:265] "Unhandled Error" err=<
	couldn't get current server API group list: getting credentials: exec: executable x not found

	It looks like you are trying to use a client-go credential plugin that is not installed.
 >
Unable to connect to the server: getting credentials: exec: executable x not found

It looks like you are trying to use a client-go credential plugin that is not installed.
"""


@pytest.mark.parametrize(
    ("stderr", "kind", "said"),
    [
        pytest.param(
            LOGGED * 3 + "The connection to the server localhost:8080 was refused - did you specify"
            " the right host or port?\n",
            ConfigError,
            "no cluster is configured: set KUBECONFIG, or give --kubeconfig and --context",
            id="no cluster is configured",
        ),
        pytest.param(
            LOGGED + "The connection to the server 127.0.0.1:9 was refused - did you specify the"
            " right host or port?\n",
            ClusterError,
            "the cluster cannot be reached: 127.0.0.1:9 refuses the connection",
            id="nothing listens",
        ),
        pytest.param(
            "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout",
            ClusterError,
            "the cluster cannot be reached: dial tcp 10.0.0.1:6443: i/o timeout",
            id="nobody answers",
        ),
        pytest.param(
            PLUGIN,
            ClusterError,
            "the cluster's credentials cannot be had: exec: executable x not found",
            id="a credential plugin is missing",
        ),
        pytest.param(
            "Error in configuration: context was not found for specified context: nope\n",
            ConfigError,
            "--context nope: the kubeconfig has no such context; `kubectl config get-contexts` "
            "lists those that it has",
            id="no such context, by kubectl",
        ),
        pytest.param(
            "error: cannot locate context nope\n",
            ConfigError,
            "--context nope: the kubeconfig has no such context; `kubectl config get-contexts` "
            "lists those that it has",
            id="no such context, by kubectl config",
        ),
        pytest.param(
            "error: stat /nope: no such file or directory\n",
            ConfigError,
            "the kubeconfig cannot be used: stat /nope: no such file or directory",
            id="no such kubeconfig",
        ),
        pytest.param(
            "error: You must be logged in to the server (Unauthorized)\n",
            ClusterError,
            "the cluster does not accept your credentials; log in to it again",
            id="not logged in",
        ),
        pytest.param(
            'Error from server (Forbidden): agents.diptych.dev is forbidden: User "x" cannot list'
            " it\n",
            Forbidden,
            'the cluster does not allow it: agents.diptych.dev is forbidden: User "x" cannot list'
            " it",
            id="forbidden",
        ),
        pytest.param(
            'Error from server (NotFound): agents.diptych.dev "helper" not found\n',
            NotFound,
            'the cluster says: agents.diptych.dev "helper" not found',
            id="not found",
        ),
        pytest.param(
            'error: the server doesn\'t have a resource type "agents"\n',
            CrdNotInstalled,
            "this cluster has no Agent CRD; install it and the operator with helm: "
            "charts/diptych/README.md says how",
            id="no CRD",
        ),
        pytest.param(
            "Error from server (NotFound): the server could not find the requested resource\n",
            CrdNotInstalled,
            "this cluster has no Agent CRD; install it and the operator with helm: "
            "charts/diptych/README.md says how",
            id="a CRD that has just gone",
        ),
        pytest.param(
            'Error from server (BadRequest): container "agent" in pod "x" is waiting to start\n',
            ClusterError,
            'the cluster says: container "agent" in pod "x" is waiting to start',
            id="the server says why",
        ),
        pytest.param("", ClusterError, "program: it failed, and did not say why", id="nothing"),
        pytest.param(
            LOGGED, ClusterError, "program: it failed, and did not say why", id="log lines alone"
        ),
    ],
)
def test_an_error_is_one_sentence(stderr: str, kind: type[DiptychError], said: str) -> None:
    error = error_from("program", stderr)
    assert type(error) is kind
    assert str(error) == said
