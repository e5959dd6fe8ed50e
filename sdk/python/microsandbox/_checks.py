"""Checks of arguments, made at the call and before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def member(value: Any, of: type[T]) -> T:
    """A value of exactly this class; an enumeration's text is not taken for its member."""
    if not isinstance(value, of):
        raise TypeError(f"expected {of.__name__}, got {type(value).__name__}")
    return value


def optional(value: Any, of: type[T]) -> T | None:
    """A value of this class, or None."""
    return None if value is None else member(value, of)


def text(name: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    return value


def optional_text(name: str, value: Any) -> str | None:
    """A string, or None."""
    return None if value is None else text(name, value)


def integer(name: str, value: Any, least: int = 0) -> int:
    """An integer; floats are not taken."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def optional_integer(name: str, value: Any, least: int = 0) -> int | None:
    """An integer, or None."""
    return None if value is None else integer(name, value, least)


def seconds(name: str, value: Any) -> float | None:
    """A number of seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be float, not {type(value).__name__}")
    if not 0 <= value < 1e12:
        raise ValueError(f"{name} must be a number of seconds, not {value}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be bool, not {type(value).__name__}")
    return value


def texts(name: str, value: Any) -> list[str]:
    """A sequence of strings, but not one string."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of str, not {type(value).__name__}")
    return [text(name, each) for each in value]


def mapping(name: str, value: Any) -> dict[str, str]:
    """A mapping of strings to strings, or None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {type(value).__name__}")
    return {text(name, key): text(name, each) for key, each in value.items()}


def path(name: str, value: Any) -> str:
    """A path of the host, as text."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be str or os.PathLike, not {type(value).__name__}")
    return os.fsdecode(value)


def sandbox_name(value: Any) -> str:
    """A name of a sandbox."""
    name = text("name", value)
    if not name:
        raise ValueError("the name of a sandbox must not be empty")
    if len(name.encode()) > 128:
        raise ValueError("the name of a sandbox has at most 128 bytes")
    return name


def span(value: float | None) -> str | None:
    """Seconds as msb reads them: to the millisecond, and at least one."""
    return None if value is None else f"{max(1, round(value * 1000))}ms"
