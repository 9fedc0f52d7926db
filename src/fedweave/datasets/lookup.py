"""How published data is found on disk; descriptions of a user's path, for errors where it does not hold the named data;
and files at that path that look like data but are not read.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn, TypeVar

import numpy as np

from fedweave.core.decompression import ARCHIVE_FAULTS, DecompressionBomb, check_archive
from fedweave.core.settings import Settings
from fedweave.core.text import counted
from fedweave.datasets.check import refuse
from fedweave.datasets.settings import Normalize
from fedweave.errors import ConfigError, DataError


class Facts(NamedTuple):
    """Published counts: nodes, distinct undirected edges, features in the file, classes. `sensitive` names the
    attribute; `graphs` counts small graphs, where these are the examples; `sens_column` is where the file repeats the
    attribute among the features."""

    nodes: int
    edges: int
    features: int
    classes: int
    sensitive: str | None = None
    graphs: int | None = None
    sens_column: int | None = None


@dataclass(frozen=True)
class Published(Settings):
    """Base of published data sets.

    normalize: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-format.md).
    """

    normalize: Normalize = "none"

    name: ClassVar[str]
    facts: ClassVar[Facts]


Kind = TypeVar("Kind")


def kinds_of(base: type[Kind], table: Mapping[str, tuple[Facts, str]], **more: object) -> Iterator[type[Kind]]:
    """Kinds of published data that differ from others of their `base` in nothing but what stands in a table: by their
    names what is published of them, and what they are."""
    for name, (facts, about) in table.items():
        namespace = {"__doc__": about, "__module__": base.__module__, "name": name, "facts": facts}
        yield type(name, (base,), namespace | more)


class PublishedFile(Published):
    """Base of those in `files`, or folders, which are looked for in `<name>`, in other names by which the folder is
    `called`, and in the folder itself, of [data] path alone or, without it, of $FEDWEAVE_DATA, then of the cache; there
    is no download."""

    files: ClassVar[tuple[str, ...]]
    called: ClassVar[tuple[str, ...]] = ()
    remedy: ClassVar[str] = "Put {}, as released, at one of these places, or name their folder in [data] path or "

    def _find(self, root: Path | None) -> Path:
        """The first place that has all files.

        Raises:
            NotHeld: it is not in the user's `root`.
            DataError: it is nowhere, and there is no `root`; lists the places.
        """
        bases = [base for base in (shared(), cache()) if base is not None] if root is None else [root]
        places = [base / name for base in bases for name in (self.name, *self.called, "")]
        for place in places:
            if all((place / file).exists() for file in self.files):
                return place
        if root is not None:
            raise NotHeld(self.name, places)
        files = ", ".join(self.files)
        remedy = f"{self.remedy.format(files)}$FEDWEAVE_DATA."
        raise nowhere(self.name, f"there is no folder with all of {files}.", places, remedy)


class NotHeld(DataError):
    """The user's path does not hold the data set `name`, which would be at one of `places`; none if it has no file."""

    def __init__(self, name: str, places: Iterable[Path] = ()) -> None:
        looked = " or ".join(map(str, places))
        super().__init__(f"{name} is not at {looked}" if looked else f"{name} is computed and not read from a path")


def nowhere(name: str, what: str, places: Iterable[Path], remedy: str) -> DataError:
    """Says that the data set `name` is at none of `places`."""
    looked = "".join(f"\n  {place}" for place in places)
    return DataError(f"{name}: {what}\nLooked at:{looked}\n{remedy}", code="data.nowhere")


def folders(root: Path | None, name: str) -> list[Path]:
    """Where a data set of several files may be, a folder `name` in `root` or that itself; without it likewise in
    $FEDWEAVE_DATA, then in the cache, where a download goes."""
    base = root or shared()
    places = [] if base is None else [base / name, base]
    return places if root is not None else [*places, cache() / name]


def shared() -> Path | None:
    """The folder of data sets $FEDWEAVE_DATA, if it is set."""
    named = os.environ.get("FEDWEAVE_DATA")
    return Path(named).expanduser() if named else None


def cache() -> Path:
    """The folder of downloads: $FEDWEAVE_CACHE, else $XDG_CACHE_HOME/fedweave, else ~/.cache/fedweave."""
    named = os.environ.get("FEDWEAVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedweave"
    return Path(named).expanduser()


SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".feather", ".arrow", ".npz", ".npy", ".json", ".xlsx", ".mat", ".pt")
PACKED = (".xz", ".gz", ".bz2", ".zip", ".zst")
PROSE = ("readme", "license", "licence")  # anywhere in a name
_SHOWN = 5


