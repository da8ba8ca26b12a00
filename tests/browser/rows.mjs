// The stored rows of a run: their list and each one's page, read, walked by keys, taken along, and attacked.
import { readFileSync } from "node:fs";
import { audit, check, expect, fits, open, tabThrough, WAYS } from "./browser.mjs";
import { serve } from "./live.mjs";
import { walkPayloads } from "./payloads.mjs";

const unfold = (page) =>
  page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));

// The addresses of the rows that a list shows, in its order.
const rowsOf = async (list) => {
  const visit = await open(list);
  const found = await visit.page.locator(".found a").evaluateAll((all) => all.map((one) => one.href));
  await visit.close();
  expect(found.length, `no rows in ${list}`);
  return found;
};

export const walkRows = async (runs, run, turns, hostile, figures) => {
  const server = await serve(runs);
  const list = (name, query = "") => `${new URL(server.at).origin}/run/${encodeURIComponent(name)}/rows${query}`;
  try {
    const [training] = await rowsOf(list(run));
    const pages = {
      list: list(run),
      "a row of training": training,
      "a row of an evaluation": (await rowsOf(list(run, "?part=evals")))[0],
      "a row of several turns": (await rowsOf(list(turns)))[0],
    };
    for (const [name, address] of Object.entries(pages)) await readInEveryWay(name, address);
    await walkList(list(run));
    await walkRow(training);
    for (const address of [pages.list, training, pages["a row of several turns"]]) await reach(address, figures);
    await attackRows(list(hostile));
  } finally {
    await server.stop();
  }
};

const readInEveryWay = async (name, address) => {
  for (const way of Object.keys(WAYS)) {
    const visit = await open(address, way);
    await check(`axe, ${name}, ${way}`, () => audit(visit.page));
    await check(`fits, ${name}, ${way}`, () => fits(visit.page));
    if (await visit.page.locator("details").count()) {
      await unfold(visit.page);
      await check(`axe, ${name}, ${way}, opened`, () => audit(visit.page));
      await check(`fits, ${name}, ${way}, opened`, () => fits(visit.page));
      const rare = visit.page.locator("input[value=rare]");
      if (await rare.count()) {
        await rare.check({ force: true });
        await check(`axe, ${name}, ${way}, the other colours`, () => audit(visit.page));
      }
    }
    await visit.close();
  }
};

const reach = async (address, figures) => {
  const visit = await open(address);
  await unfold(visit.page);
  await check(`Tab reaches everything of ${new URL(address).pathname}`, async () => {
    figures.stops = (figures.stops ?? 0) + (await tabThrough(visit.page));
  });
  await visit.close();
};

// Press a key that leads to another page, and wait for it.
const leave = async (page, key) => {
  const from = page.url();
  await page.keyboard.press(key);
  await page.waitForURL((url) => url.href !== from, { timeout: 20_000 });
  return page.url();
};
const taken = async (page, link) => {
  await link.focus();
  const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
  return readFileSync(await download.path());
};

const walkList = async (address) => {
  const visit = await open(address);
  const { page } = visit;
  const count = async () => Number((await page.locator("main > p", { hasText: / rows/ }).last().textContent()).match(/\d+/)[0]);
  const all = await count();
  await check("a choice is typed and sent with Enter, and is in the address", async () => {
    await page.locator("input[name=first]").focus();
    const last = Number(await page.locator(".found td").first().textContent());
    await page.keyboard.type(String(last));
    expect((await leave(page, "Enter")).includes(`first=${last}`), `the address is ${page.url()}`);
    const steps = await page.locator(".found td:first-child").allTextContents();
    expect(steps.length && steps.every((step) => Number(step) === last), `steps ${steps}`);
    expect((await count()) < all, `${await count()} of ${all} rows are chosen`);
  });
  await check("what is chosen is taken along as attack rows and as a data set, by keys", async () => {
    const rows = await count();
    const lines = (await taken(page, page.getByRole("link", { name: "as attack rows" }))).toString().trim().split("\n");
    expect(lines.length >= rows && lines.every((line) => "truth" in JSON.parse(line)), `${lines.length} lines of ${rows} rows`);
    const archive = await taken(page, page.getByRole("link", { name: "as a data set" }));
    expect(archive.subarray(0, 2).toString() === "PK" && archive.includes("rows.jsonl"), "no data set");
  });
  await check("Enter on a row leads to its page, with the choice; the way back keeps it", async () => {
    await page.locator(".found a").first().focus();
    expect((await leave(page, "Enter")).includes("first="), "the choice is lost on the way to a row");
    await page.getByRole("link", { name: "rows", exact: true }).focus();
    expect((await leave(page, "Enter")).includes("first="), "the choice is lost on the way back");
  });
  await visit.close();
};

