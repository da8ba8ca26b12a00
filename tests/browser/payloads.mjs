// A page whose every text is an attack: nothing of it may run, not even where no content policy stops it.
import { check, expect, open } from "./browser.mjs";

// `least`: how often each kind of attack is shown at least; `forms`: how many forms are the page's own.
export const walkPayloads = async (address, { ready = async () => {}, name: of = "", least = 6, forms = 0 } = {}) => {
  for (const unguarded of [false, true]) {
    const name = [of, unguarded ? "without a policy" : "under its policy"].filter(Boolean).join(", ");
    const visit = await open(address, "light", { unguarded });
    const { page } = visit;
    await ready(page);
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await ready(page);
    await check(`payloads are text, ${name}`, async () => {
      const text = await page.evaluate(() => document.body.textContent);
      const count = (part) => text.split(part).length - 1;
      for (const part of ["<img src=x onerror=", "</script><script>", "<svg onload=", "javascript:", "{{7*7}}"])
        expect(count(part) >= least, `expected ${part} to be shown, found ${count(part)} times`);
      expect(!text.includes("{{49}}") && count("attack49") === 0, "a template was filled in");
    });
    await check(`no payload made an element or an attribute, ${name}`, async () => {
      const found = await page.evaluate((own) => [...document.querySelectorAll("*")]
        .filter((e) => e.getAttributeNames().some((key) => key.startsWith("on"))
          || /^\s*(javascript|vbscript):/i.test(e.getAttribute("href") ?? e.getAttribute("src") ?? "")
          || /^(IFRAME|OBJECT|EMBED|BASE|LINK)$/.test(e.tagName)
          || (e.tagName === "FORM" && document.forms.length !== own))
        .map((e) => e.outerHTML.slice(0, 120)), forms);
      expect(!found.length, found.slice(0, 3).join("; "));
      const scripts = await page.evaluate(() => document.scripts.length);
      expect(scripts === 1, `expected one script, found ${scripts}`);
    });
    await check(`nothing runs while it is used, ${name}`, async () => {
      // Titles and series reach the script of the page: values of charts are shown, all of them.
      for (const chart of await page.locator(".chart:visible svg").all()) {
        await chart.focus();
        await page.keyboard.press("Home");
      }
      for (const select of await page.locator("select:visible").all()) {
        const values = await select.evaluate((one) => [...one.options].map((option) => option.value));
        for (const value of values) await select.selectOption(value);
        await select.selectOption(values[0]);
      }
      for (const box of await page.locator("input[data-filter]:visible").all()) {
        await box.click();
        await box.click();
      }
      for (const image of await page.locator("svg.canvas:visible").all()) {
        await image.focus();
        await page.keyboard.press("Enter");
        await page.keyboard.press("Escape");
      }
      const ran = await page.evaluate(() => globalThis.attack);
      expect(ran === undefined, `attack ${ran} ran`);
    });
    await visit.close();
  }
};
