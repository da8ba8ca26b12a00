"use strict";

// Curves: the nearest step's values in a box that follows the pointer, or the arrow keys.
const enhanceChart = (chart) => {
  const { across, steps, x, rows } = JSON.parse(chart.dataset.hover);
  const svg = chart.querySelector("svg");
  const cursor = chart.querySelector(".cursor");
  const tip = chart.querySelector(".tip");
  const names = [...chart.querySelectorAll(".legend span")];
  let shown = steps.length - 1;

  const line = (className, text) => {
    const div = document.createElement("div");
    div.className = className;
    div.append(document.createElement("i"), text);
    return div;
  };

  const show = (at) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const head = document.createElement("b");
    head.textContent = `${across} ${steps[at]}`;
    const lines = rows
      .map((row, i) => [row[at], names[i]])
      .filter(([value]) => value)
      .map(([value, name]) => line(name.className, `${name.childNodes[1].textContent.trim()}  ${value}`));
    tip.replaceChildren(head, ...lines);
    cursor.setAttribute("transform", `translate(${x[at]},0)`);
    const right = x[at] > svg.viewBox.baseVal.width / 2;
    tip.style.left = right ? "auto" : `${x[at] / scale + 24}px`;
    tip.style.right = right ? `${box.width - x[at] / scale + 24}px` : "auto";
    tip.hidden = false;
    shown = at;
    chart.classList.add("on");
  };
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width;
    show(x.reduce((best, value, i) => (Math.abs(value - at) < Math.abs(x[best] - at) ? i : best), 0));
  };
  const hide = () => {
    tip.hidden = true;
    chart.classList.remove("on");
  };
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(shown));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(Math.min(Math.max(shown + moves[event.key], 0), steps.length - 1));
  });
};

// Galleries: filter and sort the cards.
const enhanceGallery = (gallery) => {
  const list = gallery.querySelector(".cards");
  const cards = [...list.children];
  const filters = [...gallery.querySelectorAll("[data-filter]")];
  const sort = gallery.querySelector("[data-sort]");

  const wanted = (card) =>
    filters.every((filter) => {
      if (filter.type === "checkbox") return !filter.checked || card.dataset[filter.dataset.filter] === "1";
      return !filter.value || card.dataset[filter.dataset.filter] === filter.value;
    });

  const update = () => {
    const [key, sign] = sort.value.split(":");
    const ordered = key ? [...cards].sort((a, b) => sign * (a.dataset[key] - b.dataset[key])) : cards;
    for (const card of cards) card.hidden = !wanted(card);
    list.append(...ordered);
    const shown = cards.filter((card) => !card.hidden).length;
    gallery.querySelector("output").textContent = `${shown} of ${cards.length} prompts`;
  };

  gallery.querySelector(".bar").addEventListener("change", update);
  update();
};

// Cards: pointing at a completion, or opening it, leaves only its own boxes on the image.
const enhanceCard = (card) => {
  const focus = (attempt) => {
    const chosen = (attempt ?? card.querySelector(".try[open]"))?.dataset.try ?? card.dataset.alone;
    card.classList.toggle("focus", chosen !== "");
    for (const guess of card.querySelectorAll(".guess, .lane.attempt")) guess.classList.toggle("on", guess.dataset.try === chosen);
  };
  for (const attempt of card.querySelectorAll(".try")) {
    attempt.addEventListener("pointerenter", () => focus(attempt));
    attempt.addEventListener("pointerleave", () => focus(null));
    attempt.addEventListener("toggle", () => focus(null));
  }
};

const enhance = (root) => {
  for (const chart of root.querySelectorAll(".chart")) enhanceChart(chart);
  for (const gallery of root.querySelectorAll(".gallery")) enhanceGallery(gallery);
  for (const card of root.querySelectorAll(".card")) enhanceCard(card);
};
enhance(document);

// A link into a folded section opens it.
const openTarget = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.querySelector("details.fold");
  if (fold) fold.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
