"""What a setting's type says of its range is refused at both doors, TOML and Python, before anything is made; and what
it says is what the papers and formulas allow."""

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

from fedweave.core.bounds import limits
from fedweave.core.settings import Settings, convert_setting
from fedweave.errors import ConfigError
from fedweave.experiment.config import Parameter, field_parameters, parameters, registry, resolve
from fedweave.reports.listing import type_name
from tests.contract.federations import model
from tests.refusals import refusal

SECTIONS = ("data", "partition", "model", "algorithm", "engine", "part")
KINDS = [(section, name) for section in SECTIONS for name in registry(section)]


def outside(hint: Any) -> Iterator[object]:
    """Values just outside the ranges in a type, in lists where it is of lists."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        yield from (value for one in inner if get_origin(one) is Annotated for value in outside(one))
    elif origin is tuple:
        yield from ([value] * (len(inner) if Ellipsis not in inner else 1) for value in outside(inner[0]))
    elif origin is Annotated and inner[0] not in (int, float):
        yield from outside(inner[0])
    elif origin is Annotated:
        facts = [fact for one in inner[1:] for fact in getattr(one, "metadata", ())]
        for name, sign in (("ge", -1), ("gt", -1), ("le", 1), ("lt", 1)):
            for limit in (getattr(fact, name) for fact in facts if hasattr(fact, name)):
                excluded = name in ("gt", "lt")
                beyond = limit + sign if inner[0] is int else math.nextafter(limit, sign * math.inf)
                yield inner[0](limit) if excluded else beyond


def ranges(section: str, name: str) -> dict[str, Parameter]:
    """The settings of a plug-in whose types have ranges."""
    kind = registry(section)[name]
    own = field_parameters(kind) if section == "part" else parameters(section, kind)
    return {key: one for key, one in own.items() if one.family is None and [*outside(one.hint)]}


def document(section: str, name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """A configuration with these settings of a plug-in."""
    if section == "part":
        return {"data": {"name": "digits"}, "algorithm": {"parts": [{"name": name, **values}]}}
    return {"data": {"name": "digits"}} | {section: {"name": name, **values}}


@pytest.mark.parametrize(("section", "name"), [one for one in KINDS if ranges(*one)])
def test_what_is_just_outside_a_range_is_refused_at_both_doors(section: str, name: str) -> None:
    for at in (0, -1):
        values = {key: [*outside(parameter.hint)][at] for key, parameter in ranges(section, name).items()}
        with pytest.raises(ConfigError) as told:
            resolve(document(section, name, values))
        path = "algorithm.parts" if section == "part" else section
        assert {f"{path}.{key} = {value!r}" for key, value in values.items()} <= {
            fault.partition(": must be ")[0] for fault in told.value.args
        }
        assert told.value.code == "config.value"
        kind: Any = registry(section)[name]
        if isinstance(kind, type) and not issubclass(kind, Settings):
            continue  # engines and data sets, which are made of documents
        for key, value in values.items():
            with refusal("config.value") as alone:
                kind(*([model()] if section == "algorithm" else []), **{key: value})
            assert str(alone.value).startswith(f"{kind.__name__}.{key} = {value!r}: must be ")


@pytest.mark.parametrize(("section", "name"), [one for one in KINDS if ranges(*one)])
def test_defaults_are_within_their_ranges(section: str, name: str) -> None:
    for key, one in ranges(section, name).items():
        if one.default not in (None, dataclasses.MISSING):
            convert_setting(key, list(one.default) if isinstance(one.default, tuple) else one.default, one.hint)


def test_the_list_of_settings_shows_ranges() -> None:
    own = parameters("algorithm", registry("algorithm")["fedavg"])
    told = {key: type_name(one) for key, one in own.items()}
    assert told["participation"] == "float above 0 and at most 1"
    assert told["local_momentum"] == "float of at least 0 and below 1"
    assert told["warmup"] == "int of at least 0"
    assert limits(float) == ""


# What papers, formulas and the memory of a site allow, by hand; the values that are not.
NOT_ALLOWED: dict[str, Mapping[str, list[object]]] = {
    "algorithm fedavg": {
        "local_steps": [0, 2**63 - 1], "lr": [0.0, math.nan, math.inf], "weight_decay": [-1.0, math.inf],
        "participation": [0.0, 1.5], "quorum": [0.0, 1.5], "focal": [-1.0], "logit_adjustment": [math.inf],
        "quantile": [0.0, 1.0], "warmup": [-1], "local_epochs": [-1], "batch_size": [-1], "betas": [(0.9, 1.0)],
        "clip_gradient": [-1.0, math.inf], "local_momentum": [1.0], "class_weight": ["balance", (1.0, -1.0)],
    },
    "algorithm fedego": {
        "batches": [0], "server_epochs": [0], "epochs": [0], "lr": [0.0], "hops": [-1], "fan_out": [0], "batch": [0],
        "mixing": [-0.1, 1.5], "gamma": [0.0, math.inf], "sigma": [-1.0, math.inf], "quorum": [0.0], "focal": [-1.0],
        "epoch_share": [0.0, 1.5],
    },
    "algorithm glasu": {
        "fan_out": [0], "sigma": [-1.0, math.inf], "clip": [0.0], "delta": [0.0, 1.0], "label_epsilon": [-1.0],
        "decay": [0.0, 1.5],
    },
    "algorithm adafgl": {"joint": [0], "alpha": [1.5]},
    "algorithm fedbuff": {"buffer": [0], "concurrency": [-1], "spread": [-1.0]},
    "algorithm fedtad": {"near": [0], "rate": [0.0]},
    "partition louvain": {
        "clients": [0, 2_000_000], "slack": [-0.1, math.inf], "train": [0.0, 1.5], "val": [-0.1],
        "split": ["scaffolds"],
    },
    "partition louvain_plus": {"resolution": [0.0]},
    "partition dirichlet": {"alpha": [0.0, math.inf, 1e10], "min_nodes": [0]},
    "partition label_skew": {"majors": [0], "test_nodes": [-1], "major_rate": [1.5], "share": [0.0], "val": [-0.1]},
    "partition ego_networks": {"hops": [0], "clients": [0], "incomplete": ["some"]},
    "partition graph_skew": {"by": ["size"]},
    "partition graphs_iid": {"protocol": ["text"], "global_test": [1.0], "server_val": [-0.1]},
    "partition perturbed": {"low": [-1], "medium": [-1]},
    "partition overlap": {
        "generator": ["text"], "alpha": [0.0], "pool_alpha": [0.0], "pool": [0.0, 1.0], "public": [-0.1], "val": [1.0],
    },
    "partition vertical": {
        "widths": [(0.0, 1.0, 1.0)], "edges": [1.5], "train_per_class": [-1], "blocks": ["mixed"], "labels": ["no"],
    },
    "partition parties": {"labels": ["first"], "split": ["by"]},
    "partition edges": {"by": ["size"]},
    "model gcn": {
        "hidden": [0, 2**21], "layers": [0, 2**13], "dropout": [-0.1, 1.0], "pool": ["max"], "directed": ["back"],
        "norm": ["none "],
    },
    "model sgc": {"hidden": [-1], "layers": [0]},
    "model gat": {"heads": [0, 2000], "output_heads": [0], "attention_dropout": [1.0], "edge_features": [-1, 2**17]},
    "model gcnii": {"alpha": [1.1, -0.1], "theta": [-1.0, math.inf]},
    "model gprgnn": {"alpha": [1.1]},
    "model h2gcn": {"layers": [0, 100]},
    "model pna": {"delta": [0.0, math.inf]},
    "model rgcn": {"bases": [0], "relations": [0]},
    "model lightgcn": {"layers": [0]},
    "model star": {"pool": ["none"]},
    "data digits": {"neighbors": [0, 1797]},
    "data synthetic": {
        "classes": [1], "degree": [-1.0, math.nan], "homophily": [1.1], "signal": [-1.0, 1e308], "features": [0],
        "sens_label_correlation": [-0.1], "sens_homophily": [2.0], "sens_feature_shift": [-1e308],
    },
    "data folder": {
        "classes": [0], "normalize": ["std"], "loops": ["all"], "task": ["graphs"], "external": ["some"],
        "parallel": ["mean"], "edge_normalize": ["log"], "target": ["rank"], "target_normalize": ["mine"],
    },
    "data graphs": {"degrees": [0], "unreadable": ["skip"]},
    "data npz": {"edge_normalize": ["log"], "loops": ["all"]},
    "data cora": {"normalize": ["std"]},
    "data douban": {"validation": [-0.1, 1.0], "normalize": ["std"]},
    "data transfers": {"banks": [0], "crossing": [1.5], "spanning": [-0.1], "decoys": [3.5], "days": [10.0]},
    "part fair_augmented": {"mask": [1.5], "keep": [-0.1]},
    "part overlap_weights": {
        "alpha": [1.5], "beta": [-0.1], "lam": [-1.0], "epsilon_a": [0.0], "sample": [1], "levels": [256],
        "code_size": [0, 10**6], "threshold": [2.0],
    },
    "part krum": {"malicious": [-1], "keep": [0]},
    "part trimmed_mean": {"beta": [0.0, 0.5]},
    "part norm_bound": {"norm": [-1.0]},
    "part geometric_median": {"nu": [0.0], "iterations": [0]},
    "part bulyan": {"malicious": [-1]},
    "part centered_clip": {"tau": [-1.0], "iterations": [0]},
    "part top_k": {"keep": [0.0, 1.5]},
    "part coalition_value": {"every": [0], "exact": [13], "permutations": [5]},
    "part validated_value": {"every": [0], "on": ["nobody"]},
    "part group_weights": {"prefer": ["unfair"], "tau": [0.0]},
    "part dp": {
        "clip": [0.0, -1.0, 1e-250, 1e-309, 1e300, math.inf, math.nan], "sigma": [-1.0, math.inf], "delta": [1.0],
    },
    "part dynamic_regularisation": {"alpha": [0.0]},
    "part cosine_value": {"alpha": [-0.1, 1.5], "minimum": [-1.0]},
    "part credibility": {"a": [0.0]},
    "part reputation": {"alpha": [1.5], "wait": [-1]},
    "part sparse_reward": {"beta": [0.0]},
    "part nearest_prototype": {"minimum": [0]},
    "part missing_neighbours": {"slots": [0], "exchanges": [10**6], "hide": [0.0], "hidden": [(0,)], "peers": [-1]},
    "part meta_gradient": {"examples": [0]},
    "part mixed_model": {"mix": [1.5]},
    "part drift": {"share": [-0.1]},
    "part ego_cross_entropy": {"batch": [0], "hops": [-1], "fan_out": [0]},
    "part graph_cross_entropy": {"batch": [0]},
    "part sampled_cross_entropy": {"fan_out": [0]},
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_ALLOWED)
def test_what_is_not_allowed_is_refused(name: str) -> None:
    section, _, plugin = name.partition(" ")
    for key, values in NOT_ALLOWED[name].items():
        for value in values:
            with refusal("config.value", f".{key} = "):
                registry(section)[plugin](*([model()] if section == "algorithm" else []), **{key: value})
