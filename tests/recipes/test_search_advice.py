"""A search that cannot or did not compress says so, with what to change."""

from bayesbits.recipes import search_advice as advice
from bayesbits.training import SearchConfig


def config(lr=1e-3, **options):
    return SearchConfig(gates={"lr": lr}, **options)


def test_steps_that_are_too_few_for_any_gate_are_told_before_the_search():
    told = advice.before(config(epochs=20), 320)
    assert "320 steps at search.gates.lr = 0.001 move one by about 0.27 at most" in told
    assert "--set search.gates.lr=0.05" in told
    assert advice.before(config(lr=0.05, epochs=20), 320) is None
    assert advice.before(config(), None) is None  # nobody knows
    assert advice.before(SearchConfig(epochs=20), 320) is None  # the default learning rate follows from the steps
    assert "more search.epochs (now 1)" in advice.before(config(lr=0.1, epochs=1), 3)


def test_what_compressed_almost_nothing_says_why():
    assert advice.after(30.0, 100.0, config(), 320) == ""
    told = advice.after(99.3, 100.0, config(), 320)
    assert "Almost nothing was compressed: 99.3% of the bit operations are left, and with every gate open" in told
    assert "gates cannot close" in told
    assert "a larger search.mu (now 0.01, such as --set search.mu=0.1)" in advice.after(6.2, 6.25, config(), 10**5)
    assert "search.gates.lr" not in advice.after(6.2, 6.25, SearchConfig(), 10**5)
    assert "search.mu is 0" in advice.after(100.0, 100.0, config(mu=0.0), 10**5)


def test_with_a_budget_the_rate_of_gates_follows_and_nothing_is_advised():
    assert advice.before(SearchConfig(budget="1% bops"), 20) is None
    assert advice.after(99.0, 100.0, SearchConfig(budget="99% bops"), 20) == ""
    assert "gates cannot close" in advice.before(SearchConfig(budget="1% bops", gates={"lr": 1e-4}), 20)
