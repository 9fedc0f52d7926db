"""The command line as its user meets it: exit codes, messages, and files or their absence."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from fedweave.algorithms import ALGORITHMS, GROUPS
from fedweave.cli import app
from fedweave.cli.options import command_line
from fedweave.experiment import config
from fedweave.reports import terminal
from fedweave.sweeps.plan import plan_runs
from tests import commands
from tests.commands import call as fedweave
from tests.refusals import check_facts

EXPERIMENTS = Path(__file__).parents[1] / "experiments"

DATA = Path(os.environ.get("FEDWEAVE_DATA", Path(__file__).parents[1] / "../shared/data"))


SMALL = commands.SMALL.replace("nodes = 90", "nodes = 60").replace("[engine]", "participation = 1.0\n[engine]")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def test_run_shows_and_writes(small: Path) -> None:
    code, out, err = fedweave("run", "small.toml")
    assert (code, err) == (0, "")
    assert (
        "synthetic (60 nodes) · 3 clients by louvain · fedavg · gcn · simulation (vmap, cpu, float32) · seed 0" in out
    )
    check_facts(out, "3/3")
    summary = json.loads((small / "runs/small-fedavg-s0/summary.json").read_text())
    for name in ("global/accuracy", "local/accuracy"):
        check_facts(out, f"{summary['metrics'][name]:.4f}")
    check_facts(out, "runs/small-fedavg-s0")


def test_verbose_tells_what_is_not_recorded_and_why(small: Path) -> None:
    words = ("run", "small.toml", "--set", "rounds=8", "--set", "engine.record='always'", "--quiet", "--set")
    for sampled in ("algorithm.participation=0.7", "partition.clients=3"):
        err = commands.run(*words, sampled, "--verbose", "--overwrite")
        assert ("FedAvg.round is not recorded as a whole" in err) == ("participation" in sampled)
    assert fedweave(*words, "algorithm.participation=0.7", "--overwrite") == (0, "", "")


SMALL_GRAPHS = """
rounds = 20
eval_every = 5
[data]
name = "tu"
path = "collection"
[partition]
name = "graphs_iid"
clients = 3
[model]
name = "gin"
hidden = 4
layers = 2
pool = "sum"
[algorithm]
local_steps = 1
[engine]
threads = 1
"""


@pytest.fixture
def collection(small: Path) -> Path:
    """40 small graphs in the TU layout, cycles and paths of 3 to 7 nodes, and an experiment on them."""
    edges, owner, first = [], [], 1
    for graph in range(40):
        nodes = 3 + graph // 2 % 5
        ring = [(first + i, first + (i + 1) % nodes) for i in range(nodes - graph % 2)]
        edges += [f"{a}, {b}" for pair in ring for a, b in (pair, pair[::-1])]
        owner += [graph + 1] * nodes
        first += nodes
    written = {"A": edges, "graph_indicator": owner, "graph_labels": [graph % 2 for graph in range(40)]}
    (small / "collection").mkdir()
    for stem, lines in written.items():
        (small / f"collection/RINGS_{stem}.txt").write_text("".join(f"{line}\n" for line in lines))
    (small / "graphs.toml").write_text(SMALL_GRAPHS)
    return small


@pytest.mark.often("fedavg-3")
@pytest.mark.parametrize(("algorithm", "clients"), [("fedavg", 3), ("local", 3), ("centralized", 1)])
def test_small_graphs_from_a_folder(collection: Path, algorithm: str, clients: int) -> None:
    """A tenth of the 40 graphs is the server's, and one of each client's 12 tests: accuracies count whole graphs."""
    code, out, err = fedweave("run", "graphs.toml", "--algorithm", algorithm, "--out", "here")
    assert (code, err) == (0, "")
    assert (
        f"RINGS (40 graphs, 200 nodes) · {clients} client{'s' * (clients > 1)} by graphs_iid · {algorithm} · gin" in out
    )
    final = json.loads((collection / "here/summary.json").read_text())["metrics"]
    models = clients if algorithm == "local" else 1
    for name, graphs in (("global/accuracy", 4 * models), ("local/accuracy", 3)):
        assert final[name] * graphs == pytest.approx(round(final[name] * graphs), abs=1e-9)
    rows = pq.read_table(collection / "here/metrics.parquet").to_pylist()
    sums: dict[int, float] = {}
    for row in rows:
        if (row["metric"], row["split"]) == ("loss", "train") and row["client"] != "global":
            sums[row["round"]] = sums.get(row["round"], 0) + row["value"]
    assert sums[20] < sums[5]


def test_what_joins_nodes_of_small_graphs_is_chosen_and_written_down(collection: Path) -> None:
    for model, pool in (("gin", "sum"), ("gcn", "mean")):
        plain = f'--set=model={{name = "{model}", hidden = 4, layers = 2}}'
        assert fedweave("run", "graphs.toml", plain, "--set=rounds=2", "--out", model, "--quiet") == (0, "", "")
        check_facts((collection / model / "config.toml").read_text(), f'pool = "{pool}"')


def test_mini_batches_of_small_graphs(collection: Path) -> None:
    parts = '--set=algorithm.parts=[{name = "graph_cross_entropy", batch = BATCH}]'
    assert fedweave("run", "graphs.toml", parts.replace("BATCH", "4"), "--out", "here", "--quiet") == (0, "", "")
    summary = json.loads((collection / "here/summary.json").read_text())
    assert summary["metrics"]["trained/loss"] > 0
    check_facts(commands.run("run", "graphs.toml", parts.replace("BATCH", "0"), code=2), "batch = 0:", "at least 1")
    check_facts(commands.run("run", "small.toml", parts.replace("BATCH", "4"), code=2), "model.pool", "'sum' or 'mean'")


def test_second_run_is_refused_and_resume_says_finished(small: Path) -> None:
    assert fedweave("run", "small.toml", "--out", "here", "--quiet") == (0, "", "")
    before = {path: path.stat().st_mtime_ns for path in (small / "here").rglob("*")}
    check_facts(commands.run("run", "small.toml", "--out", "here", code=2), "--resume")
    check_facts(commands.run("run", "small.toml", "--out", "here", "--resume"), "3 of 3")
    assert {path: path.stat().st_mtime_ns for path in (small / "here").rglob("*")} == before


def test_resume_of_nothing_starts_and_set_reaches_the_run(small: Path) -> None:
    assert fedweave("run", "small.toml", "--resume", "--set", "seed=4", "--set", "rounds=1", "-q")[0] == 0
    summary = json.loads((small / "runs/small-fedavg-s4/summary.json").read_text())
    assert (summary["seed"], summary["rounds"]) == (4, 1)


def test_another_algorithm_says_what_it_drops(small: Path) -> None:
    check_facts(commands.run("run", "small.toml", "--algorithm", "local", "--quiet"), "local", "participation")
    saved, _ = config.read(small / "runs/small-local-s0/config.toml")
    assert saved.algorithm.values["local_steps"] == 1


def test_another_algorithm_drops_values_that_it_cannot_have(small: Path) -> None:
    """q-FedAvg is defined for SGD alone; the experiment's Adam is dropped, and that is said."""
    (small / "small.toml").write_text(SMALL.replace("[algorithm]", '[algorithm]\noptimizer = "adam"'))
    check_facts(commands.run("run", "small.toml", "--algorithm", "qfedavg", "--out", "q"), "optimizer")
    assert config.read(small / "q/config.toml")[0].algorithm.values["optimizer"] == "sgd"


