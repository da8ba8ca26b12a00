// Walk through pages of vlmrl in headless Chromium, and print what was checked and what is wrong as JSON.
//
//   node walk.mjs report REPORT.html
//   node walk.mjs payloads REPORT.html
//   node walk.mjs live RUNS RUN HOSTILE      (PYTHON serves RUNS; lines are appended to RUN)
//   node walk.mjs rows RUNS RUN TURNS HOSTILE
//   node walk.mjs start FOLDER CONFIG        (PYTHON serves FOLDER/runs; the text of CONFIG is written and run)
//
// tests/browser/test_walk.py does; CHROMIUM names the browser. Exits with 1 where something is wrong.
import { pathToFileURL } from "node:url";
import { checked, close, wrong } from "./browser.mjs";
import { walkLive } from "./live.mjs";
import { walkPayloads } from "./payloads.mjs";
import { walkReport } from "./report.mjs";
import { walkRows } from "./rows.mjs";
import { walkStart } from "./start.mjs";

const [what, ...rest] = process.argv.slice(2);
const figures = {};
try {
  if (what === "report") await walkReport(pathToFileURL(rest[0]).href, figures);
  else if (what === "payloads") await walkPayloads(pathToFileURL(rest[0]).href);
  else if (what === "live") await walkLive(...rest, figures);
  else if (what === "rows") await walkRows(...rest, figures);
  else if (what === "start") await walkStart(...rest, figures);
  else throw new Error(`expected report, payloads, live, rows or start, got ${what}`);
} finally {
  await close();
}
console.log(JSON.stringify({ checked, wrong, figures }, null, 1));
process.exitCode = wrong.length ? 1 : 0;
