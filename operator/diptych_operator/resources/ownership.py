"""Whose an object is: its controller's uid decides, not its name or its labels.

Anyone can copy labels, and names depend on nothing but the Agent's name.
"""

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import FIELD_MANAGER, Object


def controller_of(content: Object) -> Object | None:
    """Give the owner reference of the object's controller."""
    owners = content["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)


def is_controlled_by(content: Object, agent: Agent) -> bool:
    """Say whether the Agent is the object's controller."""
    owner = controller_of(content)
    return owner is not None and bool(owner["uid"] == agent.uid)


def is_owned_by(content: Object, agent: Agent) -> bool:
    """Say whether an object belongs to an Agent.

    An object without a controller belongs to it if the operator has applied the object: then
    somebody has removed the owner reference, and it is put back.
    """
    if controller_of(content) is None:
        return _was_applied(content)
    return is_controlled_by(content, agent)


def has_lost_its_owner(content: Object) -> bool:
    """Say whether the operator has written the object, and it has no controller any more."""
    managers = {entry.get("manager") for entry in content["metadata"].get("managedFields", ())}
    return controller_of(content) is None and FIELD_MANAGER in managers


def _was_applied(content: Object) -> bool:
    return any(
        entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        for entry in content["metadata"].get("managedFields", ())
    )
