
// ---- draws ---------------------------------------------------------------------------------------------------------

const PROBABILITIES = [0.05, 0.25, 0.5, 0.75, 0.95];

function unpacked(text, n) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: n }, (_, i) => view.getFloat32(4 * i, true));
}

function inputsOf(data) {
  return data.inputs.map((each) =>
    typeof each === "string" ? unpacked(each, data.draws) : new Float64Array(data.draws).fill(each));
}

// Moves the median of draws to `value` and multiplies their spread by `width`, on the scale of the input.
function move(draws, control, value, width) {
  const middle = control.middle;
  const ways = {
    log: (x) => value * Math.pow(x / middle, width),
    log_above_one: (x) => 1 + (value - 1) * Math.pow((x - 1) / (middle - 1), width),
    // By the odds against, so that a share of exactly 1 stays one.
    logit: (x) => 1 / (1 + Math.pow((1 / x - 1) / (1 / middle - 1), width) * (1 / value - 1)),
    linear: (x) => value + width * (x - middle),
  };
  return draws.map(ways[control.scale]).map((x) => Math.min(Math.max(x, control.least), control.most));
}

function quantiles(draws) {
  const sorted = Float64Array.from(draws).sort();
  return PROBABILITIES.map((p) => {
    const place = p * (sorted.length - 1);
    const below = Math.floor(place);
    const above = Math.min(below + 1, sorted.length - 1);
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
  });
}

function evaluate(x, data) {
  const y = Array.from({ length: data.outputs }, () => new Float64Array(data.draws));
  model(x, y, data.draws);
  return y;
}

function holds(value, op, limit) {
  return op === "<" ? value < limit : op === "<=" ? value <= limit : op === ">" ? value > limit : value >= limit;
}

function probability(question, y, n) {
  let kept = 0;
  for (let i = 0; i < n; i++) kept += question.terms.every(([output, op, limit]) => holds(y[output][i], op, limit));
  return kept / n;
}

// ---- words: as gpustack_mc.formatting writes them ------------------------------------------------------------------

function stepFor(value, steps) {
  return steps.find(([start]) => Math.abs(value) * 1.0005 >= start) || steps[steps.length - 1];
}

function number(value, digits) {
  if (Number.isNaN(value)) return "unknown";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite";
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  const [mantissa, exponent] = rounded.toExponential(digits - 1).split("e");
  const size = Number(exponent);
  if (size >= 7 || size < -4) return `${mantissa}e${size}`;
  const places = Math.max(digits - 1 - size, 0);
  return rounded.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function digitsFor(value, low, high, unit) {
  const width = value ? Math.abs(high - low) / Math.abs(value) : Infinity;
  const wanted = width > 0.1 ? 2 : width > 0.005 ? 3 : 4;
  const size = Math.abs(value);
  return unit === "1" && size >= 0.1 && size < 10 ? Math.max(wanted, size < 0.995 ? 2 : 3) : wanted;
}

// An exact value: to the dollar, all digits before the point, and no zeros at the end.
function exactly(value, unit, steps) {
  const dollars = unit === "USD" && Math.abs(value) < 1e6;
  const step = dollars ? steps[steps.length - 1] : stepFor(value, steps);
  const size = value ? Math.floor(Math.log10(Math.abs(value * step[1]))) + 1 : 0;
  const [mantissa, exponent] = number(value * step[1], Math.max(4, size <= 7 ? size : 0)).split("e");
  const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
  return signed(exponent === undefined ? short : `${short}e${exponent}`, step[2], step[3]);
}

function signed(text, prefix, suffix) {
  return text.startsWith("-") ? `-${prefix}${text.slice(1)}${suffix}` : `${prefix}${text}${suffix}`;
}

// The median with its unit, and the interval in the same unit; the latter is empty where nothing varies.
function written([low, , middle, , high], unit, steps) {
  if (low === high) return [exactly(middle, unit, steps), ""];
  const [, factor, prefix, suffix] = stepFor(middle, steps);
  const one = (value, ending) => signed(number(value * factor, digitsFor(value, low, high, unit)), prefix, ending);
  const end = prefix ? suffix : "";
  return [one(middle, suffix), `${one(low, end)} – ${one(high, end)}`];
}

function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  return share > 0.999 && share < 1 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
}

