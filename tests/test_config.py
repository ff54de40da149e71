"""Configuration: what is refused, how the refusal reads, and that no value is silently another."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from bayes_dc.config import (
    MAX_BYTES,
    Config,
    ConfigError,
    dump_config,
    load_active_config,
    load_config,
)

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
MINIMAL = "output_dir: out\ndata: {name: digits}\n"


def shipped(path):
    return (load_active_config if path.stem.startswith("active_") else load_config)(path)


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(tmp_path, extra="", *overrides):
    return load_config(write(tmp_path, MINIMAL + extra), overrides)


def refusal(tmp_path, text, *overrides):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert message.startswith((str(path), "--set"))
    return message


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path):
    config = shipped(path)
    assert config.output_dir == f"checkpoints/{path.stem}"


def test_every_data_set_has_a_shipped_configuration():
    names = {shipped(path).data.name for path in CONFIGS}
    assert names == {
        *("digits", "mnist", "fashion_mnist", "kmnist"),
        *("cifar10", "cifar100", "svhn", "imagefolder", "npz"),
    }


def test_defaults_are_the_documented_ones(tmp_path):
    config = read(tmp_path)
    assert (config.seed, config.model.p, config.model.scope) == (0, 0.5, None)
    assert (config.model.name, config.model.hidden) == ("mlp", (800, 800))
    assert (config.init_from, config.model.select, config.train.augment.is_on) == (
        None,
        None,
        False,
    )
    assert (config.train.amp, config.train.device, config.predict.passes) == ("none", "auto", 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("5e-4", 5e-4), ("1E-3", 1e-3), ("1e5", 1e5), ("1E5", 1e5), (".5", 0.5)],
)
def test_numbers_without_a_dot_are_numbers(tmp_path, text, value):
    """YAML 1.1 reads 1e-3 as text."""
    assert read(tmp_path, f"train: {{optimizer: {{lr: {text}}}}}\n").train.optimizer.lr == value
    assert read(tmp_path, "", f"train.optimizer.lr={text}").train.optimizer.lr == value


def test_configuration_cannot_be_changed(tmp_path):
    config = read(tmp_path)
    with pytest.raises(ValidationError, match="frozen"):
        config.model.p = 0.1


def test_resolved_configuration_reads_back_equal(tmp_path):
    config = read(tmp_path, "model: {p: 1e-2, hidden: [3]}\ntrain: {optimizer: {lr: 1e-5}}\n")
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert Config.model_validate(config.model_dump(mode="json")) == config


KEYS = [
    ("model: {drop_porb: 0.3}", "model.drop_porb: unknown key; the nearest valid key is model.p"),
    ("train: {epoch: 3}", "train.epoch: unknown key; the nearest valid key is train.epochs"),
    ("train: {p: 0.3}", "train.p: unknown key; the nearest valid key is model.p"),
    (
        "train: {optimizer: {learning_rate: 1}}",
        "train.optimizer.learning_rate: unknown key; the nearest valid key is train.optimizer.lr",
    ),
    ("modle: {p: 0.3}", "modle: unknown key; the nearest valid key is model"),
    ("<<: {p: 0.3}", "<<: unknown key; the nearest valid key is"),
    (
        "train: {precision: bf16}",
        "train.precision: unknown key; the nearest valid key is train.amp",
    ),
    ("acquire: {count: 3}", "; sections and keys: output_dir, seed, init_from, model, data, train"),
    ("model: {q: 1}", "the nearest valid key is model.p; keys of model: name, "),
]


@pytest.mark.parametrize(("line", "message"), KEYS)
def test_unknown_keys_name_the_nearest_valid_key(tmp_path, line, message):
    assert message in refusal(tmp_path, MINIMAL + line)


VALUES = [
    ("model: {p: -0.1}", "model.p: must be greater than or equal to 0; got -0.1"),
    ("model: {p: 1}", "model.p: must be less than 1; got 1"),
    ("model: {p: 1.0}", "model.p: must be less than 1; got 1.0"),
    ("model: {p: .nan}", "model.p: must be finite; got nan"),
    ("model: {p: .inf}", "model.p: must be finite; got inf"),
    (
        "model: {p: '0.5'}",
        "model.p: must be a number; got '0.5': a number must stand without quotes",
    ),
    ("model: {p: true}", "model.p: must be a number; got true"),
    ("model: {p: null}", "model.p: must be a number; got null"),
    ("model: {hidden: 800}", "model.hidden: must be a list, e.g. [800, 800]; got 800"),
    ("model: {hidden: [8, 0]}", "model.hidden.1: must be greater than or equal to 1; got 0"),
    ("model: {hidden: [8, '8']}", "model.hidden.1: must be a whole number; got '8'"),
    (
        "model: {sampler: gaussian, scope: pass}",
        "model: sampler='gaussian' needs scope='row'; got scope='pass'. It draws every row on its "
        "own, and rows that share a mask are correlated. Set scope='row', or sampler='bernoulli' "
        "to share masks.",
    ),
    (
        "model: {scope: rows}",
        "model.scope: must be 'row', 'sample' or 'pass'; got 'rows': did you mean row?",
    ),
    (
        "model: {name: resnet}",
        "model.name: must be 'mlp', 'lenet5', 'cnn', 'resnet18', 'resnet20' or 'vgg16_bn'; got "
        "'resnet': did you mean resnet20?",
    ),
    (
        "model: {name: cnn, hidden: [8]}",
        "model: hidden is read by mlp only; name is cnn: remove it",
    ),
    (
        "model: {hidden: null}",
        "model: mlp needs hidden, the widths of its hidden layers, e.g. [800, 800]",
    ),
    ("model: {dropout: 1}", "model.dropout: must be less than 1; got 1"),
    ("model: {select: '*'}", "model.select: must be a list, e.g. [800, 800]; got '*'"),
    (
        "model: {select: []}",
        "model: select names no pattern: write null for all layers, or p: 0 for none",
    ),
    (
        "model: {select: [a, '!']}",
        "model: select: write names of layers, such as layer4, *.conv2 or !conv1; got '!'",
    ),
    ("init_from: 3", "init_from: must be text; got 3"),
    ("train: {label_smoothing: 1}", "train.label_smoothing: must be less than 1; got 1"),
    ("train: {channels_last: yes}", "train.channels_last: must be true or false; got 'yes'"),
    ("train: {augment: {shift: -1}}", "train.augment.shift: must be greater than or equal to 0"),
    ("train: {augment: flip}", "train.augment: must be a section with keys of its own"),
    ("train: {augment: {flips: true}}", "the nearest valid key is train.augment.flip"),
    (
        "train: {optimizer: {decay: weight}}",
        "train.optimizer.decay: must be 'all' or 'weights'; got 'weight': did you mean weights?",
    ),
    ("model:", "model: must be a section with keys of its own; got null"),
    ("train: {epochs: 2.5}", "train.epochs: must be a whole number; got 2.5"),
    (
        "train: {grad_clip: None}",
        "train.grad_clip: must be a number; got 'None': for no value write null, not None",
    ),
    (f"seed: {'x' * 1000}", f"seed: must be a whole number; got '{'x' * 76}..."),
    ("seed: 010", "seed: must be a whole number; got '010'"),
    ("seed: -1", "seed: must be greater than or equal to 0; got -1"),
    ("seed: 18446744073709551616", "seed: must be less than 18446744073709551616"),
    (
        "train: {optimizer: {name: adam, momentum: 0.9}}",
        "train.optimizer: momentum and nesterov are read by sgd only; name is adam",
    ),
    (
        "train: {optimizer: {name: sgd, nesterov: true}}",
        "train.optimizer: nesterov needs a momentum above 0",
    ),
    (
        "train: {optimizer: {name: sgd, momentum: 0.9, nesterov: yes}}",
        "train.optimizer.nesterov: must be true or false; got 'yes'",
    ),
    ("train: {schedule: {name: multistep}}", "train.schedule: multistep needs milestones"),
    (
        "train: {schedule: {name: cosine, milestones: [3]}}",
        "train.schedule: milestones are read by multistep only; name is cosine",
    ),
    (
        "train: {schedule: {name: multistep, milestones: [3, 3]}}",
        "train.schedule: milestones must ascend; got [3, 3]",
    ),
    (
        "train: {epochs: 2, schedule: {warmup_epochs: 2}}",
        "train: schedule.warmup_epochs must be below epochs=2; got 2",
    ),
]


@pytest.mark.parametrize(("line", "message"), VALUES)
def test_values_of_another_type_or_range_are_refused(tmp_path, line, message):
    assert message in refusal(tmp_path, MINIMAL + line)


DATA = [
    ("{name: mnsit}", "data.name: must be 'digits', 'mnist', "),
    ("{name: mnsit}", "did you mean mnist?"),
    ("{name: imagefolder}", "data: imagefolder needs image_size"),
    ('{name: mnist, root: "a\\0b"}', "data.root: a path cannot hold a null byte; got 'a\\x00b'"),
    ("{name: mnist, root: ''}", "data.root: "),
    ("{name: digits, image_size: 8}", "data: image_size is read by imagefolder only; digits has"),
    ("{name: digits, validation_fraction: 1}", "data.validation_fraction: must be less than 1"),
    (
        "{name: digits, download: 'true'}",
        "data.download: must be true or false; got 'true': write it without quotes",
    ),
    ("{}", "data.name: is missing and has no default: add it"),
]


@pytest.mark.parametrize(("section", "message"), DATA)
def test_data_section(tmp_path, section, message):
    assert message in refusal(tmp_path, f"output_dir: out\ndata: {section}\n")


def test_every_fault_has_a_line_of_its_own(tmp_path):
    lines = refusal(tmp_path, MINIMAL + "model: {p: 2, x: 1}\nseed: a\n").splitlines()
    assert len(lines) == 3
    assert all(str(tmp_path) in line for line in lines)


def test_empty_file_names_the_missing_keys(tmp_path):
    message = refusal(tmp_path, "")
    assert "output_dir: is missing" in message
    assert "data: is missing" in message


YAML = [
    (MINIMAL + "model:\n  p: 0.5\n  p: 0.9\n", "line 5: key p is given twice (first in line 4)"),
    (MINIMAL + "seed: &a 1\n", "line 3: anchors (&) and aliases (*) are not read"),
    (MINIMAL + "seed: *a\n", "line 3: anchors (&) and aliases (*) are not read"),
    (MINIMAL + "seed: !!int 1\n", "line 3: tags are not read: remove tag:yaml.org,2002:int"),
    (MINIMAL + "1: 2\n", "line 3: keys must be text"),
    (MINIMAL + "[1, 2]: 3\n", "line 3: keys must be text"),
    ("- a\n", "must hold keys and values, got list"),
    ("a: b: c\n", "line 1: mapping values are not allowed here"),
    ("a: 1\n---\nb: 2\n", "line 2: but found another document"),
    ("a: " + "[" * 17 + "]" * 17, "line 1: nested deeper than 16 levels"),
    ("[" * 100_000, "line 1: nested deeper than 16 levels"),
    ("seed: " + "9" * 5000, "Exceeds the limit"),
    ("a: \0", "unacceptable character"),
    (b"a: \xff\xfe", "not UTF-8 text: not a configuration file"),
    ("#" * (MAX_BYTES + 1), "larger than 128 KiB: not a configuration file"),
]


@pytest.mark.parametrize(("text", "message"), YAML, ids=[message for _, message in YAML])
def test_yaml_that_is_refused(tmp_path, text, message):
    assert message in refusal(tmp_path, text)


def test_python_tags_run_nothing(tmp_path):
    marker = tmp_path / "marker"
    text = f"x: !!python/object/apply:os.mkdir ['{marker}']\n"
    assert "line 1: tags are not read" in refusal(tmp_path, text)
    assert not marker.exists()


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.* Name a YAML file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        load_config(tmp_path)


def test_overrides_reach_the_configuration(tmp_path):
    config = read(
        tmp_path,
        "model: {p: 0.25}\n",
        "model.p=0.1",
        "model.hidden=[7, 5]",
        "train.grad_clip=",
        "train.optimizer.lr=1e-4",
        "model.p=0",
        "output_dir=runs/a=b",
    )
    assert config.model.p == 0
    assert config.model.hidden == (7, 5)
    assert config.train.grad_clip is None
    assert config.train.optimizer.lr == 1e-4
    assert config.output_dir == "runs/a=b"


OVERRIDES = [
    ("model.p", "--set model.p: must read section.key=value, e.g. model.p=0.5"),
    ("=3", "--set =3: must read section.key=value"),
    ("model..p=3", "--set model..p=3: must read section.key=value"),
    ("seed.x=3", "--set seed.x=3: seed is a value, not a section"),
    ("model.p=[", "--set model.p=[: line 1: "),
    ("model.p='0.5'", "with --set model.p: model.p: must be a number; got '0.5'"),
    ("model.q=1", "with --set model.q: model.q: unknown key; the nearest valid key is model.p"),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_overrides_that_are_refused(tmp_path, override, message):
    assert message in refusal(tmp_path, MINIMAL + "seed: 1\n", override)
