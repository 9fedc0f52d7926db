"""Files of a data folder that nobody reads although they look like data: what is said of them."""

from collections.abc import Collection, Iterator
from pathlib import Path

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
