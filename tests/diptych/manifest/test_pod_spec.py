"""What a Kubernetes API would refuse of a pod template, found without one.

`tests/diptych_operator/test_real_api.py` shows the same templates to a real API.
"""

import pytest
from support.pod_templates import GOOD, MISTAKES

from diptych.manifest.documents import dotted_path
from diptych.manifest.loader import check_files
from diptych.manifest.pod_spec import pod_spec_mistakes

MANIFEST = """\
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: a}
spec:
  model: {name: m, endpoint: "http://m/v1"}
  podTemplate: {spec: {nodeSelectr: {disk: ssd}}}
"""


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_a_mistake_is_named_with_its_field(case):
    found = [(dotted_path(path), text) for path, text in pod_spec_mistakes(case.spec)]
    assert found == [(case.field, case.text)]


@pytest.mark.parametrize("spec", GOOD)
def test_what_a_cluster_takes_is_no_mistake(spec):
    assert list(pod_spec_mistakes(spec)) == []


def test_check_reports_it_with_the_file(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(MANIFEST)
    assert check_files([file]).problems == [
        (
            f"{file}: line 6: spec.podTemplate.spec.nodeSelectr: is not a field of a Kubernetes "
            'PodSpec (did you mean "nodeSelector"?)'
        )
    ]