function change(now, before) {
  if (!(before > 0) || !(now > 0)) return now === before ? "as it was" : "";
  const factor = now / before;
  if (Math.abs(factor - 1) < 0.005) return "as it was";
  return factor >= 2 || factor <= 0.5
    ? `${factor > 1 ? "×" : "÷"}${number(Math.max(factor, 1 / factor), 2)}`
    : `${factor > 1 ? "+" : "−"}${Math.round(100 * Math.abs(factor - 1))}%`;
}

// What a scenario states to get this: a plain number, "90% between", or a normal distribution where there is no scale.
function statement(control, value, width, draws) {
  const plain = (x) => String(Number(x.toPrecision(4)));
  if (!control.varies || width === 0) return `${control.key}: ${plain(value)}`;
  const [low, , , , high] = quantiles(draws);
  return control.scale === "linear"
    ? `${control.key}: {dist: normal, mean: ${plain(value)}, sd: ${plain((high - low) / 3.29)}}`
    : `${control.key}: {low: ${plain(low)}, high: ${plain(high)}}`;
}

// ---- sliders -------------------------------------------------------------------------------------------------------

const STEPS = 200;
const SCALES = {
  log: [Math.log, Math.exp],
  log_above_one: [(x) => Math.log(x - 1), (t) => 1 + Math.exp(t)],
  logit: [(x) => Math.log(x / (1 - x)), (t) => 1 / (1 + Math.exp(-t))],
  linear: [(x) => x, (t) => t],
};

// Where the slider of an input stands at its own median, which it hits exactly.
function home(control) {
  const [to] = SCALES[control.scale];
  const [low, middle, high] = [control.low, control.middle, control.high].map(to);
  return Math.round((STEPS * (middle - low)) / (high - low));
}

function valueAt(control, position) {
  const [to, from] = SCALES[control.scale];
  const start = home(control);
  if (position === start) return control.middle;
  const [low, middle, high] = [control.low, control.middle, control.high].map(to);
  return from(position < start
    ? low + ((middle - low) * position) / start
    : middle + ((high - middle) * (position - start)) / (STEPS - start));
}

// ---- page ----------------------------------------------------------------------------------------------------------

function strip(before, now, reach) {
  const place = (value, median) => 50 + 50 * Math.max(-1, Math.min(1, Math.log(value / median) / reach));
  const name = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(name, "svg");
  const line = (x1, x2, y1, y2, stroke, width) => {
    const element = document.createElementNS(name, "line");
    const attributes = { x1, x2, y1, y2, stroke, "stroke-width": width, "vector-effect": "non-scaling-stroke" };
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    svg.append(element);
  };
  for (const [key, value] of Object.entries({ class: "strip", viewBox: "0 0 100 40", preserveAspectRatio: "none" }))
    svg.setAttribute(key, value);
  svg.setAttribute("aria-hidden", "true");
  line(50, 50, 0, 40, "var(--line)", 1);
  for (const [row, y, thin, thick, color] of [[before, 31, 1.2, 4, "var(--muted)"], [now, 13, 1.5, 7, "var(--blue)"]]) {
    const [low, first, middle, third, high] = row.map((value) => place(value, before[2]));
    line(low, high, y, y, color, thin);
    line(first, third, y, y, color, thick);
    line(middle, middle, y - 7, y + 7, "var(--ink)", 2);
  }
  return svg;
}