const walkRow = async (address) => {
  const visit = await open(address);
  const { page } = visit;
  const press = (key) => page.keyboard.press(key);
  await check("arrow keys lead to the row before and back", async () => {
    const here = page.url();
    const before = await leave(page, "ArrowLeft");
    expect(before !== here && (await page.locator("h1").textContent()).length, "no other row");
    expect((await leave(page, "ArrowRight")) === here, "not back at the first row");
  });
  await check("tokens are opened with Enter and walked with arrows, which stay on the page", async () => {
    const here = page.url();
    const tokens = page.locator(".tokens").first();
    await tokens.locator("summary").focus();
    await press("Enter");
    await press("Tab");
    const said = () => tokens.locator(".said").textContent();
    expect((await said()).includes("token 1:"), `of the first token is said: ${await said()}`);
    await press("ArrowRight");
    expect((await said()).includes("token 2:"), `after an arrow is said: ${await said()}`);
    await press("End");
    expect((await said()).includes(`token ${await tokens.locator(".token").count()}:`), `at the end is said: ${await said()}`);
    await press("ArrowRight");
    expect(page.url() === here, "an arrow at the last token left the page");
  });
  await check("the colour of tokens is chosen with an arrow, which stays on the page", async () => {
    const here = page.url();
    await page.locator("input[value=far]").focus();
    await press("ArrowRight");
    expect(await page.locator("input[value=rare]").isChecked(), "not chosen");
    expect(await page.locator(".levels.rare").isVisible(), "the other legend is not shown");
    expect(page.url() === here, "the arrow left the page");
  });
  await check("an image opens with Enter; arrows stay there; Escape closes it", async () => {
    const here = page.url();
    const image = page.locator("svg.canvas").first();
    await image.focus();
    await press("Enter");
    expect(await page.locator("dialog[open] svg.canvas image").isVisible(), "the image is empty");
    await press("ArrowLeft");
    await page.waitForTimeout(500);
    expect(page.url() === here && (await page.locator("dialog[open]").count()), "an arrow left the opened image");
    await press("Escape");
    expect(await image.evaluate((one) => one === document.activeElement), "the focus is lost");
  });
  await check("Enter leads to the same row at another step", async () => {
    const other = page.locator(".moments a").first();
    if (!(await other.count())) return;
    const id = await page.locator("h1").textContent();
    await other.focus();
    await leave(page, "Enter");
    expect((await page.locator("h1").textContent()) === id, "another row");
  });
  await visit.close();
};

// Attacks in what is stored, and in what an address says; then on foot from row to row.
const attackRows = async (list) => {
  const found = await rowsOf(list);
  const attack = encodeURIComponent('"><script>globalThis.attack=2</script><img src=x onerror="globalThis.attack=1">');
  await walkPayloads(list, { name: "list", least: 1, forms: 1 });
  await walkPayloads(`${list}?only=${attack}&by=${attack}&first=${attack}&skip=${attack}`, { name: "address", least: 0, forms: 1 });
  const evaluated = await rowsOf(`${list}?part=evals`);
  await walkPayloads(found[0], { name: "row", least: 3 });
  await walkPayloads(evaluated[0], { name: "evaluated row", least: 1 });
  const visit = await open(list, "light", { unguarded: true });
  const { page } = visit;
  await check("attacks stay text on the way from row to row, without a policy", async () => {
    await page.locator(".found a").first().focus();
    await leave(page, "Enter");
    for (let moved = 0; moved < 3; moved++) {
      await unfold(page);
      const tokens = await page.locator(".token:visible", { hasText: /attack(=|\{\{)/ }).count();
      expect(tokens > 10, `${tokens} tokens show an attack`);
      for (const token of await page.locator(".token:visible").all()) await token.hover();
      expect((await page.evaluate(() => globalThis.attack)) === undefined, "an attack ran");
      await leave(page, "ArrowLeft");
    }
  });
  await visit.close();
};
