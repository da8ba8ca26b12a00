
// The live page: ask for parts that have changed since they were seen, and put them in place.
const every = 2000;
const button = document.querySelector(".live button");
const told = document.querySelector(".live [role=status]");
const seen = {};
const kept = {};
const choices = new Set();
let paused = false;
let timer = 0;

const say = (text) => {
  if (told.textContent !== text) told.textContent = text;
};

// Only parts that can be seen are asked for: those of folded sections are not drawn at all.
const wanted = () => {
  const asked = {};
  for (const part of document.querySelectorAll("[data-part]"))
    if (!part.closest("details:not([open])")) asked[part.dataset.part] = seen[part.dataset.part] ?? "";
  return asked;
};

// What a reader has chosen in a gallery, or opened, stays through an update.
const keep = (part) => {
  kept[part.dataset.part] = [...part.querySelectorAll("select, input")].map((input) =>
    input.type === "checkbox" ? input.checked : input.value);
  return [...part.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
};
const restore = (part, open) => {
  part.querySelectorAll("select, input").forEach((input, i) => {
    const value = kept[part.dataset.part]?.[i];
    if (value === undefined) return;
    if (input.type === "checkbox") input.checked = value;
    else if ([...input.options].some((option) => option.value === value)) input.value = value;
  });
  for (const details of part.querySelectorAll("details"))
    if (open.includes(details.querySelector("summary").textContent)) details.open = true;
};

const place = (part, html) => {
  const open = keep(part);
  part.innerHTML = html;
  const inner = part.querySelectorAll("[data-part]");
  for (const one of inner) delete seen[one.dataset.part];
  if (inner.length) setTimeout(update);
  restore(part, open);
  enhance(part);
  const gallery = part.closest(".gallery");
  if (gallery && part.querySelector(".cards")) enhanceGallery(gallery);
  for (const box of part.querySelectorAll("[data-choice]"))
    box.addEventListener("change", () => {
      choices.clear();
      for (const one of part.querySelectorAll("[data-choice]:checked")) choices.add(one.dataset.choice);
      delete seen.compared;
      update();
    });
};

const update = async () => {
  clearTimeout(timer);
  if (!paused && !document.hidden) {
    try {
      const asked = { seen: JSON.stringify(wanted()) };
      if (choices.size) asked.chosen = JSON.stringify([...choices]);
      const answer = await fetch(`${document.body.dataset.address}?${new URLSearchParams(asked)}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      const parts = await answer.json();
      for (const part of document.querySelectorAll("[data-part]")) {
        const newer = parts[part.dataset.part];
        if (!newer || part.contains(document.activeElement) && document.activeElement.matches("select, input")) continue;
        [seen[part.dataset.part]] = newer;
        place(part, newer[1]);
      }
      say("live");
    } catch (error) {
      say(`the server does not answer (${error.message}); trying again`);
    }
  }
  timer = setTimeout(update, every);
};

button.addEventListener("click", () => {
  paused = !paused;
  button.setAttribute("aria-pressed", paused);
  say(paused ? "paused" : "live");
  update();
});
document.addEventListener("toggle", (event) => event.target.matches("details.fold") && event.target.open && update(), true);
document.addEventListener("visibilitychange", update);
update();
