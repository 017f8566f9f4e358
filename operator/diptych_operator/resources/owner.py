"""The objects that have children: what Agents and the other kinds of ours have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from diptych_operator.resources.kinds import (
    FIELD_MANAGER,
    Kind,
    NamespacedName,
    Object,
    ObjectKey,
)
from diptych_operator.resources.labels import child_labels, selector_labels

READY: Final = "/ready"
"""Where pods of our image say how they are."""
AUDIENCES: Final = "diptych.dev/"
"""Begins the audiences of all tokens."""


@dataclass(frozen=True, slots=True)
class Owner:
    """An object of a kind of ours as the API shows it; `spec` and `status` are its JSON.

    The API has validated it against the CRD, which is generated from the pod's manifest models, so
    nothing is validated again here.
    """

    kind: ClassVar[Kind]
    app: ClassVar[str]
    """The label `app.kubernetes.io/name` of its children and pods."""
    component: ClassVar[str]
    """Their label `app.kubernetes.io/component`."""
    audience_path: ClassVar[str] = ""
    """Stands before the name in the audience of tokens for it."""
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    """The endings of its children's names, so that objects of two kinds may share a name."""

    namespace: str
    name: str
    uid: str
    generation: int
    is_terminating: bool
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @classmethod
    def read(cls, content: Object) -> Self:
        """Read the API's JSON."""
        metadata = content["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            is_terminating="deletionTimestamp" in metadata,
            spec=content.get("spec") or {},
            status=content.get("status") or {},
        )

    @classmethod
    def audience_of(cls, name: NamespacedName) -> str:
        """Return the audience of tokens for an object of this kind."""
        return f"{AUDIENCES}{name[0]}/{cls.audience_path}{name[1]}"

    @property
    def audience(self) -> str:
        return self.audience_of(self.namespaced_name)

    @property
    def namespaced_name(self) -> NamespacedName:
        return self.namespace, self.name

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.kind, self.namespace, self.name)

    @property
    def ready_port(self) -> int | None:
        """The port at which its pods are asked how they are; None if they are not."""
        return None

    @property
    def ready_path(self) -> str:
        return READY

    @property
    def ready_labels(self) -> Mapping[str, str]:
        """The labels of the pods that are asked."""
        return self.selector_labels

    @property
    def verifies_tokens(self) -> bool:
        """Whether its pods verify tokens of ServiceAccounts."""
        return False

    @property
    def child_name(self) -> str:
        """The name of its Deployment, Service and the like."""
        return self.name + self.suffixes[0]

    @property
    def child_names(self) -> tuple[str, ...]:
        """The names of its children of `CHILD_KINDS`."""
        return tuple(self.name + suffix for suffix in self.suffixes)

    @property
    def selector_labels(self) -> dict[str, str]:
        """The labels that select its pods. A Deployment's selector can never change."""
        return selector_labels(self.name, self.app)

    @property
    def child_labels(self) -> dict[str, str]:
        """The labels of its children and pods."""
        return child_labels(self.name, self.app, self.component)


class ManifestError(ValueError):
    """A manifest that cannot be served; `str()` is a sentence without its full stop.

    `reason` is the reason of the condition Accepted.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def controller_of(content: Object) -> Object | None:
    """Return the owner reference of the object's controller."""
    owners = content["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)


def is_controlled_by(content: Object, owner: Owner) -> bool:
    """Whether the owner is the object's controller; its uid decides, as anyone can copy labels."""
    controller = controller_of(content)
    return controller is not None and bool(controller["uid"] == owner.uid)


def is_owned_by(content: Object, owner: Owner) -> bool:
    """Whether an object belongs to an owner.

    An object without a controller belongs to it if the operator has applied the object: then
    somebody has removed the owner reference, and it is put back.
    """
    if controller_of(content) is None:
        return _was_applied(content)
    return is_controlled_by(content, owner)


def _was_applied(content: Object) -> bool:
    return any(
        entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        for entry in content["metadata"].get("managedFields", ())
    )
