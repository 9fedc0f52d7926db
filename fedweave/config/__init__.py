"""Configuration: from a TOML file and the command line's overrides to checked, resolved settings."""

from fedweave.config.choice import Choice
from fedweave.config.experiment import (
    Config,
    Exchanged,
    load_saved,
    read,
    read_saved,
    resolve,
    tuned,
    with_algorithm,
    written,
)
from fedweave.config.names import check_name, nearest
from fedweave.config.plugins import Parameter, lookup, own_parameters, parameters, registry
from fedweave.config.settings import ENGINES, General, SimulationEngine
from fedweave.config.toml import Document, differences, dumps, flat, load, override

__all__ = [
    "ENGINES",
    "Choice",
    "Config",
    "Document",
    "Exchanged",
    "General",
    "Parameter",
    "SimulationEngine",
    "check_name",
    "differences",
    "dumps",
    "flat",
    "load",
    "load_saved",
    "lookup",
    "nearest",
    "override",
    "own_parameters",
    "parameters",
    "read",
    "read_saved",
    "registry",
    "resolve",
    "tuned",
    "with_algorithm",
    "written",
]
