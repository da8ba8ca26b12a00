"use strict";

// Curves, over an axis of steps, or with `doubling` of numbers of which each doubling is as wide. A chart is drawn by the page; it is drawn again from its numbers for a choice of the reader: a stretch of
// the axis, a logarithmic one, how much is smoothed, which lines are shown. Choices outlive updates of a live page.
const SVG = "http://www.w3.org/2000/svg";
const DODGE = 5;
const SMOOTHING = { "": "as drawn", 0: "none", 0.05: "a little", 0.15: "more", 0.4: "much" };
const choices = new Map();

// Text is as large on a small screen: its size is in units of the drawing.
const fitText = (svg) =>
  new ResizeObserver(() => svg.clientWidth && svg.style.setProperty("--unit", svg.viewBox.baseVal.width / svg.clientWidth)).observe(svg);

const shape = (name, attributes, text = "") => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
};
const brief = (value, unit = "") => {
  const scaled = unit === "share" ? 100 * value : value;
  const size = Math.abs(scaled);
  const text = size && (size < 1e-4 || size >= 1e7) ? scaled.toExponential(1) : Number(scaled.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 9 });
  return text + ({ share: "%", s: " s" }[unit] ?? "");
};
const marksOf = (low, high, logarithmic) => {
  if (logarithmic) {
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const factor of high / low > 1e3 ? [1] : [1, 2, 5]) powers.push(factor * 10 ** power);
    return powers.filter((value) => value >= low && value <= high);
  }
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const gap = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const marks = [];
  for (let n = Math.ceil(low / gap - 1e-9); n * gap <= high + gap * 1e-9; n++) marks.push(Number((n * gap).toPrecision(12)));
  return marks;
};
const smoothed = (values, share) => {
  const reach = Math.floor((values.length * share) / 2);
  if (reach < 1) return null;
  return values.map((_, i) => {
    const around = values.slice(Math.max(0, i - reach), i + reach + 1).filter((value) => value !== null);
    return around.length ? around.reduce((sum, value) => sum + value, 0) / around.length : null;
  });
};

