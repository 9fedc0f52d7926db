"""Captions of a sweep's tables and figures: data, partition, noise, model, rounds, seeds and settings of the runs."""

from collections.abc import Sequence

from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.experiment.config import flat
from fedweave.reports.conditions import settings_text, short_name
from fedweave.sweeps.choosing import ChosenSetting

WHEN = "mean over clients, in the round that is best on validation examples"
_NOISES = {  # the first of each kind is the default
    ("features", "mask"): "share of nonzero features masked",
    ("features", "gauss"): "noise on features, in standard deviations",
    ("edges", "drop"): "share of edges dropped",
    ("edges", "rewire"): "share of edges rewired",
    ("labels", "flip"): "share of training labels flipped",
    ("labels", "remove"): "share of training labels removed",
}
_TRAINING = ("local_steps", "optimizer", "lr", "weight_decay")


def caption(choices: Sequence[ChosenSetting], title: str) -> str:
    """The caption of a table or figure of these runs, with the settings that were chosen and those that are constant.

    title: what the table or figure shows.
    """
    configs = [choice.group.first.config for choice in choices]
    condition_keys = {key for choice in choices for key in choice.condition}
    setting_keys = {key for choice in choices for key in choice.setting}
    rounds = sorted({config["rounds"] for config in configs})
    sentences = [
        f"{title}{_seeds(choices)}.",
        f"Data: {_shared_values('data', configs, condition_keys)}. "
        f"Cut: {_shared_values('partition', configs, condition_keys)}.",
        *_noise(configs),
        f"Model: {_shared_values('model', configs, condition_keys | setting_keys)}.",
        f"Rounds: {' or '.join(map(str, rounds))}.",
    ]
    constants = list(filter(None, (_constant_setting(key, choices) for key in _TRAINING)))
    if constants:
        sentences.append(f"Training: {'; '.join(constants)}.")
    tuned = _tuned_settings(choices)
    if tuned:
        several = " where several were tried" if any(choice.tried == 1 for choice in choices) else ""
        sentences.append(f"Settings, chosen by validation{several}: {'; '.join(tuned)}.")
    return " ".join(sentences)


def _seeds(choices: Sequence[ChosenSetting]) -> str:
    seeds = sorted({run.config.get("seed", 0) for choice in choices for run in choice.group.runs})
    if len(seeds) == 1:
        return f", seed {seeds[0]}"
    consecutive = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    listed = f"{seeds[0]} to {seeds[-1]}" if consecutive else ", ".join(map(str, seeds))
    return f", mean and standard deviation over {counted(len(seeds), 'seed')} ({listed})"


def _shared_values(section: str, configs: Sequence[Values], varied: set[str]) -> str:
    """ "louvain (clients = 10, …)": the names, and the values that are equal in all runs and not varied."""
    tables = [flat(config.get(section, {})) for config in configs]
    names = dict.fromkeys(str(table.get("name", "")) for table in tables)
    values = []
    for key, value in tables[0].items():
        if key in ("name", "path", "labels") or f"{section}.{key}" in varied:
            continue
        is_set = value not in ("", "none", None, False, [])
        if is_set and all(table.get(key) == value for table in tables):
            values.append(f"{key} = {value}")
    return " or ".join(names) + (f" ({', '.join(values)})" if values else "")


def _noise(configs: Sequence[Values]) -> list[str]:
    """A sentence on the kinds of noise and their rates, if there is any."""
    kinds = []
    for kind in ("features", "edges", "labels"):
        rates = sorted({config.get("noise", {}).get(kind, 0) for config in configs})
        if any(rates):
            effects = dict.fromkeys(axis_label(f"noise.{kind}", config) for config in configs)
            kinds.append(f"{' or '.join(effects)} = {' or '.join(f'{rate:g}' for rate in rates)}")
    return [f"Noise: {'; '.join(kinds)}."] if kinds else []


def axis_label(key: str, config: Values) -> str:
    """A key of the grid on an axis or in a caption; a key of noise by its effect on the data."""
    section, _, kind = key.partition(".")
    if section != "noise":
        return short_name(key)
    default = next((way for noisy, way in _NOISES if noisy == kind), "")
    way = config.get("noise", {}).get(f"{kind}_by", default)
    return _NOISES.get((kind, way), short_name(key))


def _constant_setting(key: str, choices: Sequence[ChosenSetting]) -> str:
    """ "optimizer = adam (fedavg, moon) or sgd (scaffold)": the values of a key that was not varied, with algorithms
    unless all share one value; "" if no algorithm has the key."""
    path = f"algorithm.{key}"
    algorithms_by_value: dict[str, list[str]] = {}
    for choice in choices:
        value = choice.group.first.config["algorithm"].get(key)
        if value is not None and path not in choice.setting and path not in choice.condition:
            algorithms_by_value.setdefault(str(value), []).append(choice.algorithm)
    if not algorithms_by_value:
        return ""
    if len(algorithms_by_value) == 1:
        [(value, algorithms)] = algorithms_by_value.items()
        if set(algorithms) == {choice.algorithm for choice in choices}:
            return f"{key.replace('_', ' ')} = {value}"
    values = [f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in algorithms_by_value.items()]
    return f"{key.replace('_', ' ')} = {' or '.join(values)}"


def _tuned_settings(choices: Sequence[ChosenSetting]) -> list[str]:
    """ "fedavg: lr = 0.1" for each algorithm; with the condition, where its setting depends on the condition."""
    by_algorithm: dict[str, dict[str, list[ChosenSetting]]] = {}  # {algorithm: {setting: its choices}}
    for choice in choices:
        if choice.setting:
            by_setting = by_algorithm.setdefault(choice.algorithm, {})
            by_setting.setdefault(settings_text(choice.setting), []).append(choice)
    texts = []
    for algorithm, by_setting in by_algorithm.items():
        for setting, same_choices in by_setting.items():
            if len(by_setting) == 1:
                texts.append(f"{algorithm}: {setting}")
                continue
            for choice in same_choices:
                condition = f" ({settings_text(choice.condition)})" if choice.condition else ""
                texts.append(f"{algorithm}{condition}: {setting}")
    return texts
