"""The files of a run: replaced as a whole, locked while they are written, and read with damage reported.

Nothing here needs torch, so that looking into a finished run starts quickly.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedweave.core import ledger_columns
from fedweave.core.decompression import (
    ARCHIVE_FAULTS,
    TABLE_FAULTS,
    DecompressionBomb,
    Nested,
    check_archive,
    parquet_groups,
)
from fedweave.core.text import cell
from fedweave.core.types import Record
from fedweave.errors import DiskFull, FedweaveError, UserError
from fedweave.experiment.runs.table_columns import MAX_VALUE, check_columns

CONFIG, PARTITION, METRICS, LEDGER = "config.toml", "partition.parquet", "metrics.parquet", "ledger.parquet"
COLUMNS = "columns.parquet"  # the columns and classes of the run's data (`experiment.runs.data_form`)
MOTIFS, CONTRIBUTIONS = "motifs.parquet", "contributions.parquet"
PREDICTIONS, NEW_PREDICTIONS = "predictions.parquet", "new-predictions.parquet"  # of the run's own examples, of others
PAIRS_SCORED, TOP_PAIRS = "pairs.parquet", "top-pairs.parquet"  # of runs on links: a table of pairs, pairs of a node
EMBEDDINGS, NEW_EMBEDDINGS = "embeddings.parquet", "new-embeddings.parquet"  # scores, and what the last layer reads
EARLIER = "earlier-predictions.parquet"  # at a site: what the last but one `sites predict`, or an older model, left
KINDS = (b"node kinds", b"edge kinds")  # metadata of motifs.parquet: JSON lists of names, empty where kinds are numbers
PAIRS = "pairs.npz"  # what is known of every two clients; only where there is something
CHECKPOINT, SUMMARY, LOCK = "checkpoint/state.safetensors", "summary.json", ".lock"
HISTOGRAMS = "histograms.json"  # of what a scorer was trained on: next to it at a site, in an export only if asked for
SCORER = "scorer.safetensors"  # a model with all that scoring needs: in an export, and in a run's folder at a site
SHARED = ".alone"  # folder beside the runs of a sweep: what they have in common (`experiment.runs.shared`)
EARLIER_LEDGER = "earlier-ledger.parquet"  # what was sent under a mechanism in the runs that it began from
RUN = "run.json"  # of a run between sites: which run of the project it is
PARTS = "checkpoint/rows"  # folder of rows that a large table of an unfinished run has got since (`saving.Growing`)
OF_A_RUN = (CONFIG, COLUMNS, PARTITION, METRICS, LEDGER, EARLIER_LEDGER, MOTIFS, PAIRS, CHECKPOINT, PARTS, SUMMARY, RUN)
EXPORT, STATEMENT, FORGOTTEN = "export", "statement", "forgotten"  # folders
FOLDS = "folds"  # folder of runs that each leave the labels of one fold out (`experiment.runs.fold_runs`)
OF_MODEL = (
    CONTRIBUTIONS,
    "report.html",
    PREDICTIONS,
    NEW_PREDICTIONS,
    EMBEDDINGS,
    NEW_EMBEDDINGS,
    PAIRS_SCORED,
    TOP_PAIRS,
)  # written from the models of a run, and removed when it is resumed
FOLDERS = (EXPORT, STATEMENT, FORGOTTEN, FOLDS)
OF_COMMANDS = (*OF_MODEL, *(f"compliance.{kind}" for kind in ("html", "pdf", "json")), *FOLDERS)

_IN_SUMMARY = {
    "algorithm": str,
    "dataset": str,
    "features": int,
    "class_count": int,
    "clients": int,
    "rounds": int,
    "metrics": dict,
    "classes": list,
    "targets": list,
    "groups": list,
    "devices": list,
    "privacy": list,
    "privacy_total": list,
    "init_from": str,
    "note": str,
    "stopped": str,
    "missed": dict,
    "edges": dict,
    "target": str,
    "outputs": int,
    "chosen_round": int,
    "shelf": dict,
    "shelf_joint": dict,
}
_PAGE = b"<!doctype html"
_PDF = b"%pdf-"
READABLE = "It must be a file that this user may read (chmod u+r)"


def write(path: Path, fill: Callable[[BinaryIO], object], opener: Callable[[str, int], int] | None = None) -> None:
    """Replace `path` by what `fill` writes, such that after a crash either the old or the new content is there; opener:
    see `open`.

    Raises:
        FedweaveError: the disk is full; UserError: the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with plain_errors(path):
        _check_regular(path)
        try:
            path.parent.mkdir(exist_ok=True)
            with open(temporary, "wb", opener=opener) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_page(path: Path, page: str | bytes) -> None:
    """`write` an HTML page or, as bytes, a PDF; it replaces only a file of the same kind.

    Raises:
        UserError: the file is something else, which may still be needed.
    """
    start, kind = (_PAGE, "HTML page") if isinstance(page, str) else (_PDF, "PDF")
    with plain_errors(path):
        if path.is_file() and path.stat().st_size:
            with open(path, "rb") as file:
                if not file.read(len(start)).lower().startswith(start):
                    raise UserError(f"{path} exists and is no {kind}; name another file.", code="user.no-page")
    write(path, lambda file: file.write(page.encode() if isinstance(page, str) else page))


