"""A run that another was to replace is there again if that one saved nothing, also after a kill."""

from contextlib import suppress
from pathlib import Path

import pytest

from fedweave.experiment.runs.files import CHECKPOINT, CONFIG, FORGOTTEN, LOCK, SUMMARY
from fedweave.experiment.runs.resuming import recover, replacing


def held(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def put(directory: Path, text: str, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    put(tmp_path, "old", CONFIG, SUMMARY, CHECKPOINT, "notes.txt")
    return tmp_path


def test_it_is_put_back_as_it_was_if_the_new_one_saves_nothing(old: Path) -> None:
    before = held(old)
    with suppress(ZeroDivisionError), replacing(old):
        assert not (old / SUMMARY).exists()
        put(old, "new", CONFIG, "partition.parquet")
        raise ZeroDivisionError
    assert held(old) == before


def test_it_is_gone_once_the_new_one_has_saved(old: Path) -> None:
    (old / FORGOTTEN / "1").mkdir(parents=True)  # of a model that is gone
    put(old, "old", f"{FORGOTTEN}/1/forgetting.json")
    with suppress(ZeroDivisionError), replacing(old):
        put(old, "new", CONFIG, CHECKPOINT)
        raise ZeroDivisionError
    assert held(old) == {CONFIG: "new", CHECKPOINT: "new", "notes.txt": "old"}


@pytest.mark.parametrize("saved", [False, True])
def test_what_a_killed_process_left_is_settled_by_the_next(old: Path, saved: bool) -> None:
    before = held(old)
    entered = replacing(old)
    entered.__enter__()  # and never left
    put(old, "new", CONFIG, *([CHECKPOINT] if saved else []))
    recover(old)
    left = {name: text for name, text in held(old).items() if name != LOCK}
    assert left == ({CONFIG: "new", CHECKPOINT: "new", "notes.txt": "old"} if saved else before)
    recover(old)


@pytest.mark.parametrize("moves", range(8))
def test_a_kill_at_any_move_loses_nothing(old: Path, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files are moved aside and three back."""
    before, move, left = held(old), Path.replace, iter(range(moves))

    def until_killed(source: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise SystemExit
        return move(source, target)

    monkeypatch.setattr(Path, "replace", until_killed)
    with suppress(SystemExit), replacing(old):
        put(old, "new", CONFIG, "partition.parquet")
    monkeypatch.undo()
    recover(old)
    assert {name: text for name, text in held(old).items() if name != LOCK} == before
