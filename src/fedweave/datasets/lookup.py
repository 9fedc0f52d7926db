"""How published data is found on disk; descriptions of a user's path, for errors where it does not hold the named data;
and files at that path that look like data but are not read.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

    normalize: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-columns.md).
    """

    normalize: Normalize = "none"

    name: ClassVar[str]
    facts: ClassVar[Facts]


Kind = TypeVar("Kind")


def kinds_of(base: type[Kind], table: Mapping[str, tuple[Facts, str]], **more: object) -> Iterator[type[Kind]]:
    """Kinds of published data that differ from others of their `base` in nothing but what is in a table: by their
    names what is published of them, and what they are."""
    for name, (facts, about) in table.items():
        namespace = {"__doc__": about, "__module__": base.__module__, "name": name, "facts": facts}
        yield type(name, (base,), namespace | more)


class PublishedFile(Published):
    """Base of those in `files`, or folders, which are looked for in `<name>`, in other names by which the folder is
    `called`, and in the folder itself, of [data] path alone or, without it, of $FEDWEAVE_DATA, then of the cache; there
    is not a download."""

    files: ClassVar[tuple[str, ...]]
    called: ClassVar[tuple[str, ...]] = ()
    remedy: ClassVar[str] = "Put {}, as released, at one of these places, or name their folder in [data] path or "

    def find(self, root: Path | None) -> Path:
        """The first place that has all files."""
        bases = [base for base in (shared(), cache()) if base is not None] if root is None else [root]
        places = list[Path]()
        for base in bases:
            places += [base / name for name in (self.name, *self.called, "")]
        has_files = lambda place: all((place / file).exists() for file in self.files)  # noqa: E731
        files = ", ".join(self.files)
        return find_place(self.name, root, places, has_files, f"{self.remedy.format(files)}$FEDWEAVE_DATA.", files)


class AbsentData(DataError):
    """The user's path does not hold the data set `name`, which would be at one of `places`; none if it has no file."""

    def __init__(self, name: str, places: Iterable[Path] = ()) -> None:
        where = " or ".join(map(str, places))
        super().__init__(f"{name} is not at {where}" if where else f"{name} is computed and not read from a path")


def find_place(
    name: str,
    root: Path | None,
    places: Sequence[Path],
    is_there: Callable[[Path], bool],
    remedy: str,
    source: str | Callable[[Path], Path],
) -> Path:
    """The first of the `places` where the data set `name` is.

    source: what downloads it to the last place, and raises DataError where it cannot; or its files, if there is no
    download.

    Raises:
        AbsentData: it is not in the user's `root`.
        DataError: it is nowhere, and there is no `root`; lists the places.
    """
    for place in places:
        if is_there(place):
            return place
    if root is not None:
        raise AbsentData(name, places)
    try:
        if isinstance(source, str):
            raise DataError(f"there is no folder with all of {source}.")
        return source(places[-1])
    except DataError as error:
        where = "".join(f"\n  {place}" for place in places)
        raise DataError(f"{name}: {error}\nLooked at:{where}\n{remedy}", code="data.nowhere") from error


def shared() -> Path | None:
    """The folder of data sets $FEDWEAVE_DATA, if it is set."""
    folder = os.environ.get("FEDWEAVE_DATA")
    return Path(folder).expanduser() if folder else None


def in_shared(path: Path) -> Path:
    """A path; one that is not in the current folder, but in $FEDWEAVE_DATA, as it is there."""
    base = shared()
    return base / path if base is not None and not path.exists() and (base / path).exists() else path


def cache() -> Path:
    """The folder of downloads: $FEDWEAVE_CACHE, else $XDG_CACHE_HOME/fedweave, else ~/.cache/fedweave."""
    folder = os.environ.get("FEDWEAVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedweave"
    return Path(folder).expanduser()


SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".feather", ".arrow", ".npz", ".npy", ".json", ".xlsx", ".mat", ".pt")
PACKED = (".xz", ".gz", ".bz2", ".zip", ".zst")
PROSE = ("readme", "license", "licence")  # anywhere in a name
MAX_SHOWN = 5  # names in a sentence


def unread(root: Path, read: Collection[Path], *inside: Path, pattern: str = "*") -> tuple[str, ...]:
    """A sentence on the files directly in the folder `root`, and in those `inside` it, that are not among `read` and
    look like data; none without such files.

    pattern: of the names that count.
    """
    names = list[str]()
    for folder in (root, *inside):
        for path in sorted(folder.glob(pattern)):
            name = path.name.lower()
            for suffix in PACKED:
                name = name.removesuffix(suffix)
            prose = any(word in name for word in PROSE) or name.startswith(".")
            if name.endswith(SUFFIXES) and not prose and path.is_file() and path not in read:
                names.append(str(path.relative_to(root)))
    if not names:
        return ()
    return (f"in {root}, {_list(names)} {'is' if len(names) == 1 else 'are'} not read",)