function start() {
  const data = JSON.parse(document.getElementById("try-data").textContent);
  const original = inputsOf(data);
  const before = evaluate(original, data);
  const current = original.slice();
  const find = (control, part) => document.getElementById(`input-${control.input}-${part}`);
  const rows = data.rows.map((row, i) => ({
    ...row, before: quantiles(before[row.output]), element: document.querySelector(`[data-row="${i}"]`),
  }));
  const drawn = rows.filter((row) => row.before[0] > 0 && row.before[0] < row.before[4]);
  const reach = Math.max(Math.log(1.5), ...drawn.map((row) =>
    1.25 * Math.max(Math.log(row.before[4] / row.before[2]), Math.log(row.before[2] / row.before[0]))));

  function settings(control) {
    const width = control.varies ? Number(find(control, "width").value) / 100 : 0;
    return [valueAt(control, Number(find(control, "middle").value)), width];
  }
  function isMoved(control) {
    const [value, width] = settings(control);
    return value !== control.middle || (control.varies && width !== 1);
  }
  function moveInput(control) {
    const [value, width] = settings(control);
    current[control.input] =
      isMoved(control) ? move(original[control.input], control, value, width) : original[control.input];
    const [middle, ends] = written(quantiles(current[control.input]), control.unit, data.units[control.unit]);
    const text = ends ? `${middle} (${ends})` : middle;
    find(control, "value").textContent = text;
    find(control, "middle").setAttribute("aria-valuetext", text);
    if (control.varies) {
      const spread = width === 0 ? "known exactly" : `${Math.round(100 * width)}%`;
      find(control, "spread").textContent = spread;
      find(control, "width").setAttribute("aria-valuetext", spread);
    }
    find(control, "row").classList.toggle("moved", isMoved(control));
  }
  function show() {
    const y = evaluate(current, data);
    const said = [];
    for (const row of rows) {
      const now = quantiles(y[row.output]);
      const [middle, ends] = written(now, row.unit, data.units[row.unit]);
      row.element.querySelector(".now").textContent = middle;
      row.element.querySelector(".ends").textContent = ends || "fixed";
      row.element.querySelector(".change").textContent = change(now[2], row.before[2]);
      if (drawn.includes(row)) row.element.querySelector(".picture").replaceChildren(strip(row.before, now, reach));
      if (row.said) said.push(`${row.label} ${middle}${ends ? ` (${ends})` : ""}`);
    }
    data.questions.forEach((question, i) => {
      const element = document.querySelector(`[data-question="${i}"]`);
      element.querySelector(".now").textContent = percent(probability(question, y, data.draws));
      element.querySelector(".was").textContent = `was ${percent(probability(question, before, data.draws))}`;
    });
    document.getElementById("try-said").textContent = said.join("; ");
    clearTimeout(speaking);
    // A screen reader is told when the slider rests.
    speaking = setTimeout(() => { document.getElementById("try-spoken").textContent = said.join("; "); }, 600);
    const moved = data.controls.filter(isMoved);
    document.getElementById("try-reset").disabled = moved.length === 0;
    document.getElementById("try-scenario").textContent = moved.length
      ? ["inputs:", ...moved.map((control) => {
        const [value, width] = settings(control);
        return `  ${statement(control, value, width, current[control.input])}`;
      })].join("\n")
      : "# nothing is moved";
  }
  let waiting = false;
  let speaking = 0;
  function soon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  }
  function reset() {
    for (const control of data.controls) {
      find(control, "middle").value = home(control);
      if (control.varies) find(control, "width").value = 100;
      moveInput(control);
    }
    soon();
  }
  for (const control of data.controls) {
    control.least = control.least ?? -Infinity;
    control.most = control.most ?? Infinity;
    for (const part of control.varies ? ["middle", "width"] : ["middle"])
      find(control, part).addEventListener("input", () => { moveInput(control); soon(); });
  }
  document.getElementById("try-reset").addEventListener("click", reset);
  document.getElementById("try-body").hidden = false;
  reset();
}

if (typeof document !== "undefined") start();