def test_another_algorithm_trains_at_its_own_pace_unless_told_otherwise(small: Path) -> None:
    """In runs, checks and sweeps; Adam's learning rate is none for SGD."""
    (small / "small.toml").write_text(SMALL.replace("[algorithm]", "[algorithm]\nlr = 0.02"))
    own = config.parameters("algorithm", ALGORITHMS["qfedavg"])["lr"].default
    for name, more, due in (("own", [], own), ("told", ["--set", "algorithm.lr=0.7"], 0.7)):
        check_facts(
            commands.run("run", "small.toml", "--algorithm", "qfedavg", "--out", name, *more),
            f"lr = {due} (not 0.02)",
            "local_steps = 1",
        )
        assert config.read(small / name / "config.toml")[0].algorithm.values["lr"] == due
    check_facts(fedweave("check", "small.toml", "--algorithm", "qfedavg")[1], f"lr = {own} (not 0.02)")
    runs, notes = plan_runs(small / "small.toml", small / "s", "0", "fedavg,qfedavg", [], [])
    assert [run.config.algorithm.values["lr"] for run in runs] == [0.02, own]
    check_facts(" ".join(notes), f"lr = {own} (not 0.02)")


def test_an_experiment_to_start_from_leaves_every_algorithm_its_pace() -> None:
    """`lr` there would hold for whatever algorithm somebody names in its place."""
    for name in ("digits", "nodes", "members", "fedavg-cora"):
        assert not config.load(EXPERIMENTS / f"{name}.toml")["algorithm"].keys() & {"lr", "optimizer"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("algorithm.local_step=3", "Did you mean 'local_steps'?"),
        ("algorithm.local_steps=0", "algorithm.local_steps = 0: must be a whole number from 1 to"),
        ("partition.name=zzz model.name=gcn", "--set partition.name=zzz: partition"),
        ("rounds=0 engine.threads=3", "--set rounds=0: rounds = 0: must be a whole number of at least 1."),
        ("algorithm.lr=-1", "algorithm.lr = -1: must be a number above 0."),
        ("algorithm.lr=inf", "algorithm.lr = inf: must be a finite number above 0."),
        ("algorithm.lr=nan", "algorithm.lr = nan: must be a finite number above 0."),
        (f"rounds={2**63}", f"rounds = {2**63}: must be a whole number of at most 64 bits"),
        ("algorithm={name='qfedavg',lr=0}", "algorithm.lr = 0: must be a number above 0."),
        ("algorithm={name='fcfl',lr=0}", "algorithm.lr = 0: must be a number above 0."),
        ("algorithm={name='fedadam',tau=1e20}", "algorithm.tau = 1e+20: must be a number above 0 and at most 1e+15"),
        ("partition.clients=2_000_000", "partition.clients = 2000000: must be a whole number from 1 to 1,000,000"),
        ("partition={name='overlap',overlap=1e-30}", "gets fewer than 2"),
        ("partition={name='dirichlet',alpha=inf}", "partition.alpha = inf: must be a finite number above 0 and at"),
        ("algorithm={name='local',quorum=0.0}", "algorithm.quorum = 0.0: "),
        ("algorithm.parts=[{name='clip',norm=-1.0}]", "algorithm.parts.norm = -1.0: "),
        ("algorithm.parts=[{name='mixed_start',alpha=2}]", "algorithm.parts.alpha = 2: "),
        ("algorithm.parts=[{name='proximal',mu=-1}]", "algorithm.parts.mu = -1: "),
        ("algorithm.parts=['by_size','uniform']", "by_size and uniform both decide"),
        ("partition.clients=61", "61"),
        ("data={path='nowhere'}", "nowhere"),
        ("data={name='cora',path='.'}", ". holds small.toml. Name another path"),
    ],
)
def test_mistakes_in_settings_exit_2_and_write_nothing(small: Path, settings: str, message: str) -> None:
    refuse(small, ["small.toml", *(word for text in settings.split() for word in ("--set", text))], message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("small.toml --algorithm fedavgg", "Did you mean 'fedavg'?"),
        ("smal.toml", "Did you mean 'small.toml'?"),
        ("small.toml --out small.toml/run", "another place"),
        ("small.toml --rounds 3", "No such option"),
    ],
)
def test_mistakes_in_words_exit_2_and_write_nothing(small: Path, words: str, message: str) -> None:
    refuse(small, words.split(), message)


