"""Which device a setting names, and what is said where there is none; machines are imitated."""

import pytest
import torch

from fedweave import federation
from fedweave.algorithms import FedAvg
from fedweave.datasets import load
from fedweave.engines import devices
from fedweave.experiment.config import resolve
from fedweave.models import MODELS
from fedweave.partition import PARTITIONS
from tests.refusals import refusal

NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."


def machine(patch: pytest.MonkeyPatch, gpus: int, said: str = "", built: str | None = "12.8") -> None:
    def init() -> None:
        if said:
            raise RuntimeError(said)

    patch.setattr(torch.version, "cuda", built)
    patch.setattr(torch.cuda, "init", init)
    patch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    patch.setattr(torch.cuda, "device_count", lambda: gpus)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")


def test_devices_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    for name, found in {"cpu": "cpu", "auto": "cuda:0", "cuda": "cuda:0", "cuda:1": "cuda:1"}.items():
        assert devices.choose_device(name) == torch.device(found)
    assert devices.choose_device("auto", together=False) == torch.device("cpu")
    assert devices.describe_devices() == "Here: cpu, cuda:0 (card 0), cuda:1 (card 1)."


@pytest.mark.parametrize(
    ("gpus", "said", "built", "wanted", "told"),
    [
        (0, "", None, "cuda", "built only for CPUs"),
        (0, NO_DRIVER, "12.8", "cuda", "no NVIDIA driver"),
        (0, TOO_OLD, "12.8", "cuda:1", "driver is too old"),
        (0, "No CUDA GPUs are available", "12.8", "cuda", "CUDA_VISIBLE_DEVICES"),
        (0, "CUDA unknown error", "12.8", "cuda", "CUDA unknown error"),
        (1, "", "12.8", "cuda:1", "there is 1 GPU"),
    ],
)
def test_devices_that_there_are_not(
    gpus: int, said: str, built: str | None, wanted: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, gpus, said, built)
    monkeypatch.setattr(torch.version, "hip", None)
    with refusal("config.device", told) as refused:
        devices.choose_device(wanted)
    assert str(refused.value).startswith(f"engine.device: {wanted!r}")
    assert not devices.usable(wanted)
    assert devices.choose_device("auto").type == ("cuda" if gpus else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "meta", ""])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with refusal("config.value", "'cuda:1'"):
        resolve({"data": {"name": "digits"}, "engine": {"device": name}})


def test_workers_without_a_gpu_are_given_none() -> None:
    engine = {"name": "ray", "device": "cuda"}
    with refusal("config", "gpus_per_worker"):
        resolve({"data": {"name": "digits"}, "engine": engine})
    resolve({"data": {"name": "digits"}, "engine": engine | {"gpus_per_worker": 0.5}})


def test_a_federation_from_python_is_on_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("synthetic", nodes=40, classes=2, features=4)
    given = data, PARTITIONS["random"](clients=2).cut(data, 0), FedAvg(MODELS["gcn"](hidden=4).build(4, 2))
    assert federation(*given, device="auto").device == torch.device("cpu")
    machine(monkeypatch, 0, NO_DRIVER)
    with refusal("config.device", "device: 'cuda'"):
        federation(*given, device="cuda")
