"""Statistics of passes: NumPy, brute-force jackknife, worked numbers, a closed form."""

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, xlogy

from bayes_dc.mc.statistics import PassStatistics, check_probabilities

FIELDS = (
    "mean",
    "variance",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "mutual_information_corrected",
    "variation_ratio",
    "mean_se",
    "entropy_se",
    "mutual_information_se",
)


def summarise(samples, *, chunk=None):
    """Summary of samples [T, B, C] given in chunks, as NumPy arrays."""
    samples = torch.tensor(np.asarray(samples, dtype=np.float64))
    statistics = PassStatistics(*samples.shape, torch.device("cpu"))
    for part in samples.split(chunk or len(samples)):
        statistics.update(part)
    return {name: getattr(statistics.summary(), name).numpy() for name in FIELDS}


def dirichlet(alpha, T, B, seed=0):
    return np.random.default_rng(seed).dirichlet(alpha, size=(T, B))


def entropy(p):
    return -xlogy(p, p).sum(axis=-1)


def information(samples):
    return entropy(samples.mean(axis=0)) - entropy(samples).mean(axis=0)


def naive(samples):
    """Every field by its definition; the jackknife by leaving passes out one group at a time."""
    T = len(samples)
    votes = np.stack([(samples.argmax(-1) == c).sum(axis=0) for c in range(samples.shape[-1])])
    result = {
        "mean": samples.mean(axis=0),
        "variance": samples.var(axis=0, ddof=1),
        "entropy": entropy(samples.mean(axis=0)),
        "expected_entropy": entropy(samples).mean(axis=0),
        "mutual_information": information(samples),
        "variation_ratio": 1 - votes.max(axis=0) / T,
        "mean_se": samples.std(axis=0, ddof=1) / math.sqrt(T),
    }
    group = np.arange(T) % min(T, 20)
    for name, statistic in (
        ("entropy", lambda s: entropy(s.mean(axis=0))),
        ("mutual_information", information),
    ):
        whole = statistic(samples)
        corrected, pseudo_values = (group.max() + 1) * whole, []
        for j in range(group.max() + 1):
            h = T / (group == j).sum()
            left_out = statistic(samples[group != j])
            corrected = corrected - (1 - 1 / h) * left_out
            pseudo_values.append((h, h * whole - (h - 1) * left_out))
        squares = [(pseudo - corrected) ** 2 / (h - 1) for h, pseudo in pseudo_values]
        result[f"{name}_se"] = np.sqrt(np.mean(squares, axis=0))
        if name == "mutual_information":
            result["mutual_information_corrected"] = corrected
    return result


@pytest.mark.parametrize("T", [2, 3, 19, 20, 21, 47, 100])
@pytest.mark.parametrize("alpha", [[1.0] * 10, [0.05] * 3, [50.0, 5.0], [9.0, *[0.1] * 9]], ids=str)
def test_every_field_by_its_definition(T, alpha):
    samples = dirichlet(alpha, T, 6)
    got, want = summarise(samples), naive(samples)
    for name in FIELDS:
        # Sums of T · C terms of order 1; pseudo-values multiply roundings by up to 2 T.
        bound = 2 * T * T * len(alpha) * 2.0**-52
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("T", [2, 7, 20])
def test_with_one_pass_a_group_it_is_the_ordinary_jackknife(T):
    """T θ − (T − 1) θ̄₍·₎ and (T − 1)/T Σ (θ₍ⱼ₎ − θ̄₍·₎)² of the textbooks."""
    samples = dirichlet([1.0] * 4, T, 5)
    got = summarise(samples)
    left_out = np.stack([information(np.delete(samples, j, axis=0)) for j in range(T)])
    corrected = T * information(samples) - (T - 1) * left_out.mean(axis=0)
    variance = (T - 1) / T * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    bound = 2 * T * T * 4 * 2.0**-52
    np.testing.assert_allclose(got["mutual_information_corrected"], corrected, rtol=0, atol=bound)
    np.testing.assert_allclose(got["mutual_information_se"] ** 2, variance, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_logits_of_any_type(dtype):
    """Softmax in float64 of what the model returned; the probabilities on request."""
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((7, 3, 4))).to(dtype)
    probs = logits.double().softmax(dim=-1)
    statistics = PassStatistics(7, 3, 4, torch.device("cpu"), "softmax")
    samples = torch.full((7, 3, 4), torch.nan, dtype=torch.float64)
    for part in (slice(0, 3), slice(3, 7)):
        statistics.update(logits[part], samples[part])
    assert torch.equal(samples, probs)
    want = summarise(probs)
    for name, value in want.items():
        np.testing.assert_array_equal(getattr(statistics.summary(), name), value, err_msg=name)


