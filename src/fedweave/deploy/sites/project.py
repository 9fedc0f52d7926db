"""What a project's folder says of itself: its sites and where its server is."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedweave.errors import UserError

FILE = "project.json"
STATUS = "status.json"  # in the administrator's folder: how far the job is that was watched last
IGNORED = ".gitignore"


@dataclass(frozen=True)
class Project:
    """The sites in client order, and the server's address."""

    sites: tuple[str, ...]
    host: str
    port: int

    def save(self, directory: Path) -> None:
        """Write it into the project's folder, and have git leave all there is out: private keys, secrets and data."""
        (directory / IGNORED).write_text("# Private keys, secrets and data: none of it belongs into a repository.\n*\n")
        (directory / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_project(directory: Path) -> Project:
    """Read what `Project.save` wrote.

    Raises:
        UserError: `directory` is no project.
    """
    try:
        told = json.loads((directory / FILE).read_text())
        port = int(told["port"])
        if not 0 < port < 1 << 16:
            raise ValueError(f"{port} is no port")
        names = [*told["sites"], told["host"]]
        if not isinstance(told["sites"], list) or not all(isinstance(name, str) for name in names):
            raise ValueError("sites is a list of names, host a name")
        return Project(tuple(told["sites"]), told["host"], port)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{directory} is not a project: it has no readable {FILE}. Make one with `fedweave sites init`."
        ) from error
