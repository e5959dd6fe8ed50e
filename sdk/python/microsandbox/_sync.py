"""How `microsandbox.sync` wraps the asynchronous objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._session import blocking, run_blocking

C = TypeVar("C", bound="type[Wrapper]")
_classes: dict[type, type[Wrapper]] = {}


class Wrapper:
    """An object of `microsandbox.sync` around one of `microsandbox`."""

    _inner: Any

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__} is not made directly")

    def __repr__(self) -> str:
        return repr(self._inner)

    def _get(self, name: str) -> Any:
        with blocking():
            return wrap(getattr(self._inner, name))

    def _next(self) -> Any:
        try:
            return wrap(run_blocking(self._inner.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None

    def _exit(self, *exception: Any) -> None:
        run_blocking(self._inner.__aexit__(*exception))


def register(of: type) -> Callable[[C], C]:
    """Makes a class the wrapper of an asynchronous one."""

    def decorate(wrapper: C) -> C:
        _classes[of] = wrapper
        return wrapper

    return decorate


def wrap(value: Any) -> Any:
    """The same value, with wrappers around asynchronous objects."""
    if isinstance(value, list):
        return [wrap(each) for each in value]
    for of in type(value).__mro__:
        found = _classes.get(of)
        if found is not None:
            wrapper = object.__new__(found)
            wrapper._inner = value
            return wrapper
    return value


def unwrap(value: Any) -> Any:
    """The same value, without wrappers."""
    return value._inner if isinstance(value, Wrapper) else value


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls an asynchronous function and waits for its result."""
    named: Mapping[str, Any] = {name: unwrap(value) for name, value in options.items()}
    with blocking():
        return wrap(function(*[unwrap(value) for value in args], **named))
