"""Checks of a statement of account against its seal, by an owner of the run or by a member from its own part only.

A member's copy has everything that checks its lines, and no data of other members: the lines and the seal, the
configuration and the member's own rows of the ledger. For a run between sites it also has the run's number and sites,
so that `fedweave audit SITE --against` takes the copy for the run.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.accounts.statements import (
    account,
    check_pay,
    in_total,
    ledger_hash,
    of_client,
    rule_of,
    run_hash,
    terms_of,
)
from fedweave.core.types import TRAINING
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Document as ConfigDocument
from fedweave.experiment.config import config_hash, dumps, load_saved
from fedweave.experiment.runs.files import CONFIG, LEDGER, RUN, damage_error, read, read_table, write, write_table
from fedweave.experiment.runs.reading import Run
from fedweave.incentives.statement import SCHEMA, Digest, Terms, check, of_member

DIFFERS = "statement.differs"
SEAL = "statement.json"
_COPY_KEYS = ("run", "sites")  # of run.json in a copy; the others describe the machine that started the run


class Seal(NamedTuple):
    """Everything in a statement but its lines (`Account.seal`)."""

    terms: Terms
    digest: Digest
    config: str
    ledgers: dict[str, str]
    run: str
    sums: dict[int, float]


def read_seal(folder: Path) -> Seal:
    """The seal of the statement in `folder`."""
    if not (folder / SEAL).is_file():
        raise UserError(
            f"{folder} holds no statement: it has no {SEAL}. Name the folder that `fedweave statement` wrote."
        )
    try:
        seal = json.loads(read(folder / SEAL))
        whole = Digest(seal["start"], tuple(seal["lines"]), seal["digest"])
        for word in (whole.start, whole.digest, *whole.lines):
            bytes.fromhex(word)
        sums = {int(number): float(total) for number, total in seal["sums"].items()}
        if not all(0 <= total < math.inf for total in sums.values()):
            raise ValueError("a sum is negative or not finite")
        terms = Terms(seal["budget"], seal["currency"])
        return Seal(terms, whole, str(seal["config"]), dict(seal["ledgers"]), str(seal["run"]), sums)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the seal {folder / SEAL} is damaged ({type(error).__name__} {error}); ask for the statement again."
        ) from error


def check_same(folders: Sequence[Path]) -> str:
    """Compare the seals in members' copies, which contain no lines: seals of one statement are equal. Returns this
    result in words, with the members whose seals were not compared."""
    seals = {_whose(folder): read_seal(folder) for folder in folders}
    if len(seals) < 2:
        raise UserError("name the copies of two members or more: --compare DIR --compare DIR.")
    for seal in seals.values():
        check(pa.Table.from_pylist([], SCHEMA), "", seal.digest, seal.terms, seal.run, seal.sums)
    digests = [seal.digest.digest for seal in seals.values()]
    majority = max(digests, key=digests.count)
    different = [member for member, seal in seals.items() if seal.digest.digest != majority]
    if different and 2 * digests.count(majority) <= len(digests):
        raise UserError(f"the statements of {listed([*seals])} differ, and no majority has the same.", code=DIFFERS)
    if different:
        common = next(seal for seal in seals.values() if seal.digest.digest == majority)
        why = "; ".join(f"{member}: {_difference(seals[member], common)}" for member in different)
        raise UserError(f"another statement than most members have: {why}. Ask who wrote them.", code=DIFFERS)
    not_compared = sorted(member for member in next(iter(seals.values())).ledgers if member not in seals)
    more = f"; not compared: {listed(not_compared)}" if not_compared else ""
    return f"the statements of {listed([*seals])} are the same, digest {majority[:16]}{more}"


def _whose(folder: Path) -> str:
    """The member whose copy a folder holds; the folder's path if that is not clear."""
    names = [path.stem.removeprefix("statement-") for path in sorted(folder.glob("statement-*.parquet"))]
    return names[0] if len(names) == 1 else str(folder)


def _difference(seal: Seal, common: Seal) -> str:
    """The first difference of a seal to the one that most members have."""
    if (seal.terms, seal.run) != (common.terms, common.run):
        return "it is of another run, budget or currency"
    for number in sorted(seal.sums.keys() | common.sums.keys()):
        total, common_total = seal.sums.get(number), common.sums.get(number)
        if total != common_total:
            return f"in round {number} pay is divided by {total}, and by {common_total} elsewhere"
    return "its lines differ"


def check_in_run(member_lines: pa.Table, seal: Seal, member: str, run: Run) -> None:
    """Check a member's lines of a statement against its seal, the seal against the configuration and the member's
    ledger in `run`, and the pay against the payoffs in `run`."""
    _check_sealed(member_lines, seal, member, run.config, run.ledger, run.directory)
    _check_once(member_lines, member)

    # The author of a statement can seal anything: rounds and amounts have to be the run's.
    expected_lines = of_member(account(run).table, member)
    amounts = {row["round"]: row["pay"] for row in member_lines.to_pylist()}
    expected = {row["round"]: row["pay"] for row in expected_lines.to_pylist()}
    for number in sorted(amounts.keys() | expected.keys()):
        if amounts.get(number) != expected.get(number):
            claim = f"says {amounts[number]}" if number in amounts else "leaves it out"
            raise UserError(
                f"in round {number} {run.directory} has {expected.get(number, 'nothing')} for {member}, and the "
                f"statement {claim}; ask for the statement again."
            )
    columns = expected_lines.column_names
    if member_lines["leave_one_out"].null_count == len(member_lines):  # written before `fedweave contributions`
        columns.remove("leave_one_out")
    if member_lines.select(columns).to_pylist() != expected_lines.select(columns).to_pylist():
        raise UserError(
            f"the lines of {member} say other values or reasons than {run.directory}, though they pay the same; ask "
            "for the statement again."
        )


