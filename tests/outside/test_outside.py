"""Plug-ins from files and from installed packages run like those of fedweave, or are refused by name."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedweave.algorithms import FedAvg
from fedweave.cli.contract import verdict
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core import plugins, random
from fedweave.core.graph import make_graph
from fedweave.errors import ConfigError
from fedweave.experiment import config
from fedweave.experiment.rounds import train
from fedweave.models import GCN, module
from fedweave.python.training import load_run
from tests.commands import refuse, run
from tests.contract.federations import CLASSES, FEATURES, arrays, distance, federation
from tests.refusals import refusal

DATA = {"name": "synthetic"}
PLUGINS = Path(__file__).parent / "plugins.py"
DOCUMENT = f"""
rounds = 2
[data]
name = "{PLUGINS}:Path"
nodes = 24
[partition]
name = "{PLUGINS}:Thirds"
[model]
name = "{PLUGINS}:Net"
hidden = 3
[algorithm]
local_steps = 1
[engine]
threads = 1
"""


def test_everything_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a relative name, which the run's config.toml keeps as one that holds in any folder."""
    (tmp_path / "own.toml").write_text(DOCUMENT)
    (tmp_path / "mine.py").write_text(PLUGINS.read_text())
    monkeypatch.chdir(tmp_path)
    run("run", "own.toml", "--algorithm", "mine.py:FedAvgM", "--set", "algorithm.beta=0.25", "-q")
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name == "own-FedAvgM-s0"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["algorithm"], summary["dataset"], summary["clients"]) == ("FedAvgM", "path", 3)
    monkeypatch.chdir("/")
    saved, _ = config.read(folder / "config.toml")
    assert saved.algorithm.name == f"{tmp_path / 'mine.py'}:FedAvgM"
    assert (saved.algorithm.values["beta"], saved.model.values["hidden"]) == (0.25, 3)
    run("run", str(folder / "config.toml"), "--out", str(tmp_path / "again"), "-q")
    again = json.loads((tmp_path / "again/summary.json").read_text())
    assert again["metrics"] == summary["metrics"]
    assert re.search(r"beta\b.*0\.5", run("list", "algorithms", f"{PLUGINS}:FedAvgM"))
    run("report", str(folder))
    assert (folder / "report.html").read_text().count("FedAvgM")


