"""Which part of its message each row of a ledger is of."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.purposes import FRAMING

_ALIKE = ("direction", "step", "key", "reveals")
_BETWEEN = "\0"


def parts(ledger: pa.Table) -> pa.Array:
    """The parts as a dictionary array [rows]: the first part of a row's key, such as "own" of "own/loss". Where leaves
    of a part tell different things, one with a text of its own is named in full, "own/classes"."""
    columns = [pc.fill_null(pc.cast(ledger[name], pa.string()), "") for name in _ALIKE]
    rows = pc.dictionary_encode(pc.binary_join_element_wise(*columns, _BETWEEN)).combine_chunks()
    kinds = [tuple(text.split(_BETWEEN, 3)) for text in rows.dictionary.to_pylist()]
    told: dict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for direction, step, key, reveals in kinds:
        told[direction, step, _first(key)][reveals].add(key)
    names = []
    for direction, step, key, reveals in kinds:
        alike = told[direction, step, _first(key)]
        names.append(key if len(alike) > 1 and len(alike[reveals]) == 1 else _first(key))
    known = list(dict.fromkeys(names))
    place = np.array([known.index(name) for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(place[rows.indices.to_numpy(zero_copy_only=False)], pa.int32()), pa.array(known, pa.string())
    )


def _first(key: str) -> str:
    return key if key == FRAMING else key.split("/")[0]
