"""What attacks find out, for the terminal."""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table


def attacks_table(rows: Iterable[tuple[str, str, float, float]]) -> Table:
    """A line for each attack: its name, what it knows, and the shares that it gets right without and with a defence."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("attack", "knows", "right without defence", "with it"):
        shown.add_column(name, justify="left" if name in ("attack", "knows") else "right")
    for named, known, without, protected in rows:
        shown.add_row(named, known, f"{without:.1%}", f"{protected:.1%}")
    return shown
