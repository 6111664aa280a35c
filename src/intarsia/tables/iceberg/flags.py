"""Table properties as booleans and numbers; nothing here knows what one means."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from intarsia.errors import InputError


def flag(properties: Mapping[str, str], name: str, default: bool) -> bool:
    """A boolean property; anything but ``true`` is false, as in Java."""
    text = properties.get(name)
    return default if text is None else text.strip().lower() == "true"


def number(properties: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """A whole number.

    Raises:
        InputError: it is none, or less than it can be.
    """
    text = properties.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise _wrong(name, text, f"a whole number of at least {least}") from error
    if value < least:
        raise _wrong(name, text, f"a whole number of at least {least}")
    return value


def word(properties: Mapping[str, str], name: str, default: str, among: Collection[str]) -> str:
    """One of several words, whatever its case.

    Raises:
        InputError: it is another.
    """
    text = properties.get(name, default).strip().lower()
    if text not in among:
        raise _wrong(name, text, f"one of {', '.join(among)}")
    return text


def _wrong(name: str, text: str, wanted: str) -> InputError:
    return InputError(f"The table property {name} is {text!r}, not {wanted}.", hint=f"set {name} anew.")
