"""What kopf is told to do with each event: as little as it can."""

import copy

import kopf

from diptych_operator.watch.handlers import kopf_settings

POD = {
    "metadata": {"name": "p", "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"}},
    "spec": {"containers": []},
}


def test_kopf_compares_and_copies_no_objects(monkeypatch):
    persistence = kopf_settings().persistence
    monkeypatch.setattr(copy, "deepcopy", None)
    body = kopf.Body(POD)
    diffbase, progress = persistence.diffbase_storage, persistence.progress_storage
    essence = diffbase.build(body=body, extra_fields=[])
    assert essence == {}
    assert diffbase.fetch(body=body) is None
    assert progress.clear(essence=essence) is essence
    assert progress.fetch(key="handler", body=body) is None


def test_kopf_writes_nothing_of_its_own():
    persistence = kopf_settings().persistence
    patch, body = kopf.Patch(), kopf.Body(POD)
    persistence.diffbase_storage.store(body=body, patch=patch, essence={})
    persistence.progress_storage.store(key="handler", record={}, body=body, patch=patch)
    persistence.progress_storage.purge(key="handler", body=body, patch=patch)
    persistence.progress_storage.touch(body=body, patch=patch, value="x")
    assert not patch
