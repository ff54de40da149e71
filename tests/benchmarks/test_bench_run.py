"""The whole program on tiny shapes: every implementation is in the table, every ratio is made."""

from functools import partial

import pytest
import torch
import yaml

from benchmarks import (
    baselines,
    conv,
    engine,
    gates,
    gaussian,
    groups,
    plots,
    predict,
    ratios,
    records,
    row_masks,
    run,
    shared_masks,
    training,
    warm,
)
from benchmarks.cases import DENSE, OURS, Case, Sizes

LENET = engine.KINDS["lenet5"]
ROW = {"M": 8, "N": 6, "K": 5}
TINY = {
    "rows": [row_masks.Shape(**ROW, p=(0.5, 0.25), copies=True, compiled=True)],
    "small": [row_masks.Shape(**ROW)],
    "shared": [shared_masks.Shape(G=3, R=4, N=6, K=5, compiled=True)],
    "gaussian": [row_masks.Shape(**ROW, compiled=True)],
    "predict": [
        predict.Shape(B=B, T=3, sizes=(5, 4, 3), dtypes=("float32",), compiled=True) for B in (1, 2)
    ],
    "memory": [row_masks.Shape(**ROW)],
    "conv": [conv.Shape(B=2, C=4, N=6, size=5, copies=True)],
    "engine": [engine.Shape(B=2, T=3, model="lenet5", dtypes=("float32",), compiled=True)],
    "train": [training.Shape(B=2, size=8, recipe="cifar10_resnet18.yaml")],
}
NAMES = {
    "rows": {DENSE, OURS, row_masks.BROADCAST, row_masks.BROADCAST_COMPILED},
    "small": {DENSE, OURS},
    "shared": {
        DENSE,
        OURS,
        shared_masks.MADE_BEFORE,
        shared_masks.EXPANDED,
        shared_masks.EXPANDED_COMPILED,
        shared_masks.LOOP,
        shared_masks.LOOP_COMPILED,
    },
    "gaussian": {DENSE, OURS, gaussian.EAGER, gaussian.COMPILED},
    "predict": {
        *predict.KINDS,
        predict.LOOP,
        predict.LOOP_COMPILED,
        predict.FREE,
        predict.FREE_COMPILED,
    },
    "memory": {OURS},
    "conv": {DENSE, OURS, conv.GROUPED, conv.UNFOLDED},
    "engine": {
        *(engine.ours(path, kind) for path in ("engine", "folded") for kind in LENET),
        engine.LOOP,
        engine.FREE,
        engine.FREE_COMPILED,
    },
    "train": {training.PLAIN, training.CONVOLUTIONS, training.RECIPE},
}


