"use strict";

// Curves: the nearest step's values in a box that follows the pointer.
for (const chart of document.querySelectorAll(".chart")) {
  const { across, steps, x, rows } = JSON.parse(chart.dataset.hover);
  const svg = chart.querySelector("svg");
  const cursor = chart.querySelector(".cursor");
  const tip = chart.querySelector(".tip");
  const names = [...chart.querySelectorAll(".legend span")];

  const line = (className, text) => {
    const div = document.createElement("div");
    div.className = className;
    div.append(document.createElement("i"), text);
    return div;
  };

  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const at = (event.clientX - box.left) * scale;
    const nearest = x.reduce((best, value, i) => (Math.abs(value - at) < Math.abs(x[best] - at) ? i : best), 0);
    const head = document.createElement("b");
    head.textContent = `${across} ${steps[nearest]}`;
    const lines = rows
      .map((row, i) => [row[nearest], names[i]])
      .filter(([value]) => value)
      .map(([value, name]) => line(name.className, `${name.childNodes[1].textContent.trim()}  ${value}`));
    tip.replaceChildren(head, ...lines);
    cursor.setAttribute("transform", `translate(${x[nearest]},0)`);
    const right = x[nearest] > svg.viewBox.baseVal.width / 2;
    tip.style.left = right ? "auto" : `${x[nearest] / scale + 24}px`;
    tip.style.right = right ? `${box.width - x[nearest] / scale + 24}px` : "auto";
    tip.hidden = false;
    chart.classList.add("on");
  };

  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    chart.classList.remove("on");
  });
}

// Galleries: filter and sort the cards.
for (const gallery of document.querySelectorAll(".gallery")) {
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
}

// Cards: pointing at a completion, or opening it, leaves only its own boxes on the image.
for (const card of document.querySelectorAll(".card")) {
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
}
