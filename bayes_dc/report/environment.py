"""Versions, hardware and memory: what a number depends on besides code and seed."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("bayes_dc", "torch", "torchvision", "triton", "numba", "numpy", "scikit-learn")


def describe_environment(device: torch.device) -> dict[str, object]:
    """Describe the machine and the versions; two runs on one machine get equal answers.

    Args:
        device: Where the prediction ran.

    Returns:
        Python, platform, package versions (None if not installed), processor, cores, threads,
        device; no host name, user name or path.
    """
    on_gpu = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "cuda": torch.version.cuda,
    }


def peak_memory(device: torch.device) -> tuple[int | None, str]:
    """Tell the highest memory use so far.

    Args:
        device: Where the prediction ran.

    Returns:
        Bytes and what was counted: memory allocated by torch on a CUDA device, elsewhere the
        resident memory of the whole process; None where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "allocated by torch on the device"
    kind = "resident memory of the process"
    try:
        import resource
    except ImportError:  # Windows
        return None, kind
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024, kind


def _version(package: str) -> str | None:
    """Installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Model of the processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
