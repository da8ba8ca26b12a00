// The page that starts runs: by keyboard from an empty folder to a finished run, and what becomes of a run when the
// server ends.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { audit, check, expect, fits, open, tabThrough, WAYS } from "./browser.mjs";
import { serve } from "./live.mjs";

const said = (page, text) => page.locator("#said", { hasText: text }).waitFor();
const state = (page, name, text) => page.locator(`.run[data-name="${name}"][data-state="${text}"]`).waitFor();
const begin = async (address, way) => {
  const visit = await open(address, way);
  await visit.page.locator("#mistakes", { hasText: "valid" }).waitFor();
  return visit;
};

// The browser notes a refusal as an error of its own; here it is wanted.
const refused = async (visit, work) => {
  visit.downtime = true;
  await work();
  visit.downtime = false;
};

// Press Tab until an element has the focus.
const tabTo = async (page, selector) => {
  for (let count = 0; count < 400; count++) {
    if (await page.evaluate((wanted) => document.activeElement.matches(wanted), selector)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not reach ${selector}`);
};
const press = async (page, selector) => {
  await tabTo(page, selector);
  await page.keyboard.press("Enter");
};
const write = async (page, selector, text) => {
  await tabTo(page, selector);
  await page.keyboard.press("Control+A");
  await page.keyboard.insertText(text);
};

export const walkStart = async (folder, config, figures) => {
  const text = readFileSync(config, "utf8");
  let server = await serve("runs", 0, ["--start"], folder);
  const { origin, port } = new URL(server.at);
  try {
    await walkDoor(origin, server.at);
    const visit = await begin(server.at);
    const { page } = visit;
    await check("the token leaves the address", async () => expect(!page.url().includes("#"), page.url()));
    await check("it begins with a config that may be run", async () =>
      expect((await page.locator("#text").inputValue()).includes("extends: quickstart"), "another text"));
    await walkText(visit, text);
    await walkForecast(page, folder, text);
    await walkRun(page, folder);
    await check("Tab reaches everything", async () => {
      await page.evaluate(() => document.activeElement.blur());
      figures.stops = await tabThrough(page);
    });
    await walkOverwriting(visit, folder);
    await visit.close();
    server = await walkStopping(server, folder, port);
    for (const way of Object.keys(WAYS)) {
      const look = await begin(server.at, way);
      await look.page.locator("#text").fill(text.replace("lr:", "lrr:"));
      await look.page.locator(".wrong").waitFor();
      await look.page.locator("summary", { hasText: "all keys" }).click();
      await check(`axe, a config and runs, ${way}`, () => audit(look.page));
      await check(`fits, a config and runs, ${way}`, () => fits(look.page));
      await look.close();
    }
  } finally {
    await server.stop();
  }
};

// Without the token there is nothing to see and nothing to ask for; typed by hand it is as good.
const walkDoor = async (origin, address) => {
  const visit = await open(`${origin}/start`);
  const { page } = visit;
  await check("without the token nothing is shown", async () => {
    await page.locator("#door").waitFor();
    expect(!(await page.locator("#all").isVisible()), "the page is shown");
    expect(!(await page.locator("#from option").count()), "files are told");
  });
  await check("axe, the door", () => audit(page));
  await check("a wrong token is refused", async () => {
    await said(page, "needs its token");
    await refused(visit, async () => {
      await write(page, "#token", "wrong");
      await page.keyboard.press("Enter");
      await said(page, "no valid token");
    });
  });
  await check("the token opens the page", async () => {
    await write(page, "#token", decodeURIComponent(address.split("#")[1]));
    await page.keyboard.press("Enter");
    await page.locator("#mistakes", { hasText: "valid" }).waitFor();
  });
  await visit.close();
};

const walkText = async (visit, text) => {
  const { page } = visit;
  await check("an unknown key is told beside it, with the nearest", async () => {
    await write(page, "#text", text.replace("lr:", "lrr:"));
    await page.locator(".wrong", { hasText: "optimizer.lrr unknown key; did you mean 'lr'?" }).waitFor();
    expect((await page.locator("#mistakes").textContent()) === "1 mistake", "another count");
    expect((await page.locator("#text").getAttribute("aria-invalid")) === "true", "the text is not marked");
  });
  await check("a config with a mistake is not started", async () => {
    await refused(visit, async () => {
      await press(page, "#run");
      await said(page, "did you mean 'lr'?");
    });
    expect(!(await page.locator(".run").count()), "a run began");
  });
  await check("Enter on the line of a mistake leads to it, and it is mended there", async () => {
    await page.locator("#open").focus();
    await press(page, ".wrong [data-line]");
    await page.keyboard.press("Home");
    await page.keyboard.press("End");
    await page.keyboard.press("Shift+Home");
    await page.keyboard.insertText("  lr: 1.0e-4");
    await page.locator("#mistakes", { hasText: "valid" }).waitFor();
    expect((await page.locator("#text").inputValue()) === text, "another text");
  });
  await check("the help of the key at the caret is in sight", async () => {
    const here = page.locator(".keys .here");
    expect((await here.textContent()).includes("optimizer.lr"), await here.textContent());
    expect((await here.textContent()).includes("Learning rate"), "no description");
  });
  await check("no YAML is told by its line", async () => {
    await write(page, "#text", "extends: quickstart\nrun:\n\tsteps: 5\n");
    await page.locator("#keys .complaint", { hasText: "mine.yaml, line 3: not valid YAML" }).waitFor();
    await write(page, "#text", text);
    await page.locator("#mistakes", { hasText: "valid" }).waitFor();
  });
  await check("a key is found by a word of its description", async () => {
    await press(page, "summary:has(+ .bar #find)");
    await write(page, "#find", "learning rate warm-up");
    await page.locator(".all td:first-child", { hasText: /^optimizer\.lr$/ }).waitFor();
    expect(!(await page.locator(".all td:first-child", { hasText: /^run\.steps$/ }).isVisible()), "run.steps is shown, too");
  });
};

const walkForecast = async (page, folder, text) => {
  await check("the commands are those of the keys", async () => {
    await write(page, "#overrides", "run.steps=4");
    await page.locator("#train code", { hasText: /^vlmrl train mine.yaml run.steps=4$/ }).waitFor();
    await write(page, "#gpu", "l4");
    await page.locator("#plan code", { hasText: "vlmrl plan mine.yaml run.steps=4 --gpus=1 --gpu=l4" }).waitFor();
  });
  await check("a command is copied", async () => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await press(page, "#train [data-copy]");
    await said(page, "copied");
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    expect(copied === "vlmrl train mine.yaml run.steps=4", copied);
  });
  await check("the forecast is that of the command", async () => {
    await press(page, "#forecast");
    await said(page, "the forecast is there");
    expect((await page.locator("#outputs").textContent()).includes("1 x l4"), "another forecast");
  });
  await check("the config is a file", async () =>
    expect(readFileSync(join(folder, "mine.yaml"), "utf8") === text, "another text"));
};

const walkRun = async (page, folder) => {
  await check("a run goes from its start to its end", async () => {
    await press(page, "#run");
    await state(page, "mine", "running");
    await state(page, "mine", "finished");
    await said(page, "mine: finished");
    expect((await page.locator(".run").textContent()).includes("4 of 4"), "other steps");
    expect(existsSync(join(folder, "runs/mine/summary.json")), "no run folder");
  });
  await check("its log is here", async () => {
    await press(page, ".run summary");
    const log = await page.locator(".run pre").textContent();
    expect(log.includes("$ vlmrl train mine.yaml run.steps=4") && log.includes("step 4/4"), log);
  });
  await check("its name leads to its page", async () => {
    await press(page, ".run h3 a");
    await page.waitForURL((url) => url.pathname === "/run/mine");
    await page.locator(".state", { hasText: "4 of 4" }).waitFor();
    await page.goBack();
    await page.locator("#mistakes", { hasText: "valid" }).waitFor();
  });
};

const walkOverwriting = async (visit, folder) => {
  const { page } = visit;
  await check("a file is not overwritten unless that is said", async () => {
    writeFileSync(join(folder, "other.yaml"), "extends: quickstart\n");
    await write(page, "#name", "other.yaml");
    await refused(visit, async () => {
      await press(page, "#save");
      await said(page, "other.yaml is there already");
    });
    expect(readFileSync(join(folder, "other.yaml"), "utf8") === "extends: quickstart\n", "it was overwritten");
    await tabTo(page, "#replace");
    await page.keyboard.press("Space");
    await page.locator("#open").focus();
    await press(page, "#save");
    await said(page, "saved other.yaml");
  });
  await check("a name that leads out of the folder is refused", async () => {
    await refused(visit, async () => {
      await write(page, "#name", "../out.yaml");
      await page.locator("#open").focus();
      await press(page, "#save");
      await said(page, "without a folder");
    });
  });
};

// A run outlives its server, is found again by the next one, and is stopped and resumed there.
const walkStopping = async (server, folder, port) => {
  let visit = await begin(server.at);
  await visit.page.locator("#text").fill(readFileSync(join(folder, "mine.yaml"), "utf8"));
  await visit.page.locator("#name").fill("long.yaml");
  await visit.page.locator("#overrides").fill("run.name=long run.steps=5000");
  await press(visit.page, "#run");
  await state(visit.page, "long", "running");
  await visit.close();
  await server.stop();
  server = await serve("runs", port, ["--start"], folder);
  visit = await begin(server.at);
  const { page } = visit;
  await check("a run outlives its server", () => state(page, "long", "running"));
  await check("a second run is kept out of its folder", async () => {
    await refused(visit, async () => {
      await write(page, "#overrides", "run.name=long");
      await press(page, "#run");
      await said(page, "another run is writing to this folder");
    });
  });
  for (const time of ["once", "again"]) {
    await check(`it is stopped, ${time}`, async () => {
      await press(page, "[data-ask=stop]");
      await state(page, "long", "not running");
      expect((await page.locator(".run pre").first().textContent()).includes("resume=auto"), "it did not save");
    });
    if (time === "once")
      await check("it is resumed", async () => {
        await press(page, "[data-ask=resume]");
        await state(page, "long", "running");
        const resumed = page.locator(".run", { hasText: "vlmrl train long.yaml run.name=long run.steps=5000 resume=auto" });
        await resumed.first().waitFor();
      });
  }
  await visit.close();
  return server;
};
