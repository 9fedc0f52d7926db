"""The command line. A command's module is imported when it is called. What a run needs is imported inside the function
that uses it, so that help is quick."""

import errno
import inspect
import io
import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fedweave.cli.options import say, without_markup
from fedweave.errors import FedweaveError, UserError, command_line, out_of_memory

# The system's errors about a path that a user gave; a missing file may be a fault of this program.
_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
_LESS = "Take smaller data or a smaller model, or fewer clients at once: engine.chunk = 1."
# {group: {command: (its module below this one, its line in the list of commands)}}
GROUPS = {
    "Start": {
        "init": ("init", "Write the configuration of an experiment, to be changed and run."),
        "check": ("check", "Load and partition the data, build the model, and report oddities; no client trains."),
        "run": ("run", "Run an experiment and write its metrics, ledger, checkpoint and summary."),
        "tune": ("tune", "Find a good model and training settings by validation examples."),
        "report": ("report", "Write a report about runs: results, clients, fairness, partition, what leaves a client."),
    },
    "Compare": {
        "sweep": ("sweep", "Run an experiment with several seeds, algorithms and settings."),
        "compare": ("report", "Compare runs with the first ones: paired tests over seeds, with intervals."),
        "reproduce": ("sweep", "Run the tables of a paper and print its numbers next to ours."),
        "list": ("init", "List the algorithms, their parts, datasets, partitions, models or engines."),
    },
    "Use a model": {
        "predict": ("predict", "Predict with the models of a finished run."),
        "score": ("score", "Score new tables with one model, alone, where the data is."),
        "serve": ("score", "Answer requests for scores on this machine, as score gives them."),
        "explain": ("explain", "Explain one score: the columns, neighbors and edges that move it."),
        "drift": ("drift", "Compare new tables, and the scores on them, with what a model was trained on."),
        "embed": ("embed", "Write scores and the last layer's vectors of examples, as columns for other models."),
        "export": ("export", "Export a model: weights, a PyTorch Geometric module, and a model card."),
    },
    "Account for it": {
        "ledger": ("ledger", "Show the messages of a run: sender, receiver, purpose, time, and cost in ε."),
        "contributions": (
            "statement",
            "Measure each client's contribution to the global model, and its share of a budget.",
        ),
        "statement": ("statement", "State what each member of a run contributed, received, and is owed or fined."),
        "compliance": ("compliance", "Report what left, for whom, what for, under which rules: HTML or PDF, signed."),
        "audit": ("audit", "Show a site's owner all requests, what left, what it cost, and what was rejected."),
        "forget": (
            "forget",
            "Train a run without a client or examples, and report what its models still show of them.",
        ),
        "attack": ("contract", "Attack what clients send, with and without the defense."),
    },
    "Run for real, and at scale": {
        "sites": ("sites", "Run federations of real sites on NVIDIA FLARE."),
        "shard": ("shard", "Load and cut the data once, and write each client's part to a folder for runs."),
    },
    "Write an algorithm": {
        "contract": ("contract", "Run the conformance tests on an algorithm."),
    },
}
COMMANDS = {name: entry for commands in GROUPS.values() for name, entry in commands.items()}
_NAMES = max(map(len, COMMANDS))  # letters of the longest


class Commands(TyperGroup):
    """Loads the called command, and turns every error of fedweave into a message on stderr: exit code 2 for the user's
    mistakes, 1 for others."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, loaded."""
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        entry = getattr(import_module(f"fedweave.cli.{module}"), cmd_name + "_" * (cmd_name == "list"))
        if not isinstance(entry, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(cmd_name)(entry)
            entry = app
        command = typer.main.get_command(entry)
        command.name = cmd_name
        _prepare_help(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in groups, which loads none of them."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(_NAMES), line) for name, (_, line) in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name; for an unknown name an error with all commands and the nearest one."""
        if not ctx.resilient_parsing and args[0] not in COMMANDS and not args[0].startswith("-"):
            from fedweave.experiment.config import check_name

            check_name("fedweave", args[0], list(COMMANDS))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            with command_line():
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except FedweaveError as error:
            say(f"[bold red]error:[/] {without_markup(error)}")
            raise typer.Exit(2 if isinstance(error, UserError) else 1) from error
        except OSError as error:
            if error.errno in _OF_PATHS and error.filename is not None:
                remedy = "Name another place, or give this user the right to use it"
                if error.errno == errno.ENAMETOOLONG:
                    remedy = "Give a shorter name"
                message = f"{error.filename} cannot be used: {error.strerror}. {remedy}."
                say(f"[bold red]error:[/] {without_markup(message)}")
                raise typer.Exit(2) from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            say(f"[bold red]error:[/] the output cannot be written: the disk is full ({error.strerror})")
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "no more is given")
            say(f"[bold red]error:[/] this machine's memory is not enough ({without_markup(reason)}). {_LESS}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            say("stopped")
            raise typer.Exit(130) from error


def _prepare_help(command: Any) -> None:
    """Paragraphs flow to the width of the terminal, and a list of commands has the first sentence of each."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    first, stop, _ = command.help.partition("\n\n")[0].partition(". ")
    command.short_help = first + stop.strip()
    for inner in getattr(command, "commands", {}).values():
        _prepare_help(inner)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut words where a column is narrow
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(show: bool) -> None:
    """Print the version and exit, if `show` is set."""
    if show:
        print(f"fedweave {version('fedweave')}")
        raise typer.Exit


@app.callback()
def entry(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """Federated graph learning that is fair, private, paid for, and real."""


def main() -> NoReturn:
    """Entry point of the `fedweave` command."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the caller may have closed one, as a service does
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # "?" for characters that stdout lacks
    app(prog_name="fedweave")
    raise SystemExit(0)
