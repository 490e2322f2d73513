"""What the experiments conclude from their figures."""

from experiments.posttrain import compare, parse, thinned


def runs(*points: tuple[float, float]) -> list:
    return [{"seed": 0, "points": [{"relative_bops": cost, "accuracy": accuracy} for cost, accuracy in points]}]


def test_fronts_are_compared_at_the_cost_of_each_learned_point():
    methods = {
        "gates": runs((2, 80), (6, 91)),
        "sensitivity": runs((1, 10), (3, 85), (7, 92)),
        "8/8 minmax": runs((6.25, 90)),
        "8/8 mse": runs((6.25, 90.5)),
    }
    found = compare({"methods": methods})
    assert [entry["points_better_by"] for entry in found["gates over sensitivity"]] == [70, 6]
    assert found["gates over 8/8 within 6.25%"] == 0.5
    assert "gates+ranges over gates" not in found


def test_points_are_thinned_evenly():
    assert thinned(list(range(9)), 3) == [0, 4, 8]  # type: ignore[arg-type]
    assert thinned([1, 2], 3) == [1, 2]  # type: ignore[arg-type]


def test_three_seeds_and_a_thousand_images_unless_others_are_asked_for():
    options = parse(["--data", "here", "--seeds", "5"])
    assert (options.seeds, options.examples, options.mus) == (5, 1024, None)
