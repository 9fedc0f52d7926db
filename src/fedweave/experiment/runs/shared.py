"""What the runs of a sweep have in common: results that do not depend on what the sweep compares, each measured once.

A sweep makes the folder `SHARED` beside its runs. A run that needs a result of the same settings as an earlier one
takes it from there; runs at the same time wait for the first.
"""

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedweave.core.types import Record
from fedweave.experiment.build import Built
from fedweave.experiment.runs.files import SHARED, write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Result = TypeVar("Result", bound="DataclassInstance")
_POLL_SECONDS = 0.1


def shared_file(
    directory: Path, kind: str, built: Built, source: Mapping[str, str], settings: list[object]
) -> Path | None:
    """The file for a result of this kind and these settings, in the folder that a sweep made beside its runs; None
    where there is none.

    directory: of the run. source: digests of the loaded data. settings: all that decides on the result besides data,
    clients that are evaluated, and this version.
    """
    folder = directory.parent / SHARED
    if not folder.is_dir():
        return None
    all_settings = [settings, built.fed.evaluated_clients, version("fedweave"), dict(source)]
    text = json.dumps(all_settings, sort_keys=True, default=str)
    return folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def measure_once(
    path: Path | None,
    measure: Callable[[], Result | None],
    of_record: Callable[[Record], Result],
    stops: Callable[[], bool],
) -> Result | None:
    """The result in a file, or else what `measure` gives, which is written there unless it is None; without a file
    only that.

    of_record: makes the result of its fields, as JSON has them. stops: whether to wait no longer for another run.
    """
    if path is None:
        return measure()
    with open(path.with_suffix(".lock"), "ab") as file:
        while not stops():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
        try:
            return of_record(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, LookupError):  # there is none, or it is not whole
            pass
        result = measure()
        if result is not None:
            write(path, lambda opened: opened.write(json.dumps(asdict(result)).encode()))
        return result
