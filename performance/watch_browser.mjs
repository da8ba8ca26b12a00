// What pages cost headless Chromium: script time to the first paint, long tasks and frame times during a scroll
// through the whole page and while the charts are used. performance/watch.py calls it; prints JSON.
//
//   CHROMIUM=... node performance/watch_browser.mjs ROUNDS NAME=ADDRESS ...
//
// The pages come in turns in the same browser, each visit in a context of its own. playwright-core is taken from
// build/browser (make test-browser puts it there).
import { createRequire } from "node:module";

const require = createRequire(new URL("../build/browser/", import.meta.url));
const { chromium } = require("playwright-core");
const [rounds, ...pages] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

// Runs in the page: long tasks are kept from the beginning, frames while asked to.
const watch = () => {
  globalThis.tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask", buffered: true });
};
const quantile = (values, at) => [...values].sort((a, b) => a - b)[Math.min(Math.floor(at * values.length), values.length - 1)];

// Do something while frames are counted; return their times and the main thread's seconds by kind.
const measure = async (page, session, body) => {
  const metrics = async () => Object.fromEntries(
    (await session.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  const before = await metrics();
  await page.evaluate(() => {
    globalThis.tasks.length = 0;
    globalThis.frames = [];
    let last = performance.now();
    globalThis.counting = true;
    const count = (now) => {
      frames.push(now - last);
      last = now;
      if (counting) requestAnimationFrame(count);
    };
    requestAnimationFrame(count);
  });
  await body();
  const { frames, tasks } = await page.evaluate(() => {
    globalThis.counting = false;
    return { frames: globalThis.frames.slice(1), tasks: globalThis.tasks };
  });
  const after = await metrics();
  const spent = (name) => Math.round(1000 * (after[name] - before[name]));
  return {
    frames: frames.length,
    frame_ms: [0.5, 0.95, 1].map((at) => Math.round(10 * quantile(frames, at)) / 10),
    over_50_ms: frames.filter((one) => one > 50).length,
    long_tasks: tasks.length,
    longest_ms: Math.round(Math.max(0, ...tasks)),
    task_ms: spent("TaskDuration"),
    script_ms: spent("ScriptDuration"),
    layout_ms: spent("LayoutDuration") + spent("RecalcStyleDuration"),
  };
};

// A screen's tenth a frame, as a wheel does, to the end of the page.
const scroll = (page) => page.evaluate(() => new Promise((done) => {
  const step = () => {
    const before = scrollY;
    scrollBy({ top: 100, behavior: "instant" });
    if (scrollY === before) done();
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}));

const useCharts = async (page) => {
  const charts = await page.locator(".chart:visible svg").all();
  for (const chart of charts.slice(0, 4)) {
    await chart.focus();
    await page.keyboard.press("Home");
    for (let times = 0; times < 20; times++) await page.keyboard.press("ArrowRight");
    const box = await chart.boundingBox();
    for (let at = 0; at < 20; at++) await page.mouse.move(box.x + (box.width * at) / 20, box.y + box.height / 2);
  }
};

const visit = async (address) => {
  const context = await browser.newContext({ viewport: { width: 1320, height: 1000 } });
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable");
  await page.addInitScript(watch);
  await page.goto(address);
  await page.locator(".chart:visible svg").first().waitFor();
  await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length);
  await page.waitForLoadState("networkidle").catch(() => {});
  const loaded = Object.fromEntries(
    (await session.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  const first = await page.evaluate(() => ({
    paint_ms: Math.round(performance.getEntriesByName("first-contentful-paint")[0].startTime),
    long_tasks: tasks.length,
    longest_ms: Math.round(Math.max(0, ...tasks)),
    nodes: document.querySelectorAll("*").length,
    height_px: document.documentElement.scrollHeight,
  }));
  const milliseconds = (name) => Math.round(1000 * loaded[name]);
  const load = {
    ...first,
    task_ms: milliseconds("TaskDuration"),
    script_ms: milliseconds("ScriptDuration"),
    heap_mb: Math.round(loaded.JSHeapUsedSize / 1e5) / 10,
  };
  const scrolled = await measure(page, session, () => scroll(page));
  await page.evaluate(() => scrollTo(0, 0));
  const charts = await measure(page, session, () => useCharts(page));
  await page.evaluate(() => document.querySelectorAll("details.fold").forEach((one) => (one.open = true)));
  await page.waitForTimeout(500);
  await page.evaluate(() => scrollTo(0, 0));
  const unfolded = await measure(page, session, () => scroll(page));
  await context.close();
  return { load, scrolled, charts, unfolded };
};

for (let round = 0; round < Number(rounds); round++)
  for (const one of pages) {
    const at = one.indexOf("=");
    console.log(JSON.stringify({ page: one.slice(0, at), round, ...(await visit(one.slice(at + 1))) }));
  }
await browser.close();