def _list(names: Sequence[str]) -> str:
    """The names, and the number of those beyond `MAX_SHOWN`."""
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return f"{', '.join(names[:MAX_SHOWN])}{more}"


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
    there, in words."""
    refuse_other_form(folder, absent, stem, endings)
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in inside:
        if path.is_file() and _command(path):
            unpack = f"If it holds the files, unpack it: {_command(path)} {path.name}."
            refuse(folder, f"{absent}, but {path.name} is", unpack, "file-other")
    for path in inside:
        if path.suffix.casefold() in _MOLECULES and stem in _STEMS:
            remedy = 'Molecules are read with [data] name = "graphs" from graphs.csv, with a column smiles and their '
            refuse(folder, f"{absent}, but {path.name} is", f"{remedy}label.", "file-other")
    tables = [path.name for path in inside if path.suffix in TABLES and path.stem not in _STEMS]
    if not remedy:
        remedy = "See docs/data-format.md for both files."
        if tables:
            there = f"There {'is' if len(tables) == 1 else 'are'} {_list(tables)}"
            rename = f"rename the table of {stem} to {stem}{Path(tables[0]).suffix}"
            remedy = f"{there}: {rename}, and see docs/data-format.md for both files."
    refuse(folder, absent, remedy, code)


def refuse_other_form(folder: Path, absent: str, stem: str, endings: Sequence[str]) -> None:
    """Refuse a folder that has the file `stem`, or one whose stem ends so if it begins with "_", in another form than
    with one of the `endings`: packed, of another kind, in capitals, a folder of parts. absent: what is not there."""
    for path in sorted(folder.iterdir()):
        bare, _, kind = path.name.partition(".")
        is_suffix = stem.startswith("_") and bare.casefold().endswith(stem.casefold())
        if bare.casefold() != stem.casefold() and not is_suffix:
            continue
        name = bare[: len(bare) - len(stem)] + stem if stem.startswith("_") else stem
        names = " or ".join(name + ending for ending in endings)
        if f".{kind.casefold()}" in endings:
            remedy = f"Rename it: {name}.{kind.casefold()}."
        elif path.is_dir():
            remedy = f"If it is a folder of the table's parts, or holds the table, call it {names}."
        else:
            remedy = f"Unpack it: {_command(path)} {path.name}." if _command(path) else f"Save it as {names}."
        refuse(folder, f"{absent}, but {path.name} is", remedy, "file-other")


def _command(path: Path) -> str:
    """The command that unpacks a file, "" for one that is not packed."""
    for suffix in sorted(_UNPACK, key=len, reverse=True):
        if path.name.casefold().endswith(suffix):
            return _UNPACK[suffix]
    return ""


TABLES = (".csv", ".parquet")
ARCHIVE = "npz"  # the name of a graph of the user's own in one file
TU_SUFFIXES = (".txt", ".txt.xz")  # of files in the TU layout


def identify(root: Path, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """A description of the existing path `root` ("is …", "holds …"), and the values of `[data] name` with which it can
    be read; `names` are the names of all data sets."""
    data_names = set(names)
    if root.is_file():
        described = f"a file of kind {root.suffix!r}" if root.suffix else "a file without an extension"
        try:
            check_archive(root, root.stat().st_size)
            with np.load(root, allow_pickle=False) as arrays:
                nodes, (_, features) = len(arrays["y"]), arrays["x_shape"]
                described = f"an .npz of {counted(nodes, 'node')} with {counted(features, 'feature')}"
        except (*ARCHIVE_FAULTS, AttributeError, DecompressionBomb):
            pass
        if root.suffix.lower() != ".npz":
            return f"is {described}", ()
        return f"is {described}", (root.stem if root.stem in data_names else ARCHIVE,)
    if not root.is_dir():
        return "is a pipe or a device", ()
    tables, texts = _tables(root), tu_names(root)
    if tables:
        return f"is a folder with {' and '.join(tables)}", ("graphs" if len(tables) == 3 else "folder",)
    if texts:
        published = texts[0].lower()
        return f"is a folder with {texts[0]}_A.txt", (published if published in data_names else "tu",)
    inside = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    parties = [path.name for path in inside if path.is_dir() and _tables(path)]
    if parties:
        return f"is a folder of the parties {', '.join(parties)}", ("parties",)
    known = [path for path in inside if path.stem in data_names and (path.is_dir() or path.suffix == ".npz")]
    shown = [f"{path.name}/" if path.is_dir() else path.name for path in known or inside]
    return f"holds {_list(shown)}" if shown else "is an empty folder", tuple(dict.fromkeys(path.stem for path in known))


def tu_names(folder: Path, name: str = "*") -> list[str]:
    """The names DS for which `folder` holds an adjacency DS_A, as far as they match the pattern `name`."""
    names = set[str]()
    for suffix in TU_SUFFIXES:
        names.update(path.name.removesuffix(f"_A{suffix}") for path in folder.glob(f"{name}_A{suffix}"))
    return sorted(names)


def require_folder(root: Path | None, name: str, needs: str, layout: str) -> Path:
    """The folder of [data] path; `needs` describes the data that `name` reads, and `layout` the folder to give."""
    if root is None:
        raise ConfigError(f'The dataset "{name}" needs {needs}: set [data] path.', code="config.missing")
    if not root.is_dir():
        archive = root.suffix.lower() == ".npz"
        remedy = f'A graph in one .npz file is read with [data] name = "{ARCHIVE}".' if archive else layout
        refuse(root, "this is not a folder", remedy)
    return root


def _tables(folder: Path) -> list[str]:
    """The files of graphs (if there are any), nodes and edges in `folder`; none unless both of these are there."""
    files = dict[str, str]()
    for stem in ("graphs", "nodes", "edges"):
        for kind in reversed(TABLES):
            if (folder / f"{stem}{kind}").exists():
                files[stem] = f"{stem}{kind}"
    return list(files.values()) if {"nodes", "edges"} <= files.keys() else []
