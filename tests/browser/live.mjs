// The live page while a run goes on, while its reader uses the keyboard, and while its server restarts.
import { spawn } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { audit, check, expect, fits, open, tabThrough, WAYS } from "./browser.mjs";
import { walkPayloads } from "./payloads.mjs";
import { walkByKeyboard } from "./report.mjs";

// `vlmrl watch` on a folder; `at` is its address once it listens. `more` are further arguments, `cwd` is where it runs.
export const serve = async (folder, port = 0, more = [], cwd = undefined) => {
  const server = spawn(process.env.PYTHON, ["-m", "vlmrl", "watch", folder, "--port", String(port), ...more], {
    stdio: ["ignore", "pipe", "inherit"], cwd,
  });
  const at = await new Promise((found, failed) => {
    let said = "";
    server.stdout.on("data", (data) => {
      said += data;
      const address = said.match(/http:\/\/[^ ]+/);
      if (address) found(address[0]);
    });
    server.on("exit", (code) => failed(new Error(`vlmrl watch ended with ${code}: ${said}`)));
  });
  const stop = () => new Promise((done) => server.once("exit", done) && server.kill("SIGTERM"));
  return { at, stop };
};

// A run that goes on: its last line again, one step later.
const writer = (folder) => {
  const path = join(folder, "metrics.jsonl");
  const last = JSON.parse(readFileSync(path, "utf8").trimEnd().split("\n").at(-1));
  return () => {
    last.step += 1;
    appendFileSync(path, `${JSON.stringify(last)}\n`);
    return last.step;
  };
};
const stepIs = (page, step) =>
  page.waitForFunction((text) => document.querySelector(".state")?.textContent.includes(text), `${step} of`);
const ready = (page) => page.locator(".state").waitFor();
// All that is unfolded has come.
const complete = async (page) => {
  await page.locator(".gallery .card").first().waitFor({ state: "attached" });
  await page.waitForFunction(() => [...document.querySelectorAll("details.fold[open] [data-part]")]
    .every((part) => part.childElementCount));
};

export const walkLive = async (runs, run, hostile, figures) => {
  let server = await serve(runs);
  const port = new URL(server.at).port;
  const index = `http://127.0.0.1:${port}/`;
  const address = `${index}run/${encodeURIComponent(run)}`;
  try {
    for (const way of Object.keys(WAYS)) {
      for (const [name, from] of [["one run", address], ["all runs", index]]) {
        const visit = await open(from, way);
        await visit.page.locator(name === "one run" ? "#answer .chart:visible svg" : ".runs a").first().waitFor();
        await check(`axe, ${name}, ${way}`, () => audit(visit.page));
        await check(`fits, ${name}, ${way}`, () => fits(visit.page));
        await visit.close();
      }
    }
    await walkPayloads(`${index}run/${encodeURIComponent(hostile)}`, { ready: complete });
    await walkAllRuns(index);
    const visit = await open(address);
    const { page } = visit;
    const append = writer(join(runs, run));
    await ready(page);
    await check("an appended line is shown", async () => stepIs(page, append()));
    await check("Pause holds the page still, by keyboard", async () => {
      const pause = page.getByRole("button", { name: "Pause" });
      await pause.focus();
      await page.keyboard.press("Space");
      const before = await page.locator(".state").textContent();
      const step = append();
      await page.waitForTimeout(5000);
      expect((await page.locator(".state").textContent()) === before, "the paused page moved");
      await page.keyboard.press("Enter");
      await stepIs(page, step);
    });
    await check("an update leaves the focus and what was opened", async () => {
      const fold = page.locator("details.fold:not([open]) > summary").first();
      const section = await fold.evaluateHandle((one) => one.parentElement);
      await fold.focus();
      await page.keyboard.press("Enter");
      await stepIs(page, append());
      expect(await section.evaluate((one) => one.open && one.isConnected), "a section closed by itself");
      expect(await section.evaluate((one) => one.contains(document.activeElement)), "the focus is lost");
    });
    await check("the page outlives its server", async () => {
      visit.downtime = true;
      await server.stop();
      await page.locator("[role=status]", { hasText: "does not answer" }).waitFor();
      expect(await page.locator("#answer .chart:visible svg").first().isVisible(), "the page is gone");
      const step = append();
      server = await serve(runs, port);
      await stepIs(page, step);
      visit.downtime = false;
      await stepIs(page, append());
    });
    await check("axe, after a restart", () => audit(page));
    await walkByKeyboard(page);
    await page.getByRole("button", { name: "Pause" }).click();
    await check("Tab reaches everything", async () => {
      await page.evaluate(() => document.activeElement.blur());
      figures.stops = await tabThrough(page);
    });
    await visit.close();
  } finally {
    await server.stop();
  }
};

// The table of all runs: a box puts a run among the compared ones, a link leads to its page.
const walkAllRuns = async (index) => {
  const visit = await open(index);
  const { page } = visit;
  await page.locator("#compared .chart:visible svg").first().waitFor();
  await check("Space takes a run from the compared ones", async () => {
    const box = page.locator("[data-choice]:checked").first();
    const name = await box.getAttribute("data-choice");
    await box.focus();
    await page.keyboard.press("Space");
    await page.waitForFunction(
      (gone) => ![...document.querySelectorAll("#compared .legend")].some((one) => one.textContent.includes(gone)), name);
  });
  await check("Enter on a run's name leads to its page", async () => {
    const link = page.locator(".runs a").first();
    const to = await link.getAttribute("href");
    await link.focus();
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.pathname === to);
    await ready(page);
  });
  await visit.close();
};
