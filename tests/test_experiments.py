"""What the experiments conclude from their figures."""

from bayesbits.records.front import Point
from bayesbits.records.plan import Plan
from experiments.posttrain import as_typed, compare, parse, thinned, to_round


def runs(*points: tuple[float, float]) -> list:
    return [{"seed": 0, "points": [{"relative_bops": cost, "accuracy": accuracy} for cost, accuracy in points]}]


def test_fronts_are_compared_at_the_cost_of_each_learned_point():
    methods = {
        "gates": runs((0.5, 70), (2, 80), (6, 91), (6.5, 95)),
        "sensitivity": runs((1, 10), (3, 86), (7, 90)),
        "8/8 minmax": runs((6.25, 90)),
        "8/8 mse": runs((6.25, 90.5)),
    }
    found = compare({"methods": methods})
    over = found["gates over sensitivity"]
    assert [point["points_better_by"] for point in over["points"]] == [80 - 48, 91 - 89, 95 - 89.5]  # the line
    assert over["points_better_by_on_average"] == (32 + 2 + 5.5) / 3
    assert (over["points_of_the_front_above"], over["points_of_the_front"]) == (3, 3)
    assert found["gates over 8/8 within 6.25%"] == [1, 0.5]
    assert "gates+ranges over gates" not in found


def test_fronts_are_compared_seed_by_seed():
    first, second = runs((2, 80)), runs((2, 90))
    second[0]["seed"] = 1
    found = compare({"methods": {"gates": first + second, "sensitivity": runs((1, 85)), "gates adaround": first}})
    over = found["gates over sensitivity"]
    assert [(point["seed"], point["points_better_by"]) for point in over["points"]] == [(0, -5)]
    assert list(found) == ["gates over sensitivity"]


def test_a_front_that_falls_with_cost_is_held_against_its_best_cheaper_point():
    found = compare({"methods": {"gates": runs((2, 80), (9, 95)), "sensitivity": runs((1, 90), (3, 70))}})
    assert [point["points_better_by"] for point in found["gates over sensitivity"]["points"]] == [-10, 5]


def test_points_to_round_are_those_nearest_to_a_cost():
    points = [Point(Plan({}, {}), cost, {}) for cost in (6.0, 4.0, 2.5, 1.1)]
    assert [point.relative_bops for point in to_round(points, [4.4, 1.2, 1.0])] == [4.0, 1.1]
    assert to_round(points, None) == points


def test_points_are_thinned_evenly():
    assert thinned(list(range(9)), 3) == [0, 4, 8]  # type: ignore[arg-type]
    assert thinned([1, 2], 3) == [1, 2]  # type: ignore[arg-type]
    assert thinned([1, 2], 1) == [2]  # type: ignore[arg-type]


def test_three_seeds_and_a_thousand_images_unless_others_are_asked_for():
    options = parse(["--data", "here", "--seeds", "5"])
    assert (options.seeds, options.examples, options.mus) == (5, 1024, None)


def test_a_recorded_command_can_be_repeated_and_names_no_machine():
    typed = as_typed(["--data", "/some/where", "--out", "/else/where", "--adaround", "8/8 mse", "gates"])
    assert typed == "--data FOLDER --adaround '8/8 mse' gates"
    assert as_typed(["--data=/some/where", "--out=/else/where", "--seeds=1"]) == "--data FOLDER --seeds 1"