def unread(root: Path, read: Collection[Path], *inside: Path, pattern: str = "*") -> tuple[str, ...]:
    """A sentence on the files directly in the folder `root`, and in those `inside` it, that are not among `read` and
    look like data; none without such files.

    pattern: of the names that count.
    """
    folders = [root, *inside]
    names = [str(path.relative_to(root)) for folder in folders for path in _data(folder, pattern) if path not in read]
    if not names:
        return ()
    more = f" and {len(names) - _SHOWN:,} more" if names[_SHOWN:] else ""
    return (f"in {root}, {', '.join(names[:_SHOWN])}{more} {'is' if len(names) == 1 else 'are'} not read",)


def _data(folder: Path, pattern: str) -> Iterator[Path]:
    """The files in `folder` that look like data, sorted."""
    for path in sorted(folder.glob(pattern)):
        name = path.name.lower()
        for packed in PACKED:
            name = name.removesuffix(packed)
        prose = any(word in name for word in PROSE) or name.startswith(".")
        if name.endswith(SUFFIXES) and not prose and path.is_file():
            yield path


_UNPACK = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip", ".7z": "7z x"}
_UNPACK |= {".tar": "tar -xf", ".tgz": "tar -xzf", ".tar.gz": "tar -xzf", ".tar.bz2": "tar -xjf", ".tar.xz": "tar -xJf"}
_MOLECULES = (".smi", ".smiles", ".sdf", ".mol", ".mol2")
_STEMS = ("nodes", "edges", "graphs")


def refuse_absent(
    folder: Path, absent: str, stem: str, endings: Sequence[str], remedy: str = "", code: str = ""
) -> NoReturn:
    """Refuse a folder without the file `stem` with one of the `endings`. What the folder has instead decides the
    remedy: first the file under another form (`refuse_other_form`), then an archive that may hold it, then files of
    molecules, then tables of other names; `remedy` and `code` are of a folder with none of these. absent: what is not
    there, in words.

    Raises:
        DataError: names the file and what to do.
    """
    refuse_other_form(folder, absent, stem, endings)
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    packed = [path for path in inside if path.is_file() and _command(path)]
    molecules = [path for path in inside if path.suffix.casefold() in _MOLECULES]
    if packed:
        unpack = f"If it holds the files, unpack it: {_command(packed[0])} {packed[0].name}."
        refuse(folder, f"{absent}, but {packed[0].name} is", unpack, "file-other")
    if molecules and stem in _STEMS:
        table = 'Molecules are read with [data] name = "graphs" from graphs.csv, with a column smiles and their label.'
        refuse(folder, f"{absent}, but {molecules[0].name} is", table, "file-other")
    refuse(folder, absent, remedy or _of_own_name(inside, stem), code)


def refuse_other_form(folder: Path, absent: str, stem: str, endings: Sequence[str]) -> None:
    """Refuse a folder that has the file `stem`, or one whose stem ends so if it begins with "_", in another form than
    with one of the `endings`: packed, of another kind, in capitals, a folder of parts. absent: what is not there.

    Raises:
        DataError: names the file and what to do.
    """
    for path in sorted(folder.iterdir()):
        bare, wanted = path.name.partition(".")[0].casefold(), stem.casefold()
        if bare == wanted or (wanted.startswith("_") and bare.endswith(wanted)):
            refuse(folder, f"{absent}, but {path.name} is", _renaming(path, stem, endings), "file-other")


def _command(path: Path) -> str:
    """The command that unpacks a file, "" for one that is not packed."""
    name = path.name.casefold()
    return next((_UNPACK[end] for end in sorted(_UNPACK, key=len, reverse=True) if name.endswith(end)), "")


def _renaming(path: Path, stem: str, endings: Sequence[str]) -> str:
    """The remedy for a file, or a folder of parts, that is `stem` in another form."""
    bare, _, kind = path.name.partition(".")
    name = bare[: len(bare) - len(stem)] + stem if stem.startswith("_") else stem
    wanted = " or ".join(name + ending for ending in endings)
    if f".{kind.casefold()}" in endings:
        return f"Rename it: {name}.{kind.casefold()}."
    if path.is_dir():
        return f"If it is a folder of the table's parts, or holds the table, call it {wanted}."
    return f"Unpack it: {_command(path)} {path.name}." if _command(path) else f"Save it as {wanted}."


