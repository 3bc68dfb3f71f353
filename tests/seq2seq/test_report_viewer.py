"""The report in a browser: nothing fails, and its viewer of alignments behaves."""

import html
import json
import re
import shutil
import subprocess
from itertools import pairwise

import numpy as np
import pytest
from report_material import ARABIC, RNN_LABEL, decoded, made_report, viewer_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

RECORD = """<script>
const errors = [];
window.onerror = (message) => { errors.push(String(message)); };
console.error = (...parts) => { errors.push(parts.join(" ")); };
addEventListener("securitypolicyviolation", (event) => { errors.push("blocked: " + event.blockedURI); });
</script>"""

PROBE = """<script>
const words = (side) => [...document.querySelectorAll(`#${side}-words .word`)];
const texts = (elements) => [...elements].map((element) => element.textContent);
const heat = document.getElementById("heat");
function state() {
  const sides = {};
  for (const side of ["source", "target"]) {
    sides[side] = words(side).map((word) => ({
      word: word.firstChild.textContent, weight: word.lastChild.textContent, title: word.title, x: word.getBoundingClientRect().x,
      heaviest: word.classList.contains("heaviest"), active: word.classList.contains("active"), tab: word.tabIndex,
    }));
  }
  const rows = heat.tBodies.length ? [...heat.tBodies[0].rows].map((row) => texts(row.cells)) : [];
  const columns = heat.tHead ? [...heat.tHead.rows[0].cells].map((cell) => cell.getBoundingClientRect().x) : [];
  const selects = {};
  for (const select of document.querySelectorAll("select")) {
    selects[select.id.slice(7)] = { value: select.value, disabled: select.disabled, options: texts(select.options) };
  }
  return {
    ...sides, rows, columns, selects, note: document.getElementById("viewer-note").textContent,
    readout: document.getElementById("readout").textContent, focused: document.activeElement.textContent,
    hidden: document.getElementById("heat-part").hidden, activeCells: heat.querySelectorAll(".active, .active-column").length,
    beyond: document.documentElement.scrollWidth - innerWidth,
  };
}
const actions = {
  look() {},
  choose(name, value) {
    const select = document.getElementById(`choose-${name}`);
    select.value = value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  },
  hover(side, index) { words(side)[index].dispatchEvent(new MouseEvent("mouseover", { bubbles: true })); },
  focus(side, index) { words(side)[index].focus(); },
  cell(row, column) { heat.rows[row].cells[column].dispatchEvent(new MouseEvent("mouseover", { bubbles: true })); },
  press(key) { document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })); },
};
const seen = STEPS.map(([name, ...rest]) => { actions[name](...rest); return state(); });
parent.postMessage({ width: innerWidth, seen, errors }, "*");
</script>"""

FRAMES = """<!DOCTYPE html><meta charset="utf-8"><pre id="seen"></pre><script>
const all = [];
addEventListener("message", ({ data }) => { all.push(data); document.getElementById("seen").textContent = JSON.stringify(all); });
</script>
<iframe src="probed.html" style="width: 390px; height: 844px; border: 0"></iframe>
<iframe src="probed.html" style="width: 1400px; height: 900px; border: 0"></iframe>"""