@pytest.mark.parametrize(
    ("plugin", "how", "code", "fact"),
    [
        ("data.name=OddPath", "one way", "data.edge", "edge_index"),
        ("data.name=OddPath", "infinite", "data", "nan"),
        ("data.name=OddPath", "pair", "data", "tuple"),
        ("data.name=OddPath", "raises", "data", "KeyError: 'income'"),
        ("partition.name=Careless", "twice", "config", "client 0"),
        ("partition.name=Careless", "short", "config", "client 0: masks are bool [3, 7]"),
        ("partition.name=Careless", "beyond", "config", "client 0: nodes are not all in 0..23"),
        ("partition.name=Careless", "falling", "config", "client 0: nodes are not rising"),
        ("partition.name=Careless", "tuple", "config", "client 0: it is tuple"),
        ("partition.name=Careless", "test", "config", "global test"),
        ("partition.name=Careless", "raises", "config", "KeyError: 'raises'"),
    ],
)
def test_data_and_partitions_of_ones_own_keep_their_promises_or_are_refused(
    plugin: str, how: str, code: str, fact: str, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(DOCUMENT)
    key, _, name = plugin.partition("=")
    words = ["--set", f"{key}={PLUGINS}:{name}", "--set", f"{key.partition('.')[0]}.how={how}"]
    refuse(["check", tmp_path / "own.toml", "--trust", *words], code, name, fact)


def test_a_strangers_run_runs_no_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a run has not named the files that its configuration names."""
    (tmp_path / "own.toml").write_text(DOCUMENT)
    (tmp_path / "mine.py").write_text(PLUGINS.read_text())
    monkeypatch.chdir(tmp_path)
    run("run", "own.toml", "--algorithm", "mine.py:FedAvgM", "--out", "strange", "-q")
    marker, evil = tmp_path / "marker", tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w').close()\n" + PLUGINS.read_text())
    saved = tmp_path / "strange/config.toml"
    saved.write_text(saved.read_text().replace("mine.py", "evil.py"))
    for words in (["predict", "strange"], ["export", "strange"], ["contributions", "strange"], ["attack", "strange"]):
        refuse(words, "user.untrusted", str(evil))
    with refusal("user.untrusted", "file: FEDWEAVE_FILES="):
        load_run("strange")
    assert not marker.exists()
    monkeypatch.setenv("FEDWEAVE_FILES", f"{PLUGINS}{os.pathsep}{evil}")
    run("predict", "strange")
    assert marker.exists()


def test_a_look_at_a_configuration_runs_no_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` is for configurations of others, too; what its user names on the command line is the user's own."""
    marker, evil = tmp_path / "marker", tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w').close()\n" + PLUGINS.read_text())
    (tmp_path / "own.toml").write_text(DOCUMENT)
    (tmp_path / "theirs.toml").write_text(DOCUMENT.replace("[algorithm]", f'[algorithm]\nname = "{evil}:FedAvgM"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWEAVE_FILES", str(PLUGINS))
    refuse(["check", "theirs.toml"], "user.untrusted", str(evil), "--trust")
    assert not marker.exists()
    run("check", "theirs.toml", "--trust")
    assert marker.exists()
    run("check", "own.toml", "--algorithm", f"{evil}:FedAvgM")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("nowhere.py:FedAvgM", ("nowhere.py",)),
        ("mine.py", ("mine.py:Name",)),
        (f"{PLUGINS}:Absent", ("Absent", "FedAvgM, Undeclared")),
        (f"{PLUGINS}:helper", ("init, round, evaluate",)),
        (f"{PLUGINS}:Thirds", ("init, round, evaluate",)),
        (f"{PLUGINS}:Bare", ("@preset",)),
        (f"{PLUGINS}:Hidden", (f'algorithm.parts = ["{PLUGINS}:Hidden"]',)),
        (f"{PLUGINS}:Forgetful", ("no evaluate",)),
        (f"{PLUGINS}:Inheriting", ("beta", "@dataclass(frozen=True)")),
    ],
)
def test_what_is_no_plugin_is_refused_by_name(name: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(DOCUMENT)
    refuse(["run", tmp_path / "own.toml", "--algorithm", name], "config", "--algorithm", *facts)


def test_a_file_that_cannot_be_run_is_refused_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("\nimport nothing_of_this_name")
    with refusal("config.code", "bad.py", "run: ModuleNotFoundError:", "'nothing_of", "(bad.py, line 2)"):
        plugins.load(f"{tmp_path / 'bad.py'}:X")


def test_a_file_that_ends_the_process_is_refused(tmp_path: Path) -> None:
    """A script without its guard ended the command with exit code 0, as if it had done its work."""
    (tmp_path / "own.toml").write_text(DOCUMENT)
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)")
    words = ["run", tmp_path / "own.toml", "--algorithm", f"{tmp_path}/script.py:X"]
    refuse(words, "config", "script.py", "SystemExit: 0")


def test_a_preset_of_no_dataclass_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from fedweave.algorithms.preset import preset\n@preset\nclass Mine:\n    def parts(self): return ()\n"
    )
    with refusal("config.code", "dataclass: write @dataclass(frozen=True)"):
        plugins.load(f"{tmp_path / 'bad.py'}:Mine")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path that announces plug-ins."""
    (tmp_path / "shop_plugins.py").write_text(PLUGINS.read_text())
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    groups = {"algorithms": "FedAvgM", "datasets": "Path", "partitions": "Thirds", "models": "Net", "parts": "Hidden"}
    lines = [f"[fedweave.{group}]\nshop_{group} = shop_plugins:{name}\n" for group, name in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.entry_point_plugins.cache_clear()
    yield info
    plugins.entry_point_plugins.cache_clear()
    sys.modules.pop("shop_plugins", None)


def test_installed_packages_announce_plugins(installed: Path, tmp_path: Path) -> None:
    for kind in ("algorithms", "datasets", "partitions", "models", "parts"):
        assert any(line.strip().startswith(f"shop_{kind} ") for line in run("list", kind).splitlines())
    document = {"data": {"name": "shop_datasets"}, "model": {"name": "shop_models"}}
    document |= {"algorithm": {"name": "shop_algorithms", "parts": ["shop_parts"]}}
    found = config.resolve(document | {"partition": {"name": "shop_partitions"}})
    assert config.resolve(found.plain()) == found
    (installed / "entry_points.txt").write_text("[fedweave.algorithms]\nfedavg = shop_plugins:FedAvgM\n")
    plugins.entry_point_plugins.cache_clear()
    refuse(["list", "algorithms"], "config", "'fedavg'")
    (installed / "entry_points.txt").write_text("[fedweave.algorithms]\nbroken = shop_plugins:Missing\n")
    plugins.entry_point_plugins.cache_clear()
    refuse(["list", "algorithms"], "config", "'broken' of shop")


def net(name: str = "Net", **values: object) -> tuple[object, ...]:
    return module.ModuleKind(plugins.load(f"{PLUGINS}:{name}"))(**values).build(FEATURES, CLASSES)  # type: ignore[return-value]


def test_a_module_of_ones_own_trains_like_the_same_model_here() -> None:
    """Convolutions edge by edge against ours, from the same weights, in double precision."""
    own, ours = net(hidden=8), GCN(hidden=8, dropout=0.0).build(FEATURES, CLASSES)
    ends = []
    for model in (own, ours):
        fed = federation(dtype=torch.float64, mode="loop")
        made = FedAvg(model, local_steps=2, optimizer="sgd", lr=0.1)
        state = made.init(fed)
        w = {
            f"{k}/{name}": torch.full(size, 0.1, dtype=torch.float64) + 0.01 * torch.arange(size[-1])
            for k, name, size in SIZES
        }
        if model is own:
            state["w"] = {"0": named(w)}
        else:
            state["w"] = {layer: {name: w[f"{layer}/{name}"] for name in ("weight", "bias")} for layer in "01"}
        *_, last = train(made, fed, 3, resume=(0, state))
        ends.append(last)
    assert ends[0].summary["global/loss"] == pytest.approx(ends[1].summary["global/loss"], abs=1e-9)
    found, expected = ends[0].state["w"]["0"], ends[1].state["w"]
    assert distance(found, named({f"{k}/{name}": expected[k][name] for k, name, _ in SIZES})) <= 1e-9


SIZES = [("0", "weight", (FEATURES, 8)), ("0", "bias", (8,)), ("1", "weight", (8, CLASSES)), ("1", "bias", (CLASSES,))]


def named(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names that the module gives them."""
    names = {"0": "first", "1": "second"}
    return {f"{own}.lin.bias": w[f"{layer}/bias"] for layer, own in names.items()} | {
        f"{own}.lin.weight": w[f"{layer}/weight"].T.contiguous() for layer, own in names.items()
    }


