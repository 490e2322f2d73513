"""Plots: marks lie where the axes say, and a label that has no place is named."""

from xml.etree import ElementTree

from docs.drawing import Plot, Point, Style

STYLE = Style("ours", "#c1272d")


def plot(points, **other) -> Plot:
    return Plot("a title", "cost", "accuracy", (0.1, 10.0), (90.0, 95.0), (0.1, 1, 10), points=points, **other)


def test_marks_lie_on_the_axes_and_a_label_without_a_place_is_named():
    drawn = plot([Point(1.0, 92.5, STYLE, "middle", x_error=0.2, y_error=0.5)], levels=[("float", 94.0)])
    root = ElementTree.fromstring(str(drawn.svg()))
    tags = [one.tag.rpartition("}")[2] for one in root.iter()]
    assert tags.count("circle") == 2  # in the plot and in the legend
    place = next(one for one in root.iter() if one.tag.endswith("circle") and one.get("r") == "4.5" and
                 float(one.get("cy")) > 60)  # fmt: skip
    assert float(place.get("cx")) == 56 + (740 - 56 - 16) / 2  # the middle of a logarithmic axis
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert {"a title", "cost", "accuracy", "ours", "middle", "float", "0.1", "92"} <= set(texts)
    assert drawn.unlabeled == []
    crowd = plot([Point(1.0, 92.5, STYLE, "a very long label " * 7)])
    crowd.svg()
    assert crowd.unlabeled == [f"{'a very long label ' * 7}: 92.50 at 1"]
