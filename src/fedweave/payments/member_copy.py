"""A member's copy of a statement of account: all that it needs to check its lines, and nothing of another member's.

Beside the lines and the seal it holds the configuration, the member's own rows of the ledger and, of a run between
sites, the run's number and sites, so that `fedweave audit SITE --against` takes the copy for the run.
"""

import json
from pathlib import Path

import pyarrow as pa

from fedweave.errors import UserError
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.files import CONFIG, LEDGER, RUN, damaged, read, write, write_table
from fedweave.payments.accounts import of_client
from fedweave.payments.sealed import SEAL
from fedweave.report.reading import Run

_OF_RUN = ("run", "sites")  # of run.json; the rest is about the machine that started the run


def check_free(out: Path, member: str) -> None:
    """Refuse to write a member's copy, or the whole statement for `member` "", where something else is.

    Raises:
        UserError: a run, files of another use, or another member's copy are there.
    """
    if taken := [name for name in (CONFIG, LEDGER) if (out / name).exists() and not (out / SEAL).exists()]:
        raise UserError(f"{out} holds a {taken[0]} of a run or of something else; choose another folder with --out.")
    own = f"statement-{member}" if member else "statement"
    if others := sorted(path.stem for path in out.glob("statement*.csv") if path.stem != own):
        raise UserError(f"{out} holds {others[0]}.csv: give every member a folder of its own with --out.")


def write_copy(run: Run, member: str, out: Path) -> list[Path]:
    """Write what a copy has besides lines, page and seal; return the paths.

    Raises:
        FedweaveError: the run's run.json is damaged.
    """
    own = _alone(of_client(run.ledger, member))
    write(out / CONFIG, lambda file: file.write(dumps(run.config).encode()))
    write_table(out / LEDGER, own)
    return [out / CONFIG, out / LEDGER, *_number(run.directory / RUN, out)]


def _alone(table: pa.Table) -> pa.Table:
    """The same rows, with dictionaries of their own words: those that a filter leaves have the other rows' too."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            words = table[field.name].cast(field.type.value_type).combine_chunks().dictionary_encode()
            table = table.set_column(at, field, words.cast(field.type))
    return table


def _number(path: Path, out: Path) -> list[Path]:
    if not path.exists():
        return []
    try:
        told = {key: value for key, value in dict(json.loads(read(path))).items() if key in _OF_RUN}
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error)) from error
    write(out / RUN, lambda file: file.write(json.dumps(told).encode()))
    return [out / RUN]