def test_first_weights_and_dropout_come_from_the_runs_keys() -> None:
    before = torch.get_rng_state()
    ends = []
    for _ in range(2):
        fed = federation(mode="loop", seed=3)
        *_, last = train(FedAvg(net(hidden=4, dropout=0.5), local_steps=1), fed, 2)
        ends.append(last.state)
        torch.rand(3)
    assert distance(*ends) == 0
    torch.set_rng_state(before)


def test_a_module_with_frozen_weights_is_refused() -> None:
    with refusal("config.module-weights", "(fixed.weight)"):
        net("Frozen")


@pytest.mark.parametrize(
    ("name", "code", "fact"),
    [
        ("Wide", "outputs", "[3, 5]"),
        ("Pooled", "outputs", "[3]"),
        ("Edgeless", "outputs", "[3, 5]"),
        ("Caching", "state", "cached = False"),
        ("Chancy", "state", "training=self.training"),
        ("Lazy", "weights", "(out.weight, out.bias)"),
        ("Weightless", "weights", ""),
        ("Unfitting", "fails", "plugins.py, line"),
    ],
)
def test_a_module_without_logits_for_every_node_is_refused_before_it_trains(name: str, code: str, fact: str) -> None:
    with refusal(f"config.module-{code}", name, fact):
        net(name)


def test_a_module_sees_no_padding() -> None:
    """Layers that compare all nodes, such as PyG's LayerNorm, give what they give by themselves, whatever the rows."""
    x, edges, y, masks = arrays(21, 0)
    own = net("Centered")
    w = models.init(own, random.key(0))  # type: ignore[arg-type]
    for rows in (32, 64):
        graph = make_graph(x, edges, y, masks, rows=rows)
        out = models.apply(own, w, graph)  # type: ignore[arg-type]
        assert out.shape == (rows, CLASSES)
        dense = torch.from_numpy(x.toarray())
        alone = (dense - dense.mean(0)) @ w["0"]["out.weight"].T + w["0"]["out.bias"]
        torch.testing.assert_close(out[:21], alone)
        assert not out[21:].any()


def subject(name: str) -> Subject:
    return Subject(config.lookup("", "algorithm", f"{PLUGINS}:{name}")[1], {"local_steps": 1})


@pytest.mark.slow
def test_every_law_holds_for_an_honest_algorithm_from_a_file() -> None:
    said = run("contract", f"{PLUGINS}:FedAvgM", "--set", "beta=0.25").splitlines()
    assert [line.split()[0] for line in said] == [*["holds"] * (len(LAWS) - 1), "declared"]


