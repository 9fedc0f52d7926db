"""Plug-ins of a registry are imported when they are looked up."""

import sys
from types import ModuleType

import pytest

from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.core.plugins import Registry, name_of


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    first = ModuleType("shop.first")
    first.One = type("One", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.first", first)
    return Registry("shop", {"one": "first.One", "two": "second.Two"})


def test_a_name_is_looked_up_and_what_is_absent_is_imported_only_then(registry: Registry) -> None:
    assert list(registry) == ["one", "two"]
    assert registry["one"].__name__ == "One"
    with pytest.raises(ModuleNotFoundError):
        registry["two"]
    with pytest.raises(KeyError):
        registry["three"]
    assert registry.get("three") is None


def test_the_name_of_a_plug_in_is_found_without_an_import(registry: Registry) -> None:
    assert [name for name in registry if registry.is_imported(name)] == ["one"]
    assert name_of(registry, registry["one"]) == "one"
    assert name_of(registry, int) is None
    assert (registry.of_class("Two"), registry.of_class("Three")) == ("two", None)
    assert registry.with_plugins({"two": int}).of_class("int") == "two"


def test_plug_ins_are_set_replaced_and_removed(registry: Registry) -> None:
    more = registry.with_plugins({"two": int, "three": str})
    assert (more["two"], more["three"], list(registry)) == (int, str, ["one", "two"])
    more["one"] = float
    assert name_of(more, float) == "one"
    del more["two"]
    assert list(more) == ["one", "three"]


def test_every_place_names_a_class_of_its_own() -> None:
    for registry in (ALGORITHMS, PARTS):
        assert len({id(kind) for kind in registry.values()}) == len(registry)
        for name, place in registry.places().items():
            assert registry[name].__name__ == place.kind