def write_table(path: Path, table: pa.Table) -> None:
    """`write` a Parquet file."""
    write(path, lambda file: pq.write_table(table, file, compression="zstd"))


def write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """`write` a Parquet file with a row group for each of the tables."""

    def fill(file: BinaryIO) -> None:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)

    write(path, fill)


def write_csv(path: Path, table: pa.Table, spreadsheet: bool = False) -> None:
    """`write` a CSV file (`csv_bytes`)."""
    write(path, lambda file: file.write(csv_bytes(table, spreadsheet)))


def csv_bytes(table: pa.Table, spreadsheet: bool = False) -> bytes:
    """A table as CSV, its values as they are; for a spreadsheet, words that it would compute are marked as words
    (`core.text.cell`)."""
    from pyarrow import csv

    if spreadsheet:
        for index, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                cells = pa.array(map(cell, table.column(index).to_pylist()), pa.string())
                table = table.set_column(index, field.name, cells)
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    return bytes(sink.getvalue())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """`write` arrays by name, as NumPy's zip archive."""
    write(path, lambda file: np.savez_compressed(file, **dict(arrays)))  # type: ignore[arg-type]


def read_pairs(directory: Path) -> dict[str, np.ndarray]:
    """A run's matrices of pairs of clients, by name; {} if it has none.

    Raises:
        FedweaveError: their file is damaged.
    """
    path = directory / PAIRS
    if not path.exists():
        return {}
    blob = read(path)
    try:
        check_archive(BytesIO(blob), len(blob))
        with np.load(BytesIO(blob), allow_pickle=False) as archive:
            matrices = {name: archive[name] for name in archive.files}
        for name, matrix in matrices.items():
            if matrix.dtype.kind not in "fiub" or matrix.ndim != 2 or len({0, *matrix.shape}) != 2:
                raise ValueError(f"{name} is not a square matrix of numbers, but {matrix.dtype} {list(matrix.shape)}")
    except (*ARCHIVE_FAULTS, DecompressionBomb) as error:
        raise damage_error(path, str(error)) from error
    return matrices


def read(path: Path, start: int = 0) -> bytes:
    """The content of a file from byte `start` on.

    Raises:
        UserError: it cannot be read, or is none.
    """
    with plain_errors(path, READABLE):
        _check_regular(path)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read()


def read_table(directory: Path, name: str) -> pa.Table:
    """One of a run's Parquet files, with the rows that it has got since. An older ledger gets empty columns for those
    that it lacks.

    Raises:
        UserError: there is none.
        FedweaveError: it is damaged.
    """
    path = directory / name
    if not path.exists():
        raise UserError(f"there is no {path}; give the folder of a run.", code="user.no-file")
    return pa.concat_tables([table for _, table in read_chunks(path)]).unify_dictionaries()


def read_chunks(path: Path) -> Iterator[tuple[Path, pa.Table]]:
    """The rows of a run's table, in order: the file, and a table from it.

    Raises:
        FedweaveError: a file is damaged.
    """
    rows = 0
    for table in row_groups(path, path.name):
        yield path, table
        rows += len(table)
    for first, part in parts_of(path):
        if first == rows:  # what the table has already was about to be removed
            for table in row_groups(part, path.name):
                yield part, table
                rows += len(table)


def row_groups(file: Path | pa.OSFile, name: str) -> Iterator[pa.Table]:
    """The tables of a Parquet file one after the other, at least one; name: the run's table that it belongs to.

    Raises:
        FedweaveError: it is damaged.
    """
    source = file
    if isinstance(file, Path):
        with plain_errors(file, READABLE):
            _check_regular(file)
            source = pa.OSFile(os.fsencode(file))  # text may hold bytes that the locale cannot decode
    try:
        for table in parquet_groups(source, source.size()):  # type: ignore[union-attr]
            if name in (LEDGER, EARLIER_LEDGER):
                table = ledger_columns.add_absent_columns(table)
            check_columns(table, name)
            yield table
    except (*TABLE_FAULTS, DecompressionBomb, Nested, ValueError) as error:
        raise damage_error(file if isinstance(file, Path) else name, str(error)) from error