def test_the_command_says_what_holds_and_what_is_declared_not_to() -> None:
    laws = ("a_missing_client_is_named", "one_client_is_ordinary_training")
    words = [word for law in laws for word in ("--law", law)]
    said = run("contract", f"{PLUGINS}:FedAvgM", *words).splitlines()
    assert said[0].split(maxsplit=1) == ["holds", "a missing client is named"]
    assert said[1].startswith("declared")
    assert said[1].endswith("does not hold, the server's step has momentum")
    said = run("contract", f"{PLUGINS}:Undeclared", *words[2:], code=1)
    assert said.startswith("BROKEN   one client is ordinary training")
    refuse(["contract", "fedavg", "--law", "x"], "config.unknown-name", "--law", "'x'")


def test_what_breaks_every_law_is_said_once() -> None:
    laws = ("nothing_but_bytes_passes", "clients_are_isolated", "training_lowers_the_loss")
    said = run("contract", f"{PLUGINS}:Broken", *(word for law in laws for word in ("--law", law)), code=1)
    assert said.count("these weights are for three clients") == 1
    assert said.count("as “nothing but bytes passes”") == 2


@pytest.mark.parametrize("law", ["the_same_seed_gives_the_same_run", "clients_are_isolated"])
def test_dishonest_algorithms_are_found_out(law: str) -> None:
    assert verdict(subject("Dishonest"), law).startswith("BROKEN")


def test_one_client_is_ordinary_training_where_a_part_of_the_model_stays_at_home() -> None:
    """And where what is kept is not a GCN, that is said."""
    for share in (("0/*",), ("*/bias",)):
        assert verdict(Subject(FedAvg, {"share": share}), "one_client_is_ordinary_training") == "holds"

    class OfSage(FedAvg):
        test_settings: ClassVar = {"model": "sage"}

    assert verdict(Subject(OfSage), "one_client_is_ordinary_training").startswith("BROKEN")


def test_the_contract_has_data_for_every_kind_of_algorithm() -> None:
    """One that needs the same nodes at every client, and one of small graphs."""
    said = run("contract", "glasu", "--law", "a_quorum_carries_the_round", "--law", "a_missing_client_is_named")
    assert [line.split()[0] for line in said.splitlines()] == ["declared", "holds"]
    assert run("contract", "fedstar", "--law", "a_missing_client_is_named").startswith("holds")


def test_a_law_whose_settings_an_algorithm_refuses_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own settings refused none can be tried."""

    def refused(subject: Subject) -> None:
        raise ConfigError("the algorithm refuses its settings: it needs sgd")

    class OfOwn:
        exemptions: ClassVar[dict[str, str]] = {}
        refuses = False

        def build(self) -> None:
            if self.refuses:
                raise ConfigError("lr is -1")

    monkeypatch.setitem(LAWS, "one_client_is_ordinary_training", refused)
    subject = OfOwn()
    assert verdict(subject, "one_client_is_ordinary_training").startswith("BROKEN")
    subject.refuses = True
    with refusal("config", "lr is -1"):
        verdict(subject, "one_client_is_ordinary_training")


@pytest.mark.parametrize(
    ("model", "settings", "fact"),
    [
        (f"{PLUGINS}:Net", {"name": "fedsage"}, "torch.nn.Module"),
        (f"{PLUGINS}:Net", {"name": "fedsage_plus"}, "torch.nn.Module"),
        (f"{PLUGINS}:Net", {"name": "standalone"}, "torch.nn.Module"),
        (f"{PLUGINS}:Net", {"name": "glasu"}, "torch.nn.Module"),
        (f"{PLUGINS}:Net", {"name": "fairaug"}, "torch.nn.Module"),
        (f"{PLUGINS}:Net", {"name": "fedavg", "parts": ["dp_examples"]}, "dp_examples"),
        ("gat", {"name": "fairaug"}, "attention"),
    ],
)
def test_a_model_is_refused_where_it_would_read_edges_of_other_nodes(
    model: str, settings: dict[str, Any], fact: str
) -> None:
    """FedSage trained one on the sampled rows of x and the edges of all nodes, without a word where there were as many;
    dp_examples stated an ε that holds only without message passing, which a module may do unseen."""
    sections = {"data": DATA, "model": {"name": model}, "algorithm": settings}
    with refusal("config.value", str(settings["name"]), fact):
        config.resolve(sections).check_made()
