"""The fields of a configuration: what each may hold, and the message if it does not."""

import contextlib
import dataclasses
import math
import numbers
import typing

from prunetrain.errors import InputError
from prunetrain.flagfiles import can_hold
from prunetrain.registry import is_import_path, nearest, shown


class ConfigError(InputError):
    """A field of `Config` is out of range.

    Attributes: field, received, rule (what it must be, with a remedy or an example).
    """

    def __init__(self, field, received, rule):
        super().__init__(f"`{field}` {rule}. Received: {field}={_shown(received)}")
        self.field, self.received, self.rule = field, received, rule

    def __reduce__(self):
        # Pickle, left alone, calls the class with the message.
        return ConfigError, (self.field, self.received, self.rule)


def _shown(value):
    try:
        return repr(value)
    # Python refuses to write integers of thousands of digits.
    except ValueError:
        return f"<{type(value).__name__} that is too long to write>"


def option(
    group,
    default,
    help,
    *,
    unit="",
    choices=None,
    low=None,
    above=None,
    below=None,
    binding=True,
    importable=False,
    suffix=None,
    prefix=None,
    checked=True,
):
    """A field; one that is not `binding` may change while a run goes on.

    `choices` that are `importable` may also be package.module:function; with a `suffix`
    also a file whose name ends so; with a `prefix` what begins so. Unless they are
    `checked` here, they are only named by --help.
    """
    metadata = {
        "group": group,
        "help": help,
        "unit": unit,
        "choices": choices,
        "low": low,
        "above": above,
        "below": below,
        "binding": binding,
        "importable": importable,
        "suffix": suffix,
        "prefix": prefix,
        "checked": checked,
    }
    return dataclasses.field(default=default, metadata=metadata)


def converted(field, value):
    """`value` as the field's type, or ConfigError."""
    if field.type in (int, float):
        return _number(field, value, field.type, "must be")
    if field.type is str:
        if not isinstance(value, str):
            raise ConfigError(field.name, value, "must be text")
        _check_held(field, value)
        _check_choice(field, value)
        return value
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    is_list = isinstance(value, (list, tuple))
    kind = typing.get_args(field.type)[0]
    if kind is not str:
        return _each_once(field, _numbers(field, value if is_list else [value], kind))
    is_text = is_list and all(isinstance(item, str) for item in value)
    # As a flag, an item with a comma would be two, an empty one none.
    if not is_text or any("," in item or not item for item in value):
        raise ConfigError(field.name, value, "must be text, separated by commas")
    values = tuple(value)
    for item in values:
        _check_held(field, item)
        _check_choice(field, item)
    return _each_once(field, values)


def _each_once(field, values):
    if len(set(values)) < len(values):
        received = ",".join(map(str, values))
        raise ConfigError(field.name, received, "must name each only once")
    return values


def _numbers(field, values, kind):
    """A tuple of numbers, some of which may come as text."""
    numbers = []
    for value in values:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = kind(value)
        numbers.append(_number(field, value, kind, "must be a list, each of it"))
    return tuple(numbers)


def _number(field, value, kind, must):
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        # No integer is nan or infinite, no float as large as some integers.
        with contextlib.suppress(ValueError, OverflowError):
            number = kind(value)
            exact = kind is float or number == value
            if exact and _in_range(number, **_bounds(field)):
                return number
    raise ConfigError(field.name, value, f"{must} {_range(field, kind)}")


def _bounds(field):
    return {name: field.metadata[name] for name in ("low", "above", "below")}


def _in_range(value, low, above, below):
    # Each comparison is false for nan.
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and value < (math.inf if below is None else below)
    )


def _range(field, kind):
    """The rule in words, with an example where the unit is easily mistaken."""
    low, above, below = _bounds(field).values()
    unit = f" ({field.metadata['unit']})" if field.metadata["unit"] else ""
    if kind is float and below == 1:
        return f"from {low} to below 1{unit}, for example 0.2 for 20 %"
    if above is not None:
        return f"a finite number above {above}{unit}"
    to = "" if below is None else f" to {below - 1}"
    return f"a whole number from {low}{to}{unit}"


def _check_held(field, value):
    # Or flags.txt would repeat another run.
    if not can_hold(value):
        raise ConfigError(
            field.name,
            value,
            "must be text that a line of a flagfile can hold: without control "
            "characters, spaces or quotes around it, or a # after a space",
        )


def _check_choice(field, value):
    choices, importable, suffix, prefix = (
        field.metadata[name] for name in ("choices", "importable", "suffix", "prefix")
    )
    if choices is None or not field.metadata["checked"]:
        return
    if value in choices or (importable and is_import_path(value)):
        return
    if suffix and value.endswith(suffix) and value != suffix:
        return
    if prefix and value.startswith(prefix) and value != prefix:
        return
    own = " or package.module:function" if importable else ""
    own += f" or a file *{suffix}" if suffix else ""
    own += f" or {prefix}NAME" if prefix else ""
    raise ConfigError(
        field.name,
        value,
        f"must be one of {', '.join(shown(choices))}{own}{nearest(value, choices)}",
    )
