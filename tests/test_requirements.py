"""What sections of an experiment demand of each other: one table of cases, each at every door that can see it."""

import inspect
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

import fedweave
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.errors import FedweaveError
from fedweave.experiment import requirements
from fedweave.experiment.build import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.loading import load_data
from fedweave.experiment.requirements import REQUIREMENTS, check_training_examples
from fedweave.experiment.stages import Loaded
from fedweave.models.edges import on_examples
from fedweave.partition.base import client_ids
from fedweave.partition.client_data import shares
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_carrying_runs import bank
from tests.runs.test_edges_as_examples import tables as transfers
from tests.targets import numbers, several_labels

SMALL_GRAPHS = Path(__file__).parent / "cases/tu-attributes/data"
Door = Literal["resolve", "build", "python", "site"]
ALL: tuple[Door, ...] = ("build", "python", "site")

# What a case is a change of. `$name` in a case is a folder or a file that `places` makes.
BASE = """
data = {name = "synthetic", nodes = 60, features = 8, classes = 2}
partition = {name = "random", clients = 3}
model = {name = "gcn", hidden = 4}
"""
LINKS = 'data = {name = "synthetic", nodes = 60, task = "links"}'
GRAPHS = 'data = {name = "tu", path = "$graphs"}\npartition = {name = "graphs_iid", clients = 3}\n'
GRAPHS += 'model = {name = "gin", hidden = 4, pool = "sum"}'
EDGES = """
data = {path = "$transfers", task = "edges", directed = true, edge_features = ["amount"], edge_time = "day", \
loops = "keep", unlabeled = "unknown", owner = "bank"}
partition = {name = "column"}
"""
BANK = 'data = {path = "$bank", directed = true, edge_features = ["amount"], loops = "keep", ignore = ["edges.kind"], '
BANK += 'edge_normalize = "standard"}'
NUMBERS = 'data = {path = "$numbers", target = "number"}'
LABELS = 'data = {path = "$labels", target = "labels"}'
GINE = 'model = {name = "gine", hidden = 8, directed = "both"}'
EGO = 'model = {name = "gine", hidden = 8, directed = "both", ego_ids = true}'
NOISE = 'algorithm = {name = "fedavg", local_steps = 1, parts = ["uniform", {name = "dp_examples", sigma = 1.0}]}'
NOISE += '\nmodel = {name = "mlp", hidden = 4}'
PREDICT = 'data = {name = "synthetic", nodes = 60, task = "links", external = "predict", rank_negatives = 0}'
FLARE = 'engine = {name = "flare"}'
SAMPLED = 'parts = [{name = "sampled_cross_entropy", batch = 8, fan_out = 2}], local_steps = 2'

