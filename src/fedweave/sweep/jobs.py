"""A sweep as an array of jobs on a cluster: the script for Slurm."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedweave.experiment.runs.files import write

_WRITER_OPTIONS = ("--slurm", "--shard")  # options of the command that writes the script, not of its jobs


def script(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> str:
    """The script of an array of `tasks` jobs, each with its shard of the sweep of the command `words`. Each job makes
    `jobs` runs at a time, on the same number of cores."""
    command = shlex.join([sys.executable, "-m", "fedweave", *_of_jobs(words)])
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=fedweave-{folder.name}",
        f"#SBATCH --array=1-{tasks}",
        f"#SBATCH --cpus-per-task={jobs}",
        f"#SBATCH --output={shlex.quote(str(folder.absolute() / 'slurm-%A_%a.log'))}",
        "# Partition, account, memory and time are your cluster's: add #SBATCH lines, or give them to sbatch.",
        "set -e",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"{command} --shard $SLURM_ARRAY_TASK_ID/{tasks}",
    ]
    return "\n".join(lines) + "\n"


def save(words: Sequence[str], tasks: int, jobs: int, folder: Path) -> tuple[str, str]:
    """Write the `script` into the sweep's folder; returns instructions for before and after the jobs.

    Raises:
        UserError: the folder cannot be written.
    """
    path = folder / "sweep.sbatch"
    text = script(words, tasks, jobs, folder).encode()
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    write(path, lambda file: file.write(text))
    return f"start it with: sbatch {path}", f"once all jobs have ended: {afterwards(words)}"


def afterwards(words: Sequence[str]) -> str:
    """The command that makes table and page once all jobs have ended."""
    return shlex.join(["fedweave", *_of_jobs(words)])


def _of_jobs(words: Sequence[str]) -> list[str]:
    """The words without `_WRITER_OPTIONS` and their values."""
    remaining, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] not in _WRITER_OPTIONS:
            remaining.append(word)
        skip = not skip and word in _WRITER_OPTIONS
    return remaining
