"""The command `fedweave contract`."""

from pathlib import Path
from traceback import extract_tb
from typing import Annotated

import typer

import fedweave
from fedweave.cli.options import Loaded
from fedweave.core.records import Record
from fedweave.errors import ConfigError, FedweaveError
from fedweave.experiment.config import check_name, override, resolve

if not Loaded.for_help:
    from fedweave.contract.laws import LAWS, Broken
    from fedweave.contract.subject import Subject


def contract(
    name: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="An algorithm from a file, or a registered one.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="Change one of its settings; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--law", metavar="LAW", help="Try this law alone; repeatable.")
    ] = None,
) -> None:
    """Try on an algorithm what every algorithm owes: the same numbers however it is run, and nothing crosses unseen.

    A class says what does not hold for it, and why: exempt_laws = {"one_client_is_ordinary_training": "momentum"};
    and which of its settings suit clients of a few dozen nodes: test_settings = {"batch": 8}.
    """
    subject = Subject(*_chosen(name, settings or []))
    if unknown := sorted(subject.not_owed.keys() - LAWS.keys()):
        raise ConfigError(f"{name}: exempt_laws names {', '.join(unknown)}; the laws are {', '.join(LAWS)}.")
    for law in only or ():
        check_name("--law", law, LAWS)
    broken, first = [], dict[str, str]()  # which law a refusal was first heard of
    for law in only or LAWS:
        said, words = verdict(subject, law), law.replace("_", " ")
        word, _, why = said.partition(" ")
        if word == "BROKEN":
            broken.append(law)
            why = f": as {first[why]}" if why in first else why
            first.setdefault(why, f"“{words}”")
        typer.echo(f"{word:<8} {words}{why}")
    if broken:
        raise FedweaveError(f"{name}: {len(broken)} of {len(only or LAWS)} laws do not hold.")


def verdict(subject: "Subject", law: str) -> str:
    """ "holds", "declared: why" or "BROKEN: why", for one law.

    Raises:
        ConfigError: the algorithm refuses its own settings, whatever the law.
    """
    if law in subject.not_owed:
        return f"declared : does not hold, {subject.not_owed[law]}"
    try:
        LAWS[law](subject)
    except ConfigError as error:
        subject.made()
        return f"BROKEN : the law is tried with settings of its own, and {error}; say why in exempt_laws"
    except Broken as error:
        return f"BROKEN : {error}"
    except Exception as error:  # whatever an algorithm from outside does wrong
        return f"BROKEN : {type(error).__name__}: {error}{_place(error)}"
    return "holds"


def _place(error: Exception) -> str:
    """ " (my_file.py, line 23)", where the algorithm itself comes up last on the way to the error; "" if nowhere."""
    ours = Path(fedweave.__file__).parent
    frames = [frame for frame in extract_tb(error.__traceback__) if not Path(frame.filename).is_relative_to(ours)]
    own = [frame for frame in frames if "site-packages" not in frame.filename and Path(frame.filename).is_file()]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _chosen(name: str, settings: list[str]) -> tuple[type, Record]:
    """The algorithm and its settings, checked; a relative file is looked for in the folder one is in."""
    document: Record = {"data": {"name": "synthetic"}, "algorithm": {"name": name}}
    for text in settings:
        override(document, f"algorithm.{text}")
    given = {key: value for key, value in document["algorithm"].items() if key != "name"}
    choice = resolve(document).algorithm
    return choice.kind, {key: value for key, value in choice.made_values().items() if key in given}
