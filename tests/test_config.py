"""Configuration: what is refused and how, and that a resolved config resolves to itself."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fedweave.algorithms import parts
from fedweave.algorithms.fedprox import Proximal
from fedweave.errors import ConfigError, command_line
from fedweave.experiment import config
from fedweave.experiment.config import plugins
from tests.refusals import check_facts, refusal


@dataclass(frozen=True)
class Grid:
    """A dataset."""

    size: int = 3
    label: str | None = None


@dataclass(frozen=True)
class Folder:
    """The user's own folder."""


@dataclass(frozen=True)
class Cut:
    """A partition."""

    clients: int = 2
    shares: tuple[float, ...] = (0.5, 0.5)

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"[partition] clients = {self.clients}: must be at least 1.")


@dataclass(frozen=True)
class Net:
    """A model."""

    hidden: int = 8


@dataclass(frozen=True)
class Mean:
    """An algorithm of parts."""

    model: Any
    lr: float = 0.1
    kind: Literal["adam", "sgd"] = "adam"
    parts: tuple[Any, ...] = (parts.CrossEntropy(),)


@dataclass(frozen=True)
class Other:
    """Another algorithm, which shares `lr` and `parts` with `Mean`."""

    model: Any
    lr: float = 0.5
    steps: int = 4
    parts: tuple[Any, ...] = (parts.Uniform(),)


DATASETS = {"grid": Grid, "folder": Folder}
PARTITIONS = {"louvain": Cut}
MODELS = {"gcn": Net}
ALGORITHMS = {"fedavg": Mean, "other": Other}


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"data": "DATASETS", "partition": "PARTITIONS", "model": "MODELS", "algorithm": "ALGORITHMS"}
    for section, attribute in sections.items():
        monkeypatch.setitem(plugins.REGISTRIES, section, (__name__, attribute))


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write


GRID = '[data]\nname = "grid"\n'


def resolved(text: str) -> config.Config:
    return config.resolve(tomllib.loads(text))


def test_missing_sections_take_defaults() -> None:
    found = resolved(GRID).plain()
    assert found == {
        "seed": 0,
        "rounds": 100,
        "eval_every": 1,
        "fair_margin": 0.0,
        "data": {"name": "grid", "size": 3},
        "partition": {"name": "louvain", "clients": 2, "shares": [0.5, 0.5]},
        "model": {"name": "gcn", "hidden": 8},
        "algorithm": {"name": "fedavg", "lr": 0.1, "kind": "adam", "parts": ["cross_entropy"]},
        "engine": {
            "name": "simulation",
            "mode": "vmap",
            "device": "cpu",
            "chunk": 0,
            "record": "auto",
            "checkpoint_seconds": 10.0,
            "threads": 0,
            "dtype": "float32",
            "resend": True,
        },
        "evaluation": {"metric": "auto", "threshold": "auto"},
        "privacy": {},
    }


def test_values_and_parts_reach_the_plugins() -> None:
    found = resolved(
        'seed = 3\n[data]\nname = "grid"\nlabel = "a"\n[partition]\nshares = [1, 0.25]\n[algorithm]\nlr = 1\n'
        'parts = ["cross_entropy", {name = "proximal", mu = 0.5}, "uniform"]\n'
    )
    assert found.general.seed == 3
    assert found.data.make() == Grid(3, "a")
    assert found.partition.make() == Cut(2, (1.0, 0.25))
    assert found.algorithm.make("the model") == Mean(
        "the model", 1.0, "adam", (parts.CrossEntropy(), Proximal(mu=0.5), parts.Uniform())
    )


def test_resolved_config_resolves_to_itself() -> None:
    text = (
        'rounds = 7\neval_every = 0\n[data]\nname = "grid"\n'
        'label = "tab\\t \\"quoted\\" back\\\\slash \\u007f é \\n"\n'
        "[partition]\nshares = [1e-12, 0.1]\n[algorithm]\n"
        'parts = ["cross_entropy", {name = "proximal", mu = 1e22}]\n'
    )
    one = resolved(text)
    written = config.dumps(one.plain())
    assert tomllib.loads(written) == one.plain()
    assert resolved(written) == one


