"""The environment: what it holds, and what it must not."""

import getpass
import platform
import socket
import sys

import torch

from bayes_dc.report import describe_environment, peak_memory

CPU = torch.device("cpu")


def test_versions_and_hardware_are_named():
    got = describe_environment(CPU)
    assert got["python"] == platform.python_version()
    assert got["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert got["packages"].keys() >= {"bayes_dc", "triton", "numba", "numpy"}
    assert got["threads"] == torch.get_num_threads()
    assert (got["device"], got["device_name"]) == ("cpu", got["processor"])
    assert got == describe_environment(CPU)


def test_no_host_user_or_path_is_told():
    text = repr(describe_environment(CPU)).split("'")
    assert socket.gethostname() not in text
    assert getpass.getuser() not in text
    assert sys.prefix not in text


def test_peak_memory_of_a_process_counts_what_it_held():
    before, kind = peak_memory(CPU)
    held = torch.ones(64 * 2**20 // 8, dtype=torch.float64)
    after, _ = peak_memory(CPU)
    assert kind == "resident memory of the process"
    assert held.sum().item() == len(held)
    assert after >= max(before, 64 * 2**20)
