"""Pokec-z and -n from tables in the published form."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets import describe, load
from fedweave.errors import DataError

USERS = """user_id,public,gender,region,AGE,I_am_working_in_field,hobby
30,1,0,0,20,-1,0
7,1,1,1,31,0,0
1600001,0,1,0,44,3,1
12,1,0,1,0,1,0
8,0,0,-1,0,0,0
"""
RELATIONS = "30\t7\n7\t30\n1600001\t12\n12\t12\n12\t8\n"


def write(folder: Path, users: str = USERS, relations: str = RELATIONS, stem: str = "region_job") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.csv").write_text(users)
    (folder / f"{stem}_relationship.txt").write_text(relations)
    return folder


@pytest.mark.parametrize(("name", "stem"), [("pokec-z", "region_job"), ("pokec-n", "region_job_2")])
def test_tables_worked_by_hand(name: str, stem: str, tmp_path: Path) -> None:
    write(tmp_path, stem=stem)
    data = load(name, str(tmp_path), normalize="none")
    assert (data.name, data.classes) == (name, 2)
    x = data.x.toarray() if sp.issparse(data.x) else data.x
    np.testing.assert_array_equal(x, [[1, 0, 20, 0], [1, 1, 31, 0], [0, 1, 44, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(data.y, [-1, 0, 1, 1, 0])
    np.testing.assert_array_equal(data.sensitive, [0, 1, 0, 1, -1])
    np.testing.assert_array_equal(data.edges, [[0, 1, 2, 3, 3, 4], [1, 0, 3, 2, 4, 3]])  # 12 with itself is left out
    assert data.columns == ("public", "gender", "AGE", "hobby")
    assert data.ids == ("30", "7", "1600001", "12", "8")
    assert describe(name)


def test_sparse_tables_can_be_standardized(tmp_path: Path) -> None:
    rare = ",".join(f"rare{i}" for i in range(30))
    lines = USERS.splitlines()
    wide = "\n".join([f"{lines[0]},{rare}", *(line + ",0" * 30 for line in lines[1:])]) + "\n"
    write(tmp_path, wide)
    assert sp.issparse(load("pokec-z", str(tmp_path), normalize="none").x)
    standard = load("pokec-z", str(tmp_path), normalize="standard").x.toarray()
    np.testing.assert_allclose(standard[:, :4].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(standard[:, :4].std(0), 1, atol=1e-6)
    assert not standard[:, 4:].any()


@pytest.mark.parametrize(
    ("users", "relations", "message"),
    [
        (USERS.replace("region", "place"), RELATIONS, "the columns region are missing"),
        (USERS.replace("\n7,", "\n30,"), RELATIONS, "row 3: user_id 30 is there twice"),
        (USERS.replace("44,3,", "44,3.5,"), RELATIONS, "row 4: I_am_working_in_field is '3.5', not a whole number"),
        (USERS.replace(",20,", ",x,"), RELATIONS, "row 2: 'AGE' is 'x'"),
        (USERS, "30 7\n7 99\n", r"line 2: \[7, 99\] names a user without a row"),
        (USERS, "30 7\nseven 30\n", "not a table of whole numbers"),
        (USERS, "30 7 1\n", "3 numbers per line"),
    ],
)
def test_broken_files_are_refused_with_their_place(users: str, relations: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load("pokec-z", str(write(tmp_path, users, relations)))
