"""Configuration: from a TOML file and the command line's overrides to checked, resolved settings."""

from fedweave.experiment.config.choices import Choice
from fedweave.experiment.config.experiment import Config, resolve
from fedweave.experiment.config.plugins import Parameter, field_parameters, groups, lookup, parameters, registry
from fedweave.experiment.config.reading import (
    Exchanged,
    load_saved,
    pop_tune,
    read,
    read_saved,
    to_toml,
    with_algorithm,
)
from fedweave.experiment.config.sections import ENGINES, EvaluationSettings, General, SimulationEngine
from fedweave.experiment.config.toml import (
    Document,
    check_name,
    config_hash,
    differences,
    dumps,
    flat,
    load,
    nearest,
    override,
)

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
    "config_hash",
    "differences",
    "dumps",
    "field_parameters",
    "flat",
    "groups",
    "load",
    "load_saved",
    "lookup",
    "nearest",
    "override",
    "parameters",
    "pop_tune",
    "read",
    "read_saved",
    "registry",
    "resolve",
    "to_toml",
    "with_algorithm",
]
