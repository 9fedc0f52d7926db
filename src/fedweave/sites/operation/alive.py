"""The folders of a project on this machine, and the processes that run there. It reads only the disk and imports
neither NVFlare nor PyTorch, because `fedweave sites alive` is called often."""

from collections.abc import Sequence
from pathlib import Path

from fedweave.errors import UserError

PID = "process.pid"  # in a member's folder


def folders(project: Path) -> list[Path]:
    """The folders of the server and of the sites on this machine, the server's first; none on an administrator's."""
    all_folders = sorted({file.parents[1] for file in project.glob("*/startup/fed_*.json")})
    members = [each for each in all_folders if not (each / "startup/fed_admin.json").exists()]
    return sorted(members, key=lambda each: not (each / "startup/fed_server.json").exists())


def member_folders(project: Path, only: Sequence[str] = ()) -> list[Path]:
    """The `folders` on this machine; with `only`, just these members' folders.

    Raises:
        UserError: there is no folder, or a member in `only` has none.
    """
    here = {folder.name: folder for folder in folders(project)}
    missing = [name for name in only if name not in here]
    if missing:
        raise UserError(f"{project} has no folder of {', '.join(missing)}; it has {', '.join(here) or 'none'}.")
    if not here:
        raise UserError(f"{project} holds no server and no site. Make a project with `fedweave sites init`.")
    return [folder for name, folder in here.items() if not only or name in only]


def process(folder: Path) -> int | None:
    """The number of a member's process, if it runs. The command is checked, too, since another process may have got the
    number of an ended one."""
    try:
        pid = int((folder / PID).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (OSError, ValueError):
        return None
    return pid if str(folder.resolve()) in command else None
