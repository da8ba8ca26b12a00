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
