"""Figures: what they show, that words come through unharmed, and that they tell what they leave out."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.font_manager import FontEntry

from seq2seq.plots import Curve, Point, curves, labels, plot_alignment, plot_alignment_sheet, plot_by_length, plot_training_curves


def curve(label="RNN", hidden=(), values=(30.0, 20.0, 10.0)):
    buckets = [("1–10", 7.5, 40), ("11–20", 15.0, 50), ("21+", 28.0, 35), ("41+", None, 0)]
    points = []
    for index, (name, length, n) in enumerate(buckets):
        shown = n and index not in hidden
        points.append(Point(name, length, n, *((values[index], values[index] - 2, values[index] + 2) if shown else (None,) * 3)))
    return Curve(label, tuple(points))


@pytest.fixture
def drawn(monkeypatch):
    """The figures handed to save_figure by the curves module."""
    figures, save = [], curves.save_figure

    def keep(figure, path):
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(curves, "save_figure", keep)
    return figures


def pixels(path):
    return matplotlib.image.imread(path)[..., :3]


def dark_blue_centre(path):
    """(vertical, horizontal) centre, from 0 to 1 within the heat map, of its saturated dark cells; the colour bar is cut off."""
    image = pixels(path)
    frame = np.argwhere(image.max(-1) < 0.02)  # black spines of the heat map and of the bar, and letters
    dark = np.abs(image - np.array([0x08, 0x30, 0x6B]) / 255).max(-1) < 0.02
    dark[:, int(0.8 * image.shape[1]) :] = False
    assert dark.any()
    assert len(frame)
    return np.argwhere(dark).mean(0) / image.shape[:2]


def test_alignment_has_sources_as_columns_and_products_as_rows(tmp_path):
    columns, rows = [*"abcdefgh", "</s>"], [*"stuvwxyz", "</s>"]
    for row, column in ((0, 0), (0, 8), (8, 0)):
        weights = np.zeros((9, 9))
        weights[row, column] = 1
        plot_alignment(tmp_path / "x.png", columns, rows, weights, title="x")
        vertical, horizontal = dark_blue_centre(tmp_path / "x.png")
        assert (vertical > 0.5) == (row == 8)
        assert (horizontal > 0.45) == (column == 8)


def test_a_sheet_has_a_map_for_each_head(tmp_path):
    """The one dark cell moves with its head, and within its map with its word."""
    columns, rows, centres = [*"abcdefgh"], [*"stuvwxyz"], {}
    for head, row, column in ((0, 0, 0), (0, 7, 0), (0, 0, 7), (1, 0, 0), (2, 0, 0)):
        weights = np.zeros((3, 8, 8))
        weights[head, row, column] = 1
        plot_alignment_sheet(tmp_path / "x.png", columns, rows, weights, names=["h1", "h2", "h3"], title="t")
        centres[head, row, column] = dark_blue_centre(tmp_path / "x.png")
    down, right = centres[0, 7, 0] - centres[0, 0, 0], centres[0, 0, 7] - centres[0, 0, 0]
    assert down[0] > 0.15
    assert abs(down[1]) < 0.02
    assert right[1] > 0.15
    assert abs(right[0]) < 0.02
    assert centres[1, 0, 0][1] > centres[0, 0, 7][1]
    assert centres[2, 0, 0][0] > centres[0, 7, 0][0]
    with pytest.raises(ValueError, match="names: expected one for each of at least one map, got 2 for 3"):
        plot_alignment_sheet(tmp_path / "x.png", columns, rows, weights, names=["a", "b"])
    with pytest.raises(ValueError, match=r"weights: expected shape \[rows columns\] = \[8, 8\], got \[7, 8\]"):
        plot_alignment_sheet(tmp_path / "x.png", columns, rows, weights[:, 1:], names=["a", "b", "c"])


def test_right_to_left_sources_start_on_the_right(tmp_path):
    weights = np.zeros((1, 9))
    weights[0, 0] = 1
    plot_alignment(tmp_path / "x.png", [*"שלוםעולםא"], ["peace"], weights)
    assert dark_blue_centre(tmp_path / "x.png")[1] > 0.45


def test_figures_are_the_same_bytes_every_time_and_leave_no_state(tmp_path):
    for name in ("a", "b"):
        plot_by_length(tmp_path / f"{name}1.png", [curve()], title="t")
        plot_alignment(tmp_path / f"{name}2.png", ["x", "</s>"], ["y"], np.array([[0.25, 0.75]]))
        plot_training_curves(tmp_path / f"{name}3.png", {"r": [{"kind": "dev", "step": 1, "minutes": 1.0, "dev_loss": 2.0}]})
    for number in (1, 2, 3):
        content = (tmp_path / f"a{number}.png").read_bytes()
        assert content == (tmp_path / f"b{number}.png").read_bytes()
        assert b"matplotlib" not in content.lower()
    assert Gcf.get_all_fig_managers() == []


def test_nothing_is_cut_off(tmp_path):
    """Every border is white, however long the words are."""
    long = "unabridged" * 6
    plot_alignment(tmp_path / "a.png", [long, "b"], [long, "c", "d"], np.full((3, 2), 0.5), title="a title " * 12)
    plot_by_length(tmp_path / "b.png", [curve(long)], title="a title " * 12, longest_training_length=18)
    plot_training_curves(tmp_path / "c.png", {long: [{"kind": "dev", "step": 1, "minutes": 1.0, "dev_loss": 2.0}]})
    for name in "abc":
        image = pixels(tmp_path / f"{name}.png")
        for border in (image[:5], image[-5:], image[:, :5], image[:, -5:]):
            assert (border == 1).all()


@pytest.mark.parametrize("word", ["$x$", "$\\frac{", "50%", "a_b^c", "\\alpha", "#{}~&", "▁piece", "⁇"])
def test_words_with_signs_are_drawn_as_they_are(tmp_path, word):
    plot_alignment(tmp_path / "x.png", [word, word], [word], np.array([[0.5, 0.5]]), title=word)
    plot_by_length(tmp_path / "y.png", [curve(word)], title=word)


def test_missing_characters_are_named_once(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "_warned", set())
    monkeypatch.setattr(labels, "_plain_fonts", list)

    def draw():
        plot_alignment(tmp_path / "x.png", ["你好", "</s>"], ["hello"], np.array([[0.5, 0.5]]), title="你")

    with pytest.warns(UserWarning, match=r"no installed font holds 你 \(U\+4F60\), 好 \(U\+597D\): drawn as boxes"):
        draw()
    draw()  # a second warning would be an error


def test_fonts_that_hold_the_characters_are_found(monkeypatch):
    held = {"Two": "你好", "One": "世", "None": "x"}
    default = labels.font_manager.findfont(labels.DEFAULT_FONT)
    monkeypatch.setattr(labels, "_plain_fonts", lambda: [FontEntry(fname=name, name=name) for name in held])
    monkeypatch.setattr(labels, "_characters", lambda path: set(map(ord, "abc" if path == default else held[path])))
    assert labels.fonts_for("abc") == ([labels.DEFAULT_FONT], "")
    assert labels.fonts_for("a 你好世界") == ([labels.DEFAULT_FONT, "Two", "One"], "界")


def test_right_to_left_words_are_joined_and_turned_for_a_matplotlib_that_does_neither():
    assert labels.shaped("abc", by_matplotlib=False) == "abc"
    assert labels.shaped("שלום", by_matplotlib=False) == "םולש"
    joined = labels.shaped("سلام", by_matplotlib=False)
    assert joined != "سلام"
    assert all("ﹰ" <= letter <= "\ufeff" for letter in joined)
    assert labels.shaped("سلام", by_matplotlib=True) == "سلام"


def test_long_alignments_are_capped_and_say_so(tmp_path):
    words = [f"w{i}" for i in range(121)]
    with pytest.warns(UserWarning, match="the first 120 of 121 source words"):
        plot_alignment(tmp_path / "x.png", words, ["a"], np.full((1, 121), 1 / 121))
    with pytest.warns(UserWarning, match="the first 120 of 121 produced words"):
        plot_alignment(tmp_path / "x.png", ["a"], words, np.ones((121, 1)))
    assert max(pixels(tmp_path / "x.png").shape) < 4000


@pytest.mark.parametrize(
    ("columns", "rows", "weights", "message"),
    [
        (["a"], [], np.zeros((0, 1)), "at least one word each, got 1 and 0"),
        (["a", "b"], ["c"], np.zeros((2, 1)), r"expected shape \[rows columns\] = \[1, 2\], got \[2, 1\]"),
        (["a"], ["c"], np.array([[1.5]]), "from 0 to 1, got 1.5 at row 0, column 0"),
        (["a"], ["c"], np.array([[np.nan]]), "from 0 to 1, got nan"),
    ],
)
def test_weights_that_make_no_alignment_are_errors(tmp_path, columns, rows, weights, message):
    with pytest.raises(ValueError, match=message):
        plot_alignment(tmp_path / "x.png", columns, rows, weights)


def test_hidden_scores_are_gaps_and_said(tmp_path, drawn):
    plot_by_length(tmp_path / "x.png", [curve("A", hidden=[1]), curve("B", hidden=[1])], metric="BLEU")
    (axes,) = drawn[0].axes
    first, second = (line for line in axes.lines if line.get_label() in "AB")
    np.testing.assert_array_equal(first.get_xdata(), [7.5, 15.0, 28.0])
    np.testing.assert_array_equal(second.get_ydata(), [30.0, np.nan, 10.0])
    assert "BLEU not shown under 30 sentences: 11–20 (n=50)" in [text.get_text() for text in axes.texts]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1–10\nn=40", "11–20\nn=50", "21+\nn=35"]
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()


@pytest.mark.parametrize(("length", "text", "lines"), [(18, "training: 18", 2), (300, "training: 300 →", 1)])
def test_longest_training_length_is_marked(tmp_path, drawn, length, text, lines):
    plot_by_length(tmp_path / "x.png", [curve()], longest_training_length=length)
    (axes,) = drawn[0].axes
    assert f"longest in {text}" in [t.get_text() for t in axes.texts]
    assert len(axes.lines) == lines
    assert axes.get_xlim()[1] < 40


def test_crowded_buckets_are_labelled_upright(tmp_path, drawn):
    points = tuple(Point(str(n), float(n), 50, 50.0, 45.0, 55.0) for n in range(1, 31))
    plot_by_length(tmp_path / "x.png", [Curve("RNN", points)])
    assert {text.get_rotation() for text in drawn[0].axes[0].get_xticklabels()} == {90.0}


def test_everything_hidden_still_makes_a_figure(tmp_path, drawn):
    plot_by_length(tmp_path / "x.png", [curve(hidden=[0, 1, 2])])
    assert "1–10 (n=40), 11–20 (n=50), 21+ (n=35)" in drawn[0].axes[0].texts[-1].get_text()


def test_curves_over_different_buckets_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected the same buckets"):
        plot_by_length(tmp_path / "x.png", [curve("A"), Curve("B", curve().points[1:])])
    with pytest.raises(ValueError, match="at least one"):
        plot_by_length(tmp_path / "x.png", [])


def test_training_curves_show_dev_loss_and_score(tmp_path, drawn):
    records = [{"kind": "train", "step": 1, "loss": 9.0, "minutes": 0.1}]
    records += [{"kind": "dev", "step": s, "minutes": s / 10, "dev_loss": 5 / s, "dev_bleu": s} for s in (1, 2)]
    plot_training_curves(tmp_path / "x.png", {"A": records, "B": []}, title="t")
    grid = drawn[0].axes
    np.testing.assert_array_equal(grid[0].lines[0].get_xydata(), [[1, 5], [2, 2.5]])
    np.testing.assert_array_equal(grid[3].lines[0].get_xydata(), [[0.1, 1], [0.2, 2]])
    assert [axes.get_ylabel() for axes in grid] == ["dev loss", "", "dev BLEU (greedy)", ""]


def test_training_curves_without_bleu_show_accuracy_and_without_anything_say_so(tmp_path, drawn):
    record = {"kind": "dev", "step": 1, "minutes": 0.1, "dev_loss": 5.0, "dev_accuracy": 0.1, "dev_bleu": None}
    plot_training_curves(tmp_path / "x.png", {"A": [record]})
    plot_training_curves(tmp_path / "y.png", {"A": []})
    assert drawn[0].axes[2].get_ylabel() == "dev token accuracy"
    assert [axes.texts[0].get_text() for axes in drawn[1].axes] == ["no evaluation on the dev text"] * 4
