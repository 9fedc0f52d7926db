"""The device that an engine computes on: the setting, the devices of this machine, and errors if they do not fit."""

import torch

from fedweave.errors import ConfigError

AUTO, CPU = "auto", "cpu"
_WHEELS = "install one of the CUDA builds (docs/scale.md, “Which PyTorch”)"


def choose_device(setting: str, together: bool = True, where: str = "engine.device") -> torch.device:
    """The device that `setting` names: "cpu", "cuda", "cuda:1", or "auto", which is a GPU if there is one and clients
    are computed together.

    where: the setting, for messages.

    Raises:
        ConfigError: there is no such device; the error gives the reason and the remedy.
    """
    if setting == CPU or (setting == AUTO and not (together and count())):
        return torch.device(CPU)
    index: int | None = 0
    if setting != AUTO:
        fault = _fault(setting)
        if fault:
            message = f"{where}: {setting!r} cannot be used: {fault}. Or set {where} = 'cpu'."
            raise ConfigError(message, code="config.device")
        index = torch.device(setting).index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def usable(name: str) -> bool:
    """Whether this machine has such a device."""
    try:
        return bool(choose_device(name))
    except ConfigError:
        return False


def count() -> int:
    """Number of GPUs that PyTorch can use on this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_name(device: torch.device) -> str:
    """A device with its model's name: "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def describe_devices() -> str:
    """A sentence on the devices of this machine."""
    gpus = [device_name(torch.device("cuda", index)) for index in range(count())]
    return f"Here: cpu, {', '.join(gpus)}." if gpus else f"Here: only cpu, because {_fault('cuda')}."


def _fault(name: str) -> str:
    """The reason why a GPU cannot be used, and the remedy; "" if it can be used."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this PyTorch ({torch.__version__}) is built only for CPUs; {_WHEELS}"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _reason(str(error))
    count_here = torch.cuda.device_count()
    if (torch.device(name).index or 0) >= count_here:
        gpus = "is 1 GPU" if count_here == 1 else f"are {count_here} GPUs"
        return f"there {gpus}, counted from 0; set a number below {count_here}"
    return ""


def _reason(message: str) -> str:
    """PyTorch's message about an unusable GPU, in plain words."""
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