STEPS = [
    ("look",),
    ("choose", "model", "2"),
    ("choose", "sentence", "4"),
    ("choose", "layer", "1"),
    ("choose", "head", "2"),
    ("choose", "reading", "shifted"),
    ("hover", "target", 7),
    ("hover", "source", 3),
    ("focus", "target", 2),
    ("press", "ArrowRight"),
    ("press", "ArrowUp"),
    ("cell", 5, 1),
    ("cell", 0, 4),
    ("choose", "sentence", "3"),
    ("focus", "source", 1),
    ("press", "ArrowLeft"),
    ("press", "Home"),
    ("choose", "sentence", "5"),
    ("choose", "sentence", "1"),
    ("choose", "model", "0"),
    ("hover", "source", 2),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return made_report(tmp_path_factory)


@pytest.fixture(scope="module")
def seen(report, tmp_path_factory):
    """For each width what the page looked like after each step, in headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    folder = tmp_path_factory.mktemp("browser")
    probe = PROBE.replace("STEPS", json.dumps(STEPS))
    probed = report[1].replace("<head>", f"<head>{RECORD}", 1).replace("</body>", f"{probe}</body>")
    (folder / "probed.html").write_text(probed, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES)
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'user'}",
    ]
    command = [CHROMIUM, *options, "--dump-dom", f"file://{folder / 'frames.html'}"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', output, re.DOTALL)[1]))
    return {each["width"]: each for each in found}


def after(seen, *step, width=1400):
    return seen[width]["seen"][STEPS.index(step)]


def heaviest(state, side):
    return [index for index, word in enumerate(state[side]) if word["heaviest"]]


def active(state, side):
    return [index for index, word in enumerate(state[side]) if word["active"]]


def test_nothing_fails_and_nothing_sticks_out_in_a_browser(seen):
    assert sorted(seen) == [390, 1400]
    for each in seen.values():
        assert each["errors"] == []
        assert max(state["beyond"] for state in each["seen"]) <= 0


def test_the_viewer_opens_with_the_medium_sentence_and_a_model_with_attention(seen):
    state = after(seen, "look")
    assert [word["word"] for word in state["source"]] == [*ARABIC.split(), "</s>"]
    assert state["selects"]["model"]["options"][int(state["selects"]["model"]["value"])] == RNN_LABEL
    assert state["selects"]["layer"] == {"value": "all", "disabled": True, "options": ["the only one"]}
    assert state["selects"]["head"] == {"value": "mean", "disabled": True, "options": ["the only one"]}
    assert active(state, "target") == [0]
    assert state["activeCells"] == 1 + 8


def test_choices_change_what_is_shown(seen):
    shown = [after(seen, *STEPS[i]) for i in range(6)]
    for before, state in pairwise(shown):
        assert state["rows"] != before["rows"]
    assert len(shown[2]["source"]) == 21
    heads = ["all", "mean of the layer", "head 1", "head 2", "head 3"]
    assert shown[1]["selects"]["layer"]["options"] == ["mean of all layers and heads", "layer 1", "layer 2"]
    assert shown[1]["selects"]["head"]["options"] == heads[:1]
    assert shown[3]["selects"]["head"]["options"] == heads[1:]


def test_words_show_their_weights_and_the_heaviest_link(seen, report):
    viewer = viewer_of(report[1])
    weights = decoded(viewer["models"][2]["pairs"][4], viewer["sentences"][4], "shifted")[1, 2]
    state = after(seen, "hover", "target", 7)
    assert active(state, "target") == [7]
    assert heaviest(state, "source") == [weights[7].argmax()]
    percents = [f"{100 * weight:.0f}" for weight in weights[7]]
    assert [word["weight"].split("\u00a0")[0] for word in state["source"]][weights[7].argmax()] == percents[weights[7].argmax()]
    assert [word["title"] for word in state["source"] if word["heaviest"]] == [
        f"{viewer['sentences'][4]['source'][weights[7].argmax()]}: {percents[weights[7].argmax()]}\u00a0%"
    ]
    assert f"(translation, word 8 of 20) looks at: {viewer['sentences'][4]['source'][weights[7].argmax()]} " in state["readout"]
    assert [int(text or 0) for text in state["rows"][7][1:]] == pytest.approx(100 * weights[7], abs=0.51)
    assert state["activeCells"] == 22
    state = after(seen, "hover", "source", 3)
    assert (active(state, "source"), active(state, "target")) == ([3], [])
    assert heaviest(state, "target") == [weights[:, 3].argmax()]
    assert heaviest(state, "source") == []
    assert "(source, word 4 of 21) is looked at by: maison " in state["readout"]


def test_the_means_of_heads_and_layers_are_means(seen, report):
    viewer = viewer_of(report[1])
    weights = decoded(viewer["models"][2]["pairs"][4], viewer["sentences"][4], "naive")
    for step, mean in ((2, weights.mean((0, 1))), (3, weights[1].mean(0)), (4, weights[1, 2])):
        shown = [[int(text or 0) for text in row[1:]] for row in after(seen, *STEPS[step])["rows"]]
        np.testing.assert_allclose(shown, 100 * mean, atol=0.51)


def test_keys_lead_from_word_to_word(seen):
    assert active(after(seen, "focus", "target", 2), "target") == [2]
    state = after(seen, "press", "ArrowRight")
    assert active(state, "target") == [3]
    assert [index for index, word in enumerate(state["target"]) if word["tab"] == 0] == [3]
    up = after(seen, "press", "ArrowUp")
    assert active(up, "source") == heaviest(state, "source")


def test_cells_of_the_heat_map_show_their_row_or_column(seen):
    assert active(after(seen, "cell", 5, 1), "target") == [4]
    assert active(after(seen, "cell", 0, 4), "source") == [3]


@pytest.mark.parametrize("width", [390, 1400])
def test_arabic_runs_from_right_to_left(seen, width):
    """The row of words, the columns of the heat map and the arrow keys."""
    state = after(seen, "choose", "sentence", "3", width=width)
    assert state["source"][0]["x"] > state["source"][1]["x"] > state["source"][2]["x"]
    assert state["target"][0]["x"] < state["target"][1]["x"]
    assert state["columns"] == sorted(state["columns"], reverse=True)
    assert active(after(seen, "press", "ArrowLeft", width=width), "source") == [2]
    assert active(after(seen, "press", "Home", width=width), "source") == [0]
    plain = after(seen, "choose", "sentence", "4", width=width)
    assert plain["columns"] == sorted(plain["columns"])


def test_what_has_no_weights_says_so(seen):
    state = after(seen, "choose", "sentence", "1")
    assert (state["target"], state["hidden"], state["rows"]) == ([], True, [])
    assert state["note"] == "No weights: one side has no words. The translation is empty."
    state = after(seen, "choose", "model", "0")
    assert state["note"] == "This model has no attention: it reads the whole source as one vector."
    assert [word["word"] for word in state["target"]] == ["chat"]
    assert state["selects"]["layer"] == {"value": "all", "disabled": True, "options": ["no attention"]}
    state = after(seen, "hover", "source", 2)
    assert active(state, "source") == [2]
    assert heaviest(state, "target") == []
    assert state["readout"] == "cat (source, word 3 of 4)"
