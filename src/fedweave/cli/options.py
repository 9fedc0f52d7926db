"""Arguments that several commands share, and messages to the user."""

import json
import shlex
from collections.abc import Callable, Container
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedweave.accounts.document import plain_text
from fedweave.core.types import Record
from fedweave.errors import UserError

if TYPE_CHECKING:  # slow to import
    import pyarrow as pa

Experiment = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change one setting; repeatable.")
]
Earlier = Annotated[
    Path | None,
    typer.Option("--init-from", metavar="RUN", help="Begin with the weights of an earlier run's chosen round."),
]

Algorithm = Annotated[str | None, typer.Option(metavar="NAME", help="Run the same experiment with another algorithm.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also record it with tensorboard, mlflow or wandb (offline); repeatable."),
]
FastRounds = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Rounds of the fast way; 0 leaves it out. The default is a tenth of the run's."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")]
RunOrModel = Annotated[
    Path, typer.Argument(metavar="RUN|MODEL", help="A finished run's folder, or a model as `fedweave score` takes it.")
]
_NEW_DATA = typer.Option(
    "--data", metavar="PATH", help="New nodes and edges, or small graphs, in any form that `run` takes."
)
NewData = Annotated[Path, _NEW_DATA]
OptionalNewData = Annotated[Path | None, _NEW_DATA]  # without it the run's own data
Trust = Annotated[bool, typer.Option("--trust", help="Run the Python files that the configuration names plug-ins in.")]


class ModelName(StrEnum):
    """The models that a run may leave (see `algorithms.deployment.Deployable`)."""

    overall = "global"
    personal = "personal"
    trained = "trained"


Chosen = Annotated[
    ModelName | None,
    typer.Option(
        "--model",
        help="The server's global model, the model that each client uses, or each client's model after local training.",
    ),
]


class ModelRound(StrEnum):
    """The round after which models are taken (see `experiment.runs.checkpoint.When`)."""

    chosen = "chosen"
    last = "last"
    best = "best"


When = Annotated[
    ModelRound,
    typer.Option(
        "--round",
        help="best: the round that was best on validation examples, an error where there is none. last: the last one. "
        "chosen: best where there is one, else last; trained models are always of the last.",
    ),
]
Client = Annotated[str | None, typer.Option(metavar="NAME", help="Only with this client's model.")]


class Format(StrEnum):
    """Formats of an exported model."""

    safetensors = "safetensors"
    torch = "torch"
    onnx = "onnx"


Kind = Annotated[
    Format,
    typer.Option("--format", help="Weights for fedweave.models.load, a program of torch.export, or an ONNX graph."),
]
CardFile = Annotated[
    Path | None,
    typer.Option(
        "--card", metavar="FILE", help="TOML for the model card: intended_use, limits, data_period and contact."
    ),
]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="A new folder (RUN/export).")]


def with_init_from(settings: list[str] | None, init_from: Path | None) -> list[str]:
    """The settings, with the earlier run that --init-from names."""
    settings = [*(settings or ())]
    if init_from is not None:
        from fedweave.experiment.config.toml import inline

        settings.append(f"init_from={inline(str(init_from))}")
    return settings


def command_line(context: typer.Context, omit: Container[str] = ()) -> str:
    """The command with its arguments and options as the user gave them, for a shell; without the parameters `omit`."""
    words = ["fedweave", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in omit or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            words += map(str, values)
        elif isinstance(value, bool):
            words.append(max(parameter.opts if value else parameter.secondary_opts, key=len))
        else:
            for text in values:
                words += [max(parameter.opts, key=len), str(text)]
    return shlex.join(words)


def write_result_file(out: Path, page: Callable[[], str], record: Record) -> None:
    """Write a page, or the record of a result as JSON."""
    from fedweave.experiment.runs.files import write, write_page

    if out.suffix == ".html":
        write_page(out, page())
    else:
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write(out, lambda file: file.write(text.encode()))


Spreadsheet = Annotated[
    bool,
    typer.Option(
        "--spreadsheet",
        help="Protect a .csv file for spreadsheets: put an apostrophe before text that they would compute.",
    ),
]


def check_table_file(path: Path, spreadsheet: bool, code: str = "user") -> None:
    """Refuse a file that exists, or that `write_table_file` cannot write.

    Raises:
        UserError: with this code.
    """
    if path.exists():
        raise UserError(f"{path} exists; name another file with --out, or remove it.", code=code)
    if path.suffix not in (".parquet", ".csv"):
        raise UserError(f"--out {path}: name a file that ends in .parquet or .csv.", code=code)
    if spreadsheet and path.suffix != ".csv":
        raise UserError(f"--spreadsheet is for a .csv file, and {path} is none; name one with --out.", code=code)


def write_table_file(path: Path, table: "pa.Table", spreadsheet: bool) -> None:
    """Write a table as CSV or Parquet, by the file's name."""
    from fedweave.experiment.runs.files import write_csv, write_table

    if path.suffix == ".csv":
        write_csv(path, table, spreadsheet)
    else:
        write_table(path, table)


def check_consent(config: Path, trust: bool) -> None:
    """Raise an error if a configuration would run a Python file that the user has not trusted."""
    from fedweave.core.plugins import check_trusted  # imports pydantic, which a probe does not need
    from fedweave.experiment.config import load

    if not trust:
        check_trusted(load(config), config, "--trust")


def say(message: str) -> None:
    """A message for the user on stderr, in rich's markup."""
    Console(stderr=True, emoji=False).print(message, highlight=False, soft_wrap=True)


def without_markup(text: object) -> str:
    """`text` without rich's markup, line by line."""
    return "\n".join(map(plain_text, str(text).split("\n")))
