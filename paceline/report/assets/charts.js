"use strict";
// Charts of the page: lines by uPlot, maps on a canvas. Colours are the page's own, read anew when light and dark change.
const Charts = (() => {
  // What is drawn, with where: what has left the page is drawn no more.
  const drawn = [];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
    return made;
  };
  const pad = (n, width = 2) => String(n).padStart(width, "0");
  const clock = (ms, digits = 0) => {
    if (ms === null || ms === undefined) return "";
    const at = new Date(ms);
    const seconds = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}:${pad(at.getUTCSeconds())}`;
    return digits ? `${seconds}.${pad(at.getUTCMilliseconds(), 3).slice(0, digits)}` : seconds;
  };
  const day = (ms) => new Date(ms).toISOString().slice(0, 10);
  const number = (value) => {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(+value.toPrecision(3));
  };

  // A perceptually even ramp from calm to alarming; the same in light and dark, so that pictures can be compared.
  const STOPS = [[38, 70, 120], [44, 120, 160], [120, 175, 170], [240, 220, 140], [244, 150, 60], [235, 60, 40], [255, 30, 30]];
  const ramp = (share) => {
    const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1), low = Math.floor(at), high = Math.min(low + 1, STOPS.length - 1);
    return STOPS[low].map((value, i) => Math.round(value + (STOPS[high][i] - value) * (at - low)));
  };
  const bytes = (text) => {
    const raw = atob(text), made = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
    return made;
  };
  // Unpacked once, when a map is first shown.
  const unpacked = new Map();
  const cellsOf = (map) => {
    if (!unpacked.has(map)) {
      const cells = bytes(map.cells), who = map.who ? bytes(map.who) : null;
      unpacked.set(map, { cells, who, worst: worst(map, cells, who) });
    }
    return unpacked.get(map);
  };

  function lines(into, options) {
    const holder = el("div", { class: "lane" });
    into.append(holder);
    let plot = null;
    const draw = () => {
      const range = plot ? [plot.scales.x.min, plot.scales.x.max] : null;
      if (plot) plot.destroy();
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 0.5 }, ticks: { stroke: style("--line"), width: 0.5 } };
      plot = new uPlot({
        title: options.title,
        width: Math.max(280, holder.clientWidth),
        height: options.height || 200,
        tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
        cursor: options.sync ? { sync: { key: options.sync } } : {},
        scales: { x: { time: true }, y: { range: options.range || ((u, low, high) => (low === null ? [0, 1] : [Math.min(low, options.floor ?? low), high + (high - low) * 0.08 || 1])) } },
        axes: [{ ...axis, space: 90, values: (u, splits) => splits.map((at) => clock(at * 1e3)) }, { ...axis, size: 64, label: options.unit, labelSize: 18 }],
        series: [{ label: "at", value: (u, at) => (at ? clock(at * 1e3, 1) : "") }].concat(
          options.series.map((s) => ({ label: s.label, stroke: style(s.colour), width: 1.5, spanGaps: true, points: { show: false }, value: (u, v) => (v === null || v === undefined ? "" : `${number(v)} ${options.unit}`), ...(s.fill ? { fill: style(s.fill) } : {}) }))),
        hooks: { drawClear: [(u) => shade(u, options.bands || [])] },
      }, [options.at].concat(options.series.map((s) => s.values)), holder);
      if (range && range[0] !== null) plot.setScale("x", { min: range[0], max: range[1] });
    };
    draw();
    drawn.push([holder, draw]);
    return () => plot;
  }

  function shade(u, bands) {
    const context = u.ctx;
    context.save();
    context.fillStyle = style("--shade");
    for (const [from, to] of bands) {
      const left = Math.max(u.bbox.left, u.valToPos(from, "x", true)), right = Math.min(u.bbox.left + u.bbox.width, u.valToPos(to, "x", true));
      if (right > left) context.fillRect(left, u.bbox.top, Math.max(2, right - left), u.bbox.height);
    }
    context.restore();
  }

  function heat(into, map) {
    const { cells, who, worst } = cellsOf(map);
    const canvas = el("canvas", { role: "img", "aria-label": `${map.name}: ${map.labels.length} ${map.what} over time; the worst cells are listed below` });
    const tip = el("p", { class: "tip soft" }, "Point at a cell.");
    const scale = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
    const [calm, alarming] = map.worst === "low" ? [map.high, map.low] : [map.low, map.high];
    const holder = el("div", { class: "heat" },
      el("div", { class: "scale" }, el("span", {}, map.name), el("span", {}, `${number(calm)} ${map.unit}`), scale, el("span", {}, `${number(alarming)} ${map.unit}${map.worst === "low" ? " or lower" : " or higher"}`), el("span", {}, "grey: nothing known")),
      canvas,
      el("div", { class: "axis" }, el("span", {}, clock(map.t0_ms)), el("span", {}, `${map.labels.length.toLocaleString("en")} ${map.what}${map.group > 1 ? `, ${map.group} to a line` : ""}; a column is ${number(map.cell_ms / 1000)} s`), el("span", {}, clock(map.t0_ms + map.columns * map.cell_ms))),
      tip);
    into.append(holder);
    canvas.width = map.columns;
    canvas.height = map.rows;
    canvas.style.height = `${Math.min(560, Math.max(120, map.rows * (map.rows <= 16 ? 14 : map.rows <= 128 ? 4 : 2)))}px`;
    const paint = () => {
      const context = canvas.getContext("2d"), image = context.createImageData(map.columns, map.rows);
      const none = style("--none").match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
      // Bytes lie red first, so that a number has them last first.
      const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
      const colours = Uint32Array.from({ length: 256 }, (_, value) => packed(value === 255 ? none : ramp(map.worst === "low" ? 1 - value / 254 : value / 254)));
      const pixels = new Uint32Array(image.data.buffer);
      for (let i = 0; i < cells.length; i++) pixels[i] = colours[cells[i]];
      context.putImageData(image, 0, 0);
      const bar = scale.getContext("2d"), strip = bar.createImageData(256, 1);
      for (let i = 0; i < 256; i++) strip.data.set([...ramp(i / 255), 255], 4 * i);
      bar.putImageData(strip, 0, 0);
    };
    const told = (row, column) => {
      const value = cells[row * map.columns + column];
      const index = row * map.group + (who ? who[row * map.columns + column] : 0);
      const name = map.labels[Math.min(index, map.labels.length - 1)];
      const at = clock(map.t0_ms + column * map.cell_ms);
      return value === 255 ? `${at}: ${map.group > 1 ? `${map.labels[row * map.group]} and ${map.group - 1} more` : name}: nothing known` : `${at}: ${name}: ${number(map.low + (value / 254) * (map.high - map.low))} ${map.unit}`;
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(map.columns - 1, Math.floor(((event.clientX - box.left) / box.width) * map.columns));
      const row = Math.min(map.rows - 1, Math.floor(((event.clientY - box.top) / box.height) * map.rows));
      if (row >= 0 && column >= 0) tip.textContent = told(row, column);
    });
    paint();
    drawn.push([holder, paint]);
    return worst;
  }

  // Which rows stand out: by how many of their cells are in the upper half of the scale.
  function worst(map, cells, who) {
    const counts = new Map(), isLow = map.worst === "low";
    for (let row = 0; row < map.rows; row++) for (let column = 0; column < map.columns; column++) {
      const value = cells[row * map.columns + column];
      if (value === 255 || (isLow ? 254 - value : value) < 127) continue;
      const index = row * map.group + (who ? who[row * map.columns + column] : 0);
      const known = counts.get(index) || { cells: 0, from: column, to: column };
      counts.set(index, { cells: known.cells + 1, from: Math.min(known.from, column), to: column });
    }
    return [...counts].sort((a, b) => b[1].cells - a[1].cells).slice(0, 8).map(([index, c]) => ({
      label: map.labels[Math.min(index, map.labels.length - 1)], cells: c.cells, from: map.t0_ms + c.from * map.cell_ms, to: map.t0_ms + (c.to + 1) * map.cell_ms }));
  }

  const again = () => drawn.forEach(([holder, draw]) => { if (holder.isConnected) draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth, due = 0;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(due); due = setTimeout(again, 150); } });
  return { lines, heat, el, clock, day, number };
})();