def refuse(folder: Path, words: list[str], message: str) -> None:
    code, out, err = fedweave("run", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert os.listdir(folder) == ["small.toml"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_tells_how_to_continue(
    small: Path, monkeypatch: pytest.MonkeyPatch, number: int, exit_code: int
) -> None:
    step = terminal.Terminal.step

    def stop_in_round_2(self: Any, reached: Any) -> None:
        step(self, reached)
        if reached.round == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(terminal.Terminal, "step", stop_in_round_2)
    code, _, err = fedweave("run", "small.toml", "--set", "algorithm.lr=0.5", "-o", "a b", "--overwrite", "--verbose")
    assert code == exit_code
    check_facts(err, "2 of 3")
    program, *again = shlex.split(err.partition("Continue with: ")[2])
    assert program == "fedweave"
    assert again == ["run", "small.toml", "--set", "algorithm.lr=0.5", "--out", "a b", "--verbose", "--resume"]
    check_facts(commands.run(*again), "2 of 3")


@pytest.mark.parametrize("name", ["run", "sweep", "reproduce"])
def test_the_command_line_repeats_every_argument_and_option(name: str) -> None:
    command = get_command(app).get_command(None, name)
    words, names = [], []
    for number, parameter in enumerate(command.params):
        names.append(parameter.name)
        option = [] if parameter.param_type_name == "argument" else parameter.opts[-1:]
        value = [] if getattr(parameter, "is_flag", False) else [str(number + 1)]
        words += (option + value) * (2 if getattr(parameter, "multiple", False) else 1)
    first = command.make_context(name, words)
    again = command.make_context(name, shlex.split(command_line(first))[2:])
    assert again.params == first.params
    assert {again.get_parameter_source(name).name for name in names} == {"COMMANDLINE"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "evaluation.positive=fraud"), "there is no class 'fraud'"),
        (("--set", "evaluation.positive=10"), "evaluation.positive"),
        (("--init-from", "nowhere"), "init_from: nowhere"),
        (("--init-from", "no\N{GRINNING FACE}where"), "init_from: no\N{GRINNING FACE}where"),
    ],
)
def test_check_refuses_what_a_run_refuses_of_judging_and_an_earlier_run(
    small: Path, words: tuple[str, ...], said: str
) -> None:
    for command in ("check", "run"):
        err = commands.run(command, "small.toml", *words, code=2)
        assert said in err


