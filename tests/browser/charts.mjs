// What a reader does with a chart: a stretch of it, a logarithmic axis, lines hidden, its files; by keys alone.
import { readFile } from "node:fs/promises";
import { check, expect } from "./browser.mjs";

const range = (chart) => chart.locator(".drawn .ticks text[text-anchor=middle]").allTextContents();
const curves = (chart) => chart.locator(".drawn .curve").count();

export const walkCharts = async (page) => {
  const chart = page.locator(".charts .chart:visible:has(.legend span:nth-of-type(2))").first();
  if (!(await chart.count())) return;
  const svg = chart.locator("svg");
  const press = (key) => page.keyboard.press(key);

  await check("labels are 12 pixels high and lie on no other", async () => {
    const faults = await page.evaluate(() =>
      [...document.querySelectorAll(".chart svg")].filter((one) => one.clientWidth).flatMap((one) => {
        const texts = [...one.querySelectorAll("text")];
        const size = (text) => (parseFloat(getComputedStyle(text).fontSize) * one.clientWidth) / one.viewBox.baseVal.width;
        const boxes = texts.map((text) => text.getBoundingClientRect());
        const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 4 || b.bottom <= a.top + 4;
        return texts.flatMap((text, i) => [
          ...(Math.abs(size(text) - 12) < 0.3 ? [] : [`${text.textContent}: ${size(text)} px`]),
          ...texts.slice(i + 1).filter((_, j) => !apart(boxes[i], boxes[i + 1 + j])).map((other) => `${text.textContent} on ${other.textContent}`),
        ]);
      }));
    expect(!faults.length, faults.slice(0, 5).join("; "));
  });

  await check("plus and minus zoom about the cursor, 0 shows all", async () => {
    await svg.focus();
    const before = await range(chart);
    await press("Home");
    await press("+");
    expect(`${await range(chart)}` !== `${before}`, `the axis stays ${before}`);
    await press("0");
    expect((await range(chart)).length > 1, "no ticks");
  });

  await check("a stretch is chosen by dragging", async () => {
    const before = await range(chart);
    await svg.scrollIntoViewIfNeeded();
    const box = await svg.boundingBox();
    await page.mouse.move(box.x + box.width * 0.3, box.y + box.height / 2);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.6, box.y + box.height / 2);
    await page.mouse.up();
    expect(`${await range(chart)}` !== `${before}`, `the axis stays ${before}`);
  });

  await check("a line is hidden by its name, with Enter", async () => {
    const [name, all] = [chart.locator(".legend [role=button]").first(), await curves(chart)];
    await name.focus();
    await press("Enter");
    expect((await curves(chart)) === all - 1 && (await name.getAttribute("aria-pressed")) === "false", "it is shown");
    await press("Enter");
    expect((await curves(chart)) === all, "it does not come back");
  });

  await check("the axis is logarithmic, lines are smoothed, and files are saved", async () => {
    await chart.locator(".tools summary").focus();
    await press("Enter");
    await chart.getByLabel("log").check();
    await chart.getByLabel("smooth").selectOption("much");
    for (const [kind, begin] of [["SVG", "<svg"], ["PNG", "\u0089PNG"], ["CSV", "step,"]]) {
      const [download] = await Promise.all([page.waitForEvent("download"), chart.getByRole("button", { name: kind }).click()]);
      expect(download.suggestedFilename().endsWith(kind.toLowerCase()), download.suggestedFilename());
      const content = (await readFile(await download.path())).toString("latin1");
      expect(content.startsWith(begin) && content.length > 60, `${kind} begins with ${content.slice(0, 40)}`);
    }
  });
};
