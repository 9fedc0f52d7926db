"""Which device an engine computes on: what was asked for, what is there, and what to do where they differ."""

import torch

from fedweave.errors import ConfigError

AUTO, CPU = "auto", "cpu"
_WHEELS = "install one of the CUDA builds (docs/scale.md, “Which PyTorch”)"


def chosen(wanted: str, together: bool = True, where: str = "engine.device") -> torch.device:
    """The device that `wanted` names: "cpu", "cuda", "cuda:1", or "auto", which is a GPU where there is one and clients
    are computed together.

    where: the setting, for messages.

    Raises:
        ConfigError: there is no such device; says why, and what to do.
    """
    if wanted == CPU or (wanted == AUTO and not (together and count())):
        return torch.device(CPU)
    if wanted != AUTO and (fault := _fault(wanted)):
        raise ConfigError(f"{where}: {wanted!r} cannot be used: {fault}. Or set {where} = 'cpu'.", code="config.device")
    index = 0 if wanted == AUTO else torch.device(wanted).index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def usable(wanted: str) -> bool:
    """Whether there is such a device here."""
    try:
        return bool(chosen(wanted))
    except ConfigError:
        return False


def count() -> int:
    """How many GPUs PyTorch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def named(device: torch.device) -> str:
    """A device as people know it: "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def at_hand() -> str:
    """A sentence on the devices there are."""
    if gpus := [named(torch.device("cuda", index)) for index in range(count())]:
        return f"Here: cpu, {', '.join(gpus)}."
    return f"Here: cpu alone, for {_fault('cuda')}."


def _fault(wanted: str) -> str:
    """Why a GPU cannot be used, and the remedy; "" where it can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this PyTorch ({torch.__version__}) is built for CPUs alone; {_WHEELS}"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _reason(str(error))
    there = torch.cuda.device_count()
    if (torch.device(wanted).index or 0) >= there:
        return f"there {'is 1 GPU' if there == 1 else f'are {there} GPUs'}, counted from 0; set a number below {there}"
    return ""


def _reason(message: str) -> str:
    """What PyTorch says where it cannot begin with GPUs, in words of one's own."""
    if "no NVIDIA driver" in message:
        return "this machine has no NVIDIA driver, or hides it; install one, and let `nvidia-smi` list the GPU"
    if "too old" in message:
        return (
            f"the NVIDIA driver is too old for this PyTorch (CUDA {torch.version.cuda}); update the driver, or "
            "install a build for an older CUDA (docs/scale.md, “Which PyTorch”)"
        )
    if "No CUDA GPUs" in message:
        return "PyTorch sees no GPU; look at `nvidia-smi`, and at CUDA_VISIBLE_DEVICES, which may hide it"
    return f"PyTorch cannot use it ({message.strip().splitlines()[0].rstrip('.')}); look at `nvidia-smi`"