@pytest.mark.parametrize("words", ["data.nodes=10_000_000_000_000", "model={name='gcnii', hidden=1_000_000}"])
def test_more_memory_than_there_is_is_told(small: Path, words: str) -> None:
    check_facts(commands.run("check", "small.toml", "--set", words, code=1), "memory")


def test_damage_exits_1(small: Path) -> None:
    fedweave("run", "small.toml", "--out", "here", "-q")
    (small / "here/checkpoint/state.safetensors").write_bytes(b"nonsense")
    check_facts(
        commands.run("run", "small.toml", "--out", "here", "--set", "rounds=5", "--resume", code=1), "state.safetensors"
    )


def test_ledger_of_a_run(small: Path) -> None:
    fedweave("run", "small.toml", "--out", "here", "-q")
    check_facts(commands.run("ledger", "here"), "FedAvg.train")
    check_facts(commands.run("ledger", "nowhere", code=2), "nowhere/ledger.parquet")


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "partitions", "models", "engines", "parts"])
def test_list_names_everything_once_in_80_columns(kind: str) -> None:
    section = "data" if kind == "datasets" else kind.removesuffix("s")
    out = commands.run("list", kind)
    indent = "  " if kind == "algorithms" else ""
    heads = [line.split() for line in out.splitlines() if re.match(rf"{indent}[\w-]+  +\S", line)]
    assert sorted(words[0] for words in heads) == sorted(config.registry(section))
    assert all(len(words) > 2 for words in heads)
    assert max(map(len, out.splitlines())) <= 80


def test_every_algorithm_stands_in_one_group() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(ALGORITHMS)
    out = commands.run("list", "algorithms")
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == list(GROUPS)


def test_list_verbose_shows_types_defaults_and_parts() -> None:
    lines = [line.strip() for line in fedweave("list", "algorithms", "-v")[1].splitlines()]
    assert {"optimizer: 'adam' | 'sgd' = 'adam'", "local_steps: int from 1 to 1,000,000,000 = 3"} <= {*lines}
    assert any(line.startswith("parts: list of parts") and line.endswith("= []") for line in lines)
    assert lines[lines.index("local_steps: int from 1 to 1,000,000,000 = 3") + 1].startswith(
        "optimizer steps per round, each on all"
    )
    assert not any(line.startswith("model:") for line in lines)
    parts = [line.strip() for line in fedweave("list", "parts", "-v")[1].splitlines()]
    assert {"mu: float of at least 0 = 0.01", "alpha: float from 0 to 1 = 0.5", "norm: float above 0 = 1.0"} <= set(
        parts
    )
    check_facts(commands.run("list", "algorithm", code=2), "algorithms")


