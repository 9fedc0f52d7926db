"""What a member knows of each run under way, in one small file for each run: its metrics read these files.

A job has a process of its own. A file whose process is gone says "interrupted", however it ended.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pydantic import TypeAdapter

from fedweave.errors import FedweaveError
from fedweave.sites.flare.folder import private_folder, replace_private

State: TypeAlias = Literal["starting", "running", "paused", "done", "stopped", "failed", "interrupted"]
STATES: tuple[State, ...] = get_args(State)
OPEN: tuple[State, ...] = ("starting", "running")  # of a job whose process runs


@dataclass(frozen=True)
class RunState:
    """A run at a member.

    state:    "paused" where the absence of sites ended the job: another one continues when they are back.
    round:    the last round that is done; at a site, the last that has begun there. rounds: of the run.
    seconds:  duration of the last complete round; 0 before there is one.
    sites:    the run's sites; () at a site. missing: those that gave no answer.
    failures: jobs of the run that failed.
    at:       time of the last change, in seconds since 1970.
    process:  the number of the job's process, and when it began by the system's clock (`_began`).
    """

    run: str
    state: State = "starting"
    round: int = 0
    rounds: int = 0
    seconds: float = 0.0
    sites: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failures: int = 0
    at: float = 0.0
    process: tuple[int, str] = (0, "")


_FORM = TypeAdapter(RunState)


class StateFile:
    """The file of a run in a member's `folder`, which the process of a job writes."""

    def __init__(self, folder: Path, run: str, sites: Sequence[str] = ()) -> None:
        self._path = private_folder(folder / "states") / f"{run}.json"
        before, process = _read(self._path) or RunState(run), (os.getpid(), _began(os.getpid()))
        self._since = 0.0
        self.now = replace(before, state="starting", sites=tuple(sites), missing=(), process=process)
        self.write()

    def write(self, **changes: object) -> None:
        """Change some fields of `RunState`. A full disk does not end a job for want of its metrics."""
        self.now = replace(self.now, **changes, at=time.time())  # type: ignore[arg-type]
        with suppress(FedweaveError, OSError):
            replace_private(self._path, json.dumps(asdict(self.now)).encode())

    def reach(self, round: int) -> None:
        """At a site: the server asks for something of this round. The first request of the next round ends it."""
        if round > self.now.round:
            now = time.monotonic()
            took = {"seconds": now - self._since} if self._since and round == self.now.round + 1 else {}
            self._since = now
            self.write(round=round, **took)

    def end(self, state: State, missing: Sequence[str] = ()) -> None:
        """Note how the job ends."""
        self.write(state=state, missing=tuple(missing), failures=self.now.failures + (state == "failed"))


def states(folder: Path) -> Iterator[RunState]:
    """The state of each run at the member in `folder`. Damaged files are left out."""
    for path in sorted((folder / "states").glob("*.json")):
        one = _read(path)
        if one is not None:
            gone = one.state in OPEN and _began(one.process[0]) != one.process[1]
            yield replace(one, state="interrupted") if gone else one


def _read(path: Path) -> RunState | None:
    try:
        return _FORM.validate_json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _began(process: int) -> str:
    """When a process began, in ticks since the start of the system; "" if there is none. A number that another process
    got later has another beginning."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
