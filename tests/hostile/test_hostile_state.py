"""``train_state.pt`` that grows when it is read, or is no state of the run that it is put into."""

import copy
import io
import pickle
import zipfile
from collections import OrderedDict

import pytest
import torch
from damage import archive, model_config, put, refused, save_small, unpacked

from bayes_dc.datasets import ArraySplit, DatasetBundle, Normalisation
from bayes_dc.train import (
    RunFolder,
    TrainConfig,
    build_model,
    fit,
    load_checkpoint,
    load_train_state,
    save_checkpoint,
)


def rewritten(content, compression=zipfile.ZIP_STORED, **changes):
    """The archive with other contents; ``pickled`` stands for data.pkl."""
    files = unpacked(content)
    root = next(iter(files)).split("/")[0]
    if "pickled" in changes:
        files[f"{root}/data.pkl"] = changes.pop("pickled")
    return archive(files | {f"{root}/{name}": new for name, new in changes.items()}, compression)


def refusal(checkpoint, content):
    put(checkpoint, "train_state.pt", content)
    path = checkpoint / "train_state.pt"
    return refused(lambda: load_train_state(checkpoint), "CheckpointError", path, seconds=10)


def test_a_packed_archive_is_refused_before_it_is_unpacked(checkpoint):
    content = (checkpoint / "train_state.pt").read_bytes()
    bomb = rewritten(content, zipfile.ZIP_DEFLATED, data_bomb=bytes(2**28))
    assert len(bomb) < 2**20
    text = refusal(checkpoint, bomb)
    assert "its contents are larger than the file; training states are not packed" in text


def test_entries_that_share_their_bytes_are_refused(checkpoint):
    """Each of many entries may be the whole file: a bomb without compression."""
    content = archive({"a/data.pkl": b"}.", "a/data/0": bytes(10_000)})
    with zipfile.ZipFile(io.BytesIO(content)) as read:
        central = content[read.start_dir :]
    first = central.index(b"PK\1\2", 1)
    second = central.index(b"PK\5\6")
    record, end = central[first:second], bytearray(central[second:])
    many = content[: len(content) - len(central)] + central[:first] + record * 50
    end[8:12] = (51).to_bytes(2, "little") * 2
    end[12:16] = (len(central[:first]) + 50 * len(record)).to_bytes(4, "little")
    assert "its contents are larger than the file" in refusal(checkpoint, many + bytes(end))


def pickled_call(module, name, *arguments):
    """A pickle that calls a function, which weights_only lets pass for some."""
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + pickle.dumps(arguments, 2)[2:-1] + b"R."


@pytest.mark.parametrize(
    "call",
    [
        ("builtins", "bytearray", 2**40),
        ("__builtin__", "bytearray", 2**40),
        ("torch", "Size", (2**40,)),
        ("torch.nn.parameter", "Parameter", 3),
        ("torch._utils", "_rebuild_sparse_tensor", 3),
        ("torch._utils", "_rebuild_meta_tensor_no_storage", 3),
        ("os", "mkdir", "x"),
    ],
    ids=lambda call: ".".join(call[:2]),
)
def test_whatever_is_no_tensor_is_refused_by_name(checkpoint, call):
    pickled = pickled_call(*call)
    content = rewritten((checkpoint / "train_state.pt").read_bytes(), pickled=pickled)
    text = refusal(checkpoint, content)
    assert f"it names '{call[0]} {call[1]}', which is no part of a training state" in text


@pytest.mark.parametrize("protocol", [4, 5])
def test_pickles_that_hide_their_names_are_refused(checkpoint, protocol):
    pickled = pickle.dumps(OrderedDict(a=1), protocol)
    content = rewritten((checkpoint / "train_state.pt").read_bytes(), pickled=pickled)
    assert "it names None, which is no part of a training state" in refusal(checkpoint, content)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/x": b"1"}, "it holds 0 files data.pkl instead of one"),
        ({"a/data.pkl": b"}.", "b/data.pkl": b"}."}, "it holds 2 files data.pkl instead of one"),
    ],
    ids=["none", "two"],
)
def test_archives_without_the_one_pickle(checkpoint, files, message):
    assert message in refusal(checkpoint, archive(files))


