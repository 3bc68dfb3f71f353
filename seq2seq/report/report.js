"use strict";

// The alignment viewer: draws the weights of #alignment-data between the words of a sentence and those of its translation.
(() => {
  const MOST_WORDS = 120; // rows and columns of the heat map
  const DENSE_FROM = 31; // columns; the cells are then too small for numbers
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("alignment-data").textContent);
  const names = ["sentence", "model", "layer", "head", "reading"];
  const choose = Object.fromEntries(names.map((name) => [name, byId(`choose-${name}`)]));
  const rows = { source: byId("source-words"), target: byId("target-words") };
  const heat = byId("heat");
  let weights = null; // [target word][source word] of the chosen attention; null without any
  let active = { side: "target", index: 0 };

  const sentence = () => data.sentences[choose.sentence.value];
  const pair = () => data.models[choose.model.value].pairs[choose.sentence.value];
  const words = (side) => (side === "source" ? sentence().source : pair().target);
  const other = (side) => (side === "source" ? "target" : "source");
  const percent = (weight) => (weight > 0 && weight < 0.005 ? "< 1\u00a0%" : `${Math.round(100 * weight)}\u00a0%`);

  function element(name, text, properties = {}) {
    const made = Object.assign(document.createElement(name), properties);
    made.textContent = text;
    return made;
  }

  // --- choices

  function offer(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
    if (options.some(([value]) => value === before)) select.value = before;
    select.disabled = options.length < 2;
  }

  function offerLayers() {
    const { layers = 1, heads = 1, reason } = pair();
    const each = Array.from({ length: layers }, (_, layer) => [String(layer), `layer ${layer + 1}`]);
    const single = reason ? "no attention" : "the only one";
    offer(choose.layer, reason || layers * heads === 1 ? [["all", single]] : [["all", "mean of all layers and heads"], ...each]);
  }

  function offerHeads() {
    const { heads = 1, merged, reason } = pair();
    const each = Array.from({ length: heads }, (_, head) => [String(head), `head ${head + 1}`]);
    const all = choose.layer.value === "all";
    const single = heads === 1 && !merged;
    const mean = reason ? "no attention" : single ? "the only one" : all ? "all" : "mean of the layer";
    offer(choose.head, all || heads === 1 ? [["mean", mean]] : [["mean", mean], ...each]);
  }

  // The numbers of the chosen maps, which lie one after the other: layer by layer, head by head.
  function chosenMaps({ layers, heads }) {
    const layer = choose.layer.value;
    const head = layer === "all" ? "mean" : choose.head.value;
    const maps = Array.from({ length: layers * heads }, (_, map) => map);
    const fits = (map) => layer === "all" || Math.floor(map / heads) === Number(layer);
    return maps.filter((map) => fits(map) && (head === "mean" || map % heads === Number(head)));
  }

  function chosenWeights() {
    const own = pair();
    if (own.reason) return null;
    const bytes = Uint8Array.from(atob(own[choose.reading.value]), (character) => character.charCodeAt(0));
    const maps = chosenMaps(own);
    const columns = sentence().source.length;
    const mean = (row, column) => {
      const at = (map) => bytes[(map * own.target.length + row) * columns + column];
      return maps.reduce((sum, map) => sum + at(map), 0) / (255 * maps.length);
    };
    return own.target.map((_, row) => sentence().source.map((_, column) => mean(row, column)));
  }

  // --- words

  function wordButton(word, side, index) {
    const button = element("button", "", { type: "button", className: "word", tabIndex: index ? -1 : 0 });
    Object.assign(button.dataset, { side, index });
    const weight = element("small", "");
    weight.dir = "ltr"; // and so left out of the direction of the row
    button.append(element("span", word), weight);
    return button;
  }

  function drawWords(side) {
    rows[side].replaceChildren(...words(side).flatMap((word, index) => [wordButton(word, side, index), " "]));
  }

  // Weights of the words of the other side.
  function links(side, index) {
    if (!weights) return null;
    return side === "target" ? weights[index] : weights.map((row) => row[index]);
  }

  function heaviest(list) {
    const most = Math.max(...list);
    return most > 0 ? list.indexOf(most) : -1;
  }

  function mark(row, index) {
    [...row.children].forEach((word, at) => {
      word.classList.toggle("active", at === index);
      word.setAttribute("aria-pressed", String(at === index));
      word.tabIndex = at === index ? 0 : -1;
      shade(word, null);
    });
  }

  function shade(word, weight, isHeaviest = false) {
    word.classList.toggle("heaviest", isHeaviest);
    word.style.setProperty("--weight", weight ?? 0);
    word.lastChild.textContent = weight ? percent(weight) : "";
    if (weight === null) word.removeAttribute("title");
    else word.title = `${word.firstChild.textContent}: ${percent(weight)}`;
  }

  function show(side, index) {
    if (!words(side).length) return;
    active = { side, index: Math.min(index, words(side).length - 1) };
    const list = links(side, active.index);
    mark(rows[side], active.index);
    const first = list ? heaviest(list) : -1;
    [...rows[other(side)].children].forEach((word, at) => {
      word.classList.remove("active");
      word.setAttribute("aria-pressed", "false");
      shade(word, list ? list[at] : null, at === first);
    });
    markHeat();
    say(list);
  }

  // The heaviest links as a sentence; bdi keeps words of different directions apart.
  function say(list) {
    const { side, index } = active;
    const own = words(side);
    const place = `(${side === "source" ? "source" : "translation"}, word ${index + 1} of ${own.length})`;
    const parts = [element("bdi", own[index]), ` ${place}`];
    if (list) {
      const order = list.map((_, at) => at).sort((a, b) => list[b] - list[a]);
      const shown = order.slice(0, 5).filter((at) => list[at] > 0);
      parts.push(side === "source" ? " is looked at by: " : " looks at: ");
      shown.forEach((at, rank) => {
        parts.push(rank ? " · " : "", element("bdi", words(other(side))[at]), ` ${percent(list[at])}`);
      });
      if (!shown.length) parts.push("nothing");
    }
    byId("readout").replaceChildren(...parts);
  }

  // --- heat map

  function heading(word, scope, side) {
    const cell = element("th", "", { scope, dir: scope === "row" ? "auto" : "" });
    cell.lang = rows[side].lang;
    cell.append(element("span", word));
    return cell;
  }

  function heatCell(weight) {
    const cell = element("td", weight >= 0.005 ? String(Math.round(100 * weight)) : "");
    if (weight > 0) cell.style.setProperty("--weight", weight.toFixed(3));
    return cell;
  }

  function drawHeat() {
    heat.replaceChildren();
    byId("heat-part").hidden = !weights || !weights.length;
    if (!weights || !weights.length) return;
    const columns = sentence().source.slice(0, MOST_WORDS);
    heat.dir = getComputedStyle(rows.source).direction; // columns run as the source reads
    heat.classList.toggle("dense", columns.length >= DENSE_FROM);
    heat.createTHead().insertRow().append(element("td", ""), ...columns.map((word) => heading(word, "col", "source")));
    const body = heat.createTBody();
    pair().target.slice(0, MOST_WORDS).forEach((word, row) => {
      body.insertRow().append(heading(word, "row", "target"), ...weights[row].slice(0, MOST_WORDS).map(heatCell));
    });
  }

  function markHeat() {
    heat.querySelectorAll(".active, .active-column").forEach((cell) => cell.classList.remove("active", "active-column"));
    if (!heat.tHead) return;
    const lines = [...heat.tHead.rows, ...heat.tBodies[0].rows];
    if (active.side === "target") [...(lines[active.index + 1]?.cells ?? [])].forEach((cell) => cell.classList.add("active"));
    else lines.forEach((line) => line.cells[active.index + 1]?.classList.add("active-column"));
  }

  // --- everything

  function describe() {
    const { reason, merged, target } = pair();
    const capped = Math.max(sentence().source.length, target.length) > MOST_WORDS;
    const notes = [
      reason,
      merged && `The sentence is long: of each layer the page holds only the mean of its ${merged} heads.`,
      capped && weights && `The heat map shows the first ${MOST_WORDS} words of each side.`,
      !target.length && "The translation is empty.",
    ];
    byId("viewer-note").textContent = notes.filter(Boolean).join(" ");
  }

  function draw() {
    offerLayers();
    offerHeads();
    weights = chosenWeights();
    drawWords("source");
    drawWords("target");
    byId("readout").replaceChildren();
    drawHeat();
    describe();
    if (!words(active.side).length) active = { side: "source", index: 0 };
    show(active.side, active.index);
  }

  function showTouched(event) {
    const word = event.target.closest(".word");
    if (word) show(word.dataset.side, Number(word.dataset.index));
  }

  function showCell(event) {
    const cell = event.target.closest("th, td");
    if (!cell) return;
    const row = cell.parentElement.rowIndex - 1;
    const column = cell.cellIndex - 1;
    if (row >= 0) show("target", row);
    else if (column >= 0) show("source", column);
    if (row < 0 || column < 0) return;
    cell.title = `${words("target")[row]} – ${words("source")[column]}: ${percent(weights[row][column])}`;
  }

  // The word that a key leads to from `word`, if any.
  function neighbour(word, key) {
    const row = [...word.parentElement.children];
    const index = Number(word.dataset.index);
    const rightToLeft = getComputedStyle(word.parentElement).direction === "rtl";
    const [forward, back] = rightToLeft ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    const places = { [forward]: index + 1, [back]: index - 1, Home: 0, End: row.length - 1 };
    if (key in places) return row[places[key]];
    if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
    const list = links(word.dataset.side, index);
    return rows[other(word.dataset.side)].children[Math.max(0, list ? heaviest(list) : 0)];
  }

  function moveByKey(event) {
    const word = event.target.closest(".word");
    if (!word || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = neighbour(word, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  }

  function start() {
    offer(choose.sentence, data.sentences.map(({ name }, index) => [String(index), name]));
    offer(choose.model, data.models.map(({ name }, index) => [String(index), name]));
    const medium = data.sentences.findIndex(({ name }) => name.startsWith("Medium"));
    choose.sentence.value = String(Math.max(0, medium));
    const attentive = data.models.findIndex(({ pairs }) => pairs.some(({ reason }) => !reason));
    choose.model.value = String(Math.max(0, attentive));
    for (const select of Object.values(choose)) select.addEventListener("change", draw);
    choose.sentence.addEventListener("change", () => show("target", 0));
    for (const kind of ["mouseover", "focusin", "click"]) byId("viewer").addEventListener(kind, showTouched);
    byId("viewer").addEventListener("keydown", moveByKey);
    for (const kind of ["mouseover", "click"]) heat.addEventListener(kind, showCell);
    draw();
  }

  start();
})();