def test_limits_of_the_rows():
    """Least and largest sum, least entry; rows with a NaN are not judged, whichever the chunk."""
    rows = torch.tensor([[[0.5, 0.5], [0.25, 0.5]], [[torch.nan, 9.0], [1.5, -0.25]]])
    for chunk in (1, 2):
        statistics = PassStatistics(2, 2, 2, torch.device("cpu"), "identity")
        for part in rows.split(chunk):
            statistics.update(part)
        assert statistics.limits().tolist() == [0.75, 1.25, -0.25]
    nothing = PassStatistics(1, 2, 2, torch.device("cpu"), "identity")
    nothing.update(rows[1:, :1].expand(1, 2, 2))
    assert nothing.limits().tolist() == [math.inf, -math.inf, math.inf]
    check_probabilities(*nothing.limits().tolist())


@pytest.mark.parametrize(
    ("low", "high", "smallest"),
    [(0.98, 1.0, 0.0), (1.0, 1.02, 0.0), (1.0, 1.0, -1e-9), (math.nan, 1.0, 0.0)],
)
def test_what_are_no_probabilities(low, high, smallest):
    check_probabilities(0.995, 1.005, 0.0)
    with pytest.raises(ValueError, match="its rows sum to") as caught:
        check_probabilities(low, high, smallest)
    assert str(caught.value) == (
        "link='identity' needs a model that returns class probabilities; its rows sum to "
        f"{low:.4g} … {high:.4g} with a smallest entry of {smallest:.4g}. "
        "Use link='softmax' for logits."
    )


@pytest.mark.parametrize("chunk", [1, 3, 20, 46, 47])
def test_chunks_change_no_bit(chunk):
    samples = dirichlet([0.5] * 5, 47, 6)
    want = summarise(samples)
    for name, value in summarise(samples, chunk=chunk).items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)


@pytest.mark.parametrize("classes", [1, 2, 10, 133, 1001])
def test_inputs_beside_change_no_bit(classes):
    """torch's sums take another order for other shapes; these must not."""
    samples = dirichlet([0.5] * classes, 23, 17)
    want = summarise(samples)
    for rows in (slice(0, 1), slice(3, 5), slice(2, 17)):
        for name, value in summarise(samples[:, rows]).items():
            np.testing.assert_array_equal(value, want[name][rows], err_msg=name)


def test_strides_change_no_bit():
    """Outputs whose classes are no neighbours in memory."""
    samples = torch.from_numpy(dirichlet(np.ones(10), 6, 9))
    apart = samples.transpose(1, 2).contiguous().transpose(1, 2)
    for name, want in summarise(samples).items():
        assert np.array_equal(summarise_tensor(apart)[name], want), name


def summarise_tensor(samples):
    """Summary of a tensor [T, B, C] as it lies in memory."""
    statistics = PassStatistics(*samples.shape, torch.device("cpu"))
    statistics.update(samples)
    return {name: getattr(statistics.summary(), name).numpy() for name in FIELDS}


def test_one_input_of_many_classes_is_as_among_others():
    """Torch shares the sum of one long row between threads."""
    samples = dirichlet(np.full(100_000, 0.3), 4, 2)
    many, one = summarise(samples), summarise(samples[:, :1], chunk=1)
    for name in FIELDS:
        assert np.array_equal(one[name], many[name][:1]), name


def test_probabilities_are_averaged_not_logits():
    """Passes with logits [4, 0] and [−1, 0]: a mean of logits would give 0.817574."""
    logits = torch.tensor([[[4.0, 0.0]], [[-1.0, 0.0]]], dtype=torch.float64)
    got = summarise(logits.softmax(dim=-1))
    worked = {
        "mean": [[0.625478, 0.374522]],
        "entropy": [0.661319],
        "expected_entropy": [0.336149],
        "mutual_information": [0.325170],
        "variance": [[0.254236, 0.254236]],
    }
    for name, value in worked.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=0.5e-6, err_msg=name)
    # At T = 2 the jackknife doubles the plug-in value: one pass alone has none.
    assert got["mutual_information_corrected"] == pytest.approx(2 * got["mutual_information"])
    assert got["variation_ratio"].tolist() == [0.5]


def test_variance_does_not_cancel():
    """float32 outputs 10000, 10001, 10002: the mean of squares less the squared mean gives 0."""
    outputs = np.array([10_000, 10_001, 10_002], np.float32).reshape(3, 1, 1)
    statistics = PassStatistics(3, 1, 1, torch.device("cpu"))
    statistics.update(torch.from_numpy(outputs).double())
    assert statistics.summary().variance.item() == 1.0