# (code, settings in TOML, doors); a door is left out where it does not know enough, or cannot be asked for that.
CASES: list[tuple[str, str, tuple[Door, ...]]] = [
    # the configuration by itself
    ("config.sampled", f"evaluation = {{clients = 2}}\n{FLARE}", ("resolve",)),
    ("config.links", f"{LINKS}\nnoise = {{labels = 0.1}}", ("resolve",)),
    ("config.sites", f"noise = {{labels = 0.1}}\n{FLARE}", ("resolve",)),
    ("config.sites", f"{PREDICT}\n{FLARE}", ("resolve",)),
    ("forget.sites", f'forget = {{clients = ["client-0"]}}\n{FLARE}', ("resolve",)),
    ("forget.noise", 'forget = {clients = ["client-0"]}\nnoise = {features = 0.1}', ("resolve",)),
    (
        "forget.vertical",
        'forget = {clients = ["client-0"]}\nalgorithm = {name = "glasu"}\npartition = {name = "vertical"}',
        ("resolve",),
    ),
    (
        "forget.scaling",
        'forget = {clients = ["client-0"]}\ndata = {path = "$bank", external = "features", normalize = "standard"}',
        ("resolve",),
    ),
    ("config.fold", f"fold = {{of = 3}}\n{FLARE}", ("resolve",)),
    ("config.fold", f"fold = {{of = 3}}\n{LINKS}", ("resolve",)),
    ("config.fold", f"evaluation = {{joint_columns = 3}}\n{LINKS}", ("resolve",)),
    ("config.fold", "evaluation = {joint_columns = 3}\nfold = {of = 3}", ("resolve",)),
    ("config.value", "evaluation = {joint_columns = 1}", ("resolve",)),
    ("config.fold", 'fold = {of = 3}\ninit_from = "earlier"', ("resolve",)),
    ("config.fold", 'fold = {of = 3}\nalgorithm = {name = "glasu"}\npartition = {name = "vertical"}', ("resolve",)),
    ("config.metric", 'evaluation = {metric = "mrr"}', ("resolve",)),
    ("config.metric", f'{LINKS[:-1]}, rank_negatives = 0}}\nevaluation = {{metric = "hits_at_10"}}', ("resolve",)),
    ("config.metric", f'{LINKS}\nevaluation = {{metric = "recall_at_20"}}', ("resolve",)),
    ("config.external", 'data = {name = "synthetic", external = "predict"}', ("resolve",)),
    ("config.shards", 'partition = {name = "shards"}', ("resolve",)),
    ("config.external", f'{PREDICT}\nalgorithm = {{name = "local"}}', ("resolve",)),
    ("config.external", f'{PREDICT}\nalgorithm = {{name = "centralized"}}', ("resolve",)),
    ("config.external", f'{LINKS}\nalgorithm = {{name = "fedavg", parts = ["foreign_ends"]}}', ("resolve",)),
    (
        "model.members",
        'algorithm = {name = "local"}\nmodel = {name = "gine", each = [{}, {ports = true}]}',
        ("resolve",),
    ),
    # what pay follows from
    ("config.pay", "pay = {budget = 100.0}", ("build", "site")),
    ("config.pay", 'pay = {budget = 100.0, by = "equal", cap = 2.0}', ("build", "site")),
    ("config.pay", 'pay = {budget = 100.0, by = "size"}\nalgorithm = {name = "local"}', ("build", "site")),
    (
        "config.pay",
        'pay = {budget = 100.0, by = "validated"}\nalgorithm = {name = "fedavg", parts = ["coalition_value"]}',
        ("build", "site"),
    ),
    # the configuration and the members
    ("user.pools", 'algorithm = {name = "centralized"}', ("site",)),
    ("user.neighbours-unknown", 'algorithm = {name = "fedgcn"}', ("site",)),
    ("model.members", 'model = {name = "gcn", each = [{}, {hidden = 5}]}', ALL),
    ("model.members", 'model = {name = "gcn", each = [{}, {hidden = 5}]}\nalgorithm = {name = "fedper"}', ALL),
    (
        "model.members",
        'model = {name = "gcn", members = {client-0 = {name = "sage"}}}\nalgorithm = {name = "dfedgnn"}',
        ALL,
    ),
    (
        "model.members",
        'model = {name = "gcn", each = [{}, {hidden = 5}]}\nalgorithm = {name = "centralized"}',
        ("build", "python"),
    ),
    ("model.members", 'model = {name = "gcn", members = {client-9 = {hidden = 5}}}\nalgorithm = {name = "local"}', ALL),
    (
        "config.sampled",
        'evaluation = {clients = 2}\nalgorithm = {name = "glasu"}\npartition = {name = "vertical", clients = 3}\n'
        'model = {name = "gcnii"}',
        ("build", "site"),
    ),
    # the algorithm and the data
    ("config.graph-algorithm", 'algorithm = {name = "fairgraphfl"}\nmodel = {name = "gin", pool = "sum"}', ALL),
    ("config.link-algorithm", f'{LINKS}\nalgorithm = {{name = "fedgcn"}}', ("build", "python")),
    ("config.link-algorithm", f'{LINKS}\nalgorithm = {{name = "fedproto"}}', ALL),
    ("config.node-algorithm", f'{LINKS}\nalgorithm = {{name = "adafgl"}}', ("build",)),
    ("config.node-algorithm", f'{GRAPHS}\nalgorithm = {{name = "pooled_gnn"}}', ("build", "python")),
    ("config.node-algorithm", f'{GRAPHS}\nalgorithm = {{name = "fedego"}}', ("build",)),
    ("config.node-algorithm", f'{EDGES}\nalgorithm = {{name = "adafgl"}}', ("build", "site")),
    ("config.class-algorithm", f'{NUMBERS}\nalgorithm = {{name = "fedproto"}}', ALL),
    ("config.class-algorithm", f'{LABELS}\nalgorithm = {{name = "fedproto"}}', ALL),
    ("config.loss-target", f'{NUMBERS}\nalgorithm = {{name = "fedavg", class_weight = "balanced"}}', ALL),
    ("config.loss-target", f'{NUMBERS}\nalgorithm = {{name = "local", focal = 2.0}}', ALL),
    ("config.loss-target", f'{LABELS}\nalgorithm = {{name = "fedavg", logit_adjustment = 1.0}}', ALL),
    ("config.loss-target", f'{LABELS}\nalgorithm = {{name = "local", number_loss = "mae"}}', ALL),
    (
        "config.intervals",
        f'{NUMBERS}\nalgorithm = {{name = "ditto"}}\nevaluation = {{intervals = 0.9}}',
        ("build", "site"),
    ),
    ("config.class-weight", f'{LABELS}\nalgorithm = {{name = "fedavg", class_weight = [1.0, 2.0]}}', ALL),
    ("config.no-sens", 'algorithm = {name = "fairfed"}', ALL),
    ("config.no-sens", 'algorithm = {name = "f2gnn"}', ALL),
    ("config.no-sens", 'algorithm = {name = "fedavg", parts = ["fair_penalty"]}', ALL),
    (
        "data.two-classes",
        'data = {name = "synthetic", nodes = 60, classes = 4, sensitive = true}\nalgorithm = {name = "fairfed"}',
        ALL,
    ),
    ("data.groups", 'data = {path = "$groups"}\nalgorithm = {name = "fairfed"}', ALL),
    ("data.groups", 'data = {path = "$named"}\nalgorithm = {name = "fairfed"}', ALL),
    (
        "config.users",
        f'{LINKS[:-1]}, features = "learned"}}\nalgorithm = {{name = "fede", users = "home"}}\n'
        'model = {name = "embedding"}',
        ALL,
    ),
    # the algorithm and the partition
    ("config.same-nodes", 'algorithm = {name = "glasu"}\nmodel = {name = "gcnii"}', ("build", "python")),
    (
        "config.labels-withheld",
        'partition = {name = "vertical", clients = 3, labels = "first"}\nalgorithm = {name = "local"}',
        ("build", "python"),
    ),
    ("config.columns", 'partition = {name = "vertical", clients = 3}', ("build", "python")),
    (
        "config.columns",
        'partition = {name = "vertical", clients = 3}\nalgorithm = {name = "dfedgnn"}',
        ("build", "python"),
    ),
    (
        "config.timed",
        'data = {path = "$dated", edge_time = "amount", node_time = "when", directed = true, loops = "keep"}\n'
        'partition = {name = "random", clients = 2, split = "time", train_until = 0.5, val_until = 0.7}\n'
        'algorithm = {name = "fedgta"}',
        ALL,
    ),
    # the model and the data
    ("config.pooling", 'model = {name = "gin", pool = "sum"}', ALL),
    ("config.pooling", f"{GRAPHS.replace('sum', 'none')}", ALL),
    # the model and the algorithm
    (
        "config.edge-model",
        f'{BANK}\n{GINE}\nalgorithm = {{name = "glasu"}}\npartition = {{name = "vertical", clients = 1}}',
        ALL,
    ),
    (
        "config.memory",
        f'{EDGES}\nmodel = {{name = "gine", hidden = 4, layers = 12}}\nalgorithm = {{name = "fedavg", '
        f"{SAMPLED.replace('fan_out = 2', 'fan_out = 10')}}}",
        ALL,
    ),
    ("config.whole-graphs", f"{EDGES}\n{EGO}", ALL),
    *(
        ("config.whole-graphs", f'{EDGES}\n{EGO}\nalgorithm = {{name = "{name}", {SAMPLED}}}', ALL)
        for name in ("qfedavg", "fcfl", "moon")
    ),
    ("user.target-rounds", 'rounds = 11\nalgorithm = {name = "dp_fedavg", epsilon = 4.0, target_rounds = 10}', ALL),
    # ε and how the data is scaled
    ("config.scaling", f'{NUMBERS[:-1]}, normalize = "standard"}}\n{NOISE}', ("build", "site")),
    ("config.scaling", f'{NUMBERS[:-1]}, normalize = "auto"}}\n{NOISE}', ALL),
    ("config.scaling", f"{BANK}\n{NOISE}", ALL),
    ("config.target-scaling", f'{NUMBERS[:-1]}, normalize = "none"}}\n{NOISE}', ALL),
    (
        "config.structure",
        f'{NUMBERS[:-1]}, normalize = "none", target_normalize = "none", structure = ["degree"]}}\n{NOISE}',
        ALL,
    ),
    # columns of whole graphs
    ("config.graph-columns", GRAPHS.replace('"sum"', '"sum", graph_features = 1'), ("build",)),
    # what clients hold
    (
        "model.width",
        'algorithm = {name = "fedproto"}\nmodel = {name = "gcn", hidden = 4, members = {client-1 = {hidden = 5}}}',
        ("build", "python"),
    ),
    (
        "model.width",
        'algorithm = {name = "fedtgp"}\nmodel = {name = "gcn", hidden = 4, each = [{}, {name = "sage", hidden = 5}]}',
        ("build", "python"),
    ),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Data of every kind that cases name."""
    root = tmp_path_factory.mktemp("places")
    people = numbers(count=60)
    two = {"y": (people.y[:, 0] > 10).astype(np.int64), "classes": 2, "target_scale": None, "targets": ()}
    odd = replace(people, **two, sensitive=np.arange(60) % 3, target_scaling="none")
    files: dict[str, Dataset] = {
        "numbers": numbers(count=60),
        "labels": several_labels(count=60),
        "groups": odd,
        "named": replace(odd, groups=("north", "Other", "other")),
    }
    for name, data in files.items():
        replace(data, public=None).save(root / f"{name}.npz")
    dated, nodes = bank(root / "dated"), pd.read_csv(root / "dated/nodes.csv")
    nodes.assign(when=np.linspace(1, 2, len(nodes))).to_csv(dated / "nodes.csv", index=False)
    pd.read_csv(dated / "edges.csv").drop(columns="kind").to_csv(dated / "edges.csv", index=False)
    folders = {"dated": dated, "bank": bank(root / "bank"), "transfers": transfers(root / "transfers")}
    return folders | {"graphs": SMALL_GRAPHS} | {name: root / f"{name}.npz" for name in files}


def config_of(text: str, places: Mapping[str, Path], **more: Any) -> Config:
    for name, path in places.items():
        text = text.replace(f"${name}", str(path))
    document: Record = tomllib.loads(BASE) | tomllib.loads(text) | more
    return resolve(document)


def in_python(config: Config) -> object:
    """The same experiment, put together from objects."""
    data, cut, _ = load_data(config)
    kind = on_examples(config.model.make(), data.edge_attrs, data.links, config.decoder)
    net = kind.build(data.features, data.outputs)
    ids = client_ids(len(cut.parts), cut.names)
    models = {}
    for at, name in enumerate(ids):
        if (own := config.member_models.of(name, at)) is not None:
            models[name] = own.make().build(data.features, data.outputs)
    for name in config.member_models.members.keys() - set(ids):
        models[name] = net
    engine = {key: config.engine.values[key] for key in ("mode", "chunk")}
    algorithm = config.algorithm.make(net)
    fed = fedweave.federation(data, cut, algorithm, members=models, **engine)
    return next(iter(fedweave.train(algorithm, fed, config.general.rounds)))


def at_site(config: Config) -> object:
    """What a site does with it, whose data is the first client's."""
    pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
    from fedweave.sites.flare.admission import make_algorithm
    from fedweave.sites.operation.experiments import check_experiment, for_sites

    config = for_sites(config.plain())
    data, cut, _ = load_data(config)
    ids, [own, *_] = client_ids(len(cut.parts), cut.names), shares(data, cut.parts)
    check_experiment(config, ids)
    return make_algorithm(config, ids[0], ids, own, own.features, config.data.values.get("normalize", "none"))


DOORS = {"resolve": lambda config: config, "build": build, "python": in_python, "site": at_site}


@pytest.mark.parametrize(
    ("door", "code", "text"), [(door, code, text) for code, text, doors in CASES for door in doors]
)
def test_what_does_not_go_together_is_refused(door: str, code: str, text: str, places: Mapping[str, Path]) -> None:
    if door != "resolve":
        config = config_of(text, places)
    with refusal(code):
        config_of(text, places) if door == "resolve" else DOORS[door](config)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("text", ["", LINKS, GRAPHS, LABELS, f"{BANK}\n{GINE}"])
def test_what_goes_together_is_taken(door: str, text: str, places: Mapping[str, Path]) -> None:
    assert DOORS[door](config_of(text, places)) is not None


def test_every_requirement_has_a_case() -> None:
    elsewhere = {"config.untrained", "config.outputs"}  # below; of layers from Python (`tests/models`)
    names = {"CODE": "model.members", "NO_LINKS": "config.link-algorithm", "WIDTHS": "model.width"}
    source = inspect.getsource(requirements)
    codes = re.findall(r'"((?:config|data|model|user|forget)\.[a-z-]+)",', source, re.MULTILINE)
    codes += re.findall(r'code="([^"]+)"', source)
    assert {code for code, _, _ in CASES} | elsewhere == {*codes, *names.values()}


def test_a_message_begins_with_a_setting_and_ends_with_a_remedy(places: Mapping[str, Path]) -> None:
    """Whatever the requirement: `section.key…: problem. Remedy.`"""
    for code, text, doors in CASES:
        if doors[0] not in ("resolve", "build"):
            continue
        with pytest.raises(FedweaveError) as error:
            build(config_of(text, places))
        assert error.value.code == code
        where, colon, rest = str(error.value).partition(": ")
        assert colon, code
        assert rest.endswith("."), code
        assert ". " in rest, code
        assert len(where) < 100, code


def test_no_client_trains_without_a_labeled_example(places: Mapping[str, Path], tmp_path: Path) -> None:
    """Neither from the command line nor in Python; `tests/runs/test_cases_of_scores.py` has the sites."""
    masks = np.zeros((3, 60), dtype=bool)
    masks[1, :30], masks[2, 30:] = True, True
    data = replace(load_data(config_of("", places))[0], public=masks)
    data.save(tmp_path / "d.npz")
    text = BASE.replace('name = "synthetic", nodes = 60, features = 8, classes = 2', f'path = "{tmp_path}/d.npz"')
    text = text.replace('name = "random"', 'name = "random", use_dataset_split = true')
    (tmp_path / "e.toml").write_text(text)
    for words in (["check"], ["run", "--out", str(tmp_path / "run")]):
        check_facts(commands.run(words[0], tmp_path / "e.toml", *words[1:], code=2), "no client", "training example")
    with refusal("config.untrained"):
        in_python(resolve(tomllib.loads(text)))
    with refusal("config.untrained"):
        check_training_examples([0, 0])
    check_training_examples([0, None])  # one does not report it
    check_training_examples([0, 1])


def test_one_more_entry_is_met_at_every_door(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: Mapping[str, Path]
) -> None:
    """Nothing else has to be written for a new requirement; `tests/sites/test_checking.py` has the doors of sites."""
    code = "config.even"
    more = (Loaded, lambda loaded: [(code, "data: odd. Add one.")])
    monkeypatch.setattr(requirements, "REQUIREMENTS", (*REQUIREMENTS, more))
    (tmp_path / "e.toml").write_text(BASE)
    for command in (["check", "e.toml"], ["run", "e.toml", "--out", str(tmp_path / "run")]):
        told = commands.run(command[0], tmp_path / command[1], *command[2:], code=2)
        check_facts(told, "data: odd")
    for door in ("build", "python", "site"):
        with refusal(code):
            DOORS[door](config_of("", places))
