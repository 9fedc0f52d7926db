"""Why something failed at the sites whose folders are on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.deploy.flare.site.about import LOG
from fedweave.deploy.sites.noted import last_record
from fedweave.deploy.sites.processes import found
from fedweave.errors import FedweaveError, UserError


@contextmanager
def own_reasons(project: Path) -> Iterator[None]:
    """Where what is done fails, say what the sites whose folders are on this machine noted for their owners; nobody
    else hears it."""
    logs = {member.folder.name: member.folder / LOG for member in found(project) if member.kind == "client"}
    began = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
    try:
        yield
    except FedweaveError as error:
        said = {name: last_record(_since(log, began[name])) for name, log in logs.items() if log.exists()}
        noted = "".join(f"\n  {name}: {what}" for name, what in said.items() if what)
        if not noted:
            raise
        kind = UserError if isinstance(error, UserError) else FedweaveError
        raise kind(f"{error}\nNoted at the sites on this machine ({LOG}):{noted}") from error


def _since(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start if start <= path.stat().st_size else 0)  # a full log has been followed by a new one
        return file.read().decode(errors="replace")