def imported(*words: str) -> set[str]:
    """Names of the packages that a command imports."""
    code = (
        "import sys\nfrom fedweave.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


def command_lines() -> list[tuple[str, ...]]:
    """The words of every command and sub-command."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    context = group.make_context("fedweave", [], resilient_parsing=True)
    lines: list[tuple[str, ...]] = [()]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = command.list_commands(context) if isinstance(command, TyperGroup) else []
        lines += [(name,), *((name, below) for below in inner)]
    return lines


def test_every_command_prints_its_help() -> None:
    """In processes that have imported nothing before, each for the help of some commands: in 80 columns with every
    word of what its options mean."""
    program = (
        "import json, sys\nfrom typer.main import get_command\nfrom typer.testing import CliRunner\n"
        "from fedweave.cli import app\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    command = get_command(app)\n"
        "    for word in words:\n"
        "        command = command.get_command(None, word)\n"
        "    meanings = [getattr(parameter, 'help', None) or '' for parameter in command.params]\n"
        "    for option in ('--help', '-h'):\n"
        "        found = CliRunner().invoke(app, [*words, option], prog_name='fedweave', env={'COLUMNS': '80'})\n"
        "        text = ''.join(found.stdout.split())\n"
        "        lacking = [meaning for meaning in meanings if ''.join(meaning.split()) not in text]\n"
        "        wide = [line for line in found.stdout.splitlines() if len(line) > 80]\n"
        "        if found.exit_code or 'Usage: fedweave' not in found.stdout or lacking or wide:\n"
        "            print(words, option, found.exception, lacking, wide, found.output)\n"
    )

    def failures(lines: list[tuple[str, ...]]) -> str:
        words = [sys.executable, "-c", program, json.dumps(lines)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    lines = command_lines()
    assert len(lines) > 40
    with ThreadPoolExecutor(3) as workers:
        assert "".join(workers.map(failures, [lines[first::9] for first in range(9)])) == ""


@pytest.mark.parametrize(("line", "word"), [("fedweave ini", "init"), ("fedweave init --f", "--from")])
def test_a_shell_completes(line: str, word: str) -> None:
    environment = {"_FEDWEAVE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "fedweave"], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    assert done.stdout.split() == [word]


def test_help_and_version_start_quickly() -> None:
    for line in ("--help", "--version", "run --help", "sweep small.toml -h", "sites run --help"):
        assert imported(*line.split()) & {"torch", "pyarrow", "numpy", "sklearn", "networkx"} == set()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["algorithm.schedule=cosine"], 0),
        (["algorithm.schedule=step", "algorithm.warmup=2"], 0),
        (["algorithm.warmup=2"], 0),
        (["algorithm.schedule=linear", "algorithm.name=fedprox"], 0),
        (["algorithm.schedule=cosine", "algorithm.warmup=3"], 2),  # all rounds would be warm-up
    ],
)
def test_check_and_run_agree_on_a_schedule(small: Path, settings: list[str], code: int) -> None:
    words = [word for setting in ["rounds=3", *settings] for word in ("--set", setting)]
    assert fedweave("check", "small.toml", *words)[0] == code
    assert fedweave("run", "small.toml", "--out", "r", "-q", *words)[0] == code


def test_commands_leave_heavy_libraries_alone(small: Path) -> None:
    assert imported("check", str(EXPERIMENTS / "digits.toml")) & {"sklearn", "pandas", "networkx"} == set()
    fedweave("run", "small.toml", "--out", "here", "-q")
    assert imported("ledger", "here") & {"torch", "scipy", "sklearn", "networkx"} == set()


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_experiments_resolve(path: Path) -> None:
    found, _ = config.read(path)
    assert config.resolve(found.plain()) == found


def test_digits_runs_without_any_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(small))
    code, _, err = fedweave("run", str(EXPERIMENTS / "digits.toml"), "--set", "rounds=2", "--out", "d", "-q")
    assert (code, err) == (0, "")


PARTS_TABLE = """
[algorithm]
local_steps = 1
parts = [
    "cross_entropy",
    {name = "proximal", mu = 0.1},
    "uniform",
    {name = "mixed_start", alpha = 0.3},
    {name = "clip", norm = 1.0},
]
"""


def test_composed_algorithm_is_repeated_by_its_resolved_config(small: Path) -> None:
    document = "rounds = 3\n[data]\nname = 'digits'\n[partition]\nclients = 4\n[model]\nhidden = 8\n"
    (small / "composed.toml").write_text(document + PARTS_TABLE)
    assert fedweave("run", "composed.toml", "--out", "one", "-q")[::2] == (0, "")
    assert fedweave("run", "one/config.toml", "--out", "two", "-q")[::2] == (0, "")
    tables = [pq.read_table(small / run / "metrics.parquet").to_pylist() for run in ("one", "two")]
    assert tables[0] == tables[1]
    assert (small / "one/config.toml").read_text() == (small / "two/config.toml").read_text()
    saved, _ = config.read(small / "two/config.toml")
    wanted = tomllib.loads(PARTS_TABLE)["algorithm"]
    wanted["parts"][1]["adaptive"] = False  # the default, written out
    assert {key: saved.plain()["algorithm"][key] for key in wanted} == wanted
    ledger = pq.read_table(small / "one/ledger.parquet").to_pylist()
    sent = [row for row in ledger if row["direction"] == "up" and row["step"] == "FedAvg.train"]
    treated = {row["mechanism"] for row in sent if row["key"].startswith("update/")}
    assert treated == {"clipped to L2 norm 1"}
    assert not [row for row in sent if row["key"] == "n"], "the plain mean asks for no sizes"


@pytest.mark.often("proximal", "mixed_start")
@pytest.mark.parametrize("part", ["proximal", "uniform", "mixed_start", "clip"])
def test_every_part_has_an_effect(small: Path, part: str) -> None:
    chosen = tomllib.loads(PARTS_TABLE.replace("1.0", "0.01"))["algorithm"]["parts"]
    rest = [one for one in chosen if part not in (one, one["name"] if isinstance(one, dict) else "")]
    (small / "small.toml").write_text(SMALL.replace("[algorithm]\nlocal_steps = 1", PARTS_TABLE.replace("1.0", "0.01")))
    losses = []
    for out, change in (
        ("whole", "algorithm.local_steps=2"),
        ("without", f"algorithm.parts={config.dumps({'x': rest})[4:]}"),
    ):
        changes = ["partition={name='dirichlet', clients=3}", "algorithm.local_steps=2", change]
        assert fedweave("run", "small.toml", *(f"--set={text}" for text in changes), "--out", out, "-q")[0] == 0
        losses.append(json.loads((small / out / "summary.json").read_text())["metrics"]["local/loss"])
    assert losses[0] != losses[1]


@pytest.mark.skipif(not (DATA / "cora").exists(), reason="Cora is not in FEDWEAVE_DATA")
def test_cora_runs(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(DATA.resolve()))
    path = str(EXPERIMENTS / "fedavg-cora.toml")
    code, _, err = fedweave("run", path, "--set", "rounds=20", "--set", "eval_every=0", "--out", "c", "-q")
    assert (code, err) == (0, "")
    summary = json.loads((small / "c/summary.json").read_text())
    assert (summary["dataset"], summary["clients"]) == ("cora", 10)
    assert summary["metrics"]["local/accuracy"] > 0.6


@pytest.mark.parametrize(
    "words", [("run", "small.toml", "--out"), ("ledger",), ("report",), ("sites", "init", "--sites", "a,b"), ("audit",)]
)
def test_a_name_that_is_too_long_is_refused_with_a_remedy(small: Path, words: tuple[str, ...]) -> None:
    error = commands.run(*words, "a" * 300, code=2)
    assert error.startswith("error: aaa")
    assert error.endswith("cannot be used: File name too long. Give a shorter name.")
    assert os.listdir(small) == ["small.toml"]


@pytest.mark.often("<&- >&- 2>&-")
@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-", "2>&-"])
def test_streams_that_the_caller_closed_are_no_fault(closed: str, small: Path) -> None:
    words = f"exec {shlex.quote(sys.executable)} -m fedweave list engines {closed}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    code = "from fedweave.cli import main\ntry: main()\nexcept SystemExit: print('höfe')"
    own = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, env=own, check=False)
    assert (done.returncode, done.stdout.split()[-1]) == (0, b"h?fe")