def part_of(path: Path, first: int) -> Path:
    """Where rows of a run's table from number `first` on are kept until they are in its file."""
    return path.parent / PARTS / f"{path.stem}-{first:012}{path.suffix}"


def parts_of(path: Path) -> list[tuple[int, Path]]:
    """(number of its first row, file) of what a run's table has got since, in order."""
    files = sorted((path.parent / PARTS).glob(f"{path.stem}-{'[0-9]' * 12}{path.suffix}"))
    return [(int(part.stem[-12:]), part) for part in files]


def remove_parts(path: Path, first: int = 0) -> None:
    """Remove what a run's table has got since, as far as that begins at row `first` or later."""
    for row, part in parts_of(path):
        if row >= first:
            part.unlink()


def read_summary(path: Path, *needed: str) -> Record:
    """A finished run's summary, whose entries are of the kinds that they are written in.

    needed: entries that must be there, in addition to "rounds" and "metrics".

    Raises:
        FedweaveError: it is damaged.
    """
    try:
        summary: Record = json.loads(read(path))
        missing = [name for name in ("rounds", "metrics", *needed) if name not in summary]
        if missing:
            raise KeyError(missing[0])
        for name, value in [*summary.items(), *summary["metrics"].items()]:
            if name in _IN_SUMMARY:
                fits = isinstance(value, _IN_SUMMARY[name]) and not isinstance(value, bool)
            else:
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                fits = value is None or (is_number and abs(value) <= MAX_VALUE)
            if not fits:
                raise TypeError(f"{name} is {str(value)[:40]}")
        for key in ("classes", "targets", "groups", "devices"):
            if any(isinstance(name, dict | list) for name in summary.get(key, ())):
                raise TypeError("a class, group, device or target has no name")
        if not all(isinstance(device, str) for device in summary.get("devices", ())):
            raise TypeError("a device is not text")
        if "edges" in summary:  # `datasets.Dataset.edge_form`; sites send 0 or 1 for what holds or not
            edges = summary["edges"]
            count, flags = edges.get("features"), [edges.get(key) for key in ("weighted", "examples", "directed")]
            is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 0
            if not is_count or not all(flag in (0, 1) and isinstance(flag, int) for flag in flags):
                raise TypeError(f"edges is {str(edges)[:40]}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damage_error(path, f"{type(error).__name__} {error}") from error
    return summary


def is_used(directory: Path) -> bool:
    """Whether `directory` is a file, or holds more than the lock and temporary files of a run that saved nothing."""
    with plain_errors(directory, READABLE):
        if not directory.is_dir():
            return directory.exists()
        files = [entry for entry in directory.rglob("*") if entry.is_file()]
        return any(file.name != LOCK and file.suffix != ".tmp" for file in files)


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed run was about to write."""
    for place in ("", "checkpoint/", f"{PARTS}/"):
        for stray in directory.glob(f"{place}.*.tmp"):
            stray.unlink()


def remove_run(directory: Path) -> None:
    """Remove what a run wrote, and what commands wrote of it: all their files would be of another run."""
    for name in (*OF_A_RUN, *OF_COMMANDS):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Create `directory` and keep other processes from writing it; the system frees the lock of a killed process.

    Raises:
        UserError: another process holds it.
    """
    with plain_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_regular(directory / LOCK)
        file = open(directory / LOCK, "a+")  # noqa: SIM115
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"process {file.read() or '(unknown)'} is writing {directory}. Wait for it, or choose another folder.",
                code="user.locked",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def plain_errors(
    path: Path, remedy: str = "Choose another place, or give this user the right to write there"
) -> Iterator[None]:
    """Report errors of the system in plain words, with the `remedy` where it is not a full disk.

    Raises:
        DiskFull; UserError: anything else about `path`.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = f"the disk is full ({error.strerror})"
            raise DiskFull(f"{path} cannot be written, {reason}. Free some space, and resume the run.") from error
        raise UserError(
            f"{path} cannot be used: {error.strerror or error}. {remedy}.", code="user.unusable-file"
        ) from error


def _check_regular(path: Path) -> None:
    """Reject pipes and devices, which block or never end, and folders."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device")


def damage_error(path: Path | str, reason: str) -> FedweaveError:
    """The error for a file of a run that cannot be read."""
    remedy = "Restore it from a copy, or run again from the start in another directory"
    return FedweaveError(f"{path} is damaged: {reason}. {remedy}.", code="file.damaged")