@pytest.mark.parametrize("value", [[1], 3, None, torch.zeros(2)], ids=lambda v: type(v).__name__)
def test_a_state_that_is_no_dict(checkpoint, value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    assert f"it holds a {type(value).__name__} instead of a dict" in refusal(
        checkpoint, buffer.getvalue()
    )


def test_tensors_larger_than_their_bytes_are_refused(checkpoint):
    content = (checkpoint / "train_state.pt").read_bytes()
    files = unpacked(content)
    name = next(n for n in files if n.endswith("data.pkl"))
    small, large = b"K\x04K\t\x86", b"K\x04J" + (2**30).to_bytes(4, "little") + b"\x86"
    assert small in files[name]  # the shape [4, 9]
    bigger = files[name].replace(small, large)
    assert "cannot be read: " in refusal(checkpoint, rewritten(content, pickled=bigger))


SIDE = 3


def bundle():
    images = torch.arange(9 * 6, dtype=torch.uint8).reshape(6, 1, SIDE, SIDE)
    split = ArraySplit(
        images, torch.arange(6) % 3, ("0", "1", "2"), Normalisation((0.0,), (1.0,)), "toy"
    )
    return DatasetBundle(
        name="toy",
        train=split,
        validation=None,
        test=split,
        class_names=split.class_names,
        input_shape=(1, SIDE, SIDE),
        normalisation=split.normalisation,
    )


@pytest.fixture
def resume(tmp_path):
    """A run with one epoch of a checkpoint; returns a function that resumes it with a state."""
    run = RunFolder(tmp_path / "run")
    save_small(run.last)
    meta, _ = load_checkpoint(run.last)
    model = build_model(model_config().model, meta.input_shape, 3)
    settings = TrainConfig(epochs=2, device="cpu")

    def go(change):
        state = copy.deepcopy(load_train_state(run.last))
        state = change(state) or state
        save_checkpoint(run.last, model, meta, state)
        return fit(model, bundle(), settings, run, meta, config_text="a: 1\n", resume=True)

    return run, go


def tensors(state):
    return state["optimizer"]["state"][0]


def shared(depth):
    value = (1,)
    for _ in range(depth):
        value = (value,) * 10
    return value


CHANGES = {
    "no optimizer": (lambda s: s.pop("optimizer") and None, "KeyError('optimizer')"),
    "an optimizer of text": (lambda s: s.update(optimizer="x"), "it has no state and param_groups"),
    "no groups": (
        lambda s: s["optimizer"].update(param_groups=[]),
        "it has not 1 groups of parameters",
    ),
    "groups of other parameters": (
        lambda s: s["optimizer"]["param_groups"][0].update(params=[0, 1]),
        "its groups hold other parameters",
    ),
    "lists without end": (
        lambda s: s["optimizer"]["param_groups"][0].update(betas=shared(30)),
        "betas of a group is no plain value",
    ),
    "unknown parameters": (
        lambda s: s["optimizer"]["state"].update({9: {}}),
        "it knows other parameters",
    ),
    "a parameter's values unnamed": (
        lambda s: s["optimizer"]["state"].update({0: [1]}),
        "parameter 0 has no named values",
    ),
    "another shape": (
        lambda s: tensors(s).update(exp_avg=torch.zeros(5)),
        "exp_avg of parameter 0 is not of its shape",
    ),
    "absurd shape": (
        lambda s: tensors(s).update(exp_avg=torch.zeros(1).expand(2**50)),
        "exp_avg of parameter 0 is not of its shape",
    ),
    "values without end": (
        lambda s: tensors(s).update(exp_avg=shared(30)),
        "exp_avg of parameter 0 is not of its shape",
    ),
    "a scaler of text": (
        lambda s: s.update(scaler={"scale": "x"}),
        "it holds something else where numbers should be",
    ),
    "best of text": (
        lambda s: s.update(best_loss="low"),
        "it holds something else where numbers should be",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_states_of_something_else_stop_the_run_before_it_starts(resume, change, message):
    run, go = resume
    path = run.last / "train_state.pt"
    text = refused(lambda: go(change), "CheckpointError", path, seconds=20)
    assert f"{path} cannot be read: it is not the state of this optimizer" in text
    assert message in text
    assert not (run.path / "metrics.jsonl").exists()


def test_the_unchanged_state_goes_on(resume):
    """Or the test above would show nothing."""
    _, go = resume
    rows = go(lambda state: None)
    assert [row["epoch"] for row in rows] == [1, 2]


def test_metrics_that_are_nested_without_end_are_cut_off(resume):
    run, go = resume
    (run.path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    assert [row["epoch"] for row in go(lambda state: None)] == [1, 2]
