// A report in light, dark, on a phone and in print, without a network, and by keyboard alone.
import { walkCharts } from "./charts.mjs";
import { audit, check, expect, fits, open, tabThrough, WAYS } from "./browser.mjs";

export const walkReport = async (address, figures) => {
  for (const way of Object.keys(WAYS)) {
    const visit = await open(address, way);
    await check(`axe, ${way}`, () => audit(visit.page));
    await check(`fits, ${way}`, () => fits(visit.page));
    if (way !== "print") {
      // Everything that folds, opened: what is inside counts, too.
      await visit.page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
      await check(`axe, ${way}, opened`, () => audit(visit.page));
      await check(`fits, ${way}, opened`, () => fits(visit.page));
    }
    await visit.close();
  }
  const visit = await open(address);
  await check("Tab reaches everything", async () => (figures.stops = await tabThrough(visit.page)));
  figures.nodes = await visit.page.evaluate(() => document.querySelectorAll("*").length);
  await walkByKeyboard(visit.page);
  await walkCharts(visit.page);
  await visit.close();
};

// Only keys from here on; `focus` stands for the Tabs that lead there, which were tried before.
export const walkByKeyboard = async (page) => {
  const press = (key) => page.keyboard.press(key);

  await check("arrows move through the large chart, Escape ends it", async () => {
    const chart = page.locator(".main .chart:visible");
    if (!(await chart.count())) return;
    await chart.locator("svg").focus();
    await press("Home");
    const first = await chart.locator(".tip").textContent();
    await press("End");
    const last = await chart.locator(".tip").textContent();
    expect(/\d/.test(first) && /\d/.test(last), `nothing is said of a step: ${first}`);
    await press("ArrowLeft");
    const points = await chart.evaluate((one) => JSON.parse(one.dataset.hover).steps.length);
    const before = await chart.locator(".tip").textContent();
    expect(points < 2 || (first !== last && before !== last), "an arrow changes nothing");
    await press("Escape");
    expect(await chart.locator(".tip").isHidden(), "Escape leaves the values");
  });

  await check("a folded section opens with Enter and closes with Space", async () => {
    const fold = page.locator("details.fold:not([open]) > summary").first();
    if (!(await fold.count())) return;
    const section = await fold.evaluateHandle((one) => one.parentElement);
    await fold.focus();
    await press("Enter");
    expect(await section.evaluate((one) => one.open), "Enter does not open it");
    await press("Space");
    expect(!(await section.evaluate((one) => one.open)), "Space does not close it");
  });

  await check("a link of the navigation leads to its section, opened", async () => {
    const link = page.locator("nav a").last();
    const target = await link.getAttribute("href");
    await link.focus();
    await press("Enter");
    await page.waitForFunction((hash) => location.hash === hash, target);
    const top = await page.locator(`[id="${target.slice(1)}"]`).evaluate((one) => one.getBoundingClientRect().top);
    const height = await page.evaluate(() => innerHeight);
    expect(top < height, `the section is ${top} pixels down`);
  });

  for (const gallery of await page.locator(".gallery:has(.card)").all()) await walkGallery(page, gallery);
};

const walkGallery = async (page, gallery) => {
  const press = (key) => page.keyboard.press(key);
  const name = await gallery.locator("h2").textContent();
  const said = () => gallery.locator("output").textContent();

  await check(`${name}: a filter is set with the arrows`, async () => {
    const filter = gallery.locator("select[data-filter=step], select[data-filter=source]").first();
    if (!(await filter.count())) return;
    await filter.focus();
    const before = [await filter.inputValue(), await said()];
    await press("Home");
    expect((await filter.inputValue()) === "", "Home does not choose all");
    const [shown, all] = (await said()).match(/\d+/g);
    expect(shown === all, `all chosen, and ${shown} of ${all} shown`);
    await press("ArrowDown");
    expect((await filter.inputValue()) !== "", `an arrow changes nothing: ${before}`);
  });

  await check(`${name}: failures are chosen with the arrows`, async () => {
    const filter = gallery.locator("select[data-filter=failure]");
    if (!(await filter.count())) return;
    const before = await said();
    await filter.focus();
    await press("ArrowDown");
    expect((await filter.inputValue()) !== "", "nothing is chosen");
    const chosen = await filter.inputValue();
    const others = await gallery.locator(`.card:visible:not([data-failure*='"${chosen}"'])`).count();
    expect(others === 0, `${others} without ${chosen} are shown`);
    await press("Home");
    await page.waitForFunction(([one, text]) => one.textContent === text, [await gallery.locator("output").elementHandle(), before]).catch(
      async () => expect((await said()) === before, `${await said()} after, ${before} before`));
  });

  await check(`${name}: a completion opens with Enter`, async () => {
    const one = gallery.locator(".card:visible .try > summary").first();
    await one.focus();
    await press("Enter");
    expect(await one.evaluate((summary) => summary.parentElement.open), "not open");
    expect(await gallery.locator(".try[open] table").first().isVisible(), "its verdicts are not shown");
  });

  await check(`${name}: an image opens at full size with Enter, Escape closes it`, async () => {
    const image = gallery.locator(".card:visible svg.canvas").first();
    if (!(await image.count())) return;
    const small = await image.boundingBox();
    await image.focus();
    await press("Enter");
    const large = page.locator("dialog[open] svg.canvas");
    const box = await large.boundingBox();
    expect(box && box.width * box.height >= small.width * small.height, "the image is not larger");
    expect(await large.evaluate((svg) => svg.querySelector("image") !== null), "the image is empty");
    await press("Escape");
    expect((await page.locator("dialog[open]").count()) === 0, "Escape does not close it");
    expect(await image.evaluate((one) => one === document.activeElement), "the focus is lost");
  });
};
