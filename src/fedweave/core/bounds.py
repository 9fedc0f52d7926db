"""Ranges of settings, as the types of their fields: written here or in a field's type and nowhere else. The check of a
value (`core.settings.convert_setting`), its message and the lists of settings read them from there."""

import inspect
import math
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import Field

LARGEST_WIDTH = 1 << 20  # columns of a layer: a server must not be able to fill a site's memory
LARGEST_DEPTH = 1 << 12  # layers
MAX_STEPS = 1_000_000_000  # of a round: more take years, and a list of them more memory than there is

Count: TypeAlias = Annotated[int, Field(ge=1)]
CountOrNone: TypeAlias = Annotated[int, Field(ge=0)]  # 0 for none, or for all
Steps: TypeAlias = Annotated[int, Field(ge=1, le=MAX_STEPS)]
StepsOrNone: TypeAlias = Annotated[int, Field(ge=0, le=MAX_STEPS)]
Width: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_WIDTH)]
WidthOrNone: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_WIDTH)]
Depth: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_DEPTH)]
Clients: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]  # of one partition: more would take days
Heads: TypeAlias = Annotated[int, Field(ge=1, le=1 << 10)]  # of attention
EdgeFeatures: TypeAlias = Annotated[int, Field(ge=0, le=1 << 16)]

Positive: TypeAlias = Annotated[float, Field(gt=0, lt=math.inf)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0, lt=math.inf)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]  # a share above nothing
BelowOne: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Between: TypeAlias = Annotated[float, Field(gt=0, lt=1)]  # without 0 and 1
DropRate: TypeAlias = Annotated[float, Field(ge=0, le=0.99)]
ClipNorm: TypeAlias = Annotated[float, Field(ge=1e-100, le=1e100)]  # a norm whose square a float64 holds


def limits(hint: Any) -> str:
    """The range of a number or a text by its annotated type, such as "above 0 and at most 1"; "" without one. It does
    not say that a number has to be finite."""
    bounds = dict[str, Any]()
    for annotation in getattr(hint, "__metadata__", ()):
        for fact in getattr(annotation, "metadata", [annotation]):
            for name in ("ge", "gt", "le", "lt", "multiple_of", "max_length"):
                value = getattr(fact, name, None)
                if value not in (None, math.inf, 2**63):  # no whole number of TOML is larger
                    bounds[name] = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if {"ge", "le"} <= bounds.keys():
        return f"from {bounds['ge']} to {bounds['le']}"
    if "max_length" in bounds:
        return f"of at most {bounds['max_length']} characters"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below", "multiple_of": "a multiple of"}
    texts = [f"{word} {bounds[name]}" for name, word in words.items() if name in bounds]
    return " and ".join(texts).replace("and of ", "and ")


def in_words(hint: Any, value: object = None) -> str:
    """The values that a setting of a type may have, such as "a number above 0 and at most 1".

    value: a value that it may not have. If it is infinite, the text asks for a finite number.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for annotation in hint.__metadata__:
            if getattr(annotation, "description", None):
                return str(annotation.description)
        return f"{in_words(inner[0], value)} {limits(hint)}".rstrip()
    if origin is Literal:
        return either([repr(word) for word in inner])
    if origin in (types.UnionType, Union):
        return ", or ".join(in_words(one, value) for one in inner if one is not types.NoneType)
    if origin in (tuple, list):
        items = [kind for kind in inner if kind is not Ellipsis]
        length = f" of {len(items)}" if origin is tuple and Ellipsis not in inner else ""
        infinite = [entry for entry in value if _is_infinite(entry)] if isinstance(value, Sequence) else []
        words = dict.fromkeys(in_words(kind, infinite[0] if infinite else None) for kind in items)
        return f"a list{length}, each {either(list(words))}"
    if origin is dict:
        return f"a table, each value {in_words(inner[1])}"
    if isinstance(hint, type) and getattr(hint, "__annotations__", {}):
        return f"a table of {', '.join(hint.__annotations__)}"
    if hint is float and _is_infinite(value):
        return "a finite number"
    nouns = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return nouns.get(hint) or inspect.formatannotation(hint)


def either(words: Sequence[str]) -> str:
    """Words with commas and an "or" between them."""
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
