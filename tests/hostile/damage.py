"""Ways to damage files, and a process with little memory and time to read them in."""

import hashlib
import io
import json
import os
import random
import re
import resource
import signal
import struct
import sys
import traceback
import warnings
import zipfile
from pathlib import Path

import torch

from bayes_dc.config import Config
from bayes_dc.datasets import Normalisation
from bayes_dc.train import (
    CalibrationState,
    CheckpointMeta,
    SavedTemperature,
    build_model,
    save_calibration,
    save_checkpoint,
)

TOKENS = (b"\0", b"\xff", b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"-", b"\n", b"&a ")
TOKENS += (b"*a", b"!!python/name:os.system ", b"1e999", b"-1", b"NaN", b"null", b"9" * 30)
TOKENS += (b"\xed\xa0\x80", b"\xe2\x80\xa8")
VALUES = (None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -0.5, "", "x", "../../x", "/dev/zero")
VALUES += ("\ud800", [], [[]], {}, {"x": 1}, [0] * 40, [2**62, 2**62], {"name": []})


def mutated(content, choose):
    """Bytes with a few changes: bits, runs and tokens."""
    content = bytearray(content)
    for _ in range(choose.choice((1, 1, 1, 2, 4, 8))):
        at = choose.randrange(len(content) + 1)
        kind = choose.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << choose.randrange(8)
        elif kind == 1:
            del content[at : at + choose.choice((1, 2, 8, 100))]
        elif kind == 2:
            content[at:at] = choose.choice(TOKENS)
        elif kind == 3:
            content[at:at] = content[at : at + choose.choice((1, 4, 20, 200))]
        else:
            content[at : at + 1] = bytes([choose.randrange(256)])
    return bytes(content)


def mutated_tree(tree, choose):
    """A JSON value with one node replaced, removed, renamed or doubled."""
    if choose.random() < 0.25 or not isinstance(tree, (dict, list)) or not tree:
        return choose.choice(VALUES)
    tree = tree.copy()
    key = choose.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    if choose.random() < 0.7:
        tree[key] = mutated_tree(tree[key], choose)
    elif isinstance(tree, dict):
        value = tree.pop(key)
        if choose.random() < 0.5:
            tree[choose.choice(("x", "", key + ".weight", "__class__"))] = value
    elif choose.random() < 0.5:
        del tree[key]
    else:
        tree.insert(key, tree[key])
    return tree


def cuts(content):
    """The content cut off at every hundredth of its length, from nothing on."""
    return [content[: len(content) * percent // 100] for percent in range(100)]


def flips(content):
    """The content with one bit changed, in 100 places from the first to the last byte."""
    for i in range(100):
        changed = bytearray(content)
        changed[(len(content) - 1) * i // 99] ^= 1 << i % 8
        yield bytes(changed)


def model_config():
    """Configuration of a small network."""
    return Config.model_validate({
        "output_dir": "x",
        "model": {"hidden": [4]},
        "data": {"name": "digits"},
        "predict": {"passes": 3, "batch_size": 16},
    })


def save_small(folder, input_shape=(1, 3, 3), classes=3):
    """Save a small network with a training state and a calibration."""
    config = model_config()
    meta = CheckpointMeta(
        config=config.model_dump(mode="json"),
        seed=0,
        class_names=tuple(map(str, range(classes))),
        input_shape=input_shape,
        normalisation=Normalisation((0.0,), (1.0,)),
    )
    model = build_model(config.model, input_shape, classes)
    optimizer = torch.optim.Adam(model.parameters())
    model.eval()(torch.ones(2, *input_shape)).sum().backward()
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "scaler": {}, "best_loss": 1.5, "best_epoch": 1}
    save_checkpoint(folder, model, meta, state)
    temperature = SavedTemperature(
        value=1.5, kind="logits", standard_error=0.1, nll_before=1.0, nll_after=0.9, n=9
    )
    save_calibration(folder, CalibrationState(T=3, seed=0, fitted=temperature))
    return folder


def put(folder, name, content):
    """Write one file of a checkpoint and make its checksum fit, as someone who means harm would."""
    (folder / name).write_bytes(content)
    meta = json.loads((folder / "meta.json").read_bytes())
    if name in meta["sha256"]:
        meta["sha256"][name] = hashlib.sha256(content).hexdigest()
        (folder / "meta.json").write_text(json.dumps(meta))


def weights_file(header, data=b""):
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def parts_of_weights(content):
    """Header and data of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def archive(files, compression=zipfile.ZIP_STORED):
    """A ZIP archive with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


def unpacked(content):
    """The files of a ZIP archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as read:
        return {name: read.read(name) for name in read.namelist()}


def chooser(seed):
    return random.Random(seed)


class Limited:
    """What became of an action in a process of its own: its result or error, as text."""

    def __init__(self, action, mib=256, seconds=60):
        """Run ``action`` in a fork that may take so much more memory and processor time.

        It is killed after ten times as long, however little it does.
        """
        read, write = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch lie idle here
            pid = os.fork()
        if pid == 0:
            os.close(read)
            os.write(write, _run(action, mib, seconds).encode(errors="replace")[:60_000])
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            self.text = pipe.read().decode()
        status = os.waitpid(pid, 0)[1]
        killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.killed = None if killer is None else signal.Signals(killer).name


def _run(action, mib, seconds):
    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, until))
    signal.alarm(10 * seconds)  # it may wait for ever without using the processor
    try:
        return f"returned {action()!r}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} [{Path(where.filename).name}:{where.lineno}]"


def refused(action, error, path, **limits):
    """Assert that an action ends with this error, which names the file; return its text."""
    outcome = Limited(action, **limits)
    assert outcome.killed is None, outcome.killed
    assert re.match(rf"\w*{error}: ", outcome.text), outcome.text
    assert str(path) in outcome.text
    return outcome.text