def check_copy(member_lines: pa.Table, seal: Seal, member: str, folder: Path) -> None:
    """Check a member's lines only with its copy in `folder` (`write_copy`): against the seal, the seal against the
    configuration and the member's ledger, and the pay against the values in the lines."""
    config, ledger = load_saved(folder / CONFIG), read_table(folder, LEDGER)
    _check_sealed(member_lines, seal, member, config, ledger, folder)
    _check_once(member_lines, member)
    if not in_total(config):  # a line for each round in which the member sent an update, by its ledger
        local = of_client(ledger, member)
        sent = local.filter(pc.and_(pc.equal(local["direction"], "up"), pc.equal(local["purpose"], TRAINING)))
        rounds_of_updates, rounds_of_lines = {*sent["round"].to_pylist()}, {*member_lines["round"].to_pylist()}
        without_line = sorted(rounds_of_updates - rounds_of_lines)
        if without_line:
            raise UserError(
                f"{member} sent an update in {_round_list(without_line)}, and the statement has no line of it; ask for "
                "the statement again. If that round paid no member, only the run itself shows it."
            )
        without_update = sorted(rounds_of_lines - rounds_of_updates)
        if without_update:
            raise UserError(
                f"the statement has {_round_list(without_update)}, in which {member} sent no update; ask for it again."
            )
    unknown = check_pay(member_lines, seal.sums, seal.terms, rule_of(config))
    if unknown:
        raise UserError(
            f"nothing in {folder} shows that the pay of {_round_list(unknown)} is right: lines have no value, or the "
            f"seal has no sum. An owner of the run can check it: fedweave statement RUN --member {member} --check …"
        )


def _check_sealed(
    member_lines: pa.Table, seal: Seal, member: str, config: ConfigDocument, ledger: pa.Table, directory: Path
) -> None:
    if seal.config != config_hash(config):
        raise UserError(
            f"the statement is about another configuration than {directory / CONFIG}. If the run went on after the "
            "statement was written, ask for a new one: the number of rounds is in the configuration."
        )
    if seal.ledgers.get(member) != ledger_hash(ledger, member):
        raise UserError(
            f"the statement does not know the ledger of {member} in {directory}: it is about another run, or the "
            "messages in the ledger were changed afterwards."
        )
    if seal.run != run_hash(seal.config, seal.ledgers):
        raise UserError("the run's hash does not follow from the ledgers in the seal; ask for the statement again.")
    if seal.terms != terms_of(config, directory):
        raise UserError("budget or currency differ from the configuration; ask for the statement again.")
    check(member_lines, member, seal.digest, seal.terms, seal.run, seal.sums)


def _check_once(member_lines: pa.Table, member: str) -> None:
    numbers = member_lines["round"].to_pylist()
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise UserError(f"{member} has several lines of {_round_list(twice)}; ask for the statement again.")


def _round_list(numbers: Sequence[int]) -> str:
    return f"round{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def check_free(out: Path, member: str) -> None:
    """Raise an error if a member's copy, or the whole statement for `member` "", would overwrite other files."""
    files_of_run = [name for name in (CONFIG, LEDGER) if (out / name).exists()]
    if files_of_run and not (out / SEAL).exists():
        raise UserError(
            f"{out} holds a {files_of_run[0]} of a run or of something else; choose another folder with --out."
        )
    stem = f"statement-{member}" if member else "statement"
    other_statements = sorted(path.stem for path in out.glob("statement*.csv") if path.stem != stem)
    if other_statements:
        raise UserError(f"{out} holds {other_statements[0]}.csv: give every member a separate folder with --out.")


def write_copy(run: Run, member: str, out: Path) -> list[Path]:
    """Write the files of a copy, without lines, page and seal; return the paths."""
    write(out / CONFIG, lambda file: file.write(dumps(run.config).encode()))
    ledger = of_client(run.ledger, member)
    for index, field in enumerate(ledger.schema):  # a filter leaves the words of other members' rows in dictionaries
        if pa.types.is_dictionary(field.type):
            words = ledger[field.name].cast(field.type.value_type).combine_chunks().dictionary_encode()
            ledger = ledger.set_column(index, field, words.cast(field.type))
    write_table(out / LEDGER, ledger)
    paths = [out / CONFIG, out / LEDGER]
    source = run.directory / RUN
    if source.exists():
        try:
            record = dict(json.loads(read(source)))
        except (ValueError, TypeError) as error:
            raise damage_error(source, str(error)) from error
        copied = {key: value for key, value in record.items() if key in _COPY_KEYS}
        write(out / RUN, lambda file: file.write(json.dumps(copied).encode()))
        paths.append(out / RUN)
    return paths
