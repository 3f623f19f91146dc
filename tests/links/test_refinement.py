from __future__ import annotations

import numpy as np
import pytest

from conftest import make_faces
from facelink import knn_graph
from facelink.embeddings import UnitRows
from facelink.links.background import Background
from facelink.links.features import SHARES, LinkFeatures
from facelink.links.perceptron import Perceptron
from facelink.links.refinement import ASSUMED, FAINT, NAMES, USUAL, Surroundings
from facelink.links.universal import look

K = 24


@pytest.fixture(scope="module")
def surroundings() -> Surroundings:
    x, labels = make_faces(n_copies=0)
    graph = knn_graph(x, K)
    rng = np.random.default_rng(0)
    true = labels[graph.indices] == labels[:, None]
    likelihood = np.where(true, rng.beta(3, 1, true.shape), rng.beta(0.3, 4, true.shape))
    rows = UnitRows(x)
    features = LinkFeatures(graph, Background.of(rows))
    return Surroundings(features, likelihood.astype(np.float32))


def obvious(around: Surroundings, i: int, r: int) -> list[float]:
    """The features of one link, each as its name says."""
    context = around.context
    listed = [list(map(int, row)) for row in context.indices]

    def likely(a: int) -> dict[int, float]:
        found = {}
        for place, b in enumerate(listed[a]):
            ways = [around.likelihood[a, place]]
            if a in listed[b]:
                ways.append(around.likelihood[b, listed[b].index(a)])
            found[b] = float(np.mean(ways))
        return found

    def similarity(a: int, b: int) -> float:
        """Of a and b, listed by a; what is not listed is no nearer than the last."""
        place = listed[a].index(b) if b in listed[a] else -1
        return float(context.similarity[a, place])

    everybody = [likely(a) for a in range(len(listed))]
    weights = [p for mine in everybody for p in mine.values()]
    values = [similarity(a, b) for a, mine in enumerate(everybody) for b in mine]
    usual = (USUAL * ASSUMED + np.dot(weights, values)) / (ASSUMED + sum(weights))
    usual_others = np.mean([np.log1p(sum(mine.values())) for mine in everybody])

    j = listed[i][r]
    p, t = everybody[i][j], similarity(i, j)

    def of(a: int, b: int) -> dict[str, float]:
        """What concerns a's likely others."""
        mine, yours = {m: q for m, q in everybody[a].items() if m != b}, everybody[b]
        count = sum(mine.values())
        level = (sum(q * similarity(a, m) for m, q in mine.items()) + usual) / (count + 1)
        both = {m: q for m, q in mine.items() if m in yours}
        denied = sum(q * (1 - yours[m]) for m, q in both.items())
        missing = max(count - sum(both.values()), 0)
        to_them = sum(q * similarity(b, m) for m, q in both.items())
        far = float(context.similarity[b, -1])
        return {
            "count": count,
            "agreed": sum(q * yours[m] for m, q in both.items()),
            "denied": denied / (count + 0.5),
            "missing": missing / (count + 0.5),
            "level": level,
            "to others": (to_them + missing * far + usual) / (count + 1) - level,
            "paths": sorted((min(q, yours[m]) for m, q in both.items()), reverse=True),
            "likelier": max(everybody[a].values()) - p,
        }

    a, b = of(i, j), of(j, i)
    fewer, more = sorted((a["count"], b["count"]))
    best, second = [*a["paths"], 0, 0][:2]

    def log_odds(q: float) -> float:
        return np.log((q + 1e-4) / (1 - q + 1e-4))

    about = context.about_items
    spreads = context.background.spreads
    upward, far_upward = (
        context.deviations[i, r] * (spreads[i, 0] + spreads[j, 0]) / (spreads[i, s] + spreads[j, s])
        for s in (1, 2)
    )
    above = context.background.above
    levels = np.linspace(0, 1, above.shape[1])
    alike = [np.interp(share * t, levels, above[x]) for share in SHARES.values() for x in (i, j)]
    return [
        log_odds(p), log_odds(float(around.likelihood[i, r])),
        np.log1p(a["count"]), np.log1p(b["count"]),
        a["agreed"] / (fewer + 0.5), a["agreed"] / (more + 0.5),
        a["denied"], b["denied"], a["missing"], b["missing"], best, second,
        t - a["level"], t - b["level"], a["to others"], b["to others"],
        a["likelier"], b["likelier"], t - usual, usual_others, usual,
        t, context.deviations[i, r], context.deviations[i, r] - context.strangers[0],
        upward, far_upward, far_upward - context.strangers[0], *alike,
        np.log(1 + r), *(about[x, c] for c in range(5) for x in (i, j)), *context.collection,
    ]  # fmt: skip


def test_every_feature_is_what_its_name_says(surroundings):
    checked = 0
    for i in np.random.default_rng(1).permutation(len(surroundings.likelihood))[:15]:
        asked, features = surroundings.of(np.array([i]))
        for row, r in enumerate(np.flatnonzero(asked[0])):
            wanted = obvious(surroundings, int(i), int(r))
            for name, found, value in zip(NAMES, features[row], wanted, strict=True):
                assert found == pytest.approx(value, rel=1e-3, abs=2e-4), (name, i, r)
            checked += 1
    assert checked > 50


def test_faint_links_are_left_alone(surroundings):
    assert (surroundings.joined < FAINT).any()
    asked, features = surroundings.of(np.arange(40))
    np.testing.assert_array_equal(asked, surroundings.joined[:40] >= FAINT)
    assert len(features) == asked.sum()

    likelihood = surroundings.likelihood.copy()
    n = len(NAMES)
    always = Perceptron(
        np.zeros(n, np.float32),
        np.ones(n, np.float32),
        ((np.zeros((1, n, 1), np.float32), np.array([[20]], np.float32)),),
    )
    look(surroundings.context, always, surroundings, likelihood)
    everywhere = surroundings.joined >= FAINT
    np.testing.assert_allclose(likelihood[everywhere], 1)
    np.testing.assert_array_equal(likelihood[~everywhere], surroundings.likelihood[~everywhere])


def test_a_look_sees_what_was_thought_before_it(surroundings):
    """Whichever pivot comes first, and on however many threads."""
    rng = np.random.default_rng(2)
    n = len(NAMES)
    network = Perceptron(
        np.zeros(n, np.float32),
        np.full(n, 0.1, np.float32),
        ((rng.normal(size=(1, n, 1)).astype(np.float32), np.zeros((1, 1), np.float32)),),
    )
    results = []
    for n_threads in (1, 2):
        likelihood = surroundings.likelihood.copy()
        look(surroundings.context, network, surroundings, likelihood, n_threads=n_threads)
        results.append(likelihood)
    np.testing.assert_array_equal(*results)
    asked, features = surroundings.of(np.array([30]))
    np.testing.assert_allclose(results[0][30][asked[0]], network.probabilities(features), atol=1e-6)
