"""What every error of fedweave says of itself to programs."""

import pickle

import pytest

from fedweave import errors
from fedweave.errors import ClientsMissing, ConfigError, DataError, Faults, FedweaveError
from fedweave.experiment.config.toml import check_keys, check_name

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedweaveError)]


def test_every_kind_has_a_code_of_its_own_unless_it_is_raised_with_one() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS) > 8
    assert (DataError("no").code, DataError("no", code="data.empty").code) == ("data", "data.empty")
    assert ClientsMissing("train", {"a": "gone"}, 2, 2).code == "clients-missing"
    assert str(ConfigError("one", "two", code="config.value")) == "one\ntwo"


def test_a_code_passes_between_processes() -> None:
    sent = pickle.loads(pickle.dumps(ConfigError("one", "two", code="config.value")))
    assert (sent.code, sent.args) == ("config.value", ("one", "two"))


def test_several_faults_have_their_code_where_it_is_the_same() -> None:
    for more, code in (("nam", "config.unknown-key"), ("name", "config")):
        faults = Faults(ConfigError)
        with faults:
            check_keys("data", ["nane"], ["name"])
        with faults:
            if more == "name":
                check_name("data.name", "gird", ["grid"])
            check_keys("model", [more], ["name"])
        with pytest.raises(ConfigError) as refused:
            faults.refuse()
        assert (refused.value.code, len(refused.value.args)) == (code, 2)