@pytest.fixture(scope="module")
def rows():
    """Rows of every group; compiling is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **_: function)
        return run.run(TINY, "cpu", budget_s=1e-9)


@pytest.mark.parametrize("group", NAMES)
def test_every_implementation_is_in_the_table(rows, group):
    members = [row for row in rows if row.group == group]
    assert {row.implementation for row in members} == NAMES[group]
    text = records.table(members, "cpu")
    assert text.startswith(f"{group}: ")
    assert all(name in text for name in NAMES[group])


def test_every_operation_is_timed(rows):
    """Compiled backwards make both gradients, so they have no dx and dw of their own."""
    for group in ("rows", "shared", "conv"):
        of = {name: set() for name in NAMES[group]}
        for row in rows:
            if row.group == group:
                of[row.implementation].add(row.op)
        for name, ops in of.items():
            whole = "compiled" in name or name in conv.COPYING
            alone = set() if whole else {"dx", "dw"}
            assert ops == {"fwd", "fwd+bwd"} | alone, name


def test_the_table_is_as_wide_as_its_head(rows):
    lines = [line for line in records.table(rows, "cpu").splitlines() if line and ": " not in line]
    assert len({len(line) for line in lines}) == 1


def test_ratios_compare_within_a_shape(rows):
    lines = ratios.ratios(rows)
    text = "\n".join(lines)
    for other in (
        row_masks.BROADCAST,
        row_masks.BROADCAST_COMPILED,
        shared_masks.LOOP,
        shared_masks.EXPANDED,
        gaussian.EAGER,
        predict.LOOP_COMPILED,
        predict.FREE_COMPILED,
        conv.GROUPED,
        conv.UNFOLDED,
    ):
        assert f"'{other}'" in text
    assert "share of the speed of the product without masks: fwd" in text
    assert "share of the speed of the convolution without masks: fwd" in text
    assert f"{training.RECIPE}, a step takes" in text
    assert "times F.linear" in text
    assert "copies of W would take" in text
    group = [r for r in rows if r.group == "rows" and r.op == "fwd" and r.p != 0.25]
    fwd = {r.implementation: r.ms_p50 for r in group}
    speed = fwd[row_masks.BROADCAST] / fwd[OURS]
    line = next(r for r in lines if f"'{row_masks.BROADCAST}'" in r)
    assert f"fwd {speed:.3g}" in line


def test_plots_are_written_from_the_file(rows, tmp_path, monkeypatch, capsys):
    records.append(rows, tmp_path)
    monkeypatch.setattr("sys.argv", ["plots", "--results", str(tmp_path)])
    plots.main()
    names = [f"cpu-{name}.png" for name in ("rows", "shared", "predict")]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


@pytest.mark.parametrize(
    "failed",
    [
        {predict.FREE, predict.FREE_COMPILED},
        {predict.LOOP},
        {DENSE},
        {OURS, *predict.KINDS},
        {training.PLAIN, conv.GROUPED},
        set(NAMES["predict"]) - {f"{OURS}, scope row"},
    ],
    ids=["folded", "loop", "dense", "ours", "training", "all but one"],
)
def test_what_failed_is_left_out_of_ratios_and_plots(rows, failed, tmp_path):
    """A baseline that did not run takes its comparisons with it, no other."""
    left = [row for row in rows if row.implementation not in failed]
    left = [
        records.Row(**{**row.__dict__, "percent_of_limit": float("nan")})
        if DENSE in failed and row.group != "predict"
        else row
        for row in left
    ]
    text = "\n".join(ratios.ratios(left))
    assert not any(f"'{name}'" in text for name in failed)
    assert f"'{row_masks.BROADCAST}'" in text or OURS in failed
    if predict.LOOP in failed and len(failed) == 1:
        assert f"{OURS}, scope row takes" in text
    names = {path.name for path in plots.write(left, tmp_path)}
    gone = {"cpu-shared.png"} if DENSE in failed else set()
    gone |= {"cpu-predict.png"} if len(failed) > 4 else set()
    assert names == {"cpu-rows.png", "cpu-shared.png", "cpu-predict.png"} - gone


def test_passes_are_counted_without_the_loop(rows):
    """Of any row whose mask the whole batch shares; a mask for each row tells nothing of T."""
    of = {row.implementation: row for row in rows if row.group == "predict" and row.M > 3}
    assert {name: plots._passes([row]) for name, row in of.items()} == {
        name: 3 if name in plots.WHOLE_BATCH else None for name in NAMES["predict"]
    }


def test_the_newest_row_of_a_line_counts(rows):
    old = rows[0]
    new = records.Row(**{**old.__dict__, "ms_p50": 7.0})
    assert plots.newest([old, rows[1], new]) == [new, rows[1]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_shapes_file(device, quick):
    """Each group has entries, fewer with --quick."""
    shapes = groups.load(groups.SHAPES, device, quick=quick)
    assert set(shapes) == set(groups.GROUPS)
    assert all(shapes.values())
    assert all(s.quick for entries in shapes.values() for s in entries) == quick


def test_an_unknown_key_is_named(tmp_path):
    path = tmp_path / "shapes.yaml"
    path.write_text(yaml.safe_dump({"cpu": {"rows": [{**ROW, "nave": True}]}}), encoding="utf-8")
    message = r"shapes.yaml: cpu.rows: .*unexpected keyword .*'nave'. Correct the entry; its keys "
    with pytest.raises(SystemExit, match=message + "are M, N, K, p,.* default are M, N, K."):
        groups.load(path, "cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"cpu": {"row": [ROW]}},
            "cpu has the unknown key 'row'. Rename it; known keys are rows, ",
        ),
        ({"gpu": {}}, "the file has the unknown key 'gpu'. Rename it; known keys are cpu, cuda."),
        ({"cuda": {}}, "has no entries for cpu. Add the key cpu, or use --device cuda."),
        (None, "has no entries for cpu. Add the key cpu, or use --device cuda."),
    ],
)
def test_a_misspelt_group_or_device_is_named(content, message, tmp_path):
    """It would be left out in silence."""
    path = tmp_path / "shapes.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        groups.load(path, "cpu")
    assert str(caught.value).startswith("shapes.yaml")
    assert message in str(caught.value)


@pytest.fixture
def tiny_main(tmp_path, monkeypatch):
    """Run ``main`` on a small shapes file with further options; the folder for its rows."""
    shapes = {"cpu": {"rows": [{**ROW, "quick": True}], "small": [ROW]}}
    path = tmp_path / "shapes.yaml"
    path.write_text(yaml.safe_dump(shapes), encoding="utf-8")
    monkeypatch.setattr(run, "BUDGET_S", {"cpu": 1e-9})

    def main(*options):
        arguments = ["run", "--device", "cpu", "--shapes", str(path), "--keep", str(tmp_path)]
        monkeypatch.setattr("sys.argv", [*arguments, *options])
        run.main()

    return main


def test_main_prints_tables_and_keeps_rows(tiny_main, tmp_path, capsys):
    tiny_main("--quick", "--only", "rows", "small")
    text = capsys.readouterr().out
    assert "rows: a mask for every row; limit: the product without masks" in text
    assert "small:" not in text
    assert len(records.read(tmp_path / "cpu.csv")) == 8  # two implementations, four operations


def test_a_closed_gate_stops_its_group_only(tiny_main, tmp_path, monkeypatch, capsys):
    def closed(device):
        gates.gate(1.0, 0.0, "something")

    rows = groups.GROUPS["rows"]._replace(check=closed)
    monkeypatch.setitem(groups.GROUPS, "rows", rows)
    with pytest.raises(SystemExit):
        tiny_main()
    text = capsys.readouterr().out
    assert "not measured:\nrows: not timed: something is off by 1 (bound 0)" in text
    assert {row.group for row in records.read(tmp_path / "cpu.csv")} == {"small"}


def test_without_time_every_entry_is_named(tiny_main, tmp_path, capsys):
    with pytest.raises(SystemExit):
        tiny_main("--seconds", "0")
    text = capsys.readouterr().out
    assert text.count("no time left (--seconds)") == 2
    assert not (tmp_path / "cpu.csv").exists()


def test_what_is_missing_is_named_even_where_the_end_fails(tiny_main, monkeypatch, capsys):
    def fail(rows):
        raise KeyError("a comparison")

    monkeypatch.setattr(run, "ratios", fail)
    with pytest.raises(KeyError, match="a comparison"):
        tiny_main("--seconds", "0")
    text = capsys.readouterr().out
    assert text.count("not measured:\n") == 1
    assert text.count("no time left (--seconds)") == 2


def test_an_interrupt_keeps_what_is_there(tiny_main, tmp_path, monkeypatch, capsys):
    small = groups.GROUPS["small"]._replace(cases=interrupted)
    monkeypatch.setitem(groups.GROUPS, "small", small)
    with pytest.raises(SystemExit):
        tiny_main()
    assert "and what follows: interrupted" in capsys.readouterr().out
    assert {row.group for row in records.read(tmp_path / "cpu.csv")} == {"rows"}


def interrupted(shape, device):
    raise KeyboardInterrupt
    yield


def test_quick_entries_come_first(monkeypatch):
    """Where time runs out, every group has been seen."""
    late, early = row_masks.Shape(**ROW), row_masks.Shape(M=4, N=3, K=2, quick=True)
    seen = []

    def remember(cases, *_, **__):
        seen.append(next(cases).sizes.M)
        return []

    monkeypatch.setattr(run, "measure_all", remember)
    run.run({"rows": [late, early], "small": [late, early]}, "cpu")
    assert seen == [4, 4, 8, 8]


def test_compiling_beforehand_sees_each_dtype_and_p_once():
    shape = row_masks.Shape(**ROW, p=(0.5, 0.25), dtypes=("float32", "bfloat16"))
    parts = list(warm.parts([shape, predict.Shape(B=1, dtypes=("float32", "tf32"))]))
    assert [(part.dtypes, getattr(part, "p", None)) for part in parts] == [
        (("float32",), (0.5,)),
        (("float32",), (0.25,)),
        (("bfloat16",), (0.5,)),
        (("bfloat16",), (0.25,)),
        (("float32",), None),
        (("tf32",), None),
    ]


def test_compiling_beforehand_calls_what_compiles(monkeypatch):
    called = []

    def cases(part, device):
        for name in (DENSE, OURS, row_masks.BROADCAST, row_masks.BROADCAST_COMPILED):
            call = partial(called.append, name)
            yield Case("rows", "fwd", name, Sizes(1, 1, 1, 1), "float32", call, 1, 1.0)

    group = groups.GROUPS["rows"]._replace(cases=cases)
    monkeypatch.setitem(groups.GROUPS, "rows", group)
    warm.compile_part("rows", row_masks.Shape(**ROW), "cpu")
    assert called == [OURS, row_masks.BROADCAST_COMPILED]


def test_gates_share_what_they_compile():
    """Three groups have the same integers; the gates themselves come last."""
    entries = [row_masks.Shape(**ROW)]
    tasks = list(warm.tasks_of({"rows": entries, "small": entries, "shared": []}, "cuda"))
    functions = [task[0] for task in tasks]
    assert functions[:5] == [gates.linear_is_exact] * 5
    assert functions[5:7] == [warm.compile_part] * 2
    assert functions[7:] == [groups.GROUPS["rows"].check, groups.GROUPS["small"].check]


def test_compiling_beforehand_uses_processes(capsys):
    """Failures are counted here and told by the run."""
    warm.compile_all({"rows": [], "memory": [row_masks.Shape(**ROW)]}, "cpu")
    assert "by 2 processes; 0 of 5 failed" in capsys.readouterr().err


@pytest.mark.parametrize("passes", [1, 7])
def test_loop_and_fold_report_the_same_statistics(passes):
    """Pass by pass or all at once; against formulas on the probabilities."""
    torch.manual_seed(0)
    logits = torch.randn(passes, 4, 3, dtype=torch.float64)
    sums = baselines.no_passes(4, 3, "cpu")
    for one in logits:
        sums = baselines.add_pass(sums, one)
    looped, folded = baselines.statistics(sums, passes), baselines.all_passes(logits)
    probs = logits.softmax(dim=2)
    mean = probs.mean(dim=0)
    entropy = -(mean * mean.log()).sum(dim=1)
    expected = -(probs * probs.log()).sum(dim=2).mean(dim=0)
    want = {
        "mean": mean,
        "variance": probs.var(dim=0) if passes > 1 else 0 * mean,
        "entropy": entropy,
        "expected_entropy": expected,
        "mutual_information": entropy - expected,
    }
    for name, value in want.items():
        for found in (looped, folded):
            torch.testing.assert_close(getattr(found, name), value, msg=name)
    assert torch.equal(looped.variation_ratio, folded.variation_ratio)


@pytest.mark.parametrize("function", [baselines.expanded, baselines.loop(baselines.one_mask)])
def test_baselines_with_a_mask_for_each_group_have_the_right_moments(function):
    gates.moments_are_right(gates.groups_as_rows(function), "cpu", "baseline", draws=512)


@pytest.mark.parametrize("function", [baselines.broadcast, baselines.two_products])
def test_baselines_with_a_mask_for_each_row_have_the_right_moments(function):
    gates.moments_are_right(function, "cpu", "baseline")


def test_a_prediction_passes_its_gate():
    predict.check("cpu", (256, 128, 128, 10))