@pytest.mark.parametrize("T", [2, 7, 20, 33])
def test_equal_passes_have_exactly_no_spread(T):
    """Seven times the float32 0.1, and a whole distribution: no negative variance, no NaN."""
    one = np.array([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]], np.float32).astype(np.float64)
    got = summarise(np.broadcast_to(one, (T, 2, 3)))
    for name in ("variance", "mean_se", "mutual_information", "variation_ratio"):
        assert not got[name].any(), name
    np.testing.assert_array_equal(got["mean"], one)
    np.testing.assert_array_equal(got["entropy"], got["expected_entropy"])


def test_one_pass():
    got = summarise(dirichlet([1.0] * 3, 1, 4))
    for name in FIELDS:
        if name not in {"mean", "entropy", "expected_entropy"}:
            assert not got[name].any(), name
    np.testing.assert_array_equal(got["entropy"], got["expected_entropy"])


def test_certain_passes_that_disagree():
    """One-hot passes: all of the entropy is mutual information, zeros give no NaN."""
    samples = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]][:, None]
    got = summarise(samples)
    assert got["expected_entropy"].item() == 0.0
    assert got["entropy"].item() == pytest.approx(math.log(4), rel=2.0**-51)
    assert got["mutual_information"].item() == got["entropy"].item()
    assert got["variation_ratio"].item() == 0.75


def test_mutual_information_is_never_negative():
    """Passes that differ in the last bits: the difference of two entropies may round below 0."""
    base = np.random.default_rng(0).dirichlet([1.0] * 10, size=1000)
    noise = 1 + 2.0**-50 * np.random.default_rng(1).standard_normal((5, 1000, 10))
    samples = base * noise
    assert (information(samples) < 0).any()
    assert (summarise(samples)["mutual_information"] >= 0).all()


def exact_information(alpha):
    """I(y; p) for p ~ Dirichlet(α): H(α/α₀) − [ψ(α₀ + 1) − Σ_k α_k/α₀ ψ(α_k + 1)]."""
    alpha = np.array(alpha)
    total = alpha.sum()
    expected = digamma(total + 1) - (alpha / total * digamma(alpha + 1)).sum()
    return entropy(alpha / total) - expected


ALPHAS = {
    "flat": ([1.0] * 10, 0.3736),
    "sparse": ([0.1] * 10, 1.456),
    "confident": ([9.0, *[0.1] * 9], 0.1707),
    "concentrated": ([50.0, 5.0, *[1.0] * 8], 0.0614),
}


@pytest.mark.parametrize("kind", ALPHAS)
def test_closed_form_of_dirichlet_passes(kind):
    """T = 20, averaged over many inputs: corrected within 2 %, plug-in about 1/T low."""
    alpha, published = ALPHAS[kind]
    exact = exact_information(alpha)
    assert exact == pytest.approx(published, abs=0.5e-4 if published < 1 else 0.5e-3)
    got = summarise(dirichlet(alpha, 20, 20_000, seed=3))
    corrected = got["mutual_information_corrected"]
    noise = corrected.std() / math.sqrt(len(corrected))
    assert noise < 0.0025 * exact
    assert abs(corrected.mean() - exact) < 0.02 * exact
    plugged_in = got["mutual_information"].mean()
    assert plugged_in < corrected.mean()
    assert (1 - 3 / 20) * exact < plugged_in < (1 - 0.5 / 20) * exact


@pytest.mark.parametrize("T", [20, 100])
def test_standard_errors_are_those_of_repeated_runs(T):
    """The spread of the estimates over 4000 runs is what each run says of itself.

    The jackknife's variance is right or too large in expectation (Efron & Stein 1981), by O(1/T) of
    itself where the gradient does not vanish: not at equal class probabilities.
    """
    got = summarise(dirichlet([4.0, 2.0, 1.0, 0.5, 0.5], T, 4000, seed=4))
    for name in ("entropy", "mutual_information"):
        spread = got[name].var()
        said = (got[f"{name}_se"] ** 2).mean()
        noise = 5 * math.sqrt(2 / 4000)  # of a variance of 4000 values
        assert 1 - noise < said / spread < 1 + noise + 5 / T, name
    said = (got["mean_se"] ** 2).mean(axis=0)
    assert (abs(said / got["mean"].var(axis=0) - 1) < 5 * math.sqrt(2 / 4000)).all()


def test_the_corrected_value_lies_within_its_standard_error():
    """Of 4000 inputs, a normal interval of two standard errors covers the exact value of most."""
    alpha = [1.0] * 5
    got = summarise(dirichlet(alpha, 100, 4000, seed=5))
    distance = abs(got["mutual_information_corrected"] - exact_information(alpha))
    covered = (distance < 2 * got["mutual_information_se"]).mean()
    # 95.4 % for a normal law; at most 2 points less for its 19 degrees of freedom and its skew.
    assert 0.93 < covered < 0.98
