"""Random damage to checkpoints and configurations: nothing but the named error may come of it.

    python fuzz.py checkpoint|config FOLDER INPUTS SEED

Prints how many inputs were refused; stops at the first that ends in any other way, whose number
repeats it, or when the process takes 512 MiB more than at its start.
"""

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from damage import (
    archive,
    chooser,
    mutated,
    mutated_tree,
    parts_of_weights,
    put,
    save_small,
    unpacked,
    weights_file,
)

from bayes_dc.config import ConfigError, load_config
from bayes_dc.train import CheckpointError, load_calibration, load_model, load_train_state

CONFIG = Path(__file__).parents[2] / "configs" / "mnist_cnn.yaml"
FILES = ("model.safetensors", "meta.json", "train_state.pt", "calibration.json")


class Found(AssertionError):
    """An input that ended in another way than it should."""


def fuzz_checkpoint(folder, pristine, inputs, seed):
    """Damage one file of a checkpoint at a time; return how many were refused."""
    refused = 0
    for number in range(inputs):
        choose = chooser(f"{seed}.{number}")
        for name, content in pristine.items():
            (folder / name).write_bytes(content)
        name = choose.choice(FILES)
        put_damaged(folder, name, pristine[name], choose)
        read = {"train_state.pt": load_train_state, "calibration.json": load_calibration}
        refused += ends_well(read.get(name, load_model), folder, CheckpointError, number)
    return refused


def put_damaged(folder, name, content, choose):
    """Damage bytes, or what they say; checksums fit as a rule."""
    if name.endswith(".json"):
        tree = mutated_tree(json.loads(content), choose)
        text = json.dumps(tree).encode()
        (folder / name).write_bytes(text if choose.random() < 0.6 else mutated(content, choose))
        return
    if choose.random() < 0.4:
        content = mutated(content, choose)
    elif name == "train_state.pt":
        files = unpacked(content)
        inner = choose.choice([n for n in files if n.endswith("data.pkl")] * 5 + list(files))
        content = archive(files | {inner: mutated(files[inner], choose)})
    else:
        header, data = parts_of_weights(content)
        content = weights_file(mutated_tree(header, choose), data)
    (folder / name).write_bytes(content) if choose.random() < 0.1 else put(folder, name, content)


def fuzz_config(folder, text, inputs, seed):
    """Damage a configuration; return how many were refused."""
    path, refused = folder / "run.yaml", 0
    for number in range(inputs):
        choose = chooser(f"{seed}.{number}")
        path.write_bytes(mutated(text, choose))
        refused += ends_well(load_config, path, ConfigError, number)
    return refused


def ends_well(read, path, expected, number):
    """Read; return whether it was refused, in a text that names the path."""
    try:
        read(path)
    except expected as error:
        if str(path) not in str(error) or len(str(error)) > 20_000:
            raise Found(f"input {number}: the message is {str(error)[:500]!r}") from error
        return True
    except Exception as error:
        raise Found(f"input {number}: {type(error).__name__}: {error}") from error
    return False


def run(target, folder, inputs, seed):
    """Fuzz one of the readers."""
    if target == "config":
        folder.mkdir(parents=True, exist_ok=True)
        return fuzz_config(folder, CONFIG.read_bytes(), inputs, seed)
    save_small(folder)
    pristine = {name: (folder / name).read_bytes() for name in FILES}
    return fuzz_checkpoint(folder, pristine, inputs, seed)


if __name__ == "__main__":
    target, folder, inputs, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    run(target, folder, 20, "warm")  # what is loaded on first use
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2**29
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print("refused", run(target, folder, inputs, seed))
