"""Checks of a statement of account against its seal: by whoever has the run, or by a member with its own part alone.

A member's copy has all that it needs to check its lines, and nothing of another member's: beside the lines and the seal
the configuration, the member's own rows of the ledger and, of a run between sites, the run's number and sites, so that
`fedweave audit SITE --against` takes the copy for the run.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.purposes import TRAINING
from fedweave.core.records import Record
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Document, dumps, load_saved
from fedweave.experiment.runs.files import CONFIG, LEDGER, RUN, damaged, read, read_table, write, write_table
from fedweave.incentives.statement import SCHEMA, Digest, Terms, check, of_member
from fedweave.payments.accounts import account, check_pay, config_hash, ledger_hash, of_client, run_hash, terms_of
from fedweave.report.reading import Run

DIFFERS = "statement.differs"
SEAL, LEAVE_ONE_OUT = "statement.json", "leave_one_out"  # the latter only once contributions were measured


class Seal(NamedTuple):
    """What a statement says but for its lines (`accounts.Account.seal`)."""

    terms: Terms
    digest: Digest
    config: str
    ledgers: dict[str, str]
    run: str
    sums: dict[int, float]


def read_seal(folder: Path) -> Seal:
    """The seal of the statement in `folder`.

    Raises:
        UserError: there is none, or it is damaged.
    """
    if not (folder / SEAL).is_file():
        raise UserError(
            f"{folder} holds no statement: it has no {SEAL}. Name the folder that `fedweave statement` wrote."
        )
    try:
        return _read(json.loads(read(folder / SEAL)))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the seal {folder / SEAL} is damaged ({type(error).__name__} {error}); ask for the statement again."
        ) from error


def _read(seal: Record) -> Seal:
    whole = Digest(seal["start"], tuple(seal["lines"]), seal["digest"])
    for word in (whole.start, whole.digest, *whole.lines):
        bytes.fromhex(word)
    sums = {int(number): float(total) for number, total in seal.get("sums", {}).items()}  # older seals have none
    if not all(0 <= total < math.inf for total in sums.values()):
        raise ValueError("a sum is none")
    terms = Terms(seal["budget"], seal["currency"])
    return Seal(terms, whole, str(seal["config"]), dict(seal["ledgers"]), str(seal["run"]), sums)


def check_same(folders: Sequence[Path]) -> str:
    """Compare the seals that members hold, which have no line of anybody: of one statement they are the same; returns
    that in words, with the members whose seal was not compared.

    Raises:
        UserError: a seal contradicts itself, or is not what most members have; names these, and the first difference.
    """
    held = {_whose(folder): read_seal(folder) for folder in folders}
    if len(held) < 2:
        raise UserError("name the copies of two members or more: --compare DIR --compare DIR.")
    for seal in held.values():
        check(pa.Table.from_pylist([], SCHEMA), "", seal.digest, seal.terms, seal.run, seal.sums)
    said = [seal.digest.digest for seal in held.values()]
    most = max(said, key=said.count)
    odd = [name for name, seal in held.items() if seal.digest.digest != most]
    if odd and 2 * said.count(most) <= len(said):
        raise UserError(f"the statements of {listed([*held])} differ, and no one is what most have.", code=DIFFERS)
    if odd:
        same = next(seal for seal in held.values() if seal.digest.digest == most)
        why = "; ".join(f"{name}: {_difference(held[name], same)}" for name in odd)
        raise UserError(f"not what most members were given: {why}. Ask who wrote them.", code=DIFFERS)
    left = sorted(name for name in next(iter(held.values())).ledgers if name not in held)
    more = f"; not compared: {listed(left)}" if left else ""
    return f"the statements of {listed([*held])} are the same, digest {most[:16]}{more}"


def _whose(folder: Path) -> str:
    """The member whose copy a folder is; its path, if it does not say."""
    names = [path.stem.removeprefix("statement-") for path in sorted(folder.glob("statement-*.parquet"))]
    return names[0] if len(names) == 1 else str(folder)


def _difference(one: Seal, other: Seal) -> str:
    if (one.terms, one.run) != (other.terms, other.run):
        return "it is of another run, budget or currency"
    for number in sorted(one.sums.keys() | other.sums.keys()):
        if one.sums.get(number) != other.sums.get(number):
            mine, theirs = (each.sums.get(number) for each in (one, other))
            return f"in round {number} pay is divided by {mine}, and by {theirs} elsewhere"
    return "its lines are others"


def check_in_run(own: pa.Table, seal: Seal, member: str, run: Run) -> None:
    """Check a member's lines of a statement against its seal, that against the configuration and the member's ledger,
    and what is paid against the payoffs, all of which stand in `run`.

    Raises:
        UserError: a line was changed or left out, or the statement is about another run; says which part does not
            agree.
    """
    _check_sealed(own, seal, member, (run.config, run.ledger), run.directory)
    due = of_member(account(run).table, member)
    _same_pay(own, due, member, run.directory)
    same = [name for name in due.column_names if name != LEAVE_ONE_OUT or own[name].null_count < len(own)]
    if own.select(same).to_pylist() != due.select(same).to_pylist():
        raise UserError(
            f"the lines of {member} say other values or reasons than {run.directory}, though they pay the same; ask "
            "for the statement again."
        )


def check_copy(own: pa.Table, seal: Seal, member: str, folder: Path) -> None:
    """Check a member's lines with nothing but its copy in `folder` (`member_copy`): against the seal, that against the
    configuration and the member's ledger, and what is paid against the values in the lines.

    Raises:
        UserError: see `check_in_run`; a line is of a round in which the member sent no update, or there is none of one
            in which it did; or what the copy holds cannot show that an amount is right.
    """
    ledger = read_table(folder, LEDGER)
    _check_sealed(own, seal, member, (load_saved(folder / CONFIG), ledger), folder)
    _check_rounds(own, member, of_client(ledger, member))
    if unknown := check_pay(own, seal.sums, seal.terms):
        raise UserError(
            f"nothing in {folder} shows that the pay of {_rounds(unknown)} is right: lines have no value, or the seal "
            f"has no sum. Whoever holds the run can check it: fedweave statement RUN --member {member} --check …"
        )


def _check_sealed(own: pa.Table, seal: Seal, member: str, of_run: tuple[Document, pa.Table], directory: Path) -> None:
    config, ledger = of_run
    if seal.config != config_hash(config):
        raise UserError(
            f"the statement is about another configuration than {directory / CONFIG}. If the run went on after the "
            "statement was written, ask for a new one; the number of rounds is of the configuration, too."
        )
    if seal.ledgers.get(member) != ledger_hash(ledger, member):
        raise UserError(
            f"the statement does not know the ledger of {member} in {directory}: it is about another run, or what was "
            "exchanged was changed afterwards."
        )
    if seal.run != run_hash(seal.config, seal.ledgers):
        raise UserError("the run's hash is not that of the ledgers in the seal; ask for the statement again.")
    if seal.terms != terms_of(config, directory):
        raise UserError("budget or currency are not those of the configuration; ask for the statement again.")
    check(own, member, seal.digest, seal.terms, seal.run, seal.sums)


def _same_pay(own: pa.Table, paid: pa.Table, member: str, directory: Path) -> None:
    """Refuse lines whose rounds or amounts are not those of the run: who writes a statement can seal anything."""
    _check_once(own, member)
    told, due = ({row["round"]: row["pay"] for row in table.to_pylist()} for table in (own, paid))
    for number in sorted(told.keys() | due.keys()):
        if told.get(number) != due.get(number):
            said = "leaves it out" if number not in told else f"says {told[number]}"
            raise UserError(
                f"in round {number} {directory} has {due.get(number, 'nothing')} for {member}, and the statement "
                f"{said}; ask for the statement again."
            )


def _check_rounds(own: pa.Table, member: str, ledger: pa.Table) -> None:
    """Refuse lines of other rounds than those in which the member, whose ledger this is, sent an update; whatever the
    seal says of them."""
    _check_once(own, member)
    sent = ledger.filter(pc.and_(pc.equal(ledger["direction"], "up"), pc.equal(ledger["purpose"], TRAINING)))
    trained, told = ({*table["round"].to_pylist()} for table in (sent, own))
    if left_out := sorted(trained - told):
        raise UserError(
            f"{member} sent an update in {_rounds(left_out)}, and the statement has no line of it; ask for the "
            "statement again. If nobody was paid then, only the run itself shows that."
        )
    if more := sorted(told - trained):
        raise UserError(f"the statement has {_rounds(more)}, in which {member} sent no update; ask for it again.")


def _check_once(own: pa.Table, member: str) -> None:
    numbers = own["round"].to_pylist()
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise UserError(f"{member} has several lines of {_rounds(twice)}; ask for the statement again.")


def _rounds(numbers: Iterable[int]) -> str:
    told = list(numbers)
    return f"round{'s' if len(told) > 1 else ''} {', '.join(map(str, told))}"


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
