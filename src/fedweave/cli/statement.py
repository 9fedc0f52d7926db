"""The commands `fedweave statement` and `fedweave contributions`: members' pay, and their contributions."""

import json
import shlex
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedweave.accounts.document import plain_text
from fedweave.core.text import counted
from fedweave.errors import UserError


def statement(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The directory of a run that pays its members.", show_default=False),
    ] = None,
    member: Annotated[
        str, typer.Option(metavar="NAME", help="Only what this member may see: a folder to give to it.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Where to write (RUN/statement; for a member RUN/statement/NAME)."
        ),
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write the page as PDF, to be filed or sent.")] = False,
    sign: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Sign the page with the key in this folder of a project; repeatable. `fedweave compliance` checks the "
            "signed .json and adds signatures.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Check the statement in DIR against RUN or, without RUN, a member's copy against its own files; needs "
            "--member.",
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Compare members' copies by their statement.json; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """State what each member of a run contributed, received, and is owed or fined, round by round or for the whole run:
    CSV, Parquet, and a page to print and sign."""
    from fedweave.accounts.checks import SEAL, check_free, check_same, write_copy
    from fedweave.accounts.statement_document import document, money
    from fedweave.accounts.statements import account
    from fedweave.experiment.runs.files import STATEMENT, plain_errors, write, write_csv, write_table
    from fedweave.experiment.runs.reading import read_run
    from fedweave.incentives.statement import of_member
    from fedweave.reports.pages import check_page, write_document
    from fedweave.reports.terminal import screen
    from fedweave.sites.flare.compliance import Report, certificate_name, write_report

    if compare:
        typer.echo(check_same(compare))
        return
    if check is not None:
        for line in _check(directory, member, check):
            typer.echo(line)
        return
    if directory is None:
        raise UserError("name the directory of a run, or with --check the folder of a statement.")

    # 1. The statement, or one member's copy.
    out = out or directory / STATEMENT / member
    if pdf:
        check_page(out / "statement.pdf")
    run = read_run(directory)
    whole = account(run)
    table = of_member(whole.table, member) if member else whole.table
    check_free(out, member)
    with plain_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    words = [str(directory), "--member", "NAME", "--check", str(out)]
    if member:
        words = ["--member", member, "--check", out.name]
    about = f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}"
    page = document(whole, table, about, shlex.join(["fedweave", "statement", *words]), run, date.today())

    # 2. Its files.
    stem = _stem(member)
    paths = [out / f"{stem}.{kind}" for kind in ("csv", "parquet", "html")]
    write_csv(paths[0], table, spreadsheet=True)
    write_table(paths[1], table)
    if pdf:
        paths.append(out / f"{stem}.pdf")
    if sign:
        report = Report(replace(page, signer=certificate_name(sign[0])))  # who issues it
        for folder in sign:
            report = report.sign(folder)
        paths.append(out / f"{stem}-signed.json")
        write_report(paths[-1], report)
        page = report.with_signatures()
    for path in paths:
        if path.suffix in (".html", ".pdf"):
            write_document(path, page)
    paths.append(out / SEAL)
    write(out / SEAL, lambda file: file.write(json.dumps(whole.seal(), indent=2).encode() + b"\n"))
    if member:
        paths += write_copy(run, member, out)

    # 3. What each member is owed and fined over all rounds.
    if whole.warning:
        typer.echo(whole.warning)
    grid = Table(box=None, header_style="dim")
    for name in ("member", "rounds", "owed", "fined", "total"):
        grid.add_column(name, justify="left" if name == "member" else "right")
    for row in whole.totals(table).to_pylist():
        amounts = (money(row["paid"]), money(row["fined"]), f"{money(row['pay'])} {row['currency']}")
        grid.add_row(plain_text(row["member"]), str(row["rounds"]), *amounts)
    screen().print(grid)
    for path in paths:
        typer.echo(path)


def _check(directory: Path | None, member: str, folder: Path) -> list[str]:
    """Check a statement; return the results in words."""
    from fedweave.accounts.checks import check_copy, check_in_run, read_seal
    from fedweave.experiment.runs.files import LEDGER, RUN, csv_bytes, read, read_table
    from fedweave.experiment.runs.reading import read_run
    from fedweave.incentives.statement import of_member

    if not member:
        raise UserError("--check needs --member NAME: the member whose ledger is in the directory.")
    seal = read_seal(folder)
    if directory is None and not (folder / LEDGER).is_file():
        raise UserError(
            f"{folder} is not a member's copy: it has no {LEDGER}. Ask for the files of `fedweave statement RUN "
            f"--member {member}`, or name the run before --check."
        )
    stem, whole = _stem(member), _stem("")
    tables = {}
    for name in (stem, whole):
        if (folder / f"{name}.parquet").is_file():
            tables[name] = read_table(folder, f"{name}.parquet")
    if not tables:
        raise UserError(f"{folder} has no {stem}.parquet or {whole}.parquet, which holds the lines; ask for it.")
    run = None if directory is None else read_run(directory)
    for table in tables.values():
        rows = of_member(table, member)
        if run is None:
            check_copy(rows, seal, member, folder)
        else:
            check_in_run(rows, seal, member, run)
    tables.setdefault(stem, of_member(next(iter(tables.values())), member))
    for path in sorted(folder.glob("statement*.csv")):
        if path.stem not in tables and path.stem == whole:
            raise UserError(f"{path} cannot be checked without {path.stem}.parquet; ask for it, or leave the file out.")
        if path.stem in tables and read(path) != csv_bytes(tables[path.stem], spreadsheet=True):
            raise UserError(f"{path} differs from the statement's Parquet file; it was changed. Ask for it again.")
    sentences = [f"the statement in {folder} agrees with the ledger of {member} in {directory or folder}"]
    if (folder / RUN).exists() and directory is None:
        sentences.append(f"whether that is what left the site: fedweave audit SITE --against {folder}")
    return [*sentences, "its Parquet and CSV files are checked; the page (.html) is a copy to read"]


def _stem(member: str) -> str:
    return f"statement-{member}" if member else "statement"


def contributions(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    rounds: Annotated[str, typer.Option(help='Which rounds: "last", "all", or numbers such as 1,10,20.')] = "last",
    metric: Annotated[
        str,
        typer.Option(help="A model's worth: the run's selection metric (auto), accuracy, loss, average_precision, …"),
    ] = "auto",
    permutations: Annotated[
        int, typer.Option(metavar="N", help="Number of random orders of joining, above 12 clients.")
    ] = 200,
) -> None:
    """Measure each client's contribution to the global model: leave-one-out and Shapley values of single rounds, and
    the shares of a budget that follow from them; also to RUN/contributions.parquet.

    They are measured on the global test set or, without one, on all clients' test examples. docs/contributions.md
    explains each column.
    """
    from fedweave.accounts.contributions import COPIES, indivisible_shares, measure_contributions, over_rounds
    from fedweave.accounts.statements import one_class
    from fedweave.experiment.runs.files import CONTRIBUTIONS, lock, write_table
    from fedweave.experiment.runs.reading import read_run
    from fedweave.incentives.coalitions import GAINS_IN, MEASURED_ON
    from fedweave.reports.terminal import screen

    with lock(directory) if directory.is_dir() else nullcontext():  # no other run may replace it meanwhile
        table = measure_contributions(directory, rounds, metric, permutations)
        write_table(directory / CONTRIBUTIONS, table)
    sums = over_rounds(table)
    omitted = indivisible_shares(sums)  # {column: why}
    sums = sums.drop_columns([*omitted])
    grid = Table(box=None, header_style="dim")
    for name in sums.column_names:
        grid.add_column(name.replace("_", " "), justify="left" if name == "client" else "right")
    for row in sums.to_pylist():
        grid.add_row(*(plain_text(value) if isinstance(value, str) else f"{value:.4f}" for value in row.values()))
    console = screen()
    warning = one_class(read_run(directory))
    if warning:
        console.print(warning, highlight=False, markup=False)
    console.print(grid)
    numbers = sorted(set(table["round"].to_pylist()))
    metadata = table.schema.metadata or {}
    gains = f"gains in {metadata[GAINS_IN].decode()} on {metadata[MEASURED_ON].decode()}"
    text = f"round {numbers[0]}, {gains}"
    if len(numbers) > 1:
        text = f"{len(numbers)} rounds, {gains}, summed; shares are of the sums, cosines are means"
    console.print(f"{text}: {directory / CONTRIBUTIONS}", highlight=False, markup=False)
    counts = Counter[tuple[str, str]]()  # {(client, whose update it sent): rounds}
    for pairs in json.loads(metadata.get(COPIES, b"{}")).values():
        counts.update(map(tuple, pairs))
    for (client, other), count in counts.items():
        whose = f"the update of {other}" if other else "the last global update"
        often = counted(count, "round")
        console.print(f"{client} sent nearly {whose} in {often}: a copy?", highlight=False, markup=False)
    for name, why in omitted.items():
        console.print(f"{name.replace('_', ' ')} withheld: {why}", highlight=False, markup=False)