def test_own_folder_needs_no_name_and_survives_the_round_trip() -> None:
    one = resolved('[data]\npath = "my data/here"\n')
    assert (one.data.name, one.folder) == ("folder", "my data/here")
    assert resolved(config.dumps(one.plain())) == one


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[algorithm]\nlr = 'fast'", "value", ["algorithm.lr = 'fast':", "a number"]),
        ("[algorithm]\nlr = true", "value", ["algorithm.lr = True:", "a number"]),
        ("[model]\nhidden = 8.5", "value", ["model.hidden = 8.5:", "a whole number"]),
        ("[model]\nhidden = 2020-01-01", "value", ["model.hidden = ", "type"]),
        (
            "[algorithm]\nkind = 'adma'",
            "value",
            ["algorithm.kind = 'adma':", "'adam' or 'sgd'", "Did you mean 'adam'?"],
        ),
        ("[algorithm]\nlrr = 1", "unknown-key", ["algorithm.lrr:", "kind, parts", "Did you mean 'lr'?"]),
        ("[algorithm]\nmodel = 1", "unknown-key", ["algorithm.model:"]),
        (
            "[algorithm]\nname = 'fedavgg'",
            "unknown-name",
            ["algorithm.name:", "fedavg, other", "Did you mean 'fedavg'"],
        ),
        ("[algorithm]\nname = 3", "unknown-name", ["algorithm.name:", "3", "fedavg, other"]),
        ("[algorithm]\nparts = ['by_sise']", "unknown-name", ["algorithm.parts:", "Did you mean 'by_size'?"]),
        ("[algorithm]\nparts = [{mu = 1}]", "missing", ["algorithm.parts:", "by_size, uniform"]),
        ("[algorithm]\nparts = [{name = 'proximal', mu = 'x'}]", "value", ["algorithm.parts.mu = 'x':", "number"]),
        ("[algorithm]\nparts = [{name = 'proximal', nu = 1}]", "unknown-key", ["algorithm.parts.nu:", "mean 'mu'?"]),
        ("[algorithm]\nparts = [{name = 'proximal', mu = -1}]", "value", ["algorithm.parts.mu = -1:", "at least 0"]),
        ("[algorithm]\nparticipation = 0.5", "unknown-key", ["algorithm.participation:", "calls all clients"]),
        ("[partition]\nclients = 0", "", ["[partition] clients = 0"]),
        ("[engine]\nname = 'flair'", "unknown-name", ["engine.name:", "simulation"]),
        ("[engine]\nchunk = -1", "value", ["engine.chunk = -1:", "at least 0"]),
        ("[privacy]\nepsilon = 1", "unknown-key", ["privacy.epsilon:", "empty"]),
        ("[modle]\nname = 'gcn'", "unknown-key", ["modle:", "partition", "Did you mean 'model'?"]),
        ("[modle]\n[model]\nhidden = 'x'", "", ["modle:", "model.hidden = 'x':"]),
    ],
)
def test_refusal_names_path_value_and_what_is_allowed(text: str, code: str, words: list[str]) -> None:
    refused(GRID + text + "\n", code, words)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", "missing", ["data.name:", "grid, folder", "data.path"]),
        ("rounds = 0\n" + GRID, "value", ["rounds = 0:", "at least 1"]),
        ("seed = -1\n" + GRID, "value", ["seed = -1:"]),
        ("round = 5\n" + GRID, "unknown-key", ["round:", "Did you mean 'rounds'?"]),
        ("data = 'grid'", "value", ["data:", "[data]", "'grid'"]),
        ("[data]\npath = 3", "value", ["data.path:", "3"]),
    ],
)
def test_refusal_at_top_level(text: str, code: str, words: list[str]) -> None:
    refused(text, code, words)


def refused(text: str | Path, code: str, words: list[str], flags: Sequence[str] = ()) -> None:
    """The code of the refusal, without "config.", which is all of it where there is none of its own."""
    with pytest.raises(ConfigError) as error:
        config.read(text, flags) if isinstance(text, Path) else resolved(text)
    assert error.value.code == f"config.{code}".removesuffix(".")
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("algorithm.lr=0.25", ("algorithm", "lr"), 0.25),
        ("algorithm.kind=sgd", ("algorithm", "kind"), "sgd"),
        ("algorithm.kind='sgd'", ("algorithm", "kind"), "sgd"),
        ("rounds = 5", ("rounds",), 5),
        ("partition.shares=[1, 0.0]", ("partition", "shares"), [1.0, 0.0]),
        ("data.path=/some/where", ("data", "path"), "/some/where"),
        ("data.label=a=b", ("data", "label"), "a=b"),
        ("algorithm.parts=[{name = 'uniform'}]", ("algorithm", "parts"), ["uniform"]),
        ("algorithm.parts=uniform", ("algorithm", "parts"), ["uniform"]),
    ],
)
def test_set_takes_toml_or_bare_words(
    toml: Callable[[str], Path], override: str, path: tuple[str, ...], value: Any
) -> None:
    found, _ = config.read(toml(GRID), [override])
    node = found.plain()
    for key in path:
        node = node[key]
    assert node == value


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("algorithm.lr", "flag", ["section.key=value"]),
        ("algorithm..lr=1", "flag", ["section.key=value"]),
        ("algorithm.lr=quick", "value", ["algorithm.lr = 'quick':", "number"]),
        ("algorithm.lrr=1", "unknown-key", ["Did you mean 'lr'?"]),
        ("partition.clients=0", "", ["at least 1"]),
        ("data.name.size=1", "flag", ["data.name is 'grid'"]),
    ],
)
def test_set_errors_name_the_flag(toml: Callable[[str], Path], override: str, code: str, words: list[str]) -> None:
    with command_line():
        refused(toml(GRID), code, [f"--set {override}:", *words], [override])