const enhanceChart = (chart) => {
  const data = JSON.parse(chart.dataset.hover);
  const { across, steps, rows } = data;
  let x = data.x;
  const svg = chart.querySelector("svg");
  const cursor = chart.querySelector(".cursor");
  const tip = chart.querySelector(".tip");
  const title = svg.getAttribute("aria-label");
  const names = [...chart.querySelectorAll(".legend span:not(.level-name)")];
  const { width, height } = svg.viewBox.baseVal;
  const [left, right, top, bottom] = svg.dataset.box.split(" ").map(Number);
  const key = `${chart.closest("[data-part], section")?.id ?? ""} ${chart.className} ${title}`;
  const choice = choices.get(key) ?? { from: steps[0], to: steps.at(-1), whole: true, log: false, smooth: "", hidden: new Set(), open: false };
  let shown = steps.length - 1;

  fitText(svg);

  const redraw = () => {
    choices.set(key, choice);
    if (choice.whole) [choice.from, choice.to] = [steps[0], steps.at(-1)];
    const lines = data.values.map((values, i) => ({ i, values, bounds: data.bounds[i] })).filter(({ i }) => !choice.hidden.has(data.names[i]));
    const total = steps.map(() => 0);
    if (data.stacked) for (const line of lines) line.values = line.values.map((value, at) => (total[at] += value ?? 0));
    const inside = steps.map((step) => step >= choice.from && step <= choice.to);
    const isDrawn = (value) => value !== null && (!choice.log || value > 0);
    const heights = lines
      .flatMap(({ values, bounds }) => [...values.filter((_, at) => inside[at]), ...(bounds ?? []).flatMap((pair, at) => (pair && inside[at] ? pair : []))])
      .concat(data.levels)
      .filter(isDrawn);
    if (!choice.log && (data.stacked || data.unit === "share")) heights.push(0);
    let [low, high] = heights.length ? [Math.min(...heights), Math.max(...heights)] : [choice.log ? 0.1 : 0, 1];
    if (low === high) [low, high] = low === 0 || low === 1 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
    if (!choice.log) {
      const marks = marksOf(low, high);
      const gap = marks[1] - marks[0] || high - low;
      [low, high] = [Math.floor(low / gap + 1e-9) * gap, Math.ceil(high / gap - 1e-9) * gap];
    }
    const lift = choice.log ? Math.log : (value) => value;
    const y = (value) => height - bottom - ((lift(value) - lift(low)) / (lift(high) - lift(low))) * (height - top - bottom);
    const room = data.bounds.length ? (lines.length / 2) * DODGE : 0;
    const along = data.doubling ? Math.log2 : (step) => step;
    const reach = along(choice.to) - along(choice.from) || 1;
    const place = (step) => left + room + ((along(step) - along(choice.from)) / reach) * (width - left - right - 2 * room);
    x = steps.map((step, at) => (inside[at] ? place(step) : -1e6));
    const drawn = shape("g", { class: "drawn" });
    const ticks = shape("g", { class: "ticks" });
    const grid = shape("g", { class: "grid" });
    for (const value of marksOf(low, high, choice.log)) {
      grid.append(shape("path", { d: `M${left},${y(value)}H${width - right}` }));
      ticks.append(shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, brief(value, data.unit)));
    }
    for (const value of data.doubling ? steps.filter((_, at) => inside[at]) : marksOf(choice.from, choice.from + reach).filter(Number.isInteger))
      ticks.append(shape("text", { x: place(value), y: height - bottom + 16, "text-anchor": "middle" }, brief(value)));
    drawn.append(grid, ticks);
    let free = Infinity;
    for (const value of data.levels.filter(isDrawn)) {
      const level = shape("g", { class: "level" });
      free = Math.min(y(value), free - 14);
      level.append(shape("path", { d: `M${left},${y(value)}H${width - right}` }), shape("text", { x: width - right + 5, y: free + 4 }, brief(Number(value.toPrecision(3)))));
      drawn.append(level);
    }
    for (const [step, label] of data.stages)
      if (step >= choice.from && step <= choice.to) {
        const stage = shape("path", { class: "stage", d: `M${place(step)},${top}V${height - bottom}` });
        stage.append(shape("title", {}, label));
        drawn.append(stage);
      }
    lines.forEach((line, n) => {
      const shift = data.bounds.length ? (n - (lines.length - 1) / 2) * DODGE : 0;
      const curve = shape("g", { class: `curve ${names[line.i].className}` });
      const path = (values) =>
        values.reduce((d, value, at) => {
          if (data.doubling && value === null) return d;
          if (!inside[at] || !isDrawn(value)) return { text: d.text, pen: "M" };
          return { text: `${d.text}${d.pen}${(x[at] + shift).toFixed(1)},${y(value).toFixed(1)}`, pen: "L" };
        }, { text: "", pen: "M" }).text;
      const share = choice.smooth === "" ? (data.smooth[line.i] ? 0.05 : 0) : Number(choice.smooth);
      const smooth = data.stacked ? null : smoothed(line.values, share);
      if (data.stacked) {
        const below = n ? lines[n - 1].values : line.values.map(() => 0);
        const back = steps.map((_, at) => at).filter((at) => inside[at]).reverse();
        curve.append(shape("path", { class: "area", d: `${path(line.values)}${back.map((at) => `L${x[at].toFixed(1)},${y(below[at]).toFixed(1)}`).join("")}Z` }));
      }
      curve.append(shape("path", { class: smooth ? "raw" : "line", d: path(line.values) }));
      if (smooth) curve.append(shape("path", { class: "line", d: path(smooth) }));
      (line.bounds ?? []).forEach((pair, at) => pair && inside[at] && pair.every(isDrawn) && curve.append(shape("path", { class: "bar", d: `M${x[at] + shift},${y(pair[0])}V${y(pair[1])}` })));
      if (!data.stacked && inside.filter(Boolean).length <= 30)
        line.values.forEach((value, at) => inside[at] && isDrawn(value) && curve.append(shape("circle", { cx: x[at] + shift, cy: y(value), r: 2.6 })));
      drawn.append(curve);
    });
    svg.querySelector(".drawn").replaceWith(drawn);
    names.forEach((name, i) => name.setAttribute("aria-pressed", !choice.hidden.has(data.names[i])));
  };

  const line = (className, text) => {
    const div = document.createElement("div");
    div.className = className;
    div.append(document.createElement("i"), text);
    return div;
  };
  const show = (at) => {
    const box = svg.getBoundingClientRect();
    const scale = width / box.width;
    const head = document.createElement("b");
    head.textContent = `${across} ${steps[at]}`;
    const lines = rows
      .map((row, i) => [row[at], names[i], data.names[i]])
      .filter(([value, , name]) => value && !choice.hidden.has(name))
      .map(([value, name]) => line(name.className, `${name.childNodes[1].textContent.trim()}  ${value}`));
    tip.replaceChildren(head, ...lines);
    cursor.setAttribute("transform", `translate(${x[at]},0)`);
    const beyond = x[at] > width / 2;
    tip.style.left = beyond ? "auto" : `${x[at] / scale + 24}px`;
    tip.style.right = beyond ? `${box.width - x[at] / scale + 24}px` : "auto";
    tip.hidden = false;
    shown = at;
    chart.classList.add("on");
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) * width) / box.width;
    return x.reduce((best, value, i) => (Math.abs(value - at) < Math.abs(x[best] - at) ? i : best), 0);
  };
  const hide = () => {
    tip.hidden = true;
    chart.classList.remove("on");
  };
  const zoom = (from, to) => {
    Object.assign(choice, { from: steps[Math.max(from, 0)], to: steps[Math.min(to, steps.length - 1)], whole: false });
    if (choice.from >= choice.to || (choice.from === steps[0] && choice.to === steps.at(-1))) choice.whole = true;
    hide();
    redraw();
  };
  const closer = (factor) => {
    const reach = (steps.findLastIndex((step) => step <= choice.to) - steps.indexOf(choice.from)) * factor;
    zoom(Math.round(shown - reach / 2), Math.round(shown + reach / 2));
  };
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };
  const zooms = { "+": () => closer(0.5), "-": () => closer(2), 0: () => zoom(0, steps.length - 1) };
  let begun = null;

  svg.addEventListener("pointermove", (event) => show(nearest(event)));
  svg.addEventListener("pointerdown", (event) => {
    show(nearest(event));
    begun = event.pointerType === "mouse" ? nearest(event) : null;
  });
  svg.addEventListener("pointerup", (event) => {
    const end = nearest(event);
    if (begun !== null && begun !== end) zoom(Math.min(begun, end), Math.max(begun, end));
    begun = null;
  });
  svg.addEventListener("dblclick", zooms[0]);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(shown));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (!(event.key in moves) && !(event.key in zooms)) return;
    event.preventDefault();
    if (event.key in zooms) return zooms[event.key]();
    const inside = steps.map((_, at) => at).filter((at) => x[at] >= 0);
    show(Math.min(Math.max(shown + moves[event.key], inside[0]), inside.at(-1)));
  });
  if (names.length > 1)
    names.forEach((name, i) => {
      const toggle = () => {
        const hidden = choice.hidden;
        if (!hidden.delete(data.names[i])) hidden.add(data.names[i]);
        redraw();
      };
      name.setAttribute("role", "button");
      name.setAttribute("tabindex", "0");
      name.setAttribute("aria-pressed", "true");
      name.addEventListener("click", toggle);
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
    });
  chart.append(toolsOf(chart, svg, title, data, choice, redraw, () => zoom(0, steps.length - 1)));
  if (choices.has(key)) redraw();
};

