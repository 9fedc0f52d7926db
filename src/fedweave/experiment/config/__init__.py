"""Configuration: from a TOML file and the command line's overrides to checked, resolved settings."""

from fedweave.experiment.config.choice import Choice
from fedweave.experiment.config.experiment import (
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
from fedweave.experiment.config.plugins import Parameter, lookup, own_parameters, parameters, registry
from fedweave.experiment.config.settings import ENGINES, Evaluation, General, SimulationEngine
from fedweave.experiment.config.toml import Document, check_name, differences, dumps, flat, load, nearest, override

__all__ = [
    "ENGINES",
    "Choice",
    "Config",
    "Document",
    "Evaluation",
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
