// A headless Chromium in which everything that goes wrong is noted: what a page asks of the network, prints as
// an error or asks the reader, what axe finds, what the keyboard cannot reach.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../build/browser/", import.meta.url));
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const PATIENCE = 180_000;

const DESK = { viewport: { width: 1320, height: 1000 }, colorScheme: "light", reducedMotion: "reduce" };
export const WAYS = {
  light: DESK,
  dark: { ...DESK, colorScheme: "dark" },
  phone: { ...DESK, viewport: { width: 390, height: 844 }, hasTouch: true },
  print: { ...DESK, media: "print" },
};

export const wrong = [];
export const checked = [];

// Run one check; what it throws is noted, and the walk goes on.
export const check = async (name, body) => {
  checked.push(name);
  try {
    await body();
  } catch (error) {
    wrong.push(`${name}: ${error.message}`);
  }
};
export const expect = (truth, text) => {
  if (!truth) throw new Error(text);
};

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
export const close = () => browser.close();

// Open an address in a context of its own. A file has no network at all; a server is all the network there is.
export const open = async (address, way = "light", { unguarded = false } = {}) => {
  const { media, ...options } = WAYS[way];
  const context = await browser.newContext({ ...options, bypassCSP: unguarded });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const note = (text) => wrong.push(`${address.split("/").slice(-2).join("/")}, ${way}: ${text}`);
  const visit = { page, downtime: false, close: () => context.close() };
  page.on("console", (message) => {
    if (message.type() === "error" && !visit.downtime) note(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => note(`error: ${error}`));
  page.on("dialog", (dialog) => {
    note(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  const origin = address.startsWith("file:") ? address.split("#")[0] : new URL(address).origin;
  await context.route("**", (route) => {
    const to = route.request().url();
    if (to.startsWith("data:") || to.startsWith(origin)) return route.continue();
    note(`asked for ${to.slice(0, 200)}`);
    return route.abort();
  });
  if (address.startsWith("file:")) await context.setOffline(true);
  if (media) await page.emulateMedia({ media });
  await page.goto(address);
  return visit;
};

// The page's own policy lets no other script run: axe runs in a world of its own.
export const audit = async (page) => {
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const { executionContextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
  const run = async (expression) => {
    const found = await session.send("Runtime.evaluate", {
      expression, contextId: executionContextId, awaitPromise: true, returnByValue: true,
    });
    if (found.exceptionDetails) throw new Error(found.exceptionDetails.exception?.description ?? "axe failed");
    return found.result.value;
  };
  await run(`${AXE}; 0`);
  const { violations, passes } = await run(`axe.run(document, { preload: false, resultTypes: ["violations"],
    runOnly: ${JSON.stringify(RULES)} }).then(({ violations, passes }) => ({ passes: passes.length, violations: violations.map(
    (v) => v.id + " (" + v.nodes.length + "): " + v.nodes.slice(0, 3).map((n) => n.target + " " + n.failureSummary).join(" | ")) }))`);
  await session.detach();
  expect(passes > 10, `expected more than ten rules of axe to apply, got ${passes}`);
  expect(!violations.length, violations.join("\n"));
};

// Nothing may be wider than the screen; the widest culprits are named.
export const fits = async (page) => {
  const { over, by } = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    const wide = [...document.body.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > width + 1);
    return {
      over: document.documentElement.scrollWidth - width,
      by: wide.slice(0, 4).map((e) => `${e.tagName}.${e.getAttribute("class")}`),
    };
  });
  expect(over <= 0, `${over} pixels wider than the screen: ${by.join(", ")}`);
};

const STOPS = "a[href], button, select, input, summary, audio[controls], [tabindex='0']";

// Press Tab through the whole page; every stop must be seen, and all that can be used must be a stop. Of a
// group of radio buttons the chosen one is.
export const tabThrough = async (page) => {
  const unseen = [];
  let count = 0;
  let wrapped = false;
  for (; ; count++) {
    await page.keyboard.press("Tab");
    const stop = await page.evaluate(() => {
      const at = document.activeElement;
      if (!at || at === document.body) return "outside";
      if (at.hasAttribute("data-stop")) return null;
      at.setAttribute("data-stop", "");
      const { outlineStyle, outlineWidth } = getComputedStyle(at);
      const box = at.getBoundingClientRect();
      const inside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
      const ringed = at.matches("audio") || (outlineStyle !== "none" && parseFloat(outlineWidth) >= 1);
      return { what: `${at.tagName} ${at.getAttribute("class")} ${at.textContent.trim().slice(0, 40)}`, ringed, inside };
    });
    if (!stop || (stop === "outside" && wrapped)) break;
    if (stop === "outside") {
      wrapped = true; // Tab began in the middle of the page
      continue;
    }
    if (!stop.ringed) unseen.push(`${stop.what} has no ring`);
    if (!stop.inside) unseen.push(`${stop.what} is off the screen`);
    expect(count < 3000, "Tab finds no end");
  }
  const missed = await page.evaluate(
    (stops) => [...document.querySelectorAll(stops)]
      .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.hasAttribute("data-stop") && !e.disabled
        && !(e.type === "radio" && !e.checked))
      .map((e) => `${e.tagName}.${e.getAttribute("class")} ${e.textContent.trim().slice(0, 40)}`),
    STOPS,
  );
  expect(!unseen.length, unseen.slice(0, 5).join("; "));
  expect(!missed.length, `Tab misses ${missed.length}: ${missed.slice(0, 5).join("; ")}`);
  return count;
};
