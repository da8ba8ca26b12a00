// The page that starts runs. Its token is in the address behind #, which is never sent, and then in this tab's own
// store: each request carries it in a header, so no other page can ask in its place.
const at = (id) => document.getElementById(id);
const every = 2000;
const pause = 300;
let token = decodeURIComponent(location.hash.slice(1)) || sessionStorage.getItem("token") || "";
let seen = "";
let known = null; // the digest of the file as it was opened or saved
let saved = null; // name and text that are in the file
let checking = 0;
history.replaceState(null, "", location.pathname);

const say = (text, fault = false) => {
  at("said").classList.toggle("fault", fault);
  if (at("said").textContent !== text) at("said").textContent = text;
};

const ask = async (address, body) => {
  const answer = await fetch(address, {
    method: body ? "POST" : "GET",
    cache: "no-store",
    headers: { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  }).catch((error) => {
    throw new Error(`the server does not answer (${error.message})`);
  });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  if (answer.status === 401) showDoor();
  throw new Error(content.error?.message ?? `the server answers ${answer.status} ${answer.statusText}`);
};
const showDoor = () => {
  at("door").hidden = false;
  at("all").hidden = true;
};
// What a button does; what goes wrong is said.
const doing = (work) => async (event) => {
  try {
    await work(event);
  } catch (error) {
    say(error.message, true);
  }
};

// ------------------------------------------------------------------------------------------- the config

const asked = () => ({
  name: at("name").value.trim(), text: at("text").value, overrides: at("overrides").value,
  gpus: at("gpus").value, gpu: at("gpu").value.trim(), memory: at("memory").value,
});

const check = doing(async () => {
  clearTimeout(checking);
  const body = asked();
  const { count, keys, commands } = await ask("/start/check", body);
  if (JSON.stringify(body) !== JSON.stringify(asked())) return; // the answer to what is written now is on its way
  at("keys").innerHTML = keys;
  at("text").setAttribute("aria-invalid", count > 0);
  at("mistakes").classList.toggle("fault", count > 0);
  at("mistakes").textContent = count ? `${count} ${count > 1 ? "mistakes" : "mistake"}` : "keys and values are valid";
  for (const [id, command] of Object.entries(commands ?? {})) showCommand(id, command);
  follow();
});
const later = () => {
  clearTimeout(checking);
  checking = setTimeout(check, pause);
};
const showCommand = (id, command) => {
  at(id).querySelector("code").textContent = command;
  const copy = at(id).querySelector("button");
  copy.dataset.copy = command;
  copy.setAttribute("aria-label", `copy ${command}`);
};

// The help of the key at the caret comes into sight; mistakes come before it.
const follow = () => {
  const text = at("text");
  const line = text.value.slice(0, text.selectionStart).split("\n").length;
  const keys = [...at("keys").querySelectorAll("[data-at]")];
  const above = Math.max(...keys.map((key) => +key.dataset.at).filter((one) => one <= line));
  const here = keys.find((key) => +key.dataset.at === above);
  for (const key of keys) key.classList.toggle("here", key === here);
  if (at("keys").querySelector(".wrong, .complaint")) at("keys").scrollTop = 0;
  else if (here && document.activeElement === text) at("keys").scrollTop = here.offsetTop - at("keys").offsetTop - 60;
};
const goTo = (line) => {
  const text = at("text");
  const lines = text.value.split("\n");
  const begin = lines.slice(0, line - 1).join("\n").length + (line > 1);
  text.focus();
  text.setSelectionRange(begin, begin + (lines[line - 1] ?? "").length);
  text.scrollTop = Math.max(0, line - 6) * parseFloat(getComputedStyle(text).lineHeight);
};

const open = async (event) => {
  const { value, selectedOptions } = at("from");
  const shipped = selectedOptions[0].parentElement.id === "shipped";
  const { name, text, digest, base } = await ask("/start/open", shipped ? { shipped: value } : { name: value });
  at("name").value = name;
  at("text").value = text;
  known = digest ?? null;
  saved = digest ? JSON.stringify([name, text]) : null;
  at("base").hidden = !base;
  at("base").querySelector("code").textContent = value;
  at("base").querySelector("pre").textContent = base ?? "";
  say(shipped ? `${value} is what this config starts from` : `${name} is open`);
  if (event) at("text").focus();
  at("text").setSelectionRange(0, 0);
  await check();
};
const save = async () => {
  const body = asked();
  const content = JSON.stringify([body.name, body.text]);
  if (content === saved) return;
  const same = JSON.parse(saved ?? "[]")[0] === body.name;
  const { digest } = await ask("/start/save", { ...body, digest: same ? known : null, replace: at("replace").checked });
  [known, saved] = [digest, content];
  at("replace").checked = false;
  say(`saved ${body.name}`);
  await update();
};

// ----------------------------------------------------------------------------------------------- runs

const run = async () => {
  await save();
  const { run: name } = await ask("/start/run", asked());
  say(`${name} is starting`);
  await update();
};
const forecast = async () => {
  await save();
  say("forecasting: some seconds");
  at("forecast").disabled = true;
  try {
    const { outputs, fits } = await ask("/start/forecast", asked());
    at("outputs").innerHTML = outputs;
    say(fits ? "the forecast is there" : "the forecast says no");
  } finally {
    at("forecast").disabled = false;
    at("forecast").focus();
  }
};

const fill = (group, names) => {
  if (group.childElementCount === names.length && [...group.children].every((o, i) => o.value === names[i])) return;
  const { value } = at("from");
  group.replaceChildren(...names.map((name) => new Option(name)));
  at("from").value = value || "quickstart";
};
// What is open, and where the focus is, stay; a text that is being selected stays whole.
const showRuns = (html) => {
  const runs = at("runs");
  const selection = document.getSelection();
  if (!selection.isCollapsed && runs.contains(selection.anchorNode)) return false;
  const logs = new Map([...runs.querySelectorAll("[data-log]")].map((log) => [log.dataset.log, log.open]));
  const focus = runs.contains(document.activeElement) ? nameOf(document.activeElement) : "";
  const states = new Map([...runs.querySelectorAll("[data-state]")].map((one) => [one.dataset.name, one.dataset.state]));
  runs.innerHTML = html;
  for (const { dataset: { name, state } } of runs.querySelectorAll("[data-state]"))
    if (states.has(name) && states.get(name) !== state) say(`${name}: ${state}`);
  for (const log of runs.querySelectorAll("[data-log]")) {
    log.open = logs.get(log.dataset.log) || log.open;
    log.querySelector("pre").scrollTop = 1e6;
  }
  if (focus) [...runs.querySelectorAll("a, button, summary, pre")].find((one) => nameOf(one) === focus)?.focus();
  return true;
};
const nameOf = (one) => `${one.tagName} ${one.getAttribute("aria-label") ?? one.textContent}`;

let timer = 0;
const update = async () => {
  clearTimeout(timer);
  try {
    if (!document.hidden) {
      const state = await ask(`/start/state?seen=${seen}`);
      if (at("said").textContent === "connecting" || at("said").textContent.endsWith("again")) say("connected");
      if (state.key) {
        fill(at("files"), state.files);
        fill(at("shipped"), state.shipped);
        if (showRuns(state.runs)) seen = state.key;
      }
      if (at("all").hidden) await begin();
    }
  } catch (error) {
    say(at("all").hidden ? error.message : `${error.message}; trying again`, true);
    if (!at("door").hidden) return;
  }
  timer = setTimeout(update, every);
};
const begin = async () => {
  sessionStorage.setItem("token", token);
  at("door").hidden = true;
  at("all").hidden = false;
  await (at("text").value ? check() : open()); // a browser that comes back has kept what was written
};

// -------------------------------------------------------------------------------------------- events

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  update();
});
at("open").addEventListener("click", doing(open));
at("save").addEventListener("click", doing(save));
at("run").addEventListener("click", doing(run));
at("forecast").addEventListener("click", doing(forecast));
for (const id of ["text", "name", "overrides", "gpus", "gpu", "memory"]) at(id).addEventListener("input", later);
for (const kind of ["keyup", "click"]) at("text").addEventListener(kind, follow);
at("find").addEventListener("input", () => {
  const words = at("find").value.toLowerCase().split(/\s+/);
  let count = 0;
  for (const row of document.querySelectorAll(".all tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  document.querySelector("output").textContent = `${count} keys`;
});
document.addEventListener("click", doing(async ({ target }) => {
  const { copy, line, ask: what, run: name } = target.dataset;
  if (copy) {
    await navigator.clipboard.writeText(copy);
    say(`copied ${copy}`);
  } else if (line) goTo(+line);
  else if (what) {
    await ask(`/start/${what}`, { name });
    say(what === "stop" ? `${name} is stopping: it saves` : `${name} goes on`);
    await update();
  }
}));
document.addEventListener("visibilitychange", update);
if (token) update();
else {
  showDoor();
  say("this page needs its token");
}