def test_error_elsewhere_does_not_blame_the_flag(toml: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"^model\.hidden = 'x':"):
        config.read(toml(GRID + "[model]\nhidden = 'x'"), ["algorithm.lr=1"])


def test_another_algorithm_keeps_shared_keys_and_names_the_dropped(toml: Callable[[str], Path]) -> None:
    path = toml(GRID + "[algorithm]\nlr = 0.2\nkind = 'sgd'\nparts = ['cross_entropy']\n")
    found, notes = config.read(path, ["algorithm.steps=9"], algorithm="other")
    assert found.plain()["algorithm"] == {"name": "other", "lr": 0.5, "steps": 9, "parts": ["cross_entropy"]}
    assert [part for part in ("not take kind", "lr = 0.5 (not 0.2)", "keeps parts of") if part in " ".join(notes)] == [
        "not take kind", "lr = 0.5 (not 0.2)", "keeps parts of",
    ]  # fmt: skip
    found, notes = config.read(path, ["algorithm.lr=0.3"], algorithm="other")
    assert found.plain()["algorithm"]["lr"] == 0.3
    check_facts(" ".join(notes), "lr = 0.3 (not 0.2)")


def test_the_same_algorithm_keeps_all_and_nothing_is_said(toml: Callable[[str], Path]) -> None:
    path = toml(GRID + "[algorithm]\nlr = 0.2\nkind = 'sgd'\n")
    found, notes = config.read(path, algorithm="fedavg")
    assert (found.plain()["algorithm"]["lr"], found.plain()["algorithm"]["kind"], notes) == (0.2, "sgd", [])


def test_another_algorithm_does_not_hide_a_typo(toml: Callable[[str], Path]) -> None:
    with refusal("config.unknown-key", "algorithm.kindd", "'kind'"):
        config.read(toml(GRID + "[algorithm]\nkindd = 'sgd'\n"), algorithm="other")
    with refusal("config.unknown-name", "--algorithm", "'other'"):
        config.read(toml(GRID), algorithm="othre")


def test_unreadable_files(toml: Callable[[str], Path], tmp_path: Path) -> None:
    refused(toml("rounds = \n"), "unreadable", ["line 1"])
    refused(tmp_path / "experimant.toml", "no-file", ["Did you mean 'experiment.toml'"])
    refused(tmp_path, "unreadable", [])


def test_differences_names_paths() -> None:
    one = {"seed": 0, "data": {"name": "a", "size": 1}, "model": {"name": "x"}}
    other = {"seed": 0, "data": {"name": "a", "size": 2, "label": "b"}, "rounds": 3, "model": {"name": "x"}}
    assert config.differences(one, other) == ["data.label", "data.size", "rounds"]
    assert config.differences(one, one) == []


def test_all_faults_are_told_at_once_and_the_first_twenty_shown() -> None:
    """Of every section, each with its path; nothing is said of what is right."""
    text = "seed = -1\nround = 3\n[data]\nname = 'gird'\n[model]\nhiden = 3\nhidden = 'x'\n[privacy]\na = 1\n"
    with pytest.raises(ConfigError) as error:
        resolved(text)
    heads = [re.split("[: ]", line)[0] for line in str(error.value).splitlines()]
    assert heads == ["round", "seed", "data.name", "model.hiden", "model.hidden", "privacy.a"]
    with pytest.raises(ConfigError) as error:
        resolved(GRID + "[model]\n" + "\n".join(f"key_{at} = 1" for at in range(25)))
    assert str(error.value).splitlines()[19:] == [error.value.args[19], "and 5 more faults"]


