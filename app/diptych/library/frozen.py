"""JSON that cannot be changed, and that is written, compared and read like any other."""

from collections.abc import Mapping
from typing import Any, NoReturn

_REFUSAL = "records cannot be changed; make a copy: copy.deepcopy(value)"


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError(_REFUSAL)


class FrozenDict(dict[str, Any]):
    """A dict whose changes raise `TypeError`; copies are plain dicts."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list whose changes raise `TypeError`; copies are plain lists."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


def frozen(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value that cannot be changed, nor by changes of the given one."""
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([frozen(each) for each in value])
    return value
