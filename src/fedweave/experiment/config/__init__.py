"""Configuration: from a TOML file and the command line's overrides to checked, resolved settings."""

from fedweave.experiment.config.experiment import (
    ENGINES,
    Config,
    EvaluationSettings,
    Exchanged,
    General,
    SimulationEngine,
    load_saved,
    read,
    read_saved,
    resolve,
    tuned,
    with_algorithm,
    written,
)
from fedweave.experiment.config.plugins import Choice, Parameter, lookup, own_parameters, parameters, registry
from fedweave.experiment.config.toml import Document, check_name, differences, dumps, flat, load, nearest, override

__all__ = [
    "ENGINES",
    "Choice",
    "Config",
    "Document",
    "EvaluationSettings",
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
