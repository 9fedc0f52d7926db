"""The command line. Every command is a thin function that imports what it needs when it runs, so that help is quick.

A further command lives in a module of its own and is added at the end of this one.
"""

import errno
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from fedweave.attack import attack
from fedweave.check import check
from fedweave.contract.command import contract
from fedweave.contributions import contributions
from fedweave.core.text import counted
from fedweave.deploy.sites.audit import audit
from fedweave.deploy.sites.command import sites
from fedweave.deploy.sites.ledger import ledger
from fedweave.errors import FedweaveError, UserError, out_of_memory
from fedweave.export.command import export
from fedweave.options import Experiment, Settings
from fedweave.predict import predict
from fedweave.report.command import compare, report, watch
from fedweave.report.statement import statement
from fedweave.reproduce.command import reproduce
from fedweave.starter import init
from fedweave.sweep.command import sweep

# What the system says of a path that a user gave; a file that is gone may be a fault of this program.
_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
_LESS = "Take smaller data or a smaller model, or fewer clients at once: engine.chunk = 1."


class Commands(TyperGroup):
    """Turns every error of fedweave into a message on stderr: exit code 2 for the user's mistakes, 1 for others."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name; an unknown one is refused with those that there are and the nearest."""
        if not ctx.resilient_parsing and args[0] not in self.commands and not args[0].startswith("-"):
            from fedweave.config import check_name

            check_name("fedweave", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except FedweaveError as error:
            say(f"[bold red]error:[/] {_escaped(error)}")
            raise typer.Exit(2 if isinstance(error, UserError) else 1) from error
        except OSError as error:
            if error.errno in _OF_PATHS and error.filename is not None:
                said = f"{error.filename} cannot be used: {error.strerror}. {_remedy(error)}."
                say(f"[bold red]error:[/] {_escaped(said)}")
                raise typer.Exit(2) from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            say(f"[bold red]error:[/] the output cannot be written: the disk is full ({error.strerror})")
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            asked = next(iter(str(error).splitlines()), "no more is given")
            say(f"[bold red]error:[/] this machine's memory is not enough ({_escaped(asked)}). {_LESS}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            say("stopped")
            raise typer.Exit(130) from error


class Kind(StrEnum):
    """What `fedweave list` lists."""

    algorithms = "algorithms"
    datasets = "datasets"
    partitions = "partitions"
    models = "models"
    engines = "engines"
    parts = "parts"


SECTIONS = {kind: kind.removesuffix("s") for kind in Kind} | {Kind.datasets: "data"}

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def say(message: str) -> None:
    """A message for the user on stderr, in rich's markup."""
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)


def show_version(wanted: bool) -> None:
    """Print the version and exit, if wanted."""
    if wanted:
        print(f"fedweave {version('fedweave')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """Federated graph learning that is fair, private, paid for, and real."""


@app.command()
def run(
    config: Experiment,
    settings: Settings = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the same experiment with another algorithm.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Where to write (runs/<experiment>-<algorithm>-s<seed>)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR holds.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and notices.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the run on a page while it lasts.")] = False,
    track: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep it with tensorboard or mlflow, too; repeatable.")
    ] = None,
) -> None:
    """Run an experiment and write its metrics, ledger, checkpoint and summary."""
    from fedweave.config import read

    if resume and overwrite:
        raise UserError("--resume continues a run and --overwrite replaces it; choose one of them.")
    chosen, notes = read(config, settings or [], algorithm)
    for note in notes:
        say(escape(f"note: {note}"))
    directory = out or Path("runs") / f"{config.stem}-{chosen.algorithm.label}-s{chosen.general.seed}"

    from fedweave.report.terminal import Terminal, screen, show_result
    from fedweave.runs import run as runs
    from fedweave.runs.files import is_used
    from fedweave.runs.replacing import recover
    from fedweave.runs.resuming import examine
    from fedweave.runs.stopping import Interrupted

    console = screen(quiet)
    recover(directory)
    if resume and (done := examine(chosen, directory, resume)):
        console.print(
            f"this run is finished: {done['rounds']} of {counted(done['rounds'], 'round')} done", highlight=False
        )
        show_result(console, done, directory)
        return
    if resume and not is_used(directory):
        console.print(f"note: {directory} holds nothing to continue; beginning anew", highlight=False, markup=False)
    from fedweave.report.tracking import Observers, tracked

    observers = Observers([Terminal(console), *([tracked(track)] if track else [])])
    try:
        with _live_page(directory) if live else nullcontext():
            summary = runs.run(chosen, directory, observers, resume, overwrite=overwrite)
    except Interrupted as error:
        again = [
            config,
            *(f"--set={text}" for text in settings or []),
            *(["--algorithm", algorithm] if algorithm else []),
        ]
        words = ["fedweave", "run", *map(str, again), *(["--out", str(out)] if out else []), "--resume"]
        say(f"{_escaped(error)} Continue with: {_escaped(shlex.join(words))}")
        raise typer.Exit(128 + error.signal) from error
    show_result(console, summary, directory)


def _live_page(directory: Path) -> AbstractContextManager[Any]:
    from fedweave.report.serving import shown  # with the report, which other runs need not load

    return shown(directory, say)


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with its parameters.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show parameters, defaults and meanings.")] = False,
) -> None:
    """List the algorithms, their parts, datasets, partitions, models or engines there are."""
    from fedweave import config
    from fedweave.report.listing import Row, meanings, one_line, show_list
    from fedweave.report.terminal import screen

    section = SECTIONS[kind]
    rows = []
    for each, plugin in (
        config.registry(section).items() if name is None else [config.lookup(f"list {kind}", section, name)]
    ):
        about = _described(each) if section == "data" else one_line(plugin)
        rows.append(Row(each, about, config.parameters(section, plugin), meanings(plugin)))
    show_list(screen(), rows, shown := verbose or name is not None)
    if kind is Kind.engines and shown:
        from fedweave.engines.devices import at_hand

        screen().print(at_hand(), highlight=False, markup=False, soft_wrap=True)


app.command()(ledger)
app.command()(init)
app.command()(check)
app.command()(report)
app.command()(watch)
app.command()(compare)
app.command()(statement)
app.add_typer(sites, name="sites")
app.command()(audit)
app.command()(reproduce)
app.command()(sweep)
app.command()(predict)
app.command()(export)
app.command()(contributions)
app.command()(attack)
app.command()(contract)


def main() -> NoReturn:
    """Entry point of the `fedweave` command."""
    app(prog_name="fedweave")
    raise SystemExit(0)


def _described(name: str) -> str:
    from fedweave.datasets import describe

    return describe(name)


def _remedy(error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return "Give a shorter name"
    return "Name another place, or give this user the right to use it"


def _escaped(text: object) -> str:
    """Of several lines, each by itself."""
    from fedweave.report.markup import unmarked

    return "\n".join(map(unmarked, str(text).split("\n")))
