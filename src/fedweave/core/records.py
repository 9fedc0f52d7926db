"""Names with values of which a type can say no more: rows of tables, objects of JSON and TOML, settings."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]  # a row of a table, or an object of a file
Values: TypeAlias = Mapping[str, Any]  # the same to read: settings, measurements
