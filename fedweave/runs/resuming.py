"""Which directories a run may be started or continued in."""

from pathlib import Path

from fedweave.config import Config, differences, load
from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.runs.files import CONFIG, SUMMARY, is_used, read_summary


def examine(config: Config, directory: Path, resume: bool) -> Record | None:
    """Check, by reading only, that `config` may be run in `directory`; returns the summary if that is done already.

    Raises:
        UserError: it may not; says why and what to do.
        FedweaveError: the summary is damaged.
    """
    if not is_used(directory):
        return None
    if not (directory / CONFIG).exists():
        what = "is a file" if directory.is_file() else f"is not the directory of a run: it has no {CONFIG}, but files"
        raise UserError(f"{directory} {what}. Choose another directory with --out.")
    if not resume:
        raise UserError(
            f"{directory} is not empty. Continue its run with --resume, replace it with --overwrite, or choose another "
            "directory with --out."
        )
    saved, wanted = load(directory / CONFIG), config.plain()
    changed = [key for key in differences(saved, wanted) if not may_change(key)]
    if changed:
        raise UserError(
            f"{directory} holds another run, which differs in {', '.join(changed)} (see its {CONFIG}). Resume it with "
            "the same settings (rounds, eval_every and [engine] may change, not the dtype), or choose another --out."
        )
    if not (directory / SUMMARY).exists():
        return None
    summary = read_summary(directory / SUMMARY)
    done = summary["rounds"]
    check_rounds(done, config, directory)
    return summary if done == config.general.rounds else None


def check_replaceable(directory: Path) -> None:
    """Raise UserError unless `directory` is a run's, or has nothing in it."""
    if is_used(directory) and not (directory / CONFIG).exists():
        raise UserError(
            f"{directory} is not the directory of a run: it has no {CONFIG}. --overwrite replaces runs alone; choose "
            "another directory with --out."
        )


def check_rounds(done: int, config: Config, directory: Path) -> None:
    """Refuse a run that has gone further than is asked for.

    Raises:
        UserError: more than `config`'s rounds are done.
    """
    if done > config.general.rounds:
        raise UserError(
            f"{directory} has done {counted(done, 'round')} already, more than the {config.general.rounds} asked for. "
            "Ask for as many, or start anew in another directory with --out."
        )


def may_change(key: str) -> bool:
    """Whether a run may go on with another value of this setting."""
    return key in ("rounds", "eval_every") or (key.split(".")[0] == "engine" and key != "engine.dtype")
