
// The live page: ask for parts that have changed since they were seen, and put them in place. What a reader
// chooses is in the address, so that it outlives updates and can be sent to somebody else.
const every = 2000;
const button = document.querySelector(".live button");
const note = document.querySelector(".live [role=status]");
const address = new URLSearchParams(location.search);
const seen = {};
let paused = false;
let timer = 0;
let lost = 0;
let back = "";
let chosen = "";

const say = (text) => {
  if (note.textContent !== text) note.textContent = text;
};

// Only parts that can be seen are asked for: those of folded sections are not drawn at all.
const wanted = () => {
  const asked = {};
  for (const part of document.querySelectorAll("[data-part]"))
    if (!part.closest("details:not([open])")) asked[part.dataset.part] = seen[part.dataset.part] ?? "";
  return asked;
};

// A choice in a gallery is a part of the address; so is the axis, and which runs are compared.
const choose = (name, values) => {
  address.delete(name);
  for (const value of values) if (value) address.append(name, value);
  const query = address.toString();
  history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
};
const nameOf = (control) => control.dataset.filter ?? ("sort" in control.dataset ? "sort" : "");
document.addEventListener("change", ({ target }) => {
  const part = target.closest("[data-part]")?.dataset.part;
  if ("choice" in target.dataset) {
    choose("run", [...document.querySelectorAll("[data-choice]:checked")].map((box) => box.dataset.choice));
    delete seen.compared;
  } else if ("axis" in target.dataset) choose("across", [target.value]);
  else if (nameOf(target)) {
    choose(nameOf(target), [target.value]);
    chosen = part;
  }
  update();
});

const restore = (controls, name) => {
  for (const control of controls)
    if ([...control.options].some(({ value }) => value === address.get(name))) control.value = address.get(name);
};

// What a reader has opened, and where the focus is, stay through an update.
const replace = (part, html) => {
  const open = [...part.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
  const focus = part.contains(document.activeElement) ? nameOf(document.activeElement) : "";
  part.innerHTML = html;
  const inner = part.querySelectorAll("[data-part]");
  for (const piece of inner) delete seen[piece.dataset.part];
  if (inner.length) setTimeout(update);
  restore(part.querySelectorAll("[data-sort]"), "sort");
  for (const details of part.querySelectorAll("details"))
    if (open.includes(details.querySelector("summary").textContent)) details.open = true;
  enhance(part);
  const gallery = part.closest(".gallery");
  if (gallery && part.querySelector(".cards")) enhanceGallery(gallery);
  if (focus) [...part.querySelectorAll("select")].find((control) => nameOf(control) === focus)?.focus();
};
// A list that is being chosen from stays as it is.
const busy = (part) =>
  part.dataset.part !== chosen && part.contains(document.activeElement) && document.activeElement.matches("select, input");

const ask = async () => {
  const asked = new URLSearchParams(address);
  asked.set("seen", JSON.stringify(wanted()));
  const answer = await fetch(`${document.body.dataset.address}?${asked}`, { cache: "no-store" }).catch((error) => {
    throw new Error(`the server does not answer (${error.message})`);
  });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `the server answers ${answer.status} ${answer.statusText}`);
};

const update = async () => {
  clearTimeout(timer);
  if (!paused && !document.hidden) {
    try {
      const choice = address.toString();
      const parts = await ask();
      if ("waiting" in document.body.dataset) return location.reload();
      if (choice !== address.toString()) return;  // the answer to what was chosen since is on its way
      for (const part of document.querySelectorAll("[data-part]")) {
        const newer = parts[part.dataset.part];
        if (!newer || busy(part)) continue;
        [seen[part.dataset.part]] = newer;
        replace(part, newer[1]);
      }
      chosen = "";
      if (lost) back = ` again, after ${Math.round((Date.now() - lost) / 1000)} s without an answer`;
      lost = 0;
      say(`live${back}`);
    } catch (error) {
      lost ||= Date.now();
      say(`${error.message}; trying again`);
    }
  }
  timer = setTimeout(update, every);
};

restore(document.querySelectorAll("[data-axis]"), "across");
button.addEventListener("click", () => {
  paused = !paused;
  button.setAttribute("aria-pressed", paused);
  say(paused ? "paused" : "live");
  update();
});
document.addEventListener("toggle", (event) => event.target.matches("details.fold") && event.target.open && update(), true);
document.addEventListener("visibilitychange", update);
update();