def _of_own_name(inside: Sequence[Path], stem: str) -> str:
    """The remedy for a folder without the table `stem`: other tables that are there may be it."""
    tables = [path for path in inside if path.suffix in TABLES and path.stem not in _STEMS]
    if not tables:
        return "See docs/data-format.md for both files."
    there = "There is" if len(tables) == 1 else "There are"
    shown = ", ".join(path.name for path in tables[:5]) + (", …" if tables[5:] else "")
    renamed = f"rename the table of {stem} to {stem}{tables[0].suffix}"
    return f"{there} {shown}: {renamed}, and see docs/data-format.md for both files."


TABLES = (".csv", ".parquet")
ARCHIVE = "npz"  # the name of a graph of the user's own in one file
_LISTED = 5
TU_SUFFIXES = (".txt", ".txt.xz")  # of files in the TU layout


def identify(root: Path, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """A description of the existing path `root` ("is …", "holds …"), and the values of `[data] name` with which it can
    be read; `names` are the names of all data sets."""
    data_names = set(names)
    if root.is_file():
        names = (root.stem if root.stem in data_names else ARCHIVE,) if root.suffix.lower() == ".npz" else ()
        return f"is {_file(root)}", names
    if not root.is_dir():
        return "is a pipe or a device", ()
    inside = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    if tables := _tables(root):
        return f"is a folder with {' and '.join(tables)}", ("graphs" if len(tables) == 3 else "folder",)
    if texts := tu_names(root):
        return f"is a folder with {texts[0]}_A.txt", (texts[0].lower() if texts[0].lower() in data_names else "tu",)
    parties = [path.name for path in inside if path.is_dir() and _tables(path)]
    if parties:
        return f"is a folder of the parties {', '.join(parties)}", ("parties",)
    if archives := [path for path in inside if path.stem in data_names and (path.is_dir() or path.suffix == ".npz")]:
        return f"holds {_list(archives)}", tuple(dict.fromkeys(path.stem for path in archives))
    return (f"holds {_list(inside)}" if inside else "is an empty folder"), ()


def tu_names(folder: Path, name: str = "*") -> list[str]:
    """The names DS for which `folder` holds an adjacency DS_A, as far as they match the pattern `name`."""
    names = {path.name.removesuffix(s)[:-2] for s in TU_SUFFIXES for path in folder.glob(f"{name}_A{s}")}
    return sorted(names)


def require_folder(root: Path | None, name: str, needs: str, layout: str) -> Path:
    """The folder of [data] path; `needs` describes the data that `name` reads, and `layout` the folder to give.

    Raises:
        ConfigError: none is named.
        DataError: it is no folder; names the path and what to do.
    """
    if root is None:
        raise ConfigError(f'The dataset "{name}" needs {needs}: set [data] path.', code="config.missing")
    if not root.is_dir():
        archive = root.suffix.lower() == ".npz"
        remedy = f'A graph in one .npz file is read with [data] name = "{ARCHIVE}".' if archive else layout
        refuse(root, "this is not a folder", remedy)
    return root


def _file(path: Path) -> str:
    """A description of a file: the counts of an archive, the kind of any other."""
    try:
        check_archive(path, path.stat().st_size)
        with np.load(path, allow_pickle=False) as arrays:
            nodes, (_, features) = len(arrays["y"]), arrays["x_shape"]
            return f"an .npz of {counted(nodes, 'node')} with {counted(features, 'feature')}"
    except (*ARCHIVE_FAULTS, AttributeError, DecompressionBomb):
        return f"a file of kind {path.suffix!r}" if path.suffix else "a file without an extension"


def _tables(folder: Path) -> list[str]:
    """The files of graphs (if there are any), nodes and edges in `folder`; none unless both of these are there."""
    graphs, *held = (
        [f"{stem}{kind}" for kind in TABLES if (folder / f"{stem}{kind}").exists()]
        for stem in ("graphs", "nodes", "edges")
    )
    return [files[0] for files in (graphs, *held) if files] if all(held) else []


def _list(paths: list[Path]) -> str:
    shown = [f"{path.name}/" if path.is_dir() else path.name for path in paths[:_LISTED]]
    return ", ".join(shown) + (f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else "")