def test_every_fault_that_a_flag_causes_names_it(toml: Callable[[str], Path]) -> None:
    flags = ["algorithm.lr=quick", "model.hidden=wide", "seed=3"]
    with pytest.raises(ConfigError) as error:
        config.read(toml(GRID + "[model]\nhidden = 2\n[engine]\nchunk = -1\n"), flags)
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "--set model.hidden=wide",
        "--set algorithm.lr=quick",
        "engine.chunk = -1",
    ]


def test_what_a_name_begins_with_is_nearest() -> None:
    valid = ("report", "reproduce", "run")
    assert [config.nearest(name, valid) for name in ("repro", "reprot", "zzz")] == [
        " Did you mean 'reproduce'?",
        " Did you mean 'report'?",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "valid", "meant"),
    [
        ("auprc", ("auc", "average_precision"), "average_precision"),
        ("auprc", ("auc", "accuracy"), "auc"),  # where there is no average precision
        ("learning_rate", ("lr", "warmup"), "lr"),
    ],
)
def test_another_librarys_name_leads_to_ours(name: str, valid: tuple[str, ...], meant: str) -> None:
    assert config.nearest(name, valid) == f" Did you mean {meant!r}?"


def test_a_name_of_which_half_the_letters_are_others_is_not_near() -> None:
    """What it is called by a remedy must not be another thing."""
    keys = ("own_reduction", "share_reduction", "aggregation")
    assert config.nearest("participation", keys) == ""
    assert config.nearest("agregation", keys) == " Did you mean 'aggregation'?"


def test_a_key_at_the_wrong_place_is_told_where_it_belongs() -> None:
    for key, meant in (
        ("lr = 0.1", "algorithm.lr"),
        ("hidden = 8", "model.hidden"),
        ("clients = 3", "partition.clients"),
    ):
        with pytest.raises(ConfigError) as error:
            resolved(f"{key}\n{GRID}")
        check_facts(str(error.value), f"'{meant}'")


def test_a_run_of_sites_says_which_sections_they_did_not_use() -> None:
    chosen = resolved(GRID + "[engine]\nname = 'flare'\n")
    text = config.to_toml(chosen.plain())
    remark = "# Of simulations: every site read its own data and split, as its own site.toml says.\n"
    assert text.count("#") == text.count(remark) == 2
    assert remark + "[data]\n" in text
    assert remark + "[partition]\n" in text
    assert resolved(text) == chosen
    assert "#" not in config.to_toml(resolved(GRID).plain())


@pytest.mark.parametrize(("raw", "value"), [(".05", 0.05), ("-.5", -0.5), ("+.5", 0.5), ("9" * 5000, "9" * 5000)])
def test_numbers_as_people_write_them(raw: str, value: object) -> None:
    """Thousands of digits are not a number that TOML has."""
    document: config.Document = {}
    config.override(document, f"algorithm.lr={raw}")
    assert document == {"algorithm": {"lr": value}}


def test_who_exchanges_a_plugin_is_told_how_to_leave_out_the_keys_of_the_other(toml: Callable[[str], Path]) -> None:
    path = toml(GRID + "[algorithm]\nname = 'other'\nsteps = 2\n")
    with pytest.raises(ConfigError) as error:
        config.read(path, ["algorithm.name=fedavg"])
    told = 'algorithm.steps: unknown key. It is a key of other (algorithm.name = "other"). The keys of fedavg are'
    assert told in str(error.value)
    remedy = str(error.value).splitlines()[-1]
    assert remedy.startswith("--set algorithm.name=fedavg keeps the other keys of [algorithm]")
    whole = remedy.partition("write --set '")[2].removesuffix("'")
    assert config.read(path, [whole])[0].algorithm.name == "fedavg"
    with refusal("config.unknown-key"):
        config.read(path, ["algorithm.step=3"])


@pytest.mark.parametrize("name", ["evaluation", "algorithm", "pay"])
def test_a_key_of_the_top_level_in_a_section_is_said_to_be_one(toml: Callable[[str], Path], name: str) -> None:
    with refusal("config.unknown-key", f"{name}.eval_every", "top level", "eval_every = "):
        config.read(toml(GRID), [f"{name}.eval_every=auto"])


@pytest.mark.parametrize("document", [{"engine": {"gpu": True}}, {"device": "cuda"}, {"engine": {"gpus": 1}}])
def test_who_looks_for_gpus_hears_where_they_are_set(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device"):
        config.resolve({"data": {"name": "digits"}, **document})
