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

// Galleries: filter and sort the cards. Those of other steps than the newest wait in a template until asked for.
const enhanceGallery = (gallery) => {
  const list = gallery.querySelector(".cards");
  const cards = [...list.children];
  const waiting = gallery.querySelector("template")?.content ?? new DocumentFragment();
  const total = cards.length + waiting.childElementCount;
  const newest = gallery.querySelector("[data-filter=step] option[selected]");
  const filters = [...gallery.querySelectorAll("[data-filter]")];
  const sort = gallery.querySelector("[data-sort]");

  const wanted = (card) =>
    filters.every((filter) => {
      const held = card.dataset[filter.dataset.filter];
      return !filter.value || ("many" in filter.dataset ? JSON.parse(held).includes(filter.value) : held === filter.value);
    });

  const layOut = () => {
    const more = [...waiting.children];
    list.append(waiting);
    for (const card of more) enhance(card);
    cards.push(...more);
  };
  const update = () => {
    if (newest && !newest.selected) layOut();
    const [key, sign] = sort.value.split(":");
    const ordered = key ? [...cards].sort((a, b) => sign * (a.dataset[key] - b.dataset[key])) : cards;
    for (const card of cards) card.hidden = !wanted(card);
    list.append(...ordered);
    const shown = cards.filter((card) => !card.hidden).length;
    gallery.querySelector("output").textContent = `${shown} of ${total} prompts`;
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

// Media: opened as large as the screen by a click, Enter or Space; a click or any of these keys closes it.
const enlarge = (medium) => {
  const large = medium.cloneNode(true);
  for (const use of large.querySelectorAll("use")) {
    const image = document.getElementById(use.getAttribute("href").slice(1)).cloneNode();
    image.removeAttribute("id");
    use.replaceWith(image);
  }
  // What is drawn, and in which colour, depends on where the medium is in the page.
  const layers = large.querySelectorAll("g");
  medium.querySelectorAll("g").forEach((layer, i) => {
    const style = getComputedStyle(layer);
    layers[i].style.display = style.display;
    for (const name of ["--true", "--stroke"]) layers[i].style.setProperty(name, style.getPropertyValue(name));
  });
  large.removeAttribute("tabindex");
  large.setAttribute("role", "img");
  large.setAttribute("aria-label", medium.dataset.label);
  const box = medium.viewBox?.baseVal ?? medium;
  large.style.setProperty("--ratio", box.width / box.height);
  const dialog = document.createElement("dialog");
  dialog.className = "large";
  dialog.setAttribute("aria-label", `${medium.dataset.label}, as large as the screen`);
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  dialog.append(large, close);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
};
const enhanceMedium = (medium) => {
  medium.dataset.label = medium.getAttribute("aria-label") ?? medium.alt;
  medium.setAttribute("role", "button");
  medium.setAttribute("aria-label", `enlarge ${medium.dataset.label}`);
  medium.setAttribute("tabindex", "0");
  medium.addEventListener("click", () => enlarge(medium));
  medium.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge(medium);
  });
};

const enhance = (root) => {
  for (const medium of root.querySelectorAll("svg.canvas, img.motion")) enhanceMedium(medium);
  for (const chart of root.querySelectorAll(".chart")) enhanceChart(chart);
  for (const gallery of root.querySelectorAll(".gallery")) enhanceGallery(gallery);
  for (const card of root.matches?.(".card") ? [root] : root.querySelectorAll(".card")) enhanceCard(card);
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