// What can be chosen of a chart, and its files.
const toolsOf = (chart, svg, title, data, choice, redraw, whole) => {
  const tools = document.createElement("details");
  tools.className = "tools";
  tools.open = choice.open;
  tools.addEventListener("toggle", () => (choice.open = tools.open));
  const summary = document.createElement("summary");
  summary.textContent = "chart";
  const labelled = (text, control) => {
    const label = document.createElement("label");
    label.append(text, " ", control);
    return label;
  };
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", act);
    return made;
  };
  const log = Object.assign(document.createElement("input"), { type: "checkbox", checked: choice.log });
  log.addEventListener("change", () => ((choice.log = log.checked), redraw()));
  const smooth = document.createElement("select");
  for (const [value, text] of Object.entries(SMOOTHING).sort(([a], [b]) => a - b)) smooth.append(new Option(text, value));
  smooth.value = choice.smooth;
  smooth.addEventListener("change", () => ((choice.smooth = smooth.value), redraw()));
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "_").replace(/^_|_$/g, "") || "chart";
  tools.append(summary);
  if (!data.stacked) tools.append(labelled("log", log), labelled("smooth", smooth));
  tools.append(
    button("all steps", whole),
    button("SVG", () => save(`${name}.svg`, new Blob([pictureOf(svg)], { type: "image/svg+xml" }))),
    button("PNG", () => rasterise(svg, (blob) => save(`${name}.png`, blob))),
    button("CSV", () => save(`${name}.csv`, new Blob([tableOf(data)], { type: "text/csv" }))),
  );
  return tools;
};
const save = (name, blob) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
const pictureOf = (svg) => {
  const copy = svg.cloneNode(true);
  const styled = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-size", "font-family", "visibility"];
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const property of styled) node.style.setProperty(property, style.getPropertyValue(property));
  });
  const { width, height } = svg.viewBox.baseVal;
  for (const [attribute, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(attribute, value);
  copy.prepend(shape("rect", { width, height, fill: getComputedStyle(svg.closest(".chart")).backgroundColor }));
  copy.removeAttribute("style");
  return new XMLSerializer().serializeToString(copy);
};
const rasterise = (svg, then) => {
  const { width, height } = svg.viewBox.baseVal;
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  const image = new Image();
  image.addEventListener("load", () => {
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(then);
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(pictureOf(svg))}`;
};
const tableOf = ({ across, steps, names, values, bounds }) => {
  const quoted = (value) => (/[",\n]|^[=+@-](?!\d)/.test(value ?? "") ? `"${String(value).replaceAll('"', '""').replace(/^[=+@-]/, "'$&")}"` : (value ?? ""));
  const columns = names.flatMap((name, i) => [
    [name, ...values[i]],
    ...(bounds.length ? ["low", "high"].map((end, side) => [`${name} ${end}`, ...bounds[i].map((pair) => pair?.[side])]) : []),
  ]);
  return [across, ...steps].map((first, row) => [first, ...columns.map((column) => column[row])].map(quoted).join(",")).join("\n") + "\n";
};

